//! What a replay runs on: simulated devices and a pool over them.

use crate::args::{Capacity, ReplayArgs};
use crate::gpus::{Metered, Reading};
use anyhow::{Context, ensure};
use millpond::driver::sim::SimDriver;
use millpond::{DeviceId, Pool, Stream};
use millpond_simgpu::{Completion, Sim};
use millpond_trace::Summary;
use std::sync::Arc;

/// The page of today's GPUs.
const PAGE: u64 = 2 << 20;
/// Memory of a simulated device, if no capacity asks for more.
const DEVICE_BYTES: u64 = 80 << 30;
/// The largest device that can be simulated.
const MOST_BYTES: u64 = 16 << 40;

/// Devices and a pool.
pub(super) struct Machine {
    pub sim: Sim,
    driver: Arc<Metered>,
    pub pool: Pool,
    /// Most bytes of each device.
    pub limits: Vec<u64>,
}

impl Machine {
    /// A machine with the devices that a trace names, numbered from 0.
    pub fn build(summary: &Summary, args: &ReplayArgs) -> anyhow::Result<Self> {
        let peaks = summary.devices.iter().map(|device| device.peak_live_bytes);
        let limits = peaks
            .map(|peak| {
                limit(args.capacity.unwrap_or(Capacity::Bytes(DEVICE_BYTES)), peak, args.threads)
            })
            .collect::<anyhow::Result<Vec<u64>>>()?;
        let memory = limits.iter().map(|&limit| limit.max(DEVICE_BYTES)).collect();
        let most = limits.iter().copied().max().unwrap_or(0).max(DEVICE_BYTES);
        let sim = Sim::builder()
            .capacities(memory)
            .granularity(PAGE)
            // Several times the memory, as pools need.
            .address_space((most * 8).next_power_of_two())
            .completion(Completion::Lag(args.lag))
            .oracle(args.oracle)
            .build()?;
        let driver = Arc::new(SimDriver::new(sim.clone()));
        let driver = Arc::new(Metered::simulated(driver, sim.clone()));
        let mut builder = Pool::builder_shared(driver.clone()).reuse(args.reuse.into());
        if let Some(headroom) = args.headroom {
            builder = builder.headroom(headroom.0);
        }
        if let Some(page) = args.page {
            builder = builder.page_bytes(page.0);
        }
        for (device, &limit) in (0..).zip(&limits).filter(|_| args.capacity.is_some()) {
            builder = builder.device_capacity(DeviceId(device), limit);
        }
        let pool = builder.build().context("the pool cannot be built")?;
        Ok(Self { sim, driver, pool, limits })
    }

    /// One stream of its own for each of a trace's.
    pub fn streams(&self, devices: &[u16]) -> anyhow::Result<Vec<Stream>> {
        let streams = devices.iter().map(|&device| self.pool.stream(DeviceId(device)));
        Ok(streams.collect::<millpond::Result<_>>()?)
    }

    /// What the driver's counters show.
    pub fn reading(&self) -> Reading {
        self.driver.reading()
    }
}

/// A device's capacity in bytes.
fn limit(capacity: Capacity, peak: u64, threads: u16) -> anyhow::Result<u64> {
    let bytes = match capacity {
        Capacity::Bytes(bytes) => bytes,
        // Saturates, and a product that large is refused below.
        Capacity::Factor(factor) => (factor * peak as f64 * f64::from(threads)).ceil() as u64,
    };
    ensure!(
        bytes <= MOST_BYTES,
        "a capacity of {bytes} bytes is too large: simulated devices have at most {MOST_BYTES}"
    );
    // A device that holds no block still has a page.
    Ok(bytes.max(1).next_multiple_of(PAGE))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capacities_are_whole_pages() {
        let limit = |capacity, peak, threads| limit(capacity, peak, threads).ok();
        assert_eq!(limit(Capacity::Bytes(1), 0, 1), Some(PAGE));
        assert_eq!(limit(Capacity::Factor(1.0), PAGE, 1), Some(PAGE));
        assert_eq!(limit(Capacity::Factor(1.0), PAGE + 1, 1), Some(2 * PAGE));
        assert_eq!(limit(Capacity::Factor(1.5), PAGE, 4), Some(6 * PAGE));
        assert_eq!(limit(Capacity::Factor(1.0), 0, 1), Some(PAGE));
        assert_eq!(limit(Capacity::Bytes(u64::MAX), 0, 1), None);
        assert_eq!(limit(Capacity::Factor(2.0), u64::MAX, 1), None);
    }
}
