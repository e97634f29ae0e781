//! Wrong calls get the documented error, and change nothing; what threads, panics and ends of pools
//! leave behind is in order.
#![cfg(feature = "sim")]

#[path = "../support/mod.rs"]
mod support;

mod calls;
mod ends;
#[cfg(unix)]
mod fork;
mod settings;
mod threads;
mod twice;

use millpond::driver::sim::SimDriver;
use millpond::{DeviceId, Error, Pool, Stats, Stream};
use millpond_simgpu::{Completion, Sim};

const MIB: u64 = 1 << 20;
const CAPACITY: u64 = 64 * MIB;
const D0: DeviceId = DeviceId(0);

/// Two devices, watched for races.
fn sim() -> Sim {
    Sim::builder()
        .devices(2)
        .capacity(CAPACITY)
        .completion(Completion::Lag(3))
        .oracle(true)
        .build()
        .unwrap()
}

/// A pool over two devices, with a stream.
struct Rig {
    sim: Sim,
    pool: Pool,
    stream: Stream,
}

impl Rig {
    fn new() -> Self {
        let sim = sim();
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
