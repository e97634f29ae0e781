//! Pages that are mapped elsewhere: when, for whom, and what becomes of their old mappings.

use crate::machine::{Block, D0, MIB, Machine, Need, Rig, reserved};
use crate::support::Rng;
use millpond::{Reuse, Stream};

/// Blocks here are multiples of this: whole pages on every machine.
const UNIT: u64 = 2 * MIB;

/// Blocks of so many units each, one after the other.
fn row<M: Machine>(rig: &Rig<M>, stream: &Stream, units: &[u64]) -> Vec<Option<Block>> {
    units.iter().map(|&units| Some(rig.get(stream, units * UNIT))).collect()
}

fn free_all<M: Machine>(rig: &Rig<M>, stream: &Stream, blocks: Vec<Option<Block>>) {
    blocks.into_iter().flatten().for_each(|block| rig.free(stream, block));
}

fn free_some<M: Machine>(
    rig: &Rig<M>,
    stream: &Stream,
    blocks: &mut [Option<Block>],
    places: &[usize],
) {
    for &place in places {
        blocks[place].take().into_iter().for_each(|block| rig.free(stream, block));
    }
}

/// Another stream gets pages from behind blocks whose work is still in flight: the host waits for
/// nothing, and the mappings that the work uses stay as long as it runs.
pub fn pages_move_under_work_in_flight<M: Machine>(make: impl Fn(u16, u64) -> M) {
    let rig = Rig::new(make, 1, 8 * UNIT);
    rig.needs(Need::OnDemand);
    let pool = rig.pool();
    let [s, t] = [0; 2].map(|_| pool.stream(D0).unwrap());
    let mut held = row(&rig, &s, &[1; 8]);
    let created = rig.driver.calls("create_page");
    rig.machine.hold(s.handle());
    free_some(&rig, &s, &mut held, &[0, 2, 4, 6]);
    let large = rig.get(&t, 4 * UNIT);
    rig.read(&t, &large);
    assert_eq!(rig.driver.calls("wait"), 1, "one stream to wait for");
    assert_eq!(rig.driver.calls("synchronize"), 0);
    assert_eq!(rig.driver.calls("create_page"), created);
    assert_eq!(pool.stats().devices[0].ladder.moved + pool.stats().devices[0].ladder.waited, 1);
    pool.check_invariants_at(millpond::Level::Full);

    // Nothing can be given back: all is in use, or in flight.
    rig.free(&t, large);
    rig.machine.pass_time();
    assert_eq!(pool.trim(D0, 0).unwrap(), 8 * UNIT);
    assert_eq!(rig.driver.calls("unmap"), 0);
    rig.assert_quiet();

    rig.machine.let_go(s.handle());
    rig.machine.pass_time();
    assert_eq!(rig.trim_idle(&pool, D0, 0), 4 * UNIT);
    assert!(rig.driver.calls("unmap") > 0);
    assert_eq!(rig.driver.calls("synchronize"), 0);
    // What is still held was touched by none of it.
    held.iter().flatten().for_each(|block| rig.read(&s, block));
    free_all(&rig, &s, held);
    rig.touch(&t, 8 * UNIT);
    drop((s, t));
    rig.done(pool);
}

/// The row of blocks of one and of three units, and the places of either kind. The last one stays.
const MIXED: [u64; 8] = [1, 3, 1, 3, 1, 3, 1, 3];
const ONES: [usize; 4] = [0, 2, 4, 6];
const THREES: [usize; 3] = [1, 3, 5];

/// Pages that go to a block and come back, time and again: their mappings stay on both sides, and
/// the next round asks the driver for no memory call at all.
pub fn pages_go_there_and_back<M: Machine>(make: impl Fn(u16, u64) -> M) {
    for same in [true, false] {
        let rig = Rig::new(&make, 1, 16 * UNIT);
        rig.needs(Need::OnDemand);
        let pool = rig.pool();
        let [s, other] = [0; 2].map(|_| pool.stream(D0).unwrap());
        let t = if same { s.clone() } else { pool.stream(D0).unwrap() };
        let guard = row(&rig, &s, &MIXED).pop().flatten();
        let mut after_first = 0;
        for round in 0..4 {
            let mut held = row(&rig, &s, &MIXED[..7]);
            free_some(&rig, &s, &mut held, &ONES);
            let gathered = rig.get(&t, 4 * UNIT);
            rig.read(&t, &gathered);
            free_some(&rig, &s, &mut held, &THREES);
            rig.free(&t, gathered);
            // Where a mapping comes to life again its earlier use has to be over.
            rig.settle(&[&s, &t], &other);
            // All of the row again, in one.
            let all = rig.get(&s, 13 * UNIT);
            rig.free(&s, all);
            pool.check_invariants_at(millpond::Level::Full);
            assert_eq!(reserved(&pool), 16 * UNIT);
            if round == 0 {
                after_first = rig.mapping_calls();
                assert_eq!(rig.driver.calls("unmap"), 0);
            }
            rig.settle(&[&s, &t], &other);
        }
        assert_eq!(rig.mapping_calls(), after_first, "same stream: {same}");
        assert!(pool.stats().devices[0].ladder.moved + pool.stats().devices[0].ladder.waited >= 8);
        assert_eq!(rig.driver.calls("synchronize"), 0);
        guard.into_iter().for_each(|block| rig.free(&s, block));
        assert_eq!(rig.trim_idle(&pool, D0, 0), 0, "mappings that stayed keep memory");
        drop((s, t, other));
        rig.done(pool);
    }
}

