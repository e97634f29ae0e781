//! Calls with arguments that make no sense.

use crate::{CAPACITY, D0, MIB, Rig};
use millpond::driver::sim::SimDriver;
use millpond::{DeviceId, Error, Pool, Reuse, Stream, size};
use millpond_simgpu::ErrorCode;

#[test]
fn nothing_and_too_much() {
    let rig = Rig::new();
    let Rig { pool, stream, .. } = &rig;
    assert_eq!(rig.refused(|| stream.alloc::<u8>(0)), Error::ZeroSize);
    assert_eq!(rig.refused(|| stream.alloc::<()>(7)), Error::ZeroSize);
    assert_eq!(rig.refused(|| stream.alloc::<[u64; 0]>(usize::MAX)), Error::ZeroSize);
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
    for bytes in [max, max - 511, max / 2, 1 << 40, CAPACITY + 1] {
        let error = rig.refused(|| pool.allocate(bytes, stream));
        assert!(matches!(&error, Error::OutOfMemory(of) if of.requested == bytes), "{error}");
    }
    // A type without a size does not divide anything.
    let buffer = stream.alloc::<u64>(3).unwrap().cast::<()>().unwrap_err();
    assert_eq!((buffer.len(), buffer.bytes()), (3, 24));
    drop(buffer.cast::<[u8; 5]>().unwrap_err());
    rig.done();
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
        assert_eq!(rig.refused(|| pool.pin(address)), unknown);
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

/// A stream registered with a device that it is not of: the pool cannot tell, the driver does. Its
/// own memory goes round; nobody else gets any of it, and it does not go back.
#[test]
fn a_stream_registered_with_another_device() {
    let rig = Rig::new();
    let theirs = rig.sim.stream_create(1).unwrap();
    let Rig { pool, stream, .. } = &rig;
    let wrong = pool.register_stream(D0, millpond::driver::StreamHandle(theirs.0)).unwrap();
    let block = wrong.alloc::<u8>(3 << 20).unwrap();
    let address = block.address();
    drop(block);
    assert_eq!(wrong.alloc::<u8>(3 << 20).unwrap().address(), address);
    let refused = |error: Error| match error {
        Error::Driver(error) => error.code == ErrorCode::InvalidHandle.number(),
        _ => false,
    };
    assert!(refused(rig.refused(|| stream.wait(&wrong))));
    let rest = stream.alloc::<u8>((CAPACITY - 4 * MIB) as usize).unwrap();
    assert!(matches!(stream.alloc::<u8>(3 << 20), Err(Error::OutOfMemory(_))));
    drop(rest);
    drop(wrong);
    pool.check_invariants_at(millpond::Level::Full);
    drop((rig.stream, rig.pool));
    rig.sim.stream_destroy(theirs).unwrap();
    let leaks = rig.sim.leaks();
    assert_eq!((leaks.bytes, leaks.streams, leaks.events), (4 * MIB, 0, 0), "{leaks}");
    assert_eq!(rig.sim.hazard_count(), 0);
}

/// A wait for oneself, and for a stream that waits back, holds up nobody.
#[test]
fn streams_that_wait_in_circles() {
    let rig = Rig::new();
    let Rig { pool, stream, .. } = &rig;
    let other = pool.stream(D0).unwrap();
    for _ in 0..100 {
        stream.wait(stream).unwrap();
        stream.wait(&other).unwrap();
        other.wait(stream).unwrap();
        drop(stream.alloc::<u8>(3 << 20).unwrap());
        drop(other.alloc::<u8>(CAPACITY as usize).unwrap());
    }
    drop(other);
    rig.done();
}

/// Policies do not change what is refused.
#[test]
fn absurd_sizes_under_every_policy() {
    for reuse in [Reuse::SameStream, Reuse::Completed, Reuse::Wait] {
        let rig = Rig::new();
        let pool = Pool::builder(SimDriver::new(rig.sim.clone())).reuse(reuse).build().unwrap();
        let stream = pool.stream(D0).unwrap();
        let held = stream.alloc::<u8>(1).unwrap();
        for bytes in [CAPACITY, CAPACITY + 1, 7 * CAPACITY, 1 << 50, size::REQUEST_MAX] {
            let error = pool.allocate(bytes, &stream).unwrap_err();
            assert!(matches!(error, Error::OutOfMemory(_)), "{error}");
        }
        for bytes in [size::REQUEST_MAX + 1, u64::MAX] {
            let error = pool.allocate(bytes, &stream).unwrap_err();
            assert_eq!(error, Error::TooLarge { bytes, max: size::REQUEST_MAX });
        }
        pool.check_invariants_at(millpond::Level::Full);
        drop((held, stream, pool));
        rig.done();
    }
}
