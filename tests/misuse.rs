//! Wrong calls get the documented error, and change nothing.
#![cfg(feature = "sim")]

mod support;

use millpond::driver::sim::SimDriver;
use millpond::{DeviceId, Error, Pool, Stats, Stream, size};
use millpond_simgpu::{Completion, Sim};
use support::Ledger;

const MIB: u64 = 1 << 20;
const D0: DeviceId = DeviceId(0);

struct Rig {
    sim: Sim,
    pool: Pool,
    stream: Stream,
}

impl Rig {
    fn new() -> Self {
        let sim = Sim::builder()
            .devices(2)
            .capacity(64 * MIB)
            .completion(Completion::Lag(3))
            .oracle(true)
            .build()
            .unwrap();
        let pool = Pool::new(SimDriver::new(sim.clone())).unwrap();
        let stream = pool.stream(D0).unwrap();
        Self { sim, pool, stream }
    }

    /// Makes a call that must fail, and checks that the pool holds what it held.
    #[track_caller]
    fn refused<T>(&self, call: impl FnOnce() -> millpond::Result<T>) -> Error {
        let before = self.pool.stats();
        let error = call().err().expect("an error");
        let after = self.pool.stats();
        let held = |stats: &Stats| {
            let of = |device: &millpond::DeviceStats| (device.live_bytes, device.reserved_bytes);
            (stats.devices.iter().map(of).collect::<Vec<_>>(), stats.hits)
        };
        assert_eq!(held(&before), held(&after));
        self.pool.check_invariants_at(millpond::Level::Full);
        assert!(!error.to_string().is_empty());
        error
    }

    fn done(self) {
        self.pool.check_invariants_at(millpond::Level::Full);
        drop((self.stream, self.pool));
        assert_eq!(self.sim.hazard_count(), 0);
        assert!(self.sim.leaks().is_empty(), "{}", self.sim.leaks());
    }
}

#[test]
fn nothing_and_too_much() {
    let rig = Rig::new();
    let Rig { pool, stream, .. } = &rig;
    assert_eq!(rig.refused(|| stream.alloc::<u8>(0)), Error::ZeroSize);
    assert_eq!(rig.refused(|| stream.alloc::<()>(7)), Error::ZeroSize);
    assert_eq!(rig.refused(|| stream.try_alloc::<u64>(0)), Error::ZeroSize);
    assert_eq!(rig.refused(|| pool.allocate(0, stream)), Error::ZeroSize);
    let max = size::REQUEST_MAX;
    for bytes in [max + 1, u64::MAX - 511, u64::MAX] {
        let too_large = Error::TooLarge { bytes, max };
        assert_eq!(rig.refused(|| pool.allocate(bytes, stream)), too_large);
    }
    // The product does not fit either.
    for len in [usize::MAX, usize::MAX / 8 + 2] {
        let error = rig.refused(|| stream.alloc::<u64>(len));
        assert!(matches!(error, Error::TooLarge { bytes, .. } if bytes > max), "{error}");
    }
    for bytes in [max, max - 511, max / 2, 1 << 40, 64 * MIB + 1] {
        let error = rig.refused(|| pool.allocate(bytes, stream));
        assert!(matches!(&error, Error::OutOfMemory(of) if of.requested == bytes), "{error}");
    }
    rig.done();
}

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

#[test]
fn addresses_where_no_block_starts() {
    let rig = Rig::new();
    let Rig { pool, stream, .. } = &rig;
    let other = Pool::new(SimDriver::new(rig.sim.clone())).unwrap();
    let foreign_stream = other.stream(D0).unwrap();
    let foreign = other.allocate(3 * MIB, &foreign_stream).unwrap();
    let plain = rig.sim.malloc(0, 4096).unwrap();
    let (small, large) =
        (pool.allocate(700, stream).unwrap(), pool.allocate(3 * MIB, stream).unwrap());
    let interior = [small + 1, small + 512, large - 1, large + 512, large + MIB, large + 3 * MIB];
    let outside = [0, 1, 512, u64::MAX, u64::MAX - 511, 1 << 63, plain, foreign, small ^ (1 << 45)];
    for address in interior.into_iter().chain(outside) {
        let unknown = Error::UnknownAddress { address };
        assert_eq!(rig.refused(|| pool.free(address)), unknown);
        assert_eq!(rig.refused(|| pool.record_use(address, stream)), unknown);
        assert_eq!(rig.refused(|| pool.last_use(address, stream)), unknown);
    }
    for address in [small, large] {
        pool.free(address).unwrap();
    }
    other.free(foreign).unwrap();
    rig.sim.free(plain).unwrap();
    drop((foreign_stream, other));
    rig.done();
}

#[test]
fn streams_of_another_pool() {
    let rig = Rig::new();
    let Rig { pool, stream, .. } = &rig;
    let other = Pool::new(SimDriver::new(rig.sim.clone())).unwrap();
    // Its number exists here too.
    let foreign = other.stream(D0).unwrap();
    assert_eq!(foreign.id(), stream.id());
    let error = Error::ForeignStream { stream: foreign.id() };
    let buffer = stream.alloc::<u8>(2000).unwrap();
    let address = buffer.address();
    assert_eq!(rig.refused(|| pool.allocate(1, &foreign)), error);
    assert_eq!(rig.refused(|| pool.record_use(address, &foreign)), error);
    assert_eq!(rig.refused(|| pool.last_use(address, &foreign)), error);
    assert_eq!(rig.refused(|| buffer.record_use(&foreign)), error);
    assert_eq!(rig.refused(|| buffer.last_use(&foreign)), error);
    assert_eq!(rig.refused(|| stream.wait(&foreign)), error);
    let ours = Error::ForeignStream { stream: stream.id() };
    assert_eq!(rig.refused(|| foreign.wait(stream)), ours);
    drop((buffer, foreign, other));
    rig.done();
}

#[test]
fn devices_that_are_not_there() {
    let rig = Rig::new();
    let Rig { pool, stream, .. } = &rig;
    for ordinal in [2, 3, u16::MAX] {
        let device = DeviceId(ordinal);
        let error = Error::NoSuchDevice { device, count: 2 };
        assert_eq!(rig.refused(|| pool.stream(device)), error);
        assert_eq!(rig.refused(|| pool.register_stream(device, stream.handle())), error);
        assert_eq!(rig.refused(|| pool.trim(device, 0)), error);
    }
    rig.done();
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
        assert_eq!(pool.stats().devices[0].live_bytes, bytes);
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

/// All numbers for streams are taken; one is given back and serves again.
#[test]
fn more_streams_than_there_are_numbers() {
    let rig = Rig::new();
    let Rig { pool, stream, .. } = &rig;
    let mut streams: Vec<Stream> = Vec::new();
    let error = loop {
        match pool.register_stream(D0, stream.handle()) {
            Ok(more) => streams.push(more),
            Err(error) => break error,
        }
    };
    assert_eq!(error, Error::TooManyStreams { device: D0 });
    assert_eq!(streams.len(), 65_534);
    assert_eq!(rig.refused(|| pool.stream(D0)), error);
    // The stream that could not be registered was destroyed again.
    assert_eq!(rig.sim.leaks().streams, 1);
    streams.truncate(65_000);
    (0..5).for_each(|_| rig.sim.tick());
    let last = pool.stream(D0).unwrap();
    drop(last.alloc::<u8>(3000).unwrap());
    drop((last, streams));
    rig.done();
}
