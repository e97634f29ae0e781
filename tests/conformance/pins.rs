//! Pins: what stays where it is, and for how long.

use crate::machine::{Block, D0, MIB, Machine, Need, Rig};
use millpond::{Error, Pin};

const UNIT: u64 = 2 * MIB;

/// A pinned block's memory is neither moved nor given back after its free, serves others where it
/// is, and is like any other when the pin is gone.
pub fn pinned_memory_stays_where_it_is<M: Machine>(make: impl Fn(u16, u64) -> M) {
    let rig = Rig::new(make, 1, 8 * UNIT);
    rig.needs(Need::OnDemand);
    let pool = rig.pool();
    let [s, t] = [0; 2].map(|_| pool.stream(D0).unwrap());
    let mut held: Vec<_> = (0..8).map(|_| Some(rig.get(&s, UNIT))).collect();
    let at = held[2].as_ref().map_or(0, Block::address);
    let pin = pool.pin(at).unwrap();
    assert_eq!((pin.address(), pin.bytes()), (at, UNIT));
    for place in [0, 2, 4, 6] {
        held[place].take().into_iter().for_each(|block| rig.free(&s, block));
    }
    // Four units are idle, and three of them can be moved.
    assert!(matches!(rig.try_get(&t, 4 * UNIT), Err(Error::OutOfMemory(_))));
    pool.check_invariants_at(millpond::Level::Full);
    let large = rig.get(&t, 3 * UNIT);
    assert!(!(large.address()..large.address() + 3 * UNIT).contains(&at));
    // The fourth is had where it is.
    assert_eq!(rig.touch(&t, UNIT), at);
    assert_eq!(rig.touch(&s, UNIT), at);

    rig.free(&t, large);
    (0..2).for_each(|_| _ = rig.trim_idle(&pool, D0, 0));
    assert_eq!(rig.trim_idle(&pool, D0, 0), 5 * UNIT, "four blocks and the pinned one");
    assert_eq!(rig.touch(&s, UNIT), at);
    drop(pin);
    let large = rig.get(&t, 4 * UNIT);
    rig.free(&t, large);
    (0..2).for_each(|_| _ = rig.trim_idle(&pool, D0, 0));
    assert_eq!(rig.trim_idle(&pool, D0, 0), 4 * UNIT);
    held.into_iter().flatten().for_each(|block| rig.free(&s, block));
    drop((s, t));
    rig.done(pool);
}

/// A pinned extent may be a part of a window: pages from elsewhere come to its side.
pub fn windows_may_include_pinned_memory<M: Machine>(make: impl Fn(u16, u64) -> M) {
    let rig = Rig::new(make, 1, 8 * UNIT);
    rig.needs(Need::OnDemand);
    let pool = rig.pool();
    let [s, t, other] = [0; 3].map(|_| pool.stream(D0).unwrap());
    let mut held: Vec<_> = (0..8).map(|_| Some(rig.get(&s, UNIT))).collect();
    let at = held[2].as_ref().map_or(0, Block::address);
    let pin = pool.pin(at).unwrap();
    let mut free = |place: usize| {
        let block = held[place].take();
        block.into_iter().for_each(|block| rig.free(&s, block));
    };
    // The first two and a third go elsewhere, and leave a hole before the pinned block.
    [0, 1, 4].into_iter().for_each(&mut free);
    let large = rig.get(&t, 3 * UNIT);
    rig.settle(&[&s, &t], &other);
    [2, 6].into_iter().for_each(&mut free);
    let across = rig.get(&t, 2 * UNIT);
    assert_eq!(across.address(), at - UNIT);
    pool.check_invariants_at(millpond::Level::Full);
    // The pin is its first block's: as before, nothing of it moves after another's free.
    rig.free(&t, across);
    rig.free(&t, large);
    (0..2).for_each(|_| _ = rig.trim_idle(&pool, D0, 0));
    assert_eq!(rig.trim_idle(&pool, D0, 0), 4 * UNIT, "three are held, one is pinned");
    assert_eq!(rig.touch(&s, UNIT), at);
    drop(pin);
    held.into_iter().flatten().for_each(|block| rig.free(&s, block));
    drop((s, t, other));
    rig.done(pool);
}

