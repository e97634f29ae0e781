//! Limits: what is refused and with which words, what is waited for, what is given back.

use crate::machine::{Block, D0, D1, MIB, Machine, Need, Rig, refusal};
use millpond::{Error, Reuse};

const POLICIES: [Reuse; 3] = [Reuse::SameStream, Reuse::Completed, Reuse::Wait];

/// The report's numbers are true, and freeing makes the same request succeed.
pub fn out_of_memory_tells_the_truth<M: Machine>(make: impl Fn(u16, u64) -> M) {
    let rig = Rig::new(make, 2, 64 * MIB);
    let page = rig.page.max(MIB);
    let limit = 6 * page;
    let pool = rig.builder().device_capacity(D0, limit + rig.page - 1).build().unwrap();
    let [s, t] = [0; 2].map(|_| pool.stream(D0).unwrap());
    let elsewhere = pool.stream(D1).unwrap();
    let other = rig.get(&elsewhere, 8 * page);
    let big = rig.get(&s, 4 * page - 100);
    let one = rig.get(&s, page);
    let report = refusal(rig.try_get(&t, 3 * page));
    let stats = &pool.stats().devices[0];
    let live = 5 * page - 100;
    assert_eq!((report.device, report.stream, report.requested), (D0, t.id(), 3 * page));
    assert_eq!((report.live, stats.live_bytes), (live, live));
    assert_eq!((report.limit, stats.limit_bytes), (limit, limit));
    assert_eq!(report.reserved, stats.reserved_bytes);
    assert!((live..=limit).contains(&report.reserved), "{report:?}");
    assert_eq!(report.free + live + 100, report.reserved, "{report:?}");
    assert!(report.largest_free <= report.free, "{report:?}");
    assert!(Error::OutOfMemory(Box::new(report)).to_string().contains("out of memory"));

    // With a page free, it is counted as such wherever it is by now.
    rig.free(&s, one);
    let report = refusal(rig.try_get(&t, 3 * page));
    assert_eq!(report.live, 4 * page - 100);
    assert_eq!(report.free + 4 * page, report.reserved, "{report:?}");
    pool.check_invariants_at(millpond::Level::Full);

    rig.free(&s, big);
    let fits = rig.get(&t, 3 * page);
    rig.free(&t, fits);
    let all = rig.get(&t, 6 * page);
    rig.free(&t, all);
    rig.free(&elsewhere, other);
    assert!(pool.stats().devices[0].peak_reserved_bytes <= limit);
    drop((s, t, elsewhere));
    rig.done(pool);
}

/// Memory that is in flight on another stream is waited for on the host before it is refused.
pub fn memory_in_flight_is_waited_for<M: Machine>(make: impl Fn(u16, u64) -> M) {
    for reuse in POLICIES {
        let rig = Rig::new(&make, 1, 8 * MIB);
        let pool = rig.builder().reuse(reuse).build().unwrap();
        let [s, t] = [0; 2].map(|_| pool.stream(D0).unwrap());
        for bytes in [8 * MIB, 5 * MIB] {
            rig.touch(&s, bytes);
            rig.touch(&t, bytes);
        }
        // Small blocks in flight make room for a large one, and the other way round.
        let held: Vec<Block> = (0..100).map(|_| rig.get(&s, 60_000)).collect();
        held.into_iter().for_each(|block| rig.free(&s, block));
        rig.touch(&t, 8 * MIB);
        let held: Vec<Block> = (0..100).map(|_| rig.get(&s, 60_000)).collect();
        held.into_iter().for_each(|block| rig.free(&s, block));
        drop((s, t));
        rig.done(pool);
    }
}

/// Pages scattered between live blocks are moved together once their work is done.
pub fn scattered_pages_are_gathered<M: Machine>(make: impl Fn(u16, u64) -> M) {
    for reuse in POLICIES {
        let rig = Rig::new(&make, 1, 16 * MIB);
        rig.needs(Need::Extents);
        let pool = rig.builder().reuse(reuse).build().unwrap();
        let [s, t] = [0; 2].map(|_| pool.stream(D0).unwrap());
        let mut held: Vec<_> = (0..8).map(|_| Some(rig.get(&s, 2 * MIB))).collect();
        for place in [0, 2, 4, 6] {
            held[place].take().into_iter().for_each(|block| rig.free(&s, block));
        }
        let large = rig.get(&t, 8 * MIB);
        pool.check_invariants_at(millpond::Level::Full);
        assert_eq!(pool.stats().devices[0].reserved_bytes, 16 * MIB);
        rig.free(&t, large);
        held.into_iter().flatten().for_each(|block| rig.free(&s, block));
        rig.touch(&t, 16 * MIB);
        drop((s, t));
        rig.done(pool);
    }
}

