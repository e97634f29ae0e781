//! Frees of what was freed already.

use crate::support::Ledger;
use crate::{CAPACITY, D0, MIB, Rig};
use millpond::driver::sim::SimDriver;
use millpond::{Error, Level, Pool, size};
use std::sync::{Arc, Barrier};

const SIZES: [u64; 5] = [1, 700, 50_000, MIB, 5 * MIB + 1];

#[test]
fn freed_twice() {
    for bytes in [1, 700, 50_000, 900_000, MIB, 2 * MIB, 5 * MIB + 1] {
        let rig = Rig::new();
        let Rig { pool, stream, .. } = &rig;
        let address = pool.allocate(bytes, stream).unwrap();
        let neighbour = pool.allocate(bytes, stream).unwrap();
        pool.free(address).unwrap();
        assert_eq!(rig.refused(|| pool.free(address)), Error::NotAllocated { address });
        assert_eq!(
            rig.refused(|| pool.record_use(address, stream)),
            Error::NotAllocated { address }
        );
        assert_eq!(rig.refused(|| pool.last_use(address, stream)), Error::NotAllocated { address });
        // Once it has become part of something larger no block starts there.
        pool.trim(D0, 0).unwrap();
        let error = rig.refused(|| pool.free(address));
        assert!(matches!(
            error,
            Error::NotAllocated { address: at } | Error::UnknownAddress { address: at }
                if at == address
        ));
        // Allocated again, it is a block like any other.
        let again = pool.allocate(bytes, stream).unwrap();
        pool.free(again).unwrap();
        pool.free(neighbour).unwrap();
        assert_eq!(pool.stats().devices[0].live_bytes, 0);
        rig.done();
    }
}

/// A buffer's block freed by its address: the buffer then owns nothing, and its drop frees nothing.
#[test]
fn a_buffers_block_freed_by_address() {
    for bytes in [700, 50_000, MIB, 5 * MIB] {
        let rig = Rig::new();
        let Rig { pool, stream, .. } = &rig;
        let buffer = stream.alloc::<u8>(bytes as usize).unwrap();
        let address = buffer.address();
        pool.free(address).unwrap();
        // Somebody else has it by now.
        let other = pool.allocate(bytes, stream).unwrap();
        drop(buffer);
        assert_eq!(pool.stats().devices[0].live_bytes, bytes, "a buffer has freed another's block");
        let mut ledger = Ledger::default();
        ledger.enter(other, size::granted(bytes));
        let more: Vec<_> = (0..4).map(|_| stream.alloc::<u8>(bytes as usize).unwrap()).collect();
        more.iter().for_each(|buffer| ledger.enter(buffer.address(), buffer.granted_bytes()));
        drop(more);
        pool.check_invariants_at(millpond::Level::Full);
        pool.free(other).unwrap();
        rig.done();
    }
}

/// Such a buffer may be the last that is left of its pool, in a thread that has no other hold on it.
#[test]
fn a_buffers_block_freed_by_address_and_the_pool_gone() {
    for bytes in [700, 50_000, MIB, 5 * MIB] {
        // The thread's end ends its lease, which keeps the pool's host memory too.
        let (sim, driver, buffer) = std::thread::spawn(move || {
            let Rig { sim, pool, stream } = Rig::new();
            let driver = Arc::downgrade(pool.driver());
            let buffer = stream.alloc::<u8>(bytes as usize).unwrap();
            let given_up = stream.alloc::<u8>(bytes as usize).unwrap().into_address();
            pool.free(buffer.address()).unwrap();
            pool.free(given_up).unwrap();
            (sim, driver, buffer)
        })
        .join()
        .unwrap();
        assert!(sim.leaks().is_empty(), "{}", sim.leaks());
        assert!(driver.strong_count() > 0, "the buffer points to a core that is no more");
        let second = Pool::new(SimDriver::new(sim.clone())).unwrap();
        let other = second.stream(D0).unwrap();
        assert_eq!(buffer.record_use(&other), Err(Error::ForeignStream { stream: other.id() }));
        drop(buffer);
        drop((other, second));
        assert!(sim.leaks().is_empty(), "{}", sim.leaks());
    }
}

/// A pool none of whose buffers was freed by address leaves nothing in host memory.
#[test]
fn addresses_leave_nothing() {
    let driver = std::thread::spawn(|| {
        let Rig { pool, stream, .. } = Rig::new();
        let raw = SIZES.map(|bytes| pool.allocate(bytes, &stream).unwrap());
        let given_up = SIZES.map(|bytes| stream.alloc::<u8>(bytes as usize).unwrap());
        raw.into_iter().for_each(|address| pool.free(address).unwrap());
        given_up.into_iter().for_each(|buffer| pool.free(buffer.into_address()).unwrap());
        // The same blocks as buffers, and by address again.
        for bytes in SIZES {
            drop(stream.alloc::<u8>(bytes as usize).unwrap());
            pool.free(pool.allocate(bytes, &stream).unwrap()).unwrap();
        }
        Arc::downgrade(pool.driver())
    });
    assert_eq!(driver.join().unwrap().strong_count(), 0, "the pool's core is still there");
}

