//! Who may get freed memory, and when.

use crate::machine::{Block, D0, MIB, Machine, Need, Rig};
use crate::support::Rng;
use millpond::{Headroom, Reuse, Stream};

const SIZES: [u64; 6] = [1, 700, 40_000, 900_000, 2 * MIB, 7 * MIB + 5];

/// A stream gets its own memory back at once: no event is needed.
pub fn same_stream_at_once<M: Machine>(make: impl Fn(u16, u64) -> M) {
    let rig = Rig::new(make, 1, 256 * MIB);
    rig.needs(Need::OnDemand);
    let pool = rig.pool();
    let stream = pool.stream(D0).unwrap();
    for bytes in SIZES {
        let first = rig.touch(&stream, bytes);
        for _ in 0..20 {
            assert_eq!(rig.touch(&stream, bytes), first, "{bytes} bytes");
        }
    }
    assert_eq!(rig.driver.event_calls(), 0);
    drop(stream);
    rig.done(pool);
}

/// Two streams hand the same few blocks to and fro.
pub fn cross_stream_only_when_ordered<M: Machine>(make: impl Fn(u16, u64) -> M) {
    for reuse in [Reuse::SameStream, Reuse::Completed, Reuse::Wait] {
        let rig = Rig::new(&make, 1, 64 * MIB);
        let pool = rig.builder().reuse(reuse).build().unwrap();
        let streams = [0; 3].map(|_| pool.stream(D0).unwrap());
        for bytes in SIZES {
            for round in 0..12 {
                let held: Vec<Block> =
                    (0..3).map(|_| rig.get(&streams[round % 3], bytes)).collect();
                held.into_iter().for_each(|block| rig.free(&streams[round % 3], block));
            }
            rig.machine.pass_time();
        }
        drop(streams);
        rig.done(pool);
    }
}

/// A free whose reuse by another stream would race, many times over, in memory that is short.
pub fn short_memory_moves_between_streams<M: Machine>(make: impl Fn(u16, u64) -> M) {
    for reuse in [Reuse::SameStream, Reuse::Completed, Reuse::Wait] {
        let rig = Rig::new(&make, 1, 16 * MIB);
        let pool = rig.builder().reuse(reuse).build().unwrap();
        let streams: Vec<Stream> = (0..4).map(|_| pool.stream(D0).unwrap()).collect();
        let (mut rng, mut held) = (Rng::new(7), Vec::new());
        for _ in 0..400 {
            let stream = &streams[rng.index(4)];
            let bytes = rng.size(3 * MIB);
            match rig.try_get(stream, bytes) {
                Ok(block) => held.push((stream, block)),
                Err(_) => assert!(!held.is_empty(), "nothing is held, and no memory for {bytes}"),
            }
            if held.len() > 6 {
                let (stream, block) = held.swap_remove(rng.index(held.len()));
                rig.free(stream, block);
            }
        }
        pool.check_invariants_at(millpond::Level::Full);
        held.into_iter().for_each(|(stream, block)| rig.free(stream, block));
        drop(streams);
        rig.done(pool);
    }
}

/// `SameStream` asks about nothing and gives nothing away, until an order is known.
pub fn policy_same_stream<M: Machine>(make: impl Fn(u16, u64) -> M) {
    let rig = Rig::new(make, 1, 256 * MIB);
    let pool = rig.builder().reuse(Reuse::SameStream).build().unwrap();
    let [s, t] = [0; 2].map(|_| pool.stream(D0).unwrap());
    let bytes = 2 * rig.page.max(MIB);
    let freed = rig.touch(&s, bytes);
    rig.machine.pass_time();
    let other = rig.get(&t, bytes);
    assert_ne!(other.address(), freed);
    assert_eq!(rig.driver.event_calls(), 0);
    assert_eq!(rig.touch(&s, bytes), freed);
    t.wait(&s).unwrap();
    let before = rig.driver.event_calls();
    assert_eq!(rig.touch(&t, bytes), freed);
    assert_eq!(rig.driver.event_calls(), before);
    rig.free(&t, other);
    drop((s, t));
    rig.done(pool);
}

/// `Completed` gives memory away once its work is done, and makes no stream wait.
pub fn policy_completed<M: Machine>(make: impl Fn(u16, u64) -> M) {
    let rig = Rig::new(make, 1, 256 * MIB);
    rig.needs(Need::OnDemand);
    let pool = rig.builder().reuse(Reuse::Completed).build().unwrap();
    let [s, t] = [0; 2].map(|_| pool.stream(D0).unwrap());
    let bytes = 8 * rig.page.max(MIB);
    let freed = rig.touch(&s, bytes);
    let first = rig.get(&t, bytes);
    if rig.machine.holds_work() {
        assert_ne!(first.address(), freed);
    }
    rig.machine.pass_time();
    let second = rig.get(&t, bytes);
    assert!(first.address() == freed || second.address() == freed);
    assert_eq!(rig.driver.calls("wait"), 0);
    rig.free(&t, first);
    rig.free(&t, second);
    drop((s, t));
    rig.done(pool);
}

/// `Wait` gives memory away at once, the new stream waiting for the old one where need be: rather
/// than to hold more than was live.
pub fn policy_wait<M: Machine>(make: impl Fn(u16, u64) -> M) {
    let rig = Rig::new(make, 1, 256 * MIB);
    rig.needs(Need::OnDemand);
    let pool = rig.builder().reuse(Reuse::Wait).headroom(Headroom::Share(0.0)).build().unwrap();
    let [s, t] = [0; 2].map(|_| pool.stream(D0).unwrap());
    let bytes = 2 * rig.page.max(MIB);
    let freed = rig.touch(&s, bytes);
    assert_eq!(rig.touch(&t, bytes), freed);
    if rig.machine.holds_work() {
        assert_eq!(rig.driver.calls("wait"), 1);
    }
    assert_eq!(rig.driver.calls("synchronize"), 0);
    // What one wait covered needs no second one: T knows.
    let more = rig.driver.calls("wait");
    let back = rig.get(&t, bytes);
    assert_eq!(back.address(), freed);
    assert_eq!(rig.driver.calls("wait"), more);
    rig.free(&t, back);
    drop((s, t));
    rig.done(pool);
}

/// Small blocks sitting in one thread's cache serve other streams and sizes when memory is short.
pub fn cached_blocks_are_not_stranded<M: Machine>(make: impl Fn(u16, u64) -> M) {
    let rig = Rig::new(make, 1, 8 * MIB);
    let pool = rig.pool();
    let [s, t] = [0; 2].map(|_| pool.stream(D0).unwrap());
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for bytes in [512, 3000, 60_000, 300_000] {
                let held: Vec<Block> = (0..7).map(|_| rig.get(&s, bytes)).collect();
                held.into_iter().for_each(|block| rig.free(&s, block));
            }
        });
    });
    let all = rig.get(&t, 8 * MIB);
    rig.free(&t, all);
    drop((s, t));
    rig.done(pool);
}