/// The device has less than the pool may take: another pool has the rest.
pub fn the_driver_runs_out_first<M: Machine>(make: impl Fn(u16, u64) -> M) {
    let rig = Rig::new(make, 1, 16 * MIB);
    rig.needs(Need::OnDemand);
    rig.needs(Need::OwnDevice);
    let (pool, other) = (rig.pool(), rig.pool());
    let (s, o) = (pool.stream(D0).unwrap(), other.stream(D0).unwrap());
    let theirs = rig.get(&o, 10 * MIB);
    let ours = rig.get(&s, 4 * MIB);
    let report = refusal(rig.try_get(&s, 4 * MIB));
    assert_eq!((report.requested, report.live), (4 * MIB, 4 * MIB));
    assert_eq!(report.reserved, pool.stats().devices[0].reserved_bytes);
    pool.check_invariants_at(millpond::Level::Full);
    // What a failed attempt took is not kept from the others.
    let small = rig.get(&o, 2 * MIB);
    rig.free(&o, small);
    rig.free(&o, theirs);
    assert_eq!(rig.trim_idle(&other, D0, 0), 0);
    let now = rig.get(&s, 4 * MIB);
    rig.free(&s, now);
    rig.free(&s, ours);
    drop((s, o, other));
    rig.done(pool);
}

/// Trimming gives back what is idle, down to its target, and leaves what is used or in flight.
pub fn trim_gives_back_what_is_idle<M: Machine>(make: impl Fn(u16, u64) -> M) {
    let rig = Rig::new(make, 2, 64 * MIB);
    rig.needs(Need::OnDemand);
    let pool = rig.pool();
    let [s, t] = [0; 2].map(|_| pool.stream(D0).unwrap());
    let page = rig.page.max(MIB);
    let reserved = || pool.stats().devices[0].reserved_bytes;
    let held = rig.get(&s, 2 * page);
    rig.touch(&t, 6 * page);
    let small: Vec<Block> = (0..40).map(|_| rig.get(&t, 30_000)).collect();
    small.into_iter().for_each(|block| rig.free(&t, block));
    let top = reserved();
    let kept = pool.trim(D0, 0).unwrap();
    assert_eq!(kept, reserved());
    if rig.machine.holds_work() {
        assert_eq!(kept, top, "memory in flight was given back");
    }
    rig.assert_quiet();
    rig.machine.pass_time();
    assert_eq!(pool.trim(D0, 5 * page).unwrap(), (5 * page).min(kept));
    let before = reserved();
    assert_eq!(pool.trim(D0, u64::MAX).unwrap(), before);
    assert_eq!(pool.trim(D0, 0).unwrap(), 2 * page);
    pool.check_invariants_at(millpond::Level::Full);
    rig.free(&s, held);
    pool.trim_all(0).unwrap();
    rig.machine.pass_time();
    pool.trim_all(0).unwrap();
    assert_eq!(reserved(), 0);
    rig.touch(&t, 6 * page);
    drop((s, t));
    rig.done(pool);
}

/// A target between pages is kept as well: at most so many bytes stay reserved.
pub fn trim_keeps_to_targets_between_pages<M: Machine>(make: impl Fn(u16, u64) -> M) {
    let rig = Rig::new(make, 1, 64 * MIB);
    rig.needs(Need::OnDemand);
    let pool = rig.pool();
    let stream = pool.stream(D0).unwrap();
    for target in [4 * rig.page + 1, 3 * rig.page - 1, rig.page / 2, 1] {
        rig.touch(&stream, 8 * rig.page.max(MIB));
        let kept = rig.trim_idle(&pool, D0, target);
        assert!(kept <= target, "{kept} bytes are more than {target}");
        assert!(target - kept < rig.page, "{kept} bytes are far less than {target}");
        pool.check_invariants_at(millpond::Level::Full);
    }
    drop(stream);
    rig.done(pool);
}

/// A pool without memory says so, and works otherwise.
pub fn no_memory_at_all<M: Machine>(make: impl Fn(u16, u64) -> M) {
    let rig = Rig::new(make, 1, 16 * MIB);
    let pool = rig.builder().capacity(rig.page - 1).build().unwrap();
    let stream = pool.stream(D0).unwrap();
    for bytes in [1, 100_000, 3 * MIB] {
        let report = refusal(stream.alloc::<u8>(bytes as usize));
        assert_eq!((report.requested, report.reserved, report.limit), (bytes, 0, 0));
        assert_eq!((report.live, report.free, report.largest_free), (0, 0, 0));
    }
    drop(stream);
    rig.done(pool);
}