/// Uses of a buffer that owns nothing are refused: its block may be somebody else's.
#[test]
fn uses_of_a_buffer_whose_block_is_gone() {
    for bytes in SIZES {
        let rig = Rig::new();
        let Rig { pool, stream, .. } = &rig;
        let other = pool.stream(D0).unwrap();
        let buffer = stream.alloc::<u8>(bytes as usize).unwrap();
        let address = buffer.address();
        pool.free(address).unwrap();
        let gone = Error::NotAllocated { address };
        assert_eq!(rig.refused(|| buffer.record_use(&other)), gone);
        let again = stream.alloc::<u8>(bytes as usize).unwrap();
        assert_eq!(rig.refused(|| buffer.last_use(&other)), gone);
        // And nobody holds the address because of it.
        assert_eq!(buffer.into_address(), address);
        drop(again);
        drop(other);
        rig.done();
    }
}

/// The same where the block has become part of a larger extent, or is gone.
#[test]
fn a_buffers_block_freed_by_address_and_merged() {
    for bytes in [700, 50_000, MIB, 5 * MIB] {
        let rig = Rig::new();
        let Rig { pool, stream, .. } = &rig;
        let below = stream.alloc::<u8>(bytes as usize).unwrap();
        let buffer = stream.alloc::<u8>(bytes as usize).unwrap();
        pool.free(buffer.address()).unwrap();
        drop(below);
        for _ in 0..5 {
            rig.sim.tick();
            pool.trim(D0, 0).unwrap();
        }
        assert_eq!(pool.stats().devices[0].reserved_bytes, 0);
        drop(buffer);
        pool.check_invariants_at(millpond::Level::Full);
        let again = stream.alloc::<u8>(bytes as usize).unwrap();
        let more = stream.alloc::<u8>(bytes as usize).unwrap();
        assert_ne!(again.address(), more.address());
        drop((again, more));
        rig.done();
    }
}

/// A buffer dropped, then freed by the address that it had; and so a buffer of another type.
#[test]
fn an_address_after_its_buffer() {
    for bytes in SIZES {
        let rig = Rig::new();
        let Rig { pool, stream, .. } = &rig;
        let buffer = stream.alloc::<u8>(bytes as usize).unwrap();
        let address = buffer.address();
        drop(buffer);
        assert_eq!(rig.refused(|| pool.free(address)), Error::NotAllocated { address });
        let buffer = stream.alloc::<u8>(bytes as usize).unwrap();
        assert_eq!(buffer.address(), address);
        let given_up = buffer.cast::<[u8; 1]>().unwrap().into_address();
        pool.free(given_up).unwrap();
        assert_eq!(rig.refused(|| pool.free(address)), Error::NotAllocated { address });
        assert_eq!(rig.refused(|| pool.pin(address)), Error::NotAllocated { address });
        rig.done();
    }
}

/// Two threads free one address at once: one does, the other is told.
#[test]
fn by_address_on_two_threads() {
    for bytes in SIZES {
        let rig = Rig::new();
        let Rig { pool, stream, .. } = &rig;
        let barrier = Barrier::new(2);
        for _ in 0..300 {
            let address = pool.allocate(bytes, stream).unwrap();
            let free = || {
                barrier.wait();
                pool.free(address)
            };
            let (one, two) = std::thread::scope(|scope| {
                let other = scope.spawn(free);
                (free(), other.join().unwrap())
            });
            let told = Err(Error::NotAllocated { address });
            assert!((one == Ok(()) && two == told) || (one == told && two == Ok(())));
        }
        rig.in_order(bytes);
        rig.done();
    }
}

/// A buffer is dropped while its address is freed: it is freed, and goes to one user.
#[test]
fn by_buffer_and_by_address_on_two_threads() {
    for bytes in SIZES {
        let rig = Rig::new();
        let Rig { pool, stream, .. } = &rig;
        let barrier = Barrier::new(2);
        for _ in 0..300 {
            let buffer = stream.alloc::<u8>(bytes as usize).unwrap();
            let address = buffer.address();
            let freed = std::thread::scope(|scope| {
                let barrier = &barrier;
                scope.spawn(move || {
                    barrier.wait();
                    drop(buffer);
                });
                barrier.wait();
                pool.free(address)
            });
            assert!(matches!(freed, Ok(()) | Err(Error::NotAllocated { .. })), "{freed:?}");
        }
        rig.in_order(bytes);
        rig.done();
    }
}

impl Rig {
    /// Nothing is held, and what there is goes to one user each.
    fn in_order(&self, bytes: u64) {
        self.pool.check_invariants_at(Level::Full);
        assert_eq!(self.pool.stats().devices[0].live_bytes, 0);
        let mut ledger = Ledger::default();
        let held: Vec<_> =
            (0..6).map(|_| self.stream.alloc::<u8>(bytes as usize).unwrap()).collect();
        held.iter().for_each(|buffer| ledger.enter(buffer.address(), buffer.granted_bytes()));
        drop(held);
        drop(self.stream.alloc::<u8>(CAPACITY as usize).unwrap());
    }
}
