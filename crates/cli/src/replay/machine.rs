//! What a replay runs on: devices, an allocator over them, and how much memory there is.

use super::allocator::Allocator;
use super::pool::PoolAllocator;
use super::program::Program;
use crate::args::{Capacity, ReplayArgs};
use crate::costs;
use crate::gpus::{Cuda, Metered, leave_some};
use anyhow::{Context, ensure};
use millpond::driver::Driver;
use millpond::driver::sim::SimDriver;
use millpond::plan::Plan;
use millpond::{DeviceId, Headroom, Planning, Pool};
use millpond_simgpu::{Completion, Sim};
use std::sync::Arc;

/// The page of today's GPUs.
const PAGE: u64 = 2 << 20;
/// Memory of a simulated device, if no capacity asks for more.
pub(super) const DEVICE_BYTES: u64 = 80 << 30;
/// The largest device that can be simulated.
const MOST_BYTES: u64 = 16 << 40;

/// Devices and an allocator.
pub(super) struct Machine<A> {
    pub allocator: A,
    /// Most bytes of each device.
    pub limits: Vec<u64>,
    /// Where the devices are simulated.
    pub sim: Option<Sim>,
}

impl<A: Allocator> Machine<A> {
    /// One stream of its own for each of a trace's.
    pub fn streams(&self, devices: &[u16]) -> anyhow::Result<Vec<A::Stream>> {
        let streams = devices.iter().map(|&device| self.allocator.stream(DeviceId(device)));
        Ok(streams.collect::<Result<_, _>>()?)
    }
}

impl Machine<PoolAllocator> {
    /// The pool over simulated devices, as many as a trace names.
    pub fn simulated(program: &Program, args: &ReplayArgs) -> anyhow::Result<Self> {
        let own = args.mechanism.capacity().map(Capacity::Factor);
        let capacity = args.capacity.or(own).unwrap_or(Capacity::Bytes(DEVICE_BYTES));
        let limits = limits(capacity, program, args.threads, PAGE, |_| MOST_BYTES)?;
        let memory = limits.iter().map(|&limit| limit.max(DEVICE_BYTES)).collect();
        let most = limits.iter().copied().max().unwrap_or(0).max(DEVICE_BYTES);
        let mut sim = Sim::builder()
            .capacities(memory)
            .granularity(PAGE)
            // Several times the memory, as pools need.
            .address_space((most * 8).next_power_of_two())
            .completion(Completion::Lag(args.lag.unwrap_or(0)))
            .oracle(args.oracle);
        if let Some(path) = &args.costs {
            sim = sim.costs(costs::read(path)?);
        }
        let sim = sim.build()?;
        let driver = match args.plain {
            true => SimDriver::without_virtual_memory(sim.clone()),
            false => SimDriver::new(sim.clone()),
        };
        let driver = Metered::simulated(Arc::new(driver), sim.clone());
        let limited = args.capacity.is_some() || own.is_some();
        let allocator = pool(driver, &limits, limited, None, args)?;
        Ok(Self { allocator, limits, sim: Some(sim) })
    }

    /// The pool over as many real devices.
    pub fn real(program: &Program, args: &ReplayArgs, cuda: &mut Cuda) -> anyhow::Result<Self> {
        let devices = u16::try_from(program.devices.len())?;
        let driver = cuda.driver(devices, args.plain)?;
        let ids = (0..devices).map(DeviceId);
        let infos = ids.clone().map(|id| driver.device(id)).collect::<Result<Vec<_>, _>>()?;
        let granularity = infos.iter().map(|info| info.granularity).max().unwrap_or(PAGE);
        let limits = match args.capacity {
            Some(capacity) => {
                let total = |index: usize| infos.get(index).map_or(0, |info| info.memory_bytes);
                limits(capacity, program, args.threads, granularity, total)?
            }
            None => {
                let free = ids.map(|id| Ok(driver.memory_info(id)?.0));
                let most = free.zip(&infos);
                let most =
                    most.map(|(free, info)| free.map(|free| leave_some(free, info.granularity)));
                most.collect::<anyhow::Result<_>>()?
            }
        };
        // Without a capacity of the user's the pool stays close to what it needs.
        let headroom = args.capacity.is_none().then_some(Headroom::Automatic);
        let driver = Metered::timed(Arc::new(driver));
        let allocator = pool(driver, &limits, true, headroom, args)?;
        Ok(Self { allocator, limits, sim: None })
    }
}

fn pool(
    driver: Metered,
    limits: &[u64],
    limited: bool,
    headroom: Option<Headroom>,
    args: &ReplayArgs,
) -> anyhow::Result<PoolAllocator> {
    let driver = Arc::new(driver);
    let mut builder = args.mechanism.apply(Pool::builder_shared(driver.clone()));
    if let Some(path) = &args.plan {
        let plan = Some(Plan::load(path)?);
        builder = builder.planned(Planning { plan, ..Planning::default() });
    }
    if let Some(reuse) = args.reuse {
        builder = builder.reuse(reuse.into());
    }
    if let Some(headroom) = args.headroom.map(|headroom| headroom.0).or(headroom) {
        builder = builder.headroom(headroom);
    }
    if let Some(page) = args.page {
        builder = builder.page_bytes(page.0);
    }
    for (device, &limit) in (0..).zip(limits).filter(|_| limited) {
        builder = builder.device_capacity(DeviceId(device), limit);
    }
    let pool = builder.build().context("the pool cannot be built")?;
    Ok(PoolAllocator { driver, pool, moves: args.mechanism.moves() })
}

/// The devices' capacities in bytes. `most`: what a device can have.
fn limits(
    capacity: Capacity,
    program: &Program,
    threads: u16,
    page: u64,
    most: impl Fn(usize) -> u64,
) -> anyhow::Result<Vec<u64>> {
    let limit = |(index, device): (usize, &super::program::Device)| {
        limit(capacity, device.peak_live_bytes, threads, page, most(index))
    };
    program.devices.iter().enumerate().map(limit).collect()
}

fn limit(capacity: Capacity, peak: u64, threads: u16, page: u64, most: u64) -> anyhow::Result<u64> {
    let bytes = match capacity {
        Capacity::Bytes(bytes) => bytes,
        // Saturates, and a product that large is refused below.
        Capacity::Factor(factor) => (factor * peak as f64 * f64::from(threads)).ceil() as u64,
    };
    ensure!(
        bytes <= most,
        "a capacity of {bytes} bytes is too large: the device has at most {most}"
    );
    // A device that holds no block still has a page.
    Ok(bytes.max(1).next_multiple_of(page))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capacities_are_whole_pages() {
        let limit = |capacity, peak, threads| limit(capacity, peak, threads, PAGE, MOST_BYTES).ok();
        assert_eq!(limit(Capacity::Bytes(1), 0, 1), Some(PAGE));
        assert_eq!(limit(Capacity::Factor(1.0), PAGE, 1), Some(PAGE));
        assert_eq!(limit(Capacity::Factor(1.0), PAGE + 1, 1), Some(2 * PAGE));
        assert_eq!(limit(Capacity::Factor(1.5), PAGE, 4), Some(6 * PAGE));
        assert_eq!(limit(Capacity::Factor(1.0), 0, 1), Some(PAGE));
        assert_eq!(limit(Capacity::Bytes(u64::MAX), 0, 1), None);
        assert_eq!(limit(Capacity::Factor(2.0), u64::MAX, 1), None);
    }
}
