//! Machines without virtual memory management: memory comes in segments, and what that means.

use crate::machine::{Block, D0, MIB, Machine, Need, Rig, refusal, reserved};
use crate::support::Rng;
use millpond::{Error, Reuse, size};
use std::sync::Arc;
use std::time::{Duration, Instant};

const POLICIES: [Reuse; 3] = [Reuse::SameStream, Reuse::Completed, Reuse::Wait];

/// Several requests share a segment; a large one has its own.
pub fn segments_are_shared_and_cut<M: Machine>(make: impl Fn(u16, u64) -> M) {
    let rig = Rig::new(make, 1, 1 << 30);
    rig.needs(Need::Open);
    rig.needs(Need::OnDemand);
    let pool = rig.pool();
    let s = pool.stream(D0).unwrap();
    let small = rig.get(&s, 700);
    assert_eq!(reserved(&pool), 2 * MIB);
    let [a, b, c] = [3, 9, 7].map(|mib| rig.get(&s, mib * MIB));
    assert_eq!(reserved(&pool), 22 * MIB);
    assert_eq!((b.address(), c.address()), (a.address() + 3 * MIB, a.address() + 12 * MIB));
    let own = rig.get(&s, 40 * MIB);
    assert_eq!(reserved(&pool), 62 * MIB);
    let freed = b.address();
    rig.free(&s, b);
    let [d, e] = [5, 4].map(|mib| rig.get(&s, mib * MIB));
    assert_eq!((d.address(), e.address()), (freed, freed + 5 * MIB));
    assert_eq!((rig.driver.calls("allocate"), rig.mapping_calls()), (3, 0));
    assert_eq!((rig.driver.calls("reserve"), pool.stats().devices[0].ladder.created), (0, 3));
    [small, a, c, own, d, e].into_iter().for_each(|block| rig.free(&s, block));
    drop(s);
    rig.done(pool);
}

/// Segments that are neighbours do not become one: no block lies in two allocations.
pub fn blocks_lie_in_one_segment<M: Machine>(make: impl Fn(u16, u64) -> M) {
    let rig = Rig::new(make, 1, 24 * MIB);
    rig.needs(Need::OnDemand);
    rig.needs(Need::Neighbours);
    let pool = rig.pool();
    let s = pool.stream(D0).unwrap();
    let [a, b] = [0; 2].map(|_| rig.get(&s, 12 * MIB));
    assert_eq!(b.address(), a.address() + 12 * MIB, "the machine's allocations are neighbours");
    [a, b].into_iter().for_each(|block| rig.free(&s, block));
    // Merges what may be merged.
    rig.touch(&s, 6 * MIB);
    pool.check_invariants_at(millpond::Level::Full);
    assert_eq!(rig.driver.calls("free"), 0);
    rig.touch(&s, 14 * MIB);
    assert_eq!((rig.driver.calls("free"), reserved(&pool)), (2, 14 * MIB));
    drop(s);
    rig.done(pool);
}

/// What is idle goes back in whole segments; what is used in part, or in flight, stays.
pub fn whole_segments_go_back<M: Machine>(make: impl Fn(u16, u64) -> M) {
    let rig = Rig::new(make, 1, 64 * MIB);
    rig.needs(Need::OnDemand);
    let pool = rig.pool();
    let s = pool.stream(D0).unwrap();
    let [a, b, c, d] = [12, 12, 3, 4].map(|mib| rig.get(&s, mib * MIB));
    [a, c].into_iter().for_each(|block| rig.free(&s, block));
    assert_eq!(pool.trim(D0, u64::MAX).unwrap(), 44 * MIB);
    let kept = pool.trim(D0, 0).unwrap();
    if rig.machine.holds_work() {
        assert_eq!((kept, rig.driver.calls("free")), (44 * MIB, 0), "in flight, and given back");
    }
    rig.assert_quiet();
    assert_eq!(rig.trim_idle(&pool, D0, 0), 32 * MIB);
    pool.check_invariants_at(millpond::Level::Full);
    assert_eq!(pool.stats().devices[0].peak_reserved_bytes, 44 * MIB);
    [b, d].into_iter().for_each(|block| rig.free(&s, block));
    assert_eq!(rig.trim_idle(&pool, D0, 0), 0);
    assert_eq!((rig.driver.calls("allocate"), rig.driver.calls("free")), (3, 3));
    rig.touch(&s, 12 * MIB);
    drop(s);
    rig.done(pool);
}

