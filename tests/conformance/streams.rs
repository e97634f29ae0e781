//! Streams that come and go, while their memory stays.

use crate::machine::{Block, D0, D1, MIB, Machine, Rig};
use millpond::{Error, Reuse};

/// A stream is gone while the work it was given still runs on memory that it freed.
pub fn dropped_with_memory_in_flight<M: Machine>(make: impl Fn(u16, u64) -> M) {
    for reuse in [Reuse::SameStream, Reuse::Completed, Reuse::Wait] {
        let rig = Rig::new(&make, 1, 16 * MIB);
        let pool = rig.builder().reuse(reuse).build().unwrap();
        let heir = pool.stream(D0).unwrap();
        for bytes in [700, 70_000, 5 * MIB] {
            for _ in 0..8 {
                let stream = pool.stream(D0).unwrap();
                let later = rig.get(&stream, bytes);
                rig.touch(&stream, bytes);
                rig.read(&stream, &later);
                drop(stream);
                rig.touch(&heir, bytes);
                // Freed after its stream's end, by a thread that keeps bins for that stream.
                drop(later);
                rig.touch(&heir, bytes);
            }
        }
        drop(heir);
        rig.done(pool);
    }
}

/// Blocks in use on a stream that ends before they are freed.
pub fn users_may_end_before_the_free<M: Machine>(make: impl Fn(u16, u64) -> M) {
    let rig = Rig::new(make, 1, 16 * MIB);
    let pool = rig.pool();
    let [home, heir] = [0; 2].map(|_| pool.stream(D0).unwrap());
    for bytes in [700, 5 * MIB] {
        for round in 0..8 {
            let user = pool.stream(D0).unwrap();
            let block = rig.get(&home, bytes);
            rig.use_on(&user, &home, &block);
            if round % 2 == 0 {
                block.buffer.record_use(&user).unwrap();
            } else {
                block.buffer.last_use(&user).unwrap();
            }
            drop(user);
            // A newcomer may get the user's handle, and in time its number.
            let newcomer = pool.stream(D0).unwrap();
            rig.touch(&newcomer, bytes);
            rig.free(&home, block);
            rig.touch(&newcomer, bytes);
            rig.touch(&heir, bytes);
        }
    }
    drop((home, heir));
    rig.done(pool);
}

/// A thousand streams, each used once: their numbers and the memory about them are used again.
pub fn a_thousand_streams<M: Machine>(make: impl Fn(u16, u64) -> M) {
    let rig = Rig::new(make, 2, 64 * MIB);
    let pool = rig.pool();
    let run = || {
        let mut most = 0;
        for number in 0..1000 {
            let stream = pool.stream([D0, D1][number % 2]).unwrap();
            most = most.max(stream.id().get());
            rig.touch(&stream, [700, 9000, 80_000, 2 * MIB][number % 4]);
            drop(stream);
            if number % 50 == 49 {
                rig.machine.pass_time();
            }
        }
        pool.check_invariants_at(millpond::Level::Full);
        (most, pool.stats().bookkeeping_bytes)
    };
    let (most, first) = run();
    assert!(most <= 120, "stream numbers went up to {most}");
    let (most, second) = run();
    assert!(most <= 120, "stream numbers went up to {most}");
    assert!(second <= first + first / 5, "bookkeeping grew from {first} to {second} bytes");
    rig.done(pool);
}

/// Old blocks of a stream whose number a newcomer has got.
pub fn blocks_of_an_earlier_stream_of_the_number<M: Machine>(make: impl Fn(u16, u64) -> M) {
    let rig = Rig::new(make, 1, 16 * MIB);
    let pool = rig.pool();
    let heir = pool.stream(D0).unwrap();
    let old = pool.stream(D0).unwrap();
    let number = old.id();
    for bytes in [700, 5 * MIB] {
        rig.touch(&old, bytes);
    }
    let held: Vec<Block> = [700, 3 * MIB].map(|bytes| rig.get(&old, bytes)).into();
    drop(old);
    rig.machine.pass_time();
    let new = pool.stream(D0).unwrap();
    assert_eq!(new.id(), number);
    for bytes in [700, 5 * MIB] {
        rig.touch(&new, bytes);
    }
    held.iter().for_each(|block| rig.use_on(&new, &heir, block));
    for block in held {
        block.buffer.record_use(&new).unwrap();
        drop(block);
    }
    for bytes in [700, 3 * MIB, 5 * MIB] {
        rig.touch(&new, bytes);
        rig.touch(&heir, bytes);
    }
    drop((heir, new));
    rig.done(pool);
}

/// A stream of the caller's stays the caller's.
pub fn registered_streams_stay_the_callers<M: Machine>(make: impl Fn(u16, u64) -> M) {
    let rig = Rig::new(make, 2, 16 * MIB);
    let pool = rig.pool();
    let handle = rig.raw().create_stream(D1).unwrap();
    let heir = pool.stream(D1).unwrap();
    for _ in 0..3 {
        let stream = pool.register_stream(D1, handle).unwrap();
        assert_eq!((stream.device(), stream.handle()), (D1, handle));
        rig.touch(&stream, 3 * MIB);
        let clone = stream.clone();
        drop(stream);
        rig.touch(&clone, 3000);
        drop(clone);
        rig.touch(&heir, 3 * MIB);
        rig.touch(&heir, 3000);
    }
    assert_eq!(rig.driver.calls("destroy_stream"), 0);
    drop(heir);
    pool.check_invariants_at(millpond::Level::Full);
    drop(pool);
    // It is still there.
    rig.raw().destroy_stream(D1, handle).unwrap();
    rig.assert_quiet();
    rig.assert_nothing_leaked();
}

/// Clones are one stream, which ends with the last of them.
pub fn clones_are_one_stream<M: Machine>(make: impl Fn(u16, u64) -> M) {
    let rig = Rig::new(make, 1, 16 * MIB);
    let pool = rig.pool();
    let stream = pool.stream(D0).unwrap();
    let clone = stream.clone();
    assert_eq!((stream.id(), stream.handle()), (clone.id(), clone.handle()));
    let freed = rig.touch(&stream, 3 * MIB);
    drop(stream);
    assert_eq!(rig.driver.calls("destroy_stream"), 0);
    assert_eq!(rig.touch(&clone, 3 * MIB), freed);
    clone.wait(&clone).unwrap();
    drop(clone);
    assert_eq!(rig.driver.calls("destroy_stream"), 1);
    assert!(matches!(pool.stream(millpond::DeviceId(1)), Err(Error::NoSuchDevice { .. })));
    rig.done(pool);
}
