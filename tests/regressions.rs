//! Bugs that once were, each in its smallest form.

use millpond::driver::sim::SimDriver;
use millpond::{DeviceId, Error, Headroom, Pool, Stream};
use millpond_simgpu::{Call, ErrorCode, Fault, Page, Sim, Touch};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

fn machine() -> (Pool, Sim) {
    let sim = Sim::builder().devices(1).oracle(true).build().unwrap();
    (Pool::new(SimDriver::new(sim.clone())).unwrap(), sim)
}

fn streams(pool: &Pool, n: usize) -> Vec<Stream> {
    (0..n).map(|_| pool.stream(DeviceId(0)).unwrap()).collect()
}

/// A block freed after the end of streams it was used on is stamped with a number that no seal
/// covers: `completed` never holds, so extents with many such fences never merge.
#[test]
fn blocks_freed_after_their_streams_ended_go_back() {
    let (pool, sim) = machine();
    let all = streams(&pool, 12);
    let a = all[0].alloc::<u8>(1000).unwrap();
    let b = all[0].alloc::<u8>(1000).unwrap();
    for stream in &all {
        a.record_use(stream).unwrap();
        b.record_use(stream).unwrap();
    }
    drop(all);
    drop(a);
    drop(b);
    drop(pool);
    assert!(sim.leaks().is_empty(), "{}", sim.leaks());
}

/// A large block used on many streams is cut.
#[test]
fn a_block_used_on_many_streams_can_be_cut() {
    let (pool, sim) = machine();
    let all = streams(&pool, 12);
    let a = all[0].alloc::<u8>(8 << 20).unwrap();
    for stream in &all {
        sim.launch(stream.handle().into(), &[Touch::write(a.address(), 1)]).ok();
        a.record_use(stream).unwrap();
    }
    drop(a);
    let other = pool.stream(DeviceId(0)).unwrap();
    for stream in &all {
        other.wait(stream).unwrap();
    }
    other.alloc::<u8>(2 << 20).unwrap();
}

/// Only memory of an ended stream is there, and the policy asks no driver.
#[test]
fn same_stream_reuse_survives_the_end_of_a_stream() {
    let sim = Sim::builder().devices(1).build().unwrap();
    let pool = Pool::builder(SimDriver::new(sim.clone())).capacity(8 << 20).build().unwrap();
    let s = pool.stream(DeviceId(0)).unwrap();
    let a = s.alloc::<u8>(8 << 20).unwrap();
    drop(s);
    drop(a);
    let t = pool.stream(DeviceId(0)).unwrap();
    let b = t.alloc::<u8>(4 << 20).unwrap();
    drop(b);
}

/// Eight waits of the user's fill the stream's slots with seals that nobody polls; no later seal finds
/// a slot, so no later fence is ever known to be completed, though the device is idle.
#[test]
fn full_slots_do_not_strand_memory() {
    let sim = Sim::builder().capacity(4 << 20).oracle(true).build().unwrap();
    let pool = Pool::new(SimDriver::new(sim.clone())).unwrap();
    let (s, t) = (pool.stream(DeviceId(0)).unwrap(), pool.stream(DeviceId(0)).unwrap());
    for _ in 0..8 {
        t.wait(&s).unwrap();
    }
    drop(s.alloc::<u8>(4 << 20).unwrap());
    // Needs a page from the large region: its fence must have completed.
    t.alloc::<u8>(1000).unwrap();
}

/// The same where streams do not wait for each other.
#[test]
fn full_slots_do_not_end_reuse() {
    let sim = Sim::builder().capacity(4 << 20).oracle(true).build().unwrap();
    let pool = Pool::builder(SimDriver::new(sim.clone()))
        .reuse(millpond::Reuse::Completed)
        .build()
        .unwrap();
    let (s, t) = (pool.stream(DeviceId(0)).unwrap(), pool.stream(DeviceId(0)).unwrap());
    for _ in 0..8 {
        t.wait(&s).unwrap();
    }
    drop(s.alloc::<u8>(4 << 20).unwrap());
    t.alloc::<u8>(4 << 20).unwrap();
}

