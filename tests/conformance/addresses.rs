//! Where blocks are and how large.

use crate::machine::{D0, D1, MIB, Machine, Need, Rig};
use crate::support::{Ledger, Rng};
use millpond::{DeviceId, Error, Pool, size};

/// Random blocks on two devices never overlap while live, and are aligned.
pub fn aligned_and_disjoint<M: Machine>(make: impl Fn(u16, u64) -> M) {
    let rig = Rig::new(make, 2, 1 << 30);
    let pool = rig.pool();
    let streams = [pool.stream(D0), pool.stream(D0), pool.stream(D1)].map(|stream| stream.unwrap());
    let (mut rng, mut ledger, mut held) = (Rng::new(1), Ledger::default(), Vec::new());
    for round in 0..300 {
        let stream = &streams[rng.index(streams.len())];
        let block = rig.get(stream, rng.size(5 * MIB));
        assert_eq!(block.address() % 512, 0);
        assert_eq!(block.buffer.device(), stream.device());
        assert_eq!(block.buffer.stream(), stream.id());
        ledger.enter(block.address(), block.buffer.granted_bytes());
        held.push((stream, block));
        while held.len() > 40 {
            let (stream, block) = held.swap_remove(rng.index(held.len()));
            ledger.leave(block.address());
            rig.free(stream, block);
        }
        if round % 50 == 0 {
            pool.check_invariants_at(millpond::Level::Full);
        }
    }
    held.into_iter().for_each(|(stream, block)| rig.free(stream, block));
    drop(streams);
    rig.done(pool);
}

/// Sizes around every border get the size that the tables promise, or a sliver more where cutting it
/// off would be worth nothing; all of it is mapped.
pub fn sizes_around_every_border<M: Machine>(make: impl Fn(u16, u64) -> M) {
    let rig = Rig::new(make, 1, 1 << 30);
    let pool = rig.pool();
    let stream = pool.stream(D0).unwrap();
    let classes = (0..size::CLASSES).map(size::class_bytes);
    let pages = [1, 2, 3, 5, 16].map(|n| n * rig.page);
    let borders: Vec<u64> = classes.chain(pages).chain([MIB, size::SMALL_MAX, 3 * MIB]).collect();
    let mut held = Vec::new();
    for border in borders {
        for bytes in [border - 1, border, border + 1] {
            let block = rig.get(&stream, bytes);
            assert_eq!(block.buffer.bytes(), bytes);
            let (granted, least) = (block.buffer.granted_bytes(), size::granted(bytes));
            assert!(granted % size::QUANTUM == 0 && granted >= least, "{bytes} bytes: {granted}");
            let most = if size::is_small(bytes) { least } else { least + least / 16 };
            assert!(granted <= most, "{bytes} bytes: {granted}");
            // The slack behind the request is mapped too.
            rig.machine.write(stream.handle(), block.address() + bytes, granted - bytes, 0);
            held.push(block);
            if held.len() > 30 {
                rig.free(&stream, held.remove(0));
            }
        }
    }
    held.into_iter().for_each(|block| rig.free(&stream, block));
    drop(stream);
    rig.done(pool);
}

/// Many more blocks than a bin, a line or a chunk of a table holds, of one size, live at once.
pub fn thousands_of_one_size<M: Machine>(make: impl Fn(u16, u64) -> M) {
    let rig = Rig::new(make, 1, 1 << 30);
    let pool = rig.pool();
    let stream = pool.stream(D0).unwrap();
    for _ in 0..2 {
        let mut ledger = Ledger::default();
        let held: Vec<_> = (0..5000).map(|_| stream.alloc::<u8>(1000).unwrap()).collect();
        for buffer in &held {
            ledger.enter(buffer.address(), buffer.granted_bytes());
        }
        assert_eq!(pool.stats().devices[0].live_bytes, 5_000_000);
        pool.check_invariants_at(millpond::Level::Full);
    }
    drop(stream);
    rig.done(pool);
}

/// Everything that was held in a mixed run goes back to the driver; late blocks too.
pub fn everything_goes_back<M: Machine>(make: impl Fn(u16, u64) -> M) {
    let rig = Rig::new(make, 2, 1 << 30);
    rig.needs(Need::OnDemand);
    let pool = rig.pool();
    let stream = pool.stream(D0).unwrap();
    let mut held = Vec::new();
    for i in 0..600usize {
        held.push(stream.alloc::<u8>(1 + i * i * 37 % 3_000_000).unwrap());
        if i % 3 == 0 {
            held.swap_remove(i % held.len());
        }
        if i % 100 == 0 {
            pool.check_invariants_at(millpond::Level::Full);
        }
    }
    held.clear();
    rig.machine.pass_time();
    pool.trim_all(0).unwrap();
    rig.machine.pass_time();
    pool.trim_all(0).unwrap();
    pool.check_invariants_at(millpond::Level::Full);
    assert_eq!(pool.stats().devices[0].reserved_bytes, 0);
    let late = stream.alloc::<u8>(5_000_000).unwrap();
    drop(stream);
    drop(pool);
    drop(late);
    rig.assert_nothing_leaked();
}

/// An address leads to its block, whichever device it is on, and to nothing once its memory has gone.
pub fn addresses_of_many_devices<M: Machine>(make: impl Fn(u16, u64) -> M) {
    let rig = Rig::new(make, 3, 64 * MIB);
    rig.needs(Need::OnDemand);
    let (pool, other) = (rig.pool(), rig.pool());
    let streams = [0, 1, 2].map(|device| pool.stream(DeviceId(device)).unwrap());
    for bytes in [700, 3 * MIB] {
        let at = streams.each_ref().map(|stream| pool.allocate(bytes, stream).unwrap());
        let live = |pool: &Pool| pool.stats().devices.iter().map(|d| d.live_bytes).collect();
        for (number, &address) in at.iter().enumerate().rev() {
            assert_eq!(other.free(address), Err(Error::UnknownAddress { address }));
            assert_eq!(
                pool.free(address + 512),
                Err(Error::UnknownAddress { address: address + 512 })
            );
            let pin = pool.pin(address).unwrap();
            assert!(format!("{pin:?}").contains(&format!("device: {number}")), "{pin:?}");
            drop(pin);
            pool.free(address).unwrap();
            let left: Vec<u64> = live(&pool);
            let want: Vec<u64> = (0..3).map(|d| if d < number { bytes } else { 0 }).collect();
            assert_eq!(left, want);
            assert_eq!(pool.free(address), Err(Error::NotAllocated { address }));
        }
        for device in 0..3 {
            assert_eq!(rig.trim_idle(&pool, DeviceId(device), 0), 0);
        }
        for address in at {
            assert_eq!(pool.free(address), Err(Error::UnknownAddress { address }));
        }
    }
    drop((streams, other));
    rig.done(pool);
}
