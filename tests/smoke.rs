//! The pool over simulated devices, end to end.

use millpond::driver::sim::SimDriver;
use millpond::{DeviceId, Pool};
use millpond_simgpu::Sim;

fn pool(devices: u16) -> (Pool, Sim) {
    let sim = Sim::builder().devices(devices).oracle(true).build().unwrap();
    (Pool::new(SimDriver::new(sim.clone())).unwrap(), sim)
}

#[test]
fn everything_goes_back_to_the_driver() {
    let (pool, sim) = pool(2);
    let stream = pool.stream(DeviceId(0)).unwrap();
    let mut held = Vec::new();
    for i in 0..2000usize {
        held.push(stream.alloc::<u8>(1 + i * i % 3_000_000).unwrap());
        if i % 3 == 0 {
            held.swap_remove(i % held.len());
        }
        if i % 100 == 0 {
            pool.check_invariants();
        }
    }
    pool.check_invariants();
    println!("{:?}", pool.stats());
    held.clear();
    pool.check_invariants();
    pool.trim_all(0).unwrap();
    pool.check_invariants();
    assert_eq!(pool.stats().devices[0].reserved_bytes, 0);
    let late = stream.alloc::<u8>(5_000_000).unwrap();
    drop(stream);
    drop(pool);
    drop(late);
    assert!(sim.leaks().is_empty(), "{:?}", sim.leaks());
}
