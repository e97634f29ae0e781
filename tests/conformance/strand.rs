//! Streams that freed memory and do nothing more, whatever the reason: what that keeps from others.

use crate::machine::{Block, D0, MIB, Machine, Need, Rig};
use millpond::{Headroom, Pool, Reuse, Stream};

const GIB: u64 = 1 << 30;
const UNIT: u64 = 2 * MIB;

/// Blocks of large pages can be large; of small pages there would be too many.
fn size<M>(rig: &Rig<M>) -> u64 {
    if rig.page < MIB { 64 * MIB } else { 2 * GIB }
}

/// Streams that each used memory once and then idle: the next one gets it.
pub fn idle_streams_strand_nothing<M: Machine>(make: impl Fn(u16, u64) -> M) {
    for reuse in [Reuse::Completed, Reuse::Wait] {
        for keep in [true, false] {
            let rig = Rig::new(&make, 1, 80 * GIB);
            rig.needs(Need::Open);
            rig.needs(Need::OnDemand);
            let pool = rig.plain_builder().reuse(reuse).build().unwrap();
            let bytes = size(&rig);
            let mut idle = Vec::new();
            for _ in 0..16 {
                let stream = pool.stream(D0).unwrap();
                rig.touch(&stream, bytes);
                idle.extend(keep.then_some(stream));
                rig.machine.pass_time();
            }
            let most = pool.stats().devices[0].peak_reserved_bytes;
            // Of a stream that did not end the pool learns that it is idle by an event that it
            // records when it is first asked: policy `Completed` may take one block more till then, and
            // so may any where nothing moves, and there is no bound to what is held.
            let spare = if keep && (reuse == Reuse::Completed || !rig.moves) { bytes } else { 0 };
            let bound = bytes + bytes / 10 + spare;
            assert!(most <= bound, "{reuse:?}, kept {keep}: {most} for {bytes}");
            assert_eq!(rig.driver.calls("synchronize"), 0);
            drop(idle);
            rig.done(pool);
        }
    }
}

/// Ten thousand streams, each used once: nothing grows with them.
pub fn ten_thousand_streams<M: Machine>(make: impl Fn(u16, u64) -> M) {
    let rig = Rig::new(make, 1, 256 * MIB);
    rig.needs(Need::Open);
    let pool = rig.builder().headroom(Headroom::Share(0.0)).build().unwrap();
    const SOME: u64 = 1000;
    let mut first = (0, 0);
    for number in 1..=10_000 {
        let stream = pool.stream(D0).unwrap();
        rig.touch(&stream, 5000);
        rig.touch(&stream, UNIT);
        assert!(rig.gets_done(&stream));
        drop(stream);
        if number % 10 == 0 {
            rig.machine.pass_time();
        }
        if number == SOME || number == 10_000 {
            let stats = pool.stats();
            let (reserved, bytes) = (stats.devices[0].reserved_bytes, stats.bookkeeping_bytes);
            if number == SOME {
                first = (reserved, bytes);
            }
            assert_eq!(reserved, first.0, "after {number}");
            assert!(bytes <= first.1 + (4 << 10), "{} to {bytes} bytes", first.1);
        }
    }
    rig.done(pool);
}

/// Two hundred streams at once, whose caches mostly have tables: these go when the streams do.
pub fn ended_streams_keep_no_tables<M: Machine>(make: impl Fn(u16, u64) -> M) {
    let rig = Rig::new(make, 1, 256 * MIB);
    rig.needs(Need::Caches);
    let pool = rig.pool();
    let streams: Vec<Stream> = (0..200).map(|_| pool.stream(D0).unwrap()).collect();
    for stream in &streams {
        // The first block finds no table for its hint, and the miss that follows makes one.
        rig.touch(stream, UNIT);
        rig.touch(stream, 2 * UNIT);
    }
    let bytes = || pool.stats().bookkeeping_bytes;
    let before = bytes();
    drop(streams);
    let kept = bytes();
    assert!(kept + (100 << 10) <= before, "of {before} bytes {kept} are kept for ended streams");
    rig.done(pool);
}

const CAPACITY: u64 = 160 * UNIT;

/// A pool where a stream hangs that has freed a hundred blocks, all in pages of their own, and a
/// few small ones; and what cannot be had of it as long as it hangs.
fn with_a_stuck_stream<M: Machine>(rig: &Rig<M>, reuse: Reuse) -> (Pool, Stream, u64) {
    let pool = rig.builder().reuse(reuse).build().unwrap();
    let stuck = pool.stream(D0).unwrap();
    rig.machine.hold(stuck.handle());
    let mut held: Vec<Block> = (0..100).map(|_| rig.get(&stuck, UNIT)).collect();
    held.extend((0..3).map(|_| rig.get(&stuck, 20_000)));
    held.into_iter().for_each(|block| rig.free(&stuck, block));
    let small = (3 * 20_480u64).next_multiple_of(rig.page);
    (pool, stuck, 100 * UNIT + small)
}

/// A stream hangs, and nobody else does: the others go on with what is left, all of it.
pub fn a_stuck_stream_holds_up_nobody<M: Machine>(make: impl Fn(u16, u64) -> M) {
    for reuse in [Reuse::Completed, Reuse::Wait] {
        let rig = Rig::new(&make, 1, CAPACITY);
        let (pool, stuck, lost) = with_a_stuck_stream(&rig, reuse);
        let streams: [Stream; 3] = std::array::from_fn(|_| pool.stream(D0).unwrap());
        for round in 0..200 {
            let stream = &streams[round % 3];
            let blocks = [700, 20_000, UNIT, 3 * UNIT].map(|bytes| rig.get(stream, bytes));
            blocks.into_iter().for_each(|block| rig.free(stream, block));
            if round % 20 == 0 {
                rig.machine.pass_time();
            }
        }
        for stream in &streams {
            assert!(rig.gets_done(stream), "{reuse:?}: a stream waits for the one that hangs");
        }
        // All that is left can be had. A page is lost where small blocks of others are cached.
        let room = (CAPACITY - lost) / UNIT - 1;
        let held: Vec<Block> =
            (0..room).map(|place| rig.get(&streams[place as usize % 3], UNIT)).collect();
        for stream in &streams {
            assert!(rig.gets_done(stream), "{reuse:?}: a stream waits for the one that hangs");
        }
        pool.check_invariants_at(millpond::Level::Full);
        for (place, block) in held.into_iter().enumerate() {
            rig.free(&streams[place % 3], block);
        }
        rig.assert_quiet();
        rig.machine.let_go(stuck.handle());
        rig.touch(&streams[0], CAPACITY - UNIT);
        drop((stuck, streams));
        rig.done(pool);
    }
}

/// What hangs is refused, not waited for, where streams do not wait for each other; and it is there
/// again when the stream goes on.
pub fn memory_of_a_stuck_stream_comes_back<M: Machine>(make: impl Fn(u16, u64) -> M) {
    let rig = Rig::new(make, 1, CAPACITY);
    rig.needs(Need::OnDemand);
    let (pool, stuck, lost) = with_a_stuck_stream(&rig, Reuse::Completed);
    let other = pool.stream(D0).unwrap();
    let whole = CAPACITY - lost;
    rig.touch(&other, whole);
    assert!(rig.try_get(&other, whole + rig.page).is_err());
    assert!(rig.gets_done(&other));
    // It goes on using what it freed itself.
    rig.touch(&stuck, 3 * UNIT);
    rig.machine.let_go(stuck.handle());
    rig.touch(&other, CAPACITY - rig.page);
    drop((stuck, other));
    rig.done(pool);
}