/// Each call may wait for the device: as few segments go as meet the target.
pub fn targets_are_met_with_few_segments<M: Machine>(make: impl Fn(u16, u64) -> M) {
    let rig = Rig::new(make, 1, 64 * MIB);
    rig.needs(Need::OnDemand);
    let pool = rig.pool();
    let s = pool.stream(D0).unwrap();
    let held = [10, 12, 14, 16].map(|mib| rig.get(&s, mib * MIB));
    held.into_iter().for_each(|block| rig.free(&s, block));
    for (target, left, calls) in [(52, 52, 0), (41, 40, 1), (13, 10, 3), (9, 0, 4)] {
        assert_eq!(rig.trim_idle(&pool, D0, target * MIB), left * MIB, "a target of {target}");
        assert_eq!(rig.driver.calls("free"), calls, "a target of {target}");
    }
    drop(s);
    rig.done(pool);
}

/// Nothing goes back while there is room for another segment, and then no more than it takes.
pub fn nothing_goes_back_before_it_must<M: Machine>(make: impl Fn(u16, u64) -> M) {
    let rig = Rig::new(make, 1, 64 * MIB);
    rig.needs(Need::OnDemand);
    let pool = rig.pool();
    let s = pool.stream(D0).unwrap();
    [10, 12, 14, 16].into_iter().for_each(|mib| _ = rig.touch(&s, mib * MIB));
    assert_eq!((reserved(&pool), rig.driver.calls("free")), (52 * MIB, 0));
    rig.touch(&s, 20 * MIB);
    assert_eq!((reserved(&pool), rig.driver.calls("free")), (62 * MIB, 1));
    assert_eq!(pool.stats().devices[0].ladder.gathered, 1);
    // What no release could serve releases nothing.
    let held = rig.get(&s, 20 * MIB);
    refusal(rig.try_get(&s, 46 * MIB));
    assert_eq!(rig.driver.calls("free"), 1);
    rig.free(&s, held);
    drop(s);
    rig.done(pool);
}

/// Memory that another stream has in flight is waited for, and goes back for what fits nowhere.
pub fn idle_segments_make_room<M: Machine>(make: impl Fn(u16, u64) -> M) {
    for reuse in POLICIES {
        let rig = Rig::new(&make, 1, 24 * MIB);
        rig.needs(Need::OnDemand);
        let pool = rig.builder().reuse(reuse).build().unwrap();
        let [s, t] = [0; 2].map(|_| pool.stream(D0).unwrap());
        for round in 0..3 {
            let held = [0; 2].map(|_| rig.get(&s, 12 * MIB));
            held.into_iter().for_each(|block| rig.free(&s, block));
            rig.touch(&t, 20 * MIB);
            assert_eq!(rig.driver.calls("free"), 3 * round + 2);
            assert_eq!(rig.trim_idle(&pool, D0, 0), 0);
        }
        let small: Vec<Block> = (0..30).map(|_| rig.get(&s, 60_000)).collect();
        small.into_iter().for_each(|block| rig.free(&s, block));
        rig.touch(&t, 24 * MIB);
        assert_eq!(reserved(&pool), 24 * MIB);
        drop((s, t));
        rig.done(pool);
    }
}

