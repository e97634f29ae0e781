//! Simulated devices that are seen through CUDA: the whole way down, cudarc and the driver's functions
//! included.

use crate::machine::Machine;
use fakecuda::Fake;
use millpond::driver::cuda::CudaDriver;
use millpond::driver::cuda::cudarc::driver::sys::CUstream;
use millpond::driver::{Driver, StreamHandle};
use millpond_simgpu::{Completion, Sim, Stream, Touch};
use std::sync::Arc;

/// Devices behind CUDA's functions, with the race oracle on, and strict about misuse.
pub struct Cuda {
    driver: Arc<CudaDriver>,
    // Goes after what stands on it.
    fake: Fake,
}

impl Cuda {
    /// Work is done at once, or in an order that is drawn.
    pub fn new(seed: Option<u64>, virtual_memory: bool, devices: u16, bytes: u64) -> Self {
        let sim = Sim::builder().devices(devices).capacity(bytes).contents(true).oracle(true);
        let fake = fakecuda::start(match seed {
            Some(seed) => sim.completion(Completion::Scheduled).seed(seed),
            None => sim,
        });
        let driver = CudaDriver::all().unwrap();
        let driver = if virtual_memory { driver } else { driver.without_virtual_memory() };
        Self { driver: Arc::new(driver), fake: fake.unwrap() }
    }

    /// The simulated stream behind a handle.
    fn stream(&self, handle: StreamHandle) -> Stream {
        self.driver.contexts()[0].bind_to_thread().unwrap();
        self.fake.stream(handle.0 as CUstream).unwrap()
    }

    fn launch(&self, stream: StreamHandle, touch: Touch) {
        self.fake.sim().launch(self.stream(stream), &[touch]).unwrap();
    }
}

impl Machine for Cuda {
    fn driver(&self) -> Arc<dyn Driver> {
        Arc::<CudaDriver>::clone(&self.driver)
    }

    fn write(&self, stream: StreamHandle, address: u64, bytes: u64, label: u64) {
        self.launch(stream, Touch::write(address, bytes).label(label));
    }

    fn read(&self, stream: StreamHandle, address: u64, bytes: u64, label: u64) {
        self.launch(stream, Touch::read(address, bytes).label(label));
    }

    fn pass_time(&self) {
        // Any call brings the scheduler on; this one tells nobody anything.
        (0..2000).for_each(|_| drop(self.fake.sim().memory_info(0)));
    }

    fn holds_work(&self) -> bool {
        false
    }

    fn hold(&self, stream: StreamHandle) {
        self.fake.sim().hang(self.stream(stream)).unwrap();
    }

    fn let_go(&self, stream: StreamHandle) {
        self.fake.sim().unhang(self.stream(stream)).unwrap();
    }

    fn hazards(&self) -> Vec<String> {
        let sim = self.fake.sim();
        let mut found: Vec<String> = sim.hazards().iter().map(ToString::to_string).collect();
        found.extend((sim.device_faults() > 0).then(|| "work without memory".into()));
        found.extend(self.fake.violations());
        found
    }

    fn leaks(&self) -> Option<String> {
        let leaks = self.fake.leaks();
        (!leaks.is_empty()).then(|| leaks.to_string())
    }
}
