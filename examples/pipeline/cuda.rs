//! The pipeline's GPUs through CUDA.

use crate::Result;
use crate::gpu::Gpu;
use millpond::driver::Driver;
use millpond::driver::cuda::CudaDriver;
use millpond::driver::cuda::cudarc::driver::{CudaContext, PinnedHostSlice, result, sys};
use millpond::{Buffer, Stream};
use millpond_simgpu::{Completion, Sim};
use std::sync::{Arc, Mutex, PoisonError};

/// Of a block these parts are compared: its start, its middle and its end, so many bytes of each.
const SAMPLE: usize = 4096;

/// All CUDA devices. What is to be compared is copied to pinned host memory on the stream, and
/// compared at the end.
pub struct Cuda {
    driver: Arc<CudaDriver>,
    samples: Mutex<Vec<Sample>>,
}

struct Sample {
    bytes: PinnedHostSlice<u8>,
    pattern: u32,
    what: String,
}

impl Cuda {
    pub fn new() -> Result<Self> {
        let driver = CudaDriver::all().map_err(|error| error.to_string())?;
        Ok(Self { driver: Arc::new(driver), samples: Mutex::default() })
    }

    /// The stream's handle, its device's context made current: cudarc's raw calls need both.
    fn bind(&self, stream: &Stream) -> Result<(sys::CUstream, &Arc<CudaContext>)> {
        let context = &self.driver.contexts()[usize::from(stream.device().0)];
        context.bind_to_thread()?;
        Ok((std::ptr::with_exposed_provenance_mut(stream.handle().0 as usize), context))
    }
}

impl Gpu for Cuda {
    fn driver(&self) -> Arc<dyn Driver> {
        Arc::<CudaDriver>::clone(&self.driver)
    }

    fn fill(&self, stream: &Stream, block: &Buffer<u8>, pattern: u32) -> Result {
        let (stream, _) = self.bind(stream)?;
        // SAFETY: the block is the caller's, and live until work on the stream is submitted that frees
        // it; its length is whole words.
        Ok(unsafe {
            sys::cuMemsetD32Async(block.address(), pattern, block.len() / 4, stream).result()
        }?)
    }

    fn check(&self, stream: &Stream, block: &Buffer<u8>, pattern: u32) -> Result {
        let (handle, context) = self.bind(stream)?;
        let sample = SAMPLE.min(block.len());
        let last = block.len() - sample;
        for start in [0, last / 2 / 4 * 4, last] {
            // SAFETY: it is written by the copy before anybody reads it.
            let mut bytes = unsafe { context.alloc_pinned::<u8>(sample) }?;
            let to = bytes.as_mut_slice()?;
            // SAFETY: the part lies in the caller's block; the host memory is kept until the work is
            // over, and nobody looks before.
            unsafe { result::memcpy_dtoh_async(to, block.address() + start as u64, handle) }?;
            let what = format!("{block:?} on {stream:?}, from byte {start}");
            let mut samples = self.samples.lock().unwrap_or_else(PoisonError::into_inner);
            samples.push(Sample { bytes, pattern, what });
        }
        Ok(())
    }

    fn finish(&self) -> Result<Vec<String>> {
        self.driver.contexts().iter().try_for_each(|context| context.synchronize())?;
        let samples = self.samples.lock().unwrap_or_else(PoisonError::into_inner);
        let mut wrong = Vec::new();
        for Sample { bytes, pattern, what } in samples.iter() {
            let expected = pattern.to_ne_bytes();
            if bytes.as_slice()?.chunks(4).any(|word| word != expected) {
                wrong.push(format!("{what}: not {pattern:#x}"));
            }
        }
        Ok(wrong)
    }
}

/// Simulated GPUs seen through CUDA's functions, under the race oracle, and strict about misuse.
pub struct Fake {
    cuda: Cuda,
    // After the driver above: the machine goes with it.
    fake: fakecuda::Fake,
}

impl Fake {
    pub fn new(devices: u16) -> Result<Self> {
        let sim = Sim::builder().devices(devices).completion(Completion::Scheduled);
        let fake = fakecuda::start(sim.contents(true).oracle(true).seed(1))?;
        Ok(Self { cuda: Cuda::new()?, fake })
    }
}

impl Gpu for Fake {
    fn driver(&self) -> Arc<dyn Driver> {
        self.cuda.driver()
    }

    fn fill(&self, stream: &Stream, block: &Buffer<u8>, pattern: u32) -> Result {
        self.cuda.fill(stream, block, pattern)
    }

    fn check(&self, stream: &Stream, block: &Buffer<u8>, pattern: u32) -> Result {
        self.cuda.check(stream, block, pattern)
    }

    fn finish(&self) -> Result<Vec<String>> {
        let mut wrong = self.cuda.finish()?;
        wrong.extend(self.fake.sim().hazards().into_iter().map(|hazard| hazard.to_string()));
        wrong.extend(self.fake.violations());
        Ok(wrong)
    }
}
