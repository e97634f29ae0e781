//! The CUDA driver, line by line, over simulated GPUs that are seen through CUDA's own functions: what
//! it asks of CUDA and in which context, what it makes of CUDA's errors, what cudarc's users do with the
//! pool's memory, captures, and how it ends. (The suite of `tests/conformance` runs over it too.)
#![cfg(all(feature = "cuda", feature = "sim", unix))]

mod capture;
mod driver;
mod ends;
mod fallback;
mod interop;

use cudarc::driver::{CudaContext, CudaStream};
use fakecuda::Fake;
use millpond::driver::cuda::{CudaDriver, cudarc};
use millpond::{DeviceId, Level, Pool, Stream};
use millpond_simgpu::{Completion, Sim};
use std::sync::Arc;

const MIB: u64 = 1 << 20;
const CAPACITY: u64 = 64 * MIB;
const D0: DeviceId = DeviceId(0);
const D1: DeviceId = DeviceId(1);

fn sim() -> millpond_simgpu::Builder {
    Sim::builder().devices(2).capacity(CAPACITY).contents(true).oracle(true)
}

/// Two devices seen through CUDA, which hold bytes, watched for races and misuse.
fn start() -> Fake {
    fakecuda::start(sim()).unwrap()
}

/// The same, whose streams run in an order that is drawn.
fn scheduled(seed: u64) -> Fake {
    fakecuda::start(sim().completion(Completion::Scheduled).seed(seed)).unwrap()
}

/// A pool over all devices, and a stream of cudarc's on the first one.
struct Rig {
    stream: Stream,
    pool: Pool,
    cuda: Arc<CudaStream>,
    context: Arc<CudaContext>,
    // The last to go, also when a test fails: what is dropped later is dropped into the next machine.
    fake: Fake,
}

impl Rig {
    fn new(fake: Fake) -> Self {
        let driver = CudaDriver::all().unwrap();
        let context = Arc::clone(&driver.contexts()[0]);
        let pool = Pool::new(driver).unwrap();
        let cuda = context.new_stream().unwrap();
        let stream = pool.register_cuda_stream(&cuda).unwrap();
        Self { fake, context, cuda, pool, stream }
    }

    /// Everything is in order, and goes back.
    #[track_caller]
    fn done(self) {
        self.pool.check_invariants_at(Level::Full);
        self.context.check_err().unwrap();
        drop((self.stream, self.pool, self.cuda));
        self.context.check_err().unwrap();
        drop(self.context);
        quiet(&self.fake);
        assert!(self.fake.leaks().is_empty(), "{}", self.fake.leaks());
    }
}

/// Calls of all functions of CUDA so far.
fn total_calls(fake: &Fake) -> u64 {
    fakecuda::covered().iter().map(|function| fake.calls(function)).sum()
}

/// No misuse, no race.
#[track_caller]
fn quiet(fake: &Fake) {
    assert_eq!(fake.violations(), Vec::<String>::new());
    let hazards = fake.sim().hazards();
    assert!(hazards.is_empty(), "{hazards:#?}");
}
