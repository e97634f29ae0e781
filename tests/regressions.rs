//! Bugs that once were, each in its smallest form.

use millpond::driver::sim::SimDriver;
use millpond::{DeviceId, Pool, Stream};
use millpond_simgpu::{Sim, Touch};

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
