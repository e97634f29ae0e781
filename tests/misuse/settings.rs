//! Settings beyond sense: brought within what there is, or refused.

use crate::{CAPACITY, D0, MIB};
use millpond::driver::sim::SimDriver;
use millpond::{
    Budget, Builder, Defragmentation, DeviceId, Error, Generations, Headroom, Level, Movable, Pool,
    StepTiming,
};
use millpond_simgpu::Sim;
use std::time::Duration;

/// A pool with what `set` sets, of which `most` bytes are to be had and no more.
fn has(most: u64, set: impl FnOnce(Builder) -> Builder) {
    let sim = Sim::builder().devices(2).capacity(CAPACITY).oracle(true).build().unwrap();
    let builder = Pool::builder(SimDriver::new(sim.clone())).host_wait(Duration::ZERO);
    let pool = set(builder).build().unwrap();
    let stream = pool.stream(D0).unwrap();
    let page = pool.stats().devices[0].limit_bytes - most;
    assert!(page < 2 * MIB || most == CAPACITY, "{most} are to be had, and {page} more");
    if most > 0 {
        drop(stream.alloc::<u8>(most as usize).unwrap());
        drop((0..20).map(|i| stream.alloc::<u8>(1 + i * 999).unwrap()).collect::<Vec<_>>());
    }
    let error = stream.alloc::<u8>(most as usize + 1).unwrap_err();
    assert!(matches!(error, Error::OutOfMemory(_)), "{error}");
    pool.check_invariants_at(Level::Full);
    pool.trim(D0, u64::MAX).unwrap();
    pool.trim_all(0).unwrap();
    drop((stream, pool));
    assert_eq!(sim.hazard_count(), 0);
    assert!(sim.leaks().is_empty(), "{}", sim.leaks());
}

#[test]
fn capacities() {
    has(0, |builder| builder.capacity(0));
    has(0, |builder| builder.capacity(2 * MIB - 1));
    has(2 * MIB, |builder| builder.capacity(4 * MIB - 1));
    has(CAPACITY, |builder| builder.capacity(u64::MAX));
    has(CAPACITY, |builder| builder.device_capacity(DeviceId(9), 0));
    has(0, |builder| builder.capacity(CAPACITY).device_capacity(D0, 0));
    has(CAPACITY, |builder| builder.device_capacity(D0, 1).device_capacity(D0, u64::MAX));
}

#[test]
fn shares() {
    for share in [0.0, -1.0, f64::NEG_INFINITY, -0.0, f64::MIN_POSITIVE] {
        has(0, |builder| builder.capacity_share(share));
    }
    for share in [1.0, 7.0, f64::INFINITY, f64::NAN] {
        has(CAPACITY, |builder| builder.capacity_share(share));
    }
}

#[test]
fn pages() {
    for bytes in [0, 1, 2 * MIB, 3 * MIB, CAPACITY - 1, CAPACITY, CAPACITY + 1, u64::MAX] {
        has(CAPACITY, |builder| builder.page_bytes(bytes));
    }
}

#[test]
fn headrooms() {
    let shares = [0.0, -1.0, 1e300, f64::NAN, f64::INFINITY, f64::NEG_INFINITY];
    let some = shares.into_iter().map(Headroom::Share);
    for headroom in some.chain([Headroom::Unbounded, Headroom::Automatic]) {
        has(CAPACITY, |builder| builder.headroom(headroom));
    }
}

#[test]
fn watermarks() {
    for (low, high) in [(0, 0), (u64::MAX, 0), (0, u64::MAX), (u64::MAX, u64::MAX), (1, 1)] {
        has(CAPACITY, |builder| builder.watermarks(low, high));
    }
}

/// Devices without any memory, or with less than a page.
#[test]
fn devices_without_memory() {
    for bytes in [0, 1, 2 * MIB - 1] {
        let sim = Sim::builder().capacity(bytes).build().unwrap();
        match Pool::new(SimDriver::new(sim.clone())) {
            Ok(pool) => {
                let stream = pool.stream(D0).unwrap();
                assert!(stream.alloc::<u8>(1).is_err());
                pool.check_invariants_at(Level::Full);
            }
            Err(error) => assert!(matches!(error, Error::Driver(_)), "{error:?}"),
        }
        assert!(sim.leaks().is_empty(), "{bytes}: {}", sim.leaks());
    }
}

#[test]
fn budgets_of_moves() {
    let longest = [Duration::ZERO, Duration::from_nanos(1), Duration::MAX];
    let shares = [0.0, -1.0, 1.0, f64::MIN_POSITIVE, f64::INFINITY, f64::NAN];
    let ages = |share| Generations::default().share(share).every(0).promotion(0);
    let mut budgets: Vec<Defragmentation> =
        shares.iter().map(|&share| Defragmentation::Generational(ages(share))).collect();
    let shares = shares.iter().map(|&share| Budget::Share(share));
    let times = longest.iter().map(|&time| Budget::Time(time));
    let others = [Budget::Bytes(0), Budget::Bytes(u64::MAX), Budget::Unlimited];
    let all = shares.chain(times).chain(others);
    budgets.extend(all.map(|budget| Defragmentation::Compaction { budget }));
    for how in budgets {
        for (step, bytes_per_second) in
            longest.iter().flat_map(|&step| [0, 1, u64::MAX].map(|rate| (step, rate)))
        {
            let sim = Sim::builder().capacity(CAPACITY).oracle(true).build().unwrap();
            let pool = Pool::builder(SimDriver::new(sim.clone()))
                .defragmentation(how)
                .step_timing(StepTiming::Given { step, bytes_per_second })
                .build()
                .unwrap();
            let stream = pool.stream(D0).unwrap();
            let bytes = CAPACITY as usize / 32;
            let blocks: Vec<Movable> =
                (0..16).map(|_| stream.alloc_movable(bytes).unwrap()).collect();
            blocks.iter().for_each(|block| drop(block.pin(&stream).unwrap()));
            let blocks: Vec<Movable> = blocks.into_iter().step_by(2).collect();
            for _ in 0..3 {
                pool.begin_step();
                let moved = pool.step_gap(&stream).unwrap();
                assert!(
                    moved.bytes <= CAPACITY,
                    "{how:?}, {step:?}, {bytes_per_second}: {moved:?}"
                );
            }
            pool.check_invariants_at(Level::Full);
            drop((blocks, stream, pool));
            assert_eq!(sim.hazard_count(), 0);
            assert!(sim.leaks().is_empty(), "{}", sim.leaks());
        }
    }
}
