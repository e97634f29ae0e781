//! Short memory: what is held beyond what is needed, when it goes back, and who is told.

use crate::machine::{Block, D0, D1, MIB, Machine, Need, Rig, refusal, reserved};
use crate::support::Rng;
use millpond::{Buffer, Error, Headroom, OutOfMemory, Pool, Reuse, Stream, StreamBytes};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

const UNIT: u64 = 2 * MIB;

/// A pattern that leaves gaps of all sizes, a program's in which sizes differ from step to step.
/// Returns the most bytes that were live.
fn fragment<M: Machine>(
    rig: &Rig<M>,
    streams: &[Stream],
    seed: u64,
    rounds: usize,
    most: u64,
    size: impl Fn(&mut Rng) -> u64,
) -> u64 {
    let (mut rng, mut held, mut live, mut peak) = (Rng::new(seed), Vec::new(), 0, 0);
    for _ in 0..rounds {
        let (stream, bytes) = (&streams[rng.index(streams.len())], size(&mut rng));
        while live + bytes > most {
            let (stream, block): (&Stream, Block) = held.swap_remove(rng.index(held.len()));
            live -= block.buffer.bytes();
            rig.free(stream, block);
        }
        held.push((stream, rig.get(stream, bytes)));
        live += bytes;
        peak = peak.max(live);
    }
    held.into_iter().for_each(|(stream, block)| rig.free(stream, block));
    peak
}

/// What may be held beyond the headroom: what waits for other streams is replaced rather than
/// waited for up to a hundred-and-twenty-eighth, and small blocks have pages of their own.
fn beyond<M>(rig: &Rig<M>, peak: u64) -> u64 {
    peak / 128 + rig.page
}

/// Small pages are slow to plan with while many of them are in flight.
fn rounds<M>(rig: &Rig<M>) -> usize {
    if rig.page < MIB { 80 } else { 300 }
}

/// With no headroom no more is held than was live: pages are moved instead.
pub fn no_headroom<M: Machine>(make: impl Fn(u16, u64) -> M) {
    let rig = Rig::new(make, 1, 512 * UNIT);
    rig.needs(Need::Stitching);
    rig.needs(Need::OnDemand);
    let pool = rig.builder().headroom(Headroom::Share(0.0)).build().unwrap();
    let streams = [0; 3].map(|_| pool.stream(D0).unwrap());
    let peak =
        fragment(&rig, &streams, 3, rounds(&rig), 64 * UNIT, |rng| (1 + rng.below(9)) * UNIT);
    let most = pool.stats().devices[0].peak_reserved_bytes;
    assert!(most <= peak + beyond(&rig, peak), "{most} bytes for {peak}");
    assert_eq!(rig.driver.calls("synchronize"), 0);
    assert!(pool.stats().devices[0].ladder.waited + pool.stats().devices[0].ladder.moved > 0);
    drop(streams);
    rig.done(pool);
}

/// A share of the peak is kept to, and used.
pub fn a_share_of_headroom<M: Machine>(make: impl Fn(u16, u64) -> M) {
    let rig = Rig::new(make, 1, 512 * UNIT);
    rig.needs(Need::Stitching);
    rig.needs(Need::OnDemand);
    let pool = rig.builder().headroom(Headroom::Share(0.25)).build().unwrap();
    let streams = [0; 3].map(|_| pool.stream(D0).unwrap());
    let peak =
        fragment(&rig, &streams, 3, rounds(&rig), 64 * UNIT, |rng| (1 + rng.below(9)) * UNIT);
    let most = pool.stats().devices[0].peak_reserved_bytes;
    let bound = peak + peak / 4 + beyond(&rig, peak);
    assert!((peak + 2 * rig.page..=bound).contains(&most), "{most} bytes for {peak}");
    drop(streams);
    rig.done(pool);
}

/// Without a bound no page is moved before all of the capacity is taken.
pub fn headroom_without_bound<M: Machine>(make: impl Fn(u16, u64) -> M) {
    for headroom in [None, Some(Headroom::Unbounded)] {
        let rig = Rig::new(&make, 1, 24 * UNIT);
        rig.needs(Need::Extents);
        let builder = rig.builder();
        let pool = match headroom {
            Some(headroom) => builder.headroom(headroom),
            None => builder,
        };
        let pool = pool.build().unwrap();
        let [s, t] = [0; 2].map(|_| pool.stream(D0).unwrap());
        let mut held: Vec<_> = (0..8).map(|_| Some(rig.get(&s, UNIT))).collect();
        for place in [0, 2, 4, 6] {
            held[place].take().into_iter().for_each(|block| rig.free(&s, block));
        }
        // Of 24 units 8 are taken, 4 of them idle.
        let ladder = || pool.stats().devices[0].ladder;
        let large: Vec<Block> = (0..4).map(|_| rig.get(&t, 4 * UNIT)).collect();
        assert_eq!((ladder().moved, ladder().waited), (0, 0));
        assert_eq!((reserved(&pool), rig.driver.calls("wait")), (24 * UNIT, 0));
        let last = rig.get(&t, 4 * UNIT);
        assert_eq!(ladder().moved + ladder().waited, 1);
        assert_eq!(rig.driver.calls("synchronize"), 0);
        rig.free(&t, last);
        large.into_iter().for_each(|block| rig.free(&t, block));
        held.into_iter().flatten().for_each(|block| rig.free(&s, block));
        drop((s, t));
        rig.done(pool);
    }
}