/// A device half of which belongs to somebody else, and a pool that has to move pages.
fn crowded() -> (Sim, Vec<Page>, Pool, Stream) {
    let sim = Sim::builder().capacity(16 << 20).build().unwrap();
    let theirs = (0..4).map(|_| sim.page_create(0, 2 << 20).unwrap()).collect();
    let pool = Pool::builder(SimDriver::new(sim.clone())).headroom(Headroom::Unbounded);
    let pool = pool.host_wait(Duration::from_millis(10)).build().unwrap();
    let stream = pool.stream(DeviceId(0)).unwrap();
    (sim, theirs, pool, stream)
}

/// The driver has no new pages, and does not map old ones either: an error, not another attempt
/// for ever. When it was memory that it lacked for the mapping, an out-of-memory.
#[test]
fn moving_that_fails_for_good_ends() {
    for call in [Call::Map, Call::SetAccess] {
        for code in [ErrorCode::Unknown, ErrorCode::OutOfMemory] {
            let (sim, _theirs, pool, stream) = crowded();
            let mut held: Vec<_> =
                (0..4).map(|_| Some(stream.alloc::<u8>(2 << 20).unwrap())).collect();
            (held[0], held[2]) = (None, None);
            sim.inject(Fault { call, nth: 1, code, sticky: true });
            let error = stream.alloc::<u8>(4 << 20).unwrap_err();
            let memory = matches!(error, Error::OutOfMemory(_));
            assert_eq!(memory, code == ErrorCode::OutOfMemory, "{error}");
            sim.clear_faults();
            pool.check_invariants_at(millpond::Level::Full);
            stream.alloc::<u8>(4 << 20).unwrap();
        }
    }
}

/// No deadline is beyond what the clock can say.
#[test]
fn a_pool_may_wait_for_ever() {
    let sim = Sim::builder().capacity(16 << 20).build().unwrap();
    let pool = Pool::builder(SimDriver::new(sim.clone())).host_wait(Duration::MAX);
    let pool = pool.build().unwrap();
    let stream = pool.stream(DeviceId(0)).unwrap();
    let held = stream.alloc::<u8>(9 << 20).unwrap();
    assert!(matches!(stream.alloc::<u8>(9 << 20), Err(Error::OutOfMemory(_))));
    drop((held, stream, pool));
    assert!(sim.leaks().is_empty(), "{}", sim.leaks());
}

/// A block is freed, its page taken and given back while another thread pins it: whatever was
/// pinned is let go of again.
#[test]
fn pins_against_frees_of_the_block() {
    let sim = Sim::builder().capacity(64 << 20).build().unwrap();
    let pool = Pool::new(SimDriver::new(sim.clone())).unwrap();
    let stream = pool.stream(DeviceId(0)).unwrap();
    let (address, done) = (AtomicU64::new(1), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                drop(pool.pin(address.load(Ordering::Relaxed)));
            }
        });
        for round in 0..2000 {
            let block = stream.alloc::<u8>((3 << 20) + ((round % 5) << 20)).unwrap();
            address.store(block.address(), Ordering::Relaxed);
            drop(block);
            pool.trim(DeviceId(0), 0).unwrap();
        }
        done.store(true, Ordering::Relaxed);
    });
    assert_eq!(pool.trim(DeviceId(0), 0).unwrap(), 0, "something is pinned still");
    pool.check_invariants_at(millpond::Level::Full);
}

/// A pinned page that lies in the way of nobody else is used where it is, when all depends on it.
#[test]
fn pinned_pages_are_used_before_memory_is_out() {
    let sim = Sim::builder().capacity(64 << 20).build().unwrap();
    let pool = Pool::builder(SimDriver::new(sim)).capacity(20 << 20).build().unwrap();
    let stream = pool.stream(DeviceId(0)).unwrap();
    let get = |bytes| stream.alloc::<u8>(bytes).unwrap();
    let (low, next, _between, high) = (get(6 << 20), get(6 << 20), get(2 << 20), get(6 << 20));
    drop(next);
    pool.trim(DeviceId(0), 0).unwrap();
    let _small: Vec<_> = (0..6).map(|_| get(950 << 10)).collect();
    let _pin = pool.pin(high.address()).unwrap();
    drop((low, high));
    // Three pages where the pin is, and three that can be brought there.
    get(12 << 20);
}