/// With no room for a segment, idle memory for large blocks serves small ones, and the other way
/// round.
pub fn each_region_serves_the_other<M: Machine>(make: impl Fn(u16, u64) -> M) {
    for reuse in POLICIES {
        let rig = Rig::new(&make, 1, 22 * MIB);
        let pool = rig.builder().reuse(reuse).build().unwrap();
        let [s, t] = [0; 2].map(|_| pool.stream(D0).unwrap());
        rig.touch(&t, 9 * MIB);
        let large = rig.get(&s, 3 * MIB);
        let small: Vec<Block> = (0..30).map(|_| rig.get(&s, 500_000)).collect();
        assert_eq!((reserved(&pool), rig.driver.calls("free")), (22 * MIB, 0));
        pool.check_invariants_at(millpond::Level::Full);
        small.into_iter().for_each(|block| rig.free(&s, block));
        rig.free(&s, large);
        rig.touch(&t, 20 * MIB);
        drop((s, t));
        rig.done(pool);

        let rig = Rig::new(&make, 1, 4 * MIB);
        let pool = rig.builder().reuse(reuse).build().unwrap();
        let [s, t] = [0; 2].map(|_| pool.stream(D0).unwrap());
        let small = rig.get(&s, 1000);
        let [own, other] = [1800 << 10, MIB].map(|bytes| rig.get(&t, bytes));
        assert!((small.address()..small.address() + 2 * MIB).contains(&other.address()));
        pool.check_invariants_at(millpond::Level::Full);
        [own, other].into_iter().for_each(|block| rig.free(&t, block));
        rig.free(&s, small);
        drop((s, t));
        rig.done(pool);
    }
}

/// Where the driver has not enough for the segment that would be best, or the limit, the least is
/// taken that serves the request.
pub fn the_least_will_do<M: Machine>(make: impl Fn(u16, u64) -> M) {
    let rig = Rig::new(make, 1, 64 * MIB);
    rig.needs(Need::OnDemand);
    rig.needs(Need::OwnDevice);
    for (capacity, others, want) in [(64, 58, 4), (12, 0, 12), (5, 0, 4)] {
        let theirs = (others > 0).then(|| rig.raw().allocate(D0, others * MIB).unwrap());
        let pool = rig.builder().capacity(capacity * MIB).build().unwrap();
        let s = pool.stream(D0).unwrap();
        let block = rig.get(&s, 3 * MIB);
        assert_eq!(reserved(&pool), want * MIB, "of {capacity} with {others} in use");
        let report = refusal(rig.try_get(&s, 13 * MIB));
        assert_eq!((report.live, report.reserved), (3 * MIB, want * MIB));
        rig.free(&s, block);
        theirs.into_iter().for_each(|address| rig.raw().free(D0, address).unwrap());
        drop(s);
        pool.check_invariants_at(millpond::Level::Full);
    }
    rig.assert_quiet();
    rig.assert_nothing_leaked();
}

/// A segment with pinned memory does not go back, whatever for, until the last pin is gone.
pub fn pinned_segments_stay<M: Machine>(make: impl Fn(u16, u64) -> M) {
    let rig = Rig::new(make, 1, 24 * MIB);
    rig.needs(Need::OnDemand);
    let pool = rig.pool();
    let s = pool.stream(D0).unwrap();
    let [a, b] = [0; 2].map(|_| rig.get(&s, 12 * MIB));
    let at = a.address();
    let mut pins = vec![pool.pin(at).unwrap(), pool.pin(at).unwrap()];
    [a, b].into_iter().for_each(|block| rig.free(&s, block));
    assert_eq!(rig.trim_idle(&pool, D0, 0), 12 * MIB, "a pinned segment went back");
    let report = refusal(rig.try_get(&s, 20 * MIB));
    assert_eq!((report.reserved, report.largest_free), (12 * MIB, 12 * MIB));
    // It serves where it is.
    assert_eq!(rig.touch(&s, 12 * MIB), at);
    pins.pop();
    assert_eq!(rig.trim_idle(&pool, D0, 0), 12 * MIB, "a pin was undone with another");
    pins.pop();
    rig.touch(&s, 20 * MIB);
    assert_eq!(rig.trim_idle(&pool, D0, 0), 0);
    drop(s);
    rig.done(pool);
}