/// Where nothing is set, little more than one per cent is held beyond what was live; where that is
/// little, a few megabytes.
pub fn automatic_headroom<M: Machine>(make: impl Fn(u16, u64) -> M) {
    // Small pages make large blocks slow to simulate.
    for (most, units, share) in [(256 * MIB, 5, 32), (2 << 30, 42, 160)] {
        let rig = Rig::new(&make, 1, 4 * most);
        rig.needs(Need::Stitching);
        rig.needs(Need::OnDemand);
        if rig.page < MIB && units > 5 {
            continue;
        }
        let pool = rig.plain_builder().build().unwrap();
        let streams = [0; 3].map(|_| pool.stream(D0).unwrap());
        let size = |rng: &mut Rng| (1 + rng.below(units)) * UNIT;
        let peak = fragment(&rig, &streams, 5, 400, most, size);
        assert!(peak > most - most / 20);
        let held = pool.stats().devices[0].peak_reserved_bytes;
        assert!(held <= peak + peak / share + beyond(&rig, peak), "{held} bytes for {peak}");
        assert_eq!(rig.driver.calls("synchronize"), 0);
        drop(streams);
        rig.done(pool);
    }
}

/// Misses that touch nothing but small blocks, which are kept.
fn misses<M: Machine>(rig: &Rig<M>, stream: &Stream, kept: &mut Vec<Block>) {
    for miss in 0..200 {
        kept.push(rig.get(stream, 600));
        if miss % 50 == 0 {
            rig.machine.pass_time();
        }
    }
}

/// Above the high watermark idle memory goes back until the low one is reached; what is busy
/// stays, and nobody waits.
pub fn watermarks<M: Machine>(make: impl Fn(u16, u64) -> M) {
    for reuse in [Reuse::Completed, Reuse::Wait] {
        let rig = Rig::new(&make, 1, 64 * UNIT);
        rig.needs(Need::OnDemand);
        let builder = rig.builder().reuse(reuse).watermarks(8 * UNIT, 16 * UNIT);
        let pool = builder.build().unwrap();
        let [s, t] = [0; 2].map(|_| pool.stream(D0).unwrap());
        let mut small = Vec::new();
        let mut held: Vec<Block> = (0..20).map(|_| rig.get(&s, 2 * UNIT)).collect();
        misses(&rig, &t, &mut small);
        assert!(reserved(&pool) >= 40 * UNIT, "busy memory went back");
        held.iter().for_each(|block| rig.read(&s, block));
        let idle = held.split_off(6);
        idle.into_iter().for_each(|block| rig.free(&s, block));
        misses(&rig, &t, &mut small);
        // Twelve units are busy: more than the low watermark, less than the high one.
        assert!((12 * UNIT..=14 * UNIT).contains(&reserved(&pool)), "{}", reserved(&pool));
        held.iter().for_each(|block| rig.read(&s, block));
        pool.check_invariants_at(millpond::Level::Full);

        // Between the marks nothing is given back.
        let released = rig.driver.calls("release_page");
        held.drain(..).for_each(|block| rig.free(&s, block));
        misses(&rig, &t, &mut small);
        assert_eq!(rig.driver.calls("release_page"), released);

        held.extend((0..9).map(|_| rig.get(&s, 2 * UNIT)));
        held.drain(..).for_each(|block| rig.free(&s, block));
        misses(&rig, &t, &mut small);
        let left = reserved(&pool);
        assert!((6 * UNIT..=8 * UNIT + MIB).contains(&left), "{left} bytes are left");
        assert_eq!(rig.driver.calls("synchronize"), 0);
        small.into_iter().for_each(|block| rig.free(&t, block));
        drop((s, t));
        rig.done(pool);
    }
}

