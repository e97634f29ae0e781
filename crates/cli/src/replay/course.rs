//! What the pool holds while a trace runs through it.

use super::allocator::Allocator;
use super::life::Declared;
use super::machine::DEVICE_BYTES;
use super::pool::{Block, PoolAllocator};
use super::program::Program;
use super::run::{self, Hooks};
use crate::gpus::Metered;
use millpond::driver::sim::SimDriver;
use millpond::{DeviceId, Pool, Stream};
use millpond_simgpu::Sim;
use millpond_trace::Trace;
use std::sync::Arc;

/// Samples of a device.
const SAMPLES: u64 = 256;

/// Reserved bytes of a device over time: allocations and frees of the device before, and bytes.
pub(crate) type Course = Vec<(u64, u64)>;

/// Replays a trace through the pool, at its default settings, over simulated GPUs with memory enough.
/// What each device of the trace's summary holds over time.
pub(crate) fn reserved(trace: &Trace) -> anyhow::Result<Vec<Course>> {
    let program = Program::compile(trace, false, u16::MAX, Declared::Nothing)?;
    let peak = program.devices.iter().map(|device| device.peak_live_bytes).max().unwrap_or(0);
    // Twice the peak: the default headroom takes little of it.
    let bytes = peak.saturating_mul(2).max(DEVICE_BYTES);
    let sim = Sim::builder()
        .capacities(vec![bytes; program.devices.len()])
        .address_space(bytes.saturating_mul(8).next_power_of_two())
        .build()?;
    let driver = Arc::new(Metered::simulated(Arc::new(SimDriver::new(sim.clone())), sim));
    let pool = Pool::builder_shared(driver.clone()).build()?;
    let allocator = PoolAllocator { driver, pool, moves: false };
    let streams = program.streams.iter().map(|&device| allocator.stream(DeviceId(device)));
    let mut streams = streams.collect::<Result<Vec<_>, _>>()?;
    let mut slots: Vec<_> = (0..program.slots).map(|_| None).collect();
    let operations = (program.calls() / program.devices.len().max(1) as u64).max(1);
    let mut sampling = Sampling {
        pool: &allocator.pool,
        stride: operations.div_ceil(SAMPLES),
        counts: vec![0; program.devices.len()],
        courses: vec![Course::new(); program.devices.len()],
    };
    run::replay(&allocator, &program, &mut streams, &mut slots, &mut sampling)?;
    let Sampling { courses, .. } = sampling;
    run::clear(&allocator, &program, &streams, &mut slots, &mut run::Plain)?;
    Ok(courses)
}

/// Looks now and then what each device holds.
struct Sampling<'a> {
    pool: &'a Pool,
    /// Allocations and frees from one look to the next.
    stride: u64,
    counts: Vec<u64>,
    courses: Vec<Course>,
}

impl Sampling<'_> {
    fn count(&mut self, device: DeviceId) {
        let device = usize::from(device.0);
        if self.counts[device].is_multiple_of(self.stride) {
            let reserved = self.pool.reserved_bytes(DeviceId(device as u16)).unwrap_or(0);
            self.courses[device].push((self.counts[device], reserved));
        }
        self.counts[device] += 1;
    }
}

impl Hooks<PoolAllocator> for Sampling<'_> {
    fn allocated(
        &mut self,
        _streams: &[Stream],
        _slot: u32,
        _stream: u16,
        block: &Block,
    ) -> anyhow::Result<()> {
        self.count(block.device());
        Ok(())
    }

    fn freeing(&mut self, _streams: &[Stream], _slot: u32, block: &Block) -> anyhow::Result<()> {
        self.count(block.device());
        Ok(())
    }
}