/// A page stays as long as any pin holds it, be they of one block or of several that share it.
pub fn pins_add_up<M: Machine>(make: impl Fn(u16, u64) -> M) {
    // Small blocks share pages; large ones share the page between them, where pages are large.
    for bytes in [20_000, 3 * MIB] {
        let rig = Rig::new(&make, 1, 16 * MIB);
        rig.needs(Need::OnDemand);
        let pool = rig.pool();
        let stream = pool.stream(D0).unwrap();
        let blocks = [0; 2].map(|_| rig.get(&stream, bytes));
        let (first, second) = (blocks[0].address(), blocks[1].address());
        assert_eq!(second - first, blocks[0].buffer.granted_bytes());
        let mut pins: Vec<Pin> =
            [first, first, second].map(|address| pool.pin(address).unwrap()).into();
        let pages = |from: u64, to: u64| {
            (to.next_multiple_of(rig.page) - from / rig.page * rig.page) / rig.page
        };
        let all = pages(first, second + bytes);
        blocks.into_iter().for_each(|block| rig.free(&stream, block));
        assert_eq!(rig.trim_idle(&pool, D0, 0), all * rig.page);
        // One of the first block's two pins.
        pins.swap_remove(0);
        assert_eq!(rig.trim_idle(&pool, D0, 0), all * rig.page, "a pin was undone with another");
        // The other one: what the second block touches stays.
        pins.retain(|pin| pin.address() == second);
        assert_eq!(pins.len(), 1);
        assert_eq!(
            rig.trim_idle(&pool, D0, 0),
            pages(second, second + bytes) * rig.page,
            "{bytes} bytes"
        );
        pins.clear();
        assert_eq!(rig.trim_idle(&pool, D0, 0), 0);
        rig.touch(&stream, bytes);
        drop(stream);
        rig.done(pool);
    }
}

/// Only blocks that are held can be pinned.
pub fn only_live_blocks_are_pinned<M: Machine>(make: impl Fn(u16, u64) -> M) {
    let rig = Rig::new(make, 1, 16 * MIB);
    rig.needs(Need::OnDemand);
    let pool = rig.pool();
    let stream = pool.stream(D0).unwrap();
    for bytes in [700, 3 * MIB] {
        let block = rig.get(&stream, bytes);
        let address = block.address();
        let inside = pool.pin(address + 512);
        assert!(matches!(inside, Err(Error::UnknownAddress { .. })), "{inside:?}");
        rig.free(&stream, block);
        let freed = pool.pin(address);
        assert!(matches!(freed, Err(Error::NotAllocated { address: a }) if a == address));
    }
    for nowhere in [0, 1 << 12, u64::MAX] {
        let refused = pool.pin(nowhere);
        assert!(matches!(refused, Err(Error::UnknownAddress { address }) if address == nowhere));
    }
    // A refused pin pins nothing.
    assert_eq!(rig.trim_idle(&pool, D0, 0), 0);
    drop(stream);
    rig.done(pool);
}

/// The pool stays open as long as a pin lives, and ends with it.
pub fn a_pin_keeps_its_pool_open<M: Machine>(make: impl Fn(u16, u64) -> M) {
    for after in [false, true] {
        let rig = Rig::new(&make, 1, 16 * MIB);
        let pool = rig.pool();
        let stream = pool.stream(D0).unwrap();
        let block = rig.get(&stream, 3 * MIB);
        let pin = pool.pin(block.address()).unwrap();
        assert!(format!("{pin:?}").contains("Pin"));
        drop((stream, pool));
        let block = if after {
            Some(block)
        } else {
            drop(block);
            None
        };
        rig.machine.pass_time();
        assert!(rig.machine.leaks().is_some(), "pinned memory went back");
        std::thread::scope(|scope| _ = scope.spawn(|| drop(pin)));
        assert_eq!(rig.machine.leaks().is_some(), after);
        drop(block);
        rig.assert_quiet();
        rig.assert_nothing_leaked();
    }
}