/// Above the high watermark idle segments go back until the low one is reached.
pub fn watermarks_take_segments<M: Machine>(make: impl Fn(u16, u64) -> M) {
    let rig = Rig::new(make, 1, 128 * MIB);
    rig.needs(Need::OnDemand);
    let pool = rig.builder().watermarks(20 * MIB, 40 * MIB).build().unwrap();
    let [s, t] = [0; 2].map(|_| pool.stream(D0).unwrap());
    let mut small = Vec::new();
    let mut misses = |count: usize| {
        for miss in 0..count {
            small.push(rig.get(&t, 600));
            if miss % 50 == 0 {
                rig.machine.pass_time();
            }
        }
    };
    let mut held: Vec<Block> = (0..4).map(|_| rig.get(&s, 12 * MIB)).collect();
    misses(200);
    assert_eq!((reserved(&pool), rig.driver.calls("free")), (50 * MIB, 0), "nothing is idle");
    held.drain(1..).for_each(|block| rig.free(&s, block));
    misses(200);
    assert_eq!((reserved(&pool), rig.driver.calls("free")), (14 * MIB, 3));
    // Between the marks nothing goes.
    held.extend((0..2).map(|_| rig.get(&s, 12 * MIB)));
    held.drain(..).for_each(|block| rig.free(&s, block));
    misses(200);
    assert_eq!(reserved(&pool), 38 * MIB);
    small.into_iter().for_each(|block| rig.free(&t, block));
    drop((s, t));
    rig.done(pool);
}

/// With no room left a stream waits on the device for memory that fits, rather than that the host does,
/// or segments go.
pub fn streams_wait_before_segments_go<M: Machine>(make: impl Fn(u16, u64) -> M) {
    let rig = Rig::new(make, 1, 40 * MIB);
    let pool = rig.pool();
    let [s, t] = [0; 2].map(|_| pool.stream(D0).unwrap());
    let held = [0; 2].map(|_| rig.get(&s, 20 * MIB));
    let freed = held.each_ref().map(Block::address);
    held.into_iter().for_each(|block| rig.free(&s, block));
    assert!(freed.contains(&rig.touch(&t, 18 * MIB)));
    if rig.machine.holds_work() {
        assert_eq!(rig.driver.calls("wait"), 1);
    }
    assert_eq!((rig.driver.calls("synchronize"), rig.driver.calls("free")), (0, 0));
    drop((s, t));
    rig.done(pool);
}

/// While a stream hangs no segment goes back, since the driver would wait for it; what fits is served,
/// nobody waits for long, and afterwards all is as before.
pub fn a_device_that_hangs_is_left_alone<M: Machine>(make: impl Fn(u16, u64) -> M) {
    for reuse in [Reuse::SameStream, Reuse::Completed] {
        let rig = Rig::new(&make, 1, 64 * MIB);
        rig.needs(Need::OnDemand);
        let builder = rig.builder().reuse(reuse).host_wait(Duration::from_millis(100));
        let pool = builder.watermarks(0, 20 * MIB).build().unwrap();
        let [stuck, t] = [0; 2].map(|_| pool.stream(D0).unwrap());
        rig.machine.hold(stuck.handle());
        let theirs = rig.get(&stuck, 700);
        let start = Instant::now();
        for _ in 0..20 {
            for mib in [10, 12, 14] {
                rig.touch(&t, mib * MIB);
            }
            rig.machine.pass_time();
            assert_eq!(pool.trim(D0, 0), Ok(38 * MIB), "a trim while a stream hangs");
        }
        for _ in 0..5 {
            let report = refusal(rig.try_get(&t, 50 * MIB));
            assert_eq!((report.reserved, report.live), (38 * MIB, 700));
        }
        let small: Vec<Block> = (0..300).map(|_| rig.get(&t, 600)).collect();
        assert_eq!(rig.driver.calls("free"), 0, "a call that hangs");
        assert!(rig.gets_done(&t));
        assert!(start.elapsed() < Duration::from_secs(20), "somebody waits for what hangs");
        pool.check_invariants_at(millpond::Level::Full);
        rig.machine.let_go(stuck.handle());
        // So the pool's patience, which is short, does not depend on how fast the device is.
        assert!(rig.gets_done(&stuck) && rig.gets_done(&t));
        rig.touch(&t, 50 * MIB);
        small.into_iter().for_each(|block| rig.free(&t, block));
        rig.free(&stuck, theirs);
        assert_eq!(rig.trim_idle(&pool, D0, 0), 0);
        drop((stuck, t));
        rig.done(pool);
    }
}