/// The place of an old mapping is wanted for another page: it is left alone while work in flight
/// uses it, and removed when that is over.
pub fn old_mappings_give_way_when_they_may<M: Machine>(make: impl Fn(u16, u64) -> M) {
    for over in [false, true] {
        let rig = Rig::new(&make, 1, 20 * UNIT);
        rig.needs(Need::OnDemand);
        let pool = rig.pool();
        let [s, t, other] = [0; 3].map(|_| pool.stream(D0).unwrap());
        let mut held = row(&rig, &s, &MIXED);
        let rest = rig.get(&s, 4 * UNIT);
        rig.machine.hold(s.handle());
        free_some(&rig, &s, &mut held, &ONES);
        let gathered = rig.get(&t, 4 * UNIT);
        rig.read(&t, &gathered);
        free_some(&rig, &s, &mut held, &THREES);
        if over {
            rig.machine.let_go(s.handle());
            rig.settle(&[&s, &t], &other);
        }
        // The best window would have the first and the second gap in it.
        let wide = rig.get(&t, 9 * UNIT);
        rig.read(&t, &wide);
        pool.check_invariants_at(millpond::Level::Full);
        assert_eq!(rig.driver.calls("unmap") > 0, over, "an old mapping gives way, or does not");
        assert_eq!(rig.driver.calls("synchronize"), 0);
        assert_eq!(reserved(&pool), 20 * UNIT);
        rig.assert_quiet();
        rig.machine.let_go(s.handle());
        for block in [gathered, wide] {
            rig.free(&t, block);
        }
        free_all(&rig, &s, held);
        rig.free(&s, rest);
        assert_eq!(rig.trim_idle(&pool, D0, 0), 0);
        drop((s, t, other));
        rig.done(pool);
    }
}

/// Sizes that are no whole number of pages: the rest of a last page is the start of the next block.
pub fn tails_of_pages_are_used<M: Machine>(make: impl Fn(u16, u64) -> M) {
    let rig = Rig::new(make, 1, 64 * MIB);
    rig.needs(Need::OnDemand);
    let pool = rig.pool();
    let s = pool.stream(D0).unwrap();
    let mut rng = Rng::new(5);
    let (mut held, mut sum) = (Vec::new(), 0);
    for _ in 0..12 {
        let bytes = (MIB + rng.below(3 * MIB)) / 512 * 512;
        held.push(Some(rig.get(&s, bytes)));
        sum += bytes;
        assert_eq!(reserved(&pool), sum.next_multiple_of(rig.page), "after {bytes} bytes");
    }
    pool.check_invariants_at(millpond::Level::Full);
    free_all(&rig, &s, held);
    drop(s);
    rig.done(pool);
}

/// A window that ends inside a page leaves the rest of that page to others.
pub fn a_window_may_end_inside_a_page<M: Machine>(make: impl Fn(u16, u64) -> M) {
    let rig = Rig::new(make, 1, 8 * UNIT);
    rig.needs(Need::Extents);
    let pool = rig.pool();
    let [s, t] = [0; 2].map(|_| pool.stream(D0).unwrap());
    let mut held = row(&rig, &s, &[1; 8]);
    free_some(&rig, &s, &mut held, &[0, 2, 4, 6]);
    let large = rig.get(&t, 4 * UNIT - MIB);
    let tail = rig.get(&s, MIB);
    if rig.page == UNIT {
        assert_eq!(tail.address(), large.address() + 4 * UNIT - MIB);
    }
    pool.check_invariants_at(millpond::Level::Full);
    rig.read(&t, &large);
    rig.free(&s, tail);
    rig.free(&t, large);
    free_all(&rig, &s, held);
    rig.touch(&t, 8 * UNIT);
    drop((s, t));
    rig.done(pool);
}