/// Memory in flight stays above the watermark until its work is over.
pub fn watermarks_leave_work_in_flight_alone<M: Machine>(make: impl Fn(u16, u64) -> M) {
    let rig = Rig::new(make, 1, 64 * UNIT);
    rig.needs(Need::OnDemand);
    let pool = rig.builder().watermarks(0, 4 * UNIT).build().unwrap();
    let [s, t] = [0; 2].map(|_| pool.stream(D0).unwrap());
    let mut small = Vec::new();
    rig.machine.hold(s.handle());
    rig.touch(&s, 16 * UNIT);
    misses(&rig, &t, &mut small);
    assert!(reserved(&pool) >= 16 * UNIT);
    rig.assert_quiet();
    rig.machine.let_go(s.handle());
    misses(&rig, &t, &mut small);
    assert!(reserved(&pool) <= UNIT, "all but small blocks is idle");
    assert_eq!(rig.driver.calls("synchronize"), 0);
    small.into_iter().for_each(|block| rig.free(&t, block));
    drop((s, t));
    rig.done(pool);
}

/// What the callback of a test shares with it.
#[derive(Default)]
struct Attic {
    pool: Mutex<Option<Pool>>,
    kept: Mutex<Vec<Buffer>>,
    reports: Mutex<Vec<OutOfMemory>>,
}

fn locked<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The callback sees true figures, may free, trim and ask, and its answer decides.
pub fn a_callback_makes_room<M: Machine>(make: impl Fn(u16, u64) -> M) {
    for reuse in [Reuse::SameStream, Reuse::Completed, Reuse::Wait] {
        let rig = Rig::new(&make, 1, 8 * UNIT);
        let attic = Arc::new(Attic::default());
        let theirs = Arc::clone(&attic);
        let rescue = move |report: &OutOfMemory| {
            let pool = locked(&theirs.pool).clone().unwrap();
            let stats = &pool.stats().devices[0];
            assert_eq!((report.live, report.reserved), (stats.live_bytes, stats.reserved_bytes));
            assert_eq!(report.limit, stats.limit_bytes);
            pool.check_invariants_at(millpond::Level::Full);
            locked(&theirs.reports).push(report.clone());
            // One block at a time: it is called again where that does not do.
            let freed = locked(&theirs.kept).pop();
            let made_room = freed.is_some();
            drop(freed);
            pool.trim(D0, 0).unwrap();
            made_room
        };
        let pool = rig.builder().reuse(reuse).on_out_of_memory(rescue).build().unwrap();
        *locked(&attic.pool) = Some(pool.clone());
        let [s, t] = [0; 2].map(|_| pool.stream(D0).unwrap());
        let kept = [2, 1, 1].map(|units| rig.get(&s, units * UNIT).buffer);
        locked(&attic.kept).extend(kept);
        let held = rig.get(&s, 4 * UNIT);

        let block = rig.get(&t, 2 * UNIT);
        let ladder = pool.stats().devices[0].ladder;
        assert_eq!(ladder.callbacks, 2);
        let reports = std::mem::take(&mut *locked(&attic.reports));
        assert_eq!(reports.len(), 2);
        for (place, report) in reports.iter().enumerate() {
            let free = place as u64 * UNIT;
            assert_eq!((report.device, report.stream, report.requested), (D0, t.id(), 2 * UNIT));
            assert_eq!((report.live, report.limit), (8 * UNIT - free, 8 * UNIT));
            assert_eq!(report.reserved, report.live + report.free);
            assert!(report.free <= free, "{report:?}");
            assert_eq!(report.held[0], StreamBytes { stream: s.id(), bytes: 8 * UNIT - free });
        }

        // With nothing left to free it says no.
        assert_eq!(locked(&attic.kept).len(), 1);
        locked(&attic.kept).clear();
        let report = refusal(rig.try_get(&t, 5 * UNIT));
        assert_eq!(report, locked(&attic.reports)[0]);
        let ladder = pool.stats().devices[0].ladder;
        assert_eq!((ladder.callbacks, locked(&attic.reports).len()), (2, 1));
        assert!(ladder.refused >= 1);
        rig.free(&t, block);
        rig.free(&s, held);
        rig.touch(&t, 8 * UNIT);
        *locked(&attic.pool) = None;
        drop((s, t, attic));
        rig.done(pool);
    }
}

/// A callback that allocates is called for its own allocations too.
pub fn a_callback_may_allocate<M: Machine>(make: impl Fn(u16, u64) -> M) {
    let rig = Rig::new(make, 2, 8 * UNIT);
    let attic = Arc::new(Attic::default());
    let (theirs, depth) = (Arc::clone(&attic), Arc::new(AtomicU64::new(0)));
    let count = Arc::clone(&depth);
    let rescue = move |report: &OutOfMemory| {
        let pool = locked(&theirs.pool).clone().unwrap();
        let nested = depth.fetch_add(1, Ordering::Relaxed) > 0;
        if !nested {
            let [here, there] = [D0, D1].map(|device| pool.stream(device).unwrap());
            // What does not fit here goes to another device.
            assert!(matches!(here.alloc::<u8>(UNIT as usize), Err(Error::OutOfMemory(_))));
            let moved = there.alloc::<u8>(report.requested as usize).unwrap();
            locked(&theirs.kept).clear();
            locked(&theirs.kept).push(moved);
        }
        !nested
    };
    let pool = rig.builder().on_out_of_memory(rescue).build().unwrap();
    *locked(&attic.pool) = Some(pool.clone());
    let s = pool.stream(D0).unwrap();
    locked(&attic.kept).push(rig.get(&s, 8 * UNIT).buffer);
    let block = rig.get(&s, 3 * UNIT);
    assert_eq!(count.load(Ordering::Relaxed), 2);
    assert_eq!(pool.stats().devices[0].ladder.callbacks, 1);
    assert_eq!(pool.stats().devices[1].live_bytes, 3 * UNIT);
    locked(&attic.kept).clear();
    rig.free(&s, block);
    *locked(&attic.pool) = None;
    drop((s, attic));
    rig.done(pool);
}

