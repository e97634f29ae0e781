//! What outlives what, and panics in between.

use crate::{CAPACITY, D0, MIB, Rig};
use millpond::driver::sim::SimDriver;
use millpond::{Buffer, Error, Level, Pool};
use std::panic::{AssertUnwindSafe, catch_unwind};

const SIZES: [usize; 4] = [1, 50_000, MIB as usize, 5 << 20];

/// A buffer whose pool and streams are gone says what it said, and refuses streams of others.
#[test]
fn buffers_without_a_pool() {
    let Rig { sim, pool, stream } = Rig::new();
    let held = SIZES.map(|bytes| stream.alloc::<u8>(bytes).unwrap());
    let said = |buffer: &Buffer| {
        let (address, granted) = (buffer.address(), buffer.granted_bytes());
        (address, granted, buffer.device(), buffer.stream(), format!("{buffer:?}"))
    };
    let before = held.each_ref().map(said);
    drop((pool, stream));
    let second = Pool::new(SimDriver::new(sim.clone())).unwrap();
    let other = second.stream(D0).unwrap();
    for (buffer, before) in held.iter().zip(before) {
        assert_eq!(said(buffer), before);
        let foreign = Error::ForeignStream { stream: other.id() };
        assert_eq!(buffer.record_use(&other), Err(foreign.clone()));
        assert_eq!(buffer.last_use(&other), Err(foreign));
        let address = buffer.address();
        assert_eq!(second.free(address), Err(Error::UnknownAddress { address }));
    }
    let words: Vec<Buffer<[u8; 1]>> =
        held.into_iter().map(|buffer| buffer.cast().unwrap()).collect();
    drop((other, second));
    assert!(sim.leaks().bytes > 0);
    drop(words);
    assert!(sim.leaks().is_empty(), "{}", sim.leaks());
    assert_eq!(sim.hazard_count(), 0);
}

/// An address that was given up and not freed before the end holds on to the memory for good, and
/// troubles nobody.
#[test]
fn addresses_without_a_pool() {
    let Rig { sim, pool, stream } = Rig::new();
    let lost = stream.alloc::<u8>(3 << 20).unwrap().into_address();
    let late = stream.alloc::<u8>(3 << 20).unwrap();
    drop((pool, stream));
    drop(late);
    let second = Pool::new(SimDriver::new(sim.clone())).unwrap();
    assert_eq!(second.free(lost), Err(Error::UnknownAddress { address: lost }));
    drop(second);
    let leaks = sim.leaks();
    assert!(leaks.bytes >= 3 * MIB && leaks.reservations == 2, "{leaks}");
}

/// Buffers that are freed on many threads after their pool is gone, some by threads that it knew.
#[test]
fn late_frees_on_many_threads() {
    for round in 0..20 {
        let Rig { sim, pool, stream } = Rig::new();
        let mut parts: Vec<Vec<Buffer>> = (0..4).map(|_| Vec::new()).collect();
        for (place, bytes) in SIZES.into_iter().cycle().take(24).enumerate() {
            parts[(place + round) % 4].push(stream.alloc::<u8>(bytes / 2 + 1).unwrap());
        }
        let known = stream.clone();
        std::thread::scope(|scope| {
            for (place, part) in parts.into_iter().enumerate() {
                let known = (place % 2 == 0).then(|| known.clone());
                scope.spawn(move || {
                    // This thread has a lease, and maybe the last handle.
                    known.into_iter().for_each(|stream| drop(stream.alloc::<u8>(1).unwrap()));
                    drop(part);
                });
            }
            drop((pool, stream, known));
        });
        assert!(sim.leaks().is_empty(), "round {round}: {}", sim.leaks());
        assert_eq!(sim.hazard_count(), 0);
    }
}

/// A panic frees what was held on its way up, and the pool works on.
#[test]
fn a_panic_while_buffers_are_held() {
    let rig = Rig::new();
    let Rig { pool, stream, .. } = &rig;
    for round in 0..50 {
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            let held = SIZES.map(|bytes| stream.alloc::<u8>(bytes).unwrap());
            let own = pool.stream(D0).unwrap();
            let pin = pool.pin(held[2].address()).unwrap();
            held[3].record_use(&own).unwrap();
            std::panic::resume_unwind(Box::new((pin.bytes(), round)));
        }));
        assert!(outcome.is_err());
        assert_eq!(pool.stats().devices[0].live_bytes, 0);
        pool.check_invariants_at(Level::Full);
    }
    let thread = std::thread::scope(|scope| {
        let held = || {
            let _held = SIZES.map(|bytes| stream.alloc::<u8>(bytes).unwrap());
            std::panic::resume_unwind(Box::new("on a thread that ends by it"))
        };
        scope.spawn(held).join().map(|(): ()| ())
    });
    assert!(thread.is_err());
    drop(stream.alloc::<u8>(CAPACITY as usize).unwrap());
    rig.done();
}

/// A panic in the user's callback goes to the caller; the pool, which holds no lock, works on.
#[test]
fn a_panic_in_the_callback() {
    let rig = Rig::new();
    let builder = Pool::builder(SimDriver::new(rig.sim.clone())).capacity(8 * MIB);
    let pool = builder
        .on_out_of_memory(|report| std::panic::resume_unwind(Box::new(report.requested)))
        .build()
        .unwrap();
    let stream = pool.stream(D0).unwrap();
    let held = stream.alloc::<u8>(5 << 20).unwrap();
    for _ in 0..10 {
        let outcome = catch_unwind(AssertUnwindSafe(|| stream.alloc::<u8>(5 << 20)));
        assert_eq!(outcome.unwrap_err().downcast_ref(), Some(&(5 * MIB)));
        pool.check_invariants_at(Level::Full);
    }
    drop(held);
    drop(stream.alloc::<u8>(8 << 20).unwrap());
    assert_eq!(pool.stats().devices[0].live_bytes, 0);
    drop((stream, pool));
    rig.done();
}
