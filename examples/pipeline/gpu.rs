//! What the pipeline asks of GPUs beside memory: fills and checks.

use crate::Result;
use millpond::driver::Driver;
use millpond::driver::sim::SimDriver;
use millpond::{Buffer, Stream};
use millpond_simgpu::{Completion, Sim};
use std::sync::Arc;

/// GPUs that hold real bytes. All work is submitted to streams; nothing here waits for a device.
pub trait Gpu: Sync {
    /// For the pool.
    fn driver(&self) -> Arc<dyn Driver>;

    /// Fills all of a block with a pattern.
    fn fill(&self, stream: &Stream, block: &Buffer<u8>, pattern: u32) -> Result;

    /// Compares a block with its pattern when the stream comes to it.
    fn check(&self, stream: &Stream, block: &Buffer<u8>, pattern: u32) -> Result;

    /// Waits for all work; says what went wrong, if anything.
    fn finish(&self) -> Result<Vec<String>>;
}

/// Simulated GPUs that run their streams in an order as adverse as they can, under the race oracle:
/// if a block were handed out too early, the checks would find other contents, and the oracle a hazard.
pub struct Simulated(Sim);

impl Simulated {
    pub fn new(devices: u16) -> Result<Self> {
        let sim = Sim::builder().devices(devices).completion(Completion::Scheduled);
        Ok(Self(sim.contents(true).oracle(true).seed(1).build()?))
    }
}

/// The simulation repeats patterns of eight bytes.
fn eight_bytes(pattern: u32) -> u64 {
    u64::from(pattern) << 32 | u64::from(pattern)
}

impl Gpu for Simulated {
    fn driver(&self) -> Arc<dyn Driver> {
        Arc::new(SimDriver::new(self.0.clone()))
    }

    fn fill(&self, stream: &Stream, block: &Buffer<u8>, pattern: u32) -> Result {
        let stream = stream.handle().into();
        Ok(self.0.fill(stream, block.address(), block.bytes(), eight_bytes(pattern))?)
    }

    fn check(&self, stream: &Stream, block: &Buffer<u8>, pattern: u32) -> Result {
        let stream = stream.handle().into();
        Ok(self.0.check_fill(stream, block.address(), block.bytes(), eight_bytes(pattern))?)
    }

    fn finish(&self) -> Result<Vec<String>> {
        (0..self.0.device_count()).try_for_each(|device| self.0.device_synchronize(device))?;
        let hazards = self.0.hazards().into_iter().map(|hazard| hazard.to_string());
        let mismatches = self.0.mismatches().into_iter().map(|mismatch| format!("{mismatch:?}"));
        Ok(hazards.chain(mismatches).collect())
    }
}