/// The report says whose the memory is, and whose work it waits for.
pub fn the_report_names_streams<M: Machine>(make: impl Fn(u16, u64) -> M) {
    for reuse in [Reuse::SameStream, Reuse::Completed, Reuse::Wait] {
        let rig = Rig::new(&make, 1, 16 * UNIT);
        let pool = rig.builder().reuse(reuse).build().unwrap();
        let [much, little, stuck, asking] = [0; 4].map(|_| pool.stream(D0).unwrap());
        let held = [(&little, UNIT), (&much, 3 * UNIT), (&much, 2 * UNIT - 700)];
        let held = held.map(|(stream, bytes)| (stream, rig.get(stream, bytes)));
        let small = rig.get(&little, 5000);
        rig.machine.hold(stuck.handle());
        let theirs = rig.get(&stuck, 4 * UNIT);
        // Large blocks may be a sliver larger than what was asked for.
        let stuck_bytes = theirs.buffer.granted_bytes();
        let granted: u64 = held.iter().map(|(_, block)| block.buffer.granted_bytes()).sum();
        rig.free(&stuck, theirs);
        // Small blocks in a cache are idle memory too.
        rig.touch(&little, 40_000);

        let report = refusal(rig.try_get(&asking, 12 * UNIT));
        let of = |stream: &Stream, bytes| StreamBytes { stream: stream.id(), bytes };
        assert_eq!(report.held, [of(&much, 5 * UNIT - 700), of(&little, UNIT + 5000)]);
        assert_eq!(report.pending, [of(&stuck, stuck_bytes)]);
        assert_eq!((report.in_flight, report.live), (stuck_bytes, 6 * UNIT - 700 + 5000));
        let granted = granted + small.buffer.granted_bytes();
        assert_eq!(report.free + granted, report.reserved, "{report:?}");
        assert!(report.cached <= report.free && report.largest_free >= 4 * UNIT);
        let text = Error::OutOfMemory(Box::new(report)).to_string();
        for stream in [&much, &little, &stuck, &asking] {
            assert!(text.contains(&stream.id().to_string()), "{text}");
        }
        rig.assert_quiet();
        rig.machine.let_go(stuck.handle());
        held.into_iter().for_each(|(stream, block)| rig.free(stream, block));
        rig.free(&little, small);
        rig.touch(&asking, 12 * UNIT);
        drop((much, little, stuck, asking));
        rig.done(pool);
    }
}

/// A share of the device's memory as the capacity.
pub fn a_share_of_the_device<M: Machine>(make: impl Fn(u16, u64) -> M) {
    let rig = Rig::new(make, 2, 32 * UNIT);
    let limits = |pool: &Pool| {
        let stats = pool.stats();
        [stats.devices[0].limit_bytes, stats.devices[1].limit_bytes]
    };
    for (share, bytes) in
        [(0.25, 8 * UNIT), (1.0, 32 * UNIT), (7.5, 32 * UNIT), (0.0, 0), (-1.0, 0)]
    {
        let pool = rig.plain_builder().capacity_share(share).build().unwrap();
        assert_eq!(limits(&pool), [bytes; 2], "a share of {share}");
        drop(pool);
    }
    let pool = rig.plain_builder().capacity_share(0.3).build().unwrap();
    assert_eq!(limits(&pool), [(19_660 * UNIT * 32 / 65_536) / rig.page * rig.page; 2]);
    drop(pool);
    // A capacity in bytes goes before, on its device.
    let builder = rig.plain_builder().capacity_share(0.5).device_capacity(D1, 3 * UNIT);
    let pool = builder.build().unwrap();
    assert_eq!(limits(&pool), [16 * UNIT, 3 * UNIT]);
    let s = pool.stream(D0).unwrap();
    let half = rig.get(&s, 16 * UNIT);
    assert_eq!(refusal(rig.try_get(&s, UNIT)).limit, 16 * UNIT);
    rig.free(&s, half);
    drop(s);
    rig.done(pool);
}