/// A capture that begins while the host waits for the device keeps segments from going back.
pub fn captures_begin_while_a_device_is_waited_for<M: Machine>(make: impl Fn(u16, u64) -> M) {
    let rig = Rig::new(make, 1, 64 * MIB);
    rig.needs(Need::OnDemand);
    let pool = rig.pool();
    let [s, t] = [0; 2].map(|_| pool.stream(D0).unwrap());
    rig.touch(&s, 12 * MIB);
    // The pool learns that the segment is idle.
    for _ in 0..3 {
        assert_eq!(pool.trim(D0, u64::MAX).unwrap(), 12 * MIB);
        rig.machine.pass_time();
    }
    let memory = pool.graph_memory().unwrap();
    // Before segments go each stream is sealed, and asked: `s` captures when `t`'s turn has come.
    let (begun, capture) = std::sync::mpsc::channel();
    let (of, driver) = ((memory.clone(), s.clone()), Arc::clone(&rig.driver));
    rig.driver.during("record", move || {
        driver.during("record", move || begun.send(of.0.capture(&of.1).unwrap()).unwrap());
    });
    let kept = pool.trim(D0, 0).unwrap();
    let capture = capture.try_recv().expect("a seal of each stream");
    assert_eq!((kept, rig.driver.calls("free")), (12 * MIB, 0), "given back in a capture");
    drop((capture, memory));
    assert_eq!(rig.trim_idle(&pool, D0, 0), 0);
    drop((s, t));
    rig.done(pool);
}

/// A driver that gives an address twice: the second time nothing is taken, nor is what is there given back.
pub fn an_address_given_twice<M: Machine>(make: impl Fn(u16, u64) -> M) {
    let rig = Rig::new(make, 1, 64 * MIB);
    rig.needs(Need::OnDemand);
    let pool = rig.pool();
    let s = pool.stream(D0).unwrap();
    let block = rig.get(&s, 12 * MIB);
    for address in [block.address(), block.address() + 2 * MIB, block.address() - 2 * MIB] {
        rig.driver.allocate_at(address);
        let refused = rig.try_get(&s, 14 * MIB);
        assert!(matches!(&refused, Err(Error::Driver(error)) if error.code == -1), "{refused:?}");
        assert_eq!((rig.driver.calls("free"), reserved(&pool)), (0, 12 * MIB));
        pool.check_invariants_at(millpond::Level::Full);
    }
    rig.free(&s, block);
    drop(s);
    rig.done(pool);
}

/// Random blocks at the limit: what is refused fits no idle extent, nor what is left of the limit.
pub fn memory_at_the_limit_goes_round<M: Machine>(make: impl Fn(u16, u64) -> M) {
    for (seed, reuse) in (0..).zip(POLICIES) {
        let rig = Rig::new(&make, 1, 96 * MIB);
        let pool = rig.builder().reuse(reuse).build().unwrap();
        let streams = [0; 3].map(|_| pool.stream(D0).unwrap());
        let (mut rng, mut held, mut refused) = (Rng::new(seed), Vec::new(), 0);
        for round in 0..400 {
            let stream = &streams[rng.index(3)];
            let bytes = rng.size(40 * MIB);
            match rig.try_get(stream, bytes) {
                Ok(block) => held.push((stream, block)),
                Err(Error::OutOfMemory(report)) => {
                    refused += 1;
                    assert!(report.largest_free < size::granted(bytes), "{report:?}");
                    let least = bytes.next_multiple_of(rig.page);
                    assert!(report.limit - report.reserved < least, "{report:?}");
                    assert!(report.pending.is_empty(), "{report:?}");
                    for _ in 0..rng.index(held.len()) + 1 {
                        let (stream, block) = held.swap_remove(rng.index(held.len()));
                        rig.free(stream, block);
                    }
                }
                Err(error) => panic!("{error}"),
            }
            if round % 40 == 0 {
                pool.check_invariants_at(millpond::Level::Full);
            }
        }
        assert!(refused > 10, "{refused} were refused");
        held.into_iter().for_each(|(stream, block)| rig.free(stream, block));
        streams.iter().for_each(|stream| _ = rig.touch(stream, 96 * MIB));
        drop(streams);
        rig.done(pool);
    }
}