/// A window that starts inside a page of a hole leaves the lower part of that page to others.
pub fn a_window_may_start_inside_a_page<M: Machine>(make: impl Fn(u16, u64) -> M) {
    let rig = Rig::new(make, 1, 8 * UNIT);
    rig.needs(Need::Extents);
    let pool = rig.pool();
    let [s, t, other] = [0; 3].map(|_| pool.stream(D0).unwrap());
    let mut held = row(&rig, &s, &[1; 8]);
    let first = held[0].as_ref().map_or(0, Block::address);
    free_some(&rig, &s, &mut held, &[0, 1, 4]);
    let large = rig.get(&t, 3 * UNIT);
    rig.settle(&[&s, &t], &other);
    // A hole of two units and a unit of memory after it; and a unit elsewhere.
    free_some(&rig, &s, &mut held, &[2, 6]);
    let across = rig.get(&t, UNIT + MIB);
    assert_eq!(across.address(), first + 2 * UNIT - MIB);
    let below = rig.get(&s, MIB);
    if rig.page == UNIT {
        assert_eq!(below.address(), first + UNIT);
    }
    pool.check_invariants_at(millpond::Level::Full);
    rig.read(&t, &across);
    for block in [large, across] {
        rig.free(&t, block);
    }
    rig.free(&s, below);
    free_all(&rig, &s, held);
    rig.touch(&t, 8 * UNIT);
    drop((s, t, other));
    rig.done(pool);
}

/// Blocks of all sizes on three streams, in memory so short that pages move all the time.
pub fn pages_move_all_the_time<M: Machine>(make: impl Fn(u16, u64) -> M) {
    for reuse in [Reuse::SameStream, Reuse::Completed, Reuse::Wait] {
        let rig = Rig::new(&make, 1, 24 * UNIT);
        rig.needs(Need::OnDemand);
        let pool = rig.builder().reuse(reuse).build().unwrap();
        let streams = [0; 3].map(|_| pool.stream(D0).unwrap());
        let (mut rng, mut held, mut live) = (Rng::new(11), Vec::new(), 0);
        for round in 0..600 {
            let (stream, bytes) = (&streams[rng.index(3)], MIB + rng.below(10 * MIB));
            while live + bytes.next_multiple_of(512) > 24 * UNIT {
                let (stream, block): (&Stream, Block) = held.swap_remove(rng.index(held.len()));
                live -= block.buffer.granted_bytes();
                rig.free(stream, block);
            }
            // Fragments below a page are all that may be missing.
            match rig.try_get(stream, bytes) {
                Ok(block) => {
                    live += block.buffer.granted_bytes();
                    held.push((stream, block));
                }
                Err(error) => {
                    let lost = held.len() as u64 * 2 * rig.page;
                    assert!(live + bytes + lost > 24 * UNIT, "{live} live: {error}");
                }
            }
            if round % 100 == 99 {
                pool.check_invariants_at(millpond::Level::Full);
                pool.trim(D0, live).unwrap();
                rig.assert_quiet();
            }
        }
        held.into_iter().for_each(|(stream, block)| rig.free(stream, block));
        // An extent that waits for several streams asks about them one after the other.
        (0..5).for_each(|_| _ = rig.trim_idle(&pool, D0, 0));
        let left = rig.trim_idle(&pool, D0, 0);
        // Policy `SameStream` does not ask about pieces of a page, so as to merge them.
        assert!(left == 0 || reuse == Reuse::SameStream, "{reuse:?}: {left} bytes are left");
        drop(streams);
        rig.done(pool);
    }
}

/// A host that runs ahead maps no more than one that waits: pages come home through the mappings
/// they have, whatever is still in flight.
pub fn pages_come_back_while_work_is_in_flight<M: Machine>(make: impl Fn(u16, u64) -> M) {
    let rig = Rig::new(make, 1, 16 * UNIT);
    rig.needs(Need::Extents);
    let pool = rig.pool();
    let s = pool.stream(D0).unwrap();
    let guard = row(&rig, &s, &MIXED).pop().flatten();
    let mut first = 0;
    for round in 0..6 {
        let mut held = row(&rig, &s, &MIXED[..7]);
        free_some(&rig, &s, &mut held, &ONES);
        let gathered = rig.get(&s, 4 * UNIT);
        free_some(&rig, &s, &mut held, &THREES);
        rig.free(&s, gathered);
        let all = rig.get(&s, 13 * UNIT);
        rig.free(&s, all);
        if round == 0 {
            first = rig.mapping_calls();
        }
    }
    assert_eq!(rig.mapping_calls(), first);
    drop((guard, s));
    rig.done(pool);
}
