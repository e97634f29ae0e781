//! What a rig stands on: whose calls fail, what the pool has left there, what it did wrong.

use crate::rig::{CAPACITY, Setup};
use millpond::driver::sim::SimDriver;
use millpond::driver::{Driver, StreamHandle};
use millpond_simgpu::{Builder, Call, Completion, ErrorCode, Fault, Leaks, Sim, Stream};
use std::sync::Arc;
use std::time::Duration;

/// What the pool's calls go to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Over {
    /// The simulator itself.
    Sim,
    /// The simulator by way of CUDA's functions.
    #[cfg(all(feature = "cuda", unix))]
    Cuda {
        /// Whether the calling thread has a current context, the first device's.
        current: bool,
    },
}

impl Over {
    /// How long the host waits at most for what hangs.
    pub fn host_wait(self, completion: Completion) -> Duration {
        match (self, completion) {
            // Of simulated time: a wait that is in vain takes none of ours.
            (Self::Sim, _) => Duration::from_secs(5),
            // Of ours; each question brings the device on. Where all is done at once every wait is in
            // vain.
            #[cfg(all(feature = "cuda", unix))]
            (Self::Cuda { .. }, Completion::Scheduled) => Duration::from_secs(5),
            #[cfg(all(feature = "cuda", unix))]
            (Self::Cuda { .. }, _) => Duration::from_millis(2),
        }
    }

    /// What a setup stands on, fresh.
    pub fn ground(self, setup: Setup) -> Box<dyn Ground> {
        match self {
            Self::Sim => Box::new(Simulated::new(setup)),
            #[cfg(all(feature = "cuda", unix))]
            Self::Cuda { current } => Box::new(crate::cuda::Cuda::new(setup, current)),
        }
    }
}

/// The devices of a setup.
pub fn devices(setup: Setup) -> Builder {
    Sim::builder().devices(2).capacity(CAPACITY).completion(setup.completion).oracle(true)
}

/// Where calls are made to fail, by number and by name.
pub trait Ground {
    /// The driver.
    fn driver(&self) -> Arc<dyn Driver>;

    /// The simulator at the bottom, for the program's own work.
    fn sim(&self) -> Sim;

    /// The simulator's stream behind a handle.
    fn stream(&self, handle: StreamHandle) -> Stream;

    /// How often each kind of call was made since the driver was there.
    fn calls(&self) -> Vec<(&'static str, u64)>;

    /// The `nth` call from now on fails.
    fn fail_any(&self, nth: u64, code: ErrorCode);

    /// Every call fails from the `nth` on.
    fn fail_all(&self, nth: u64, code: ErrorCode);

    /// The `nth` call of a kind fails, and with `sticky` those after it.
    fn fail(&self, call: &str, nth: u64, code: ErrorCode, sticky: bool);

    /// No call fails any more.
    fn clear_faults(&self);

    /// What was not given back of a device.
    fn leaks_of(&self, device: u16) -> Leaks;

    /// What the pool did that no driver allows.
    fn misuse(&self) -> Vec<String>;

    /// Lets a stream capture, if that can be; says whether it does.
    fn begin_capture(&self, _: StreamHandle) -> bool {
        false
    }

    /// Ends a capture, whatever fails.
    fn end_capture(&self, _: StreamHandle) {}
}

/// The simulator, where calls of the program's own count and fail too.
struct Simulated {
    sim: Sim,
    plain: bool,
}

impl Simulated {
    fn new(setup: Setup) -> Self {
        Self { sim: devices(setup).build().unwrap(), plain: setup.plain }
    }
}

impl Ground for Simulated {
    fn driver(&self) -> Arc<dyn Driver> {
        let sim = self.sim.clone();
        Arc::new(match self.plain {
            true => SimDriver::without_virtual_memory(sim),
            false => SimDriver::new(sim),
        })
    }

    fn sim(&self) -> Sim {
        self.sim.clone()
    }

    fn stream(&self, handle: StreamHandle) -> Stream {
        handle.into()
    }

    fn calls(&self) -> Vec<(&'static str, u64)> {
        let counters = self.sim.counters();
        Call::ALL.iter().map(|&call| (call.name(), counters.get(call))).collect()
    }

    fn fail_any(&self, nth: u64, code: ErrorCode) {
        self.sim.inject_any(nth, code);
    }

    fn fail_all(&self, nth: u64, code: ErrorCode) {
        self.sim.inject_all(nth, code);
    }

    fn fail(&self, call: &str, nth: u64, code: ErrorCode, sticky: bool) {
        let call = Call::ALL.iter().find(|known| known.name() == call).unwrap();
        self.sim.inject(Fault { call: *call, nth, code, sticky });
    }

    fn clear_faults(&self) {
        self.sim.clear_faults();
    }

    fn leaks_of(&self, device: u16) -> Leaks {
        self.sim.leaks_of(device)
    }

    fn misuse(&self) -> Vec<String> {
        Vec::new()
    }
}
