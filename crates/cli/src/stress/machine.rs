//! The GPUs with the pool over them, and what stages do on both: every allocation is filled, every
//! block checked before it is freed, everything counted.

use super::block::{Ask, Block};
use super::contents::Coverage;
use super::cuda::{self, CudaDevices};
use super::devices::{Devices, SimDevices};
use super::ledger::{Ledger, count};
use super::occupancy::Occupancy;
use super::rng::Rng;
use super::worker::Halt;
use crate::gpus::{Cuda, Gpus, Metered, leave_some};
use millpond::driver::Driver;
use millpond::driver::sim::SimDriver;
use millpond::{DeviceId, Error, Headroom, Pool, Stream, size};
use millpond_simgpu::{Completion, Touch};
use std::sync::Arc;

/// What all threads of a run share.
pub(super) struct Machine {
    pub driver: Arc<Metered>,
    pub pool: Pool,
    pub devices: Arc<dyn Devices>,
    /// Most bytes of each device; the least of them.
    pub capacity: u64,
    pub ledger: Ledger,
    occupancy: Occupancy,
    coverage: Coverage,
}

/// How the devices are.
#[derive(Clone, Copy, Debug)]
pub(super) struct Setup {
    pub devices: u16,
    /// Most bytes of each device: by default a simulated one has 80 GiB, a real one what is free.
    pub capacity: Option<u64>,
    /// Memory in plain allocations.
    pub plain: bool,
    pub completion: Completion,
    pub oracle: bool,
    pub coverage: Coverage,
    pub seed: u64,
}

/// Memory of a simulated device.
const SIMULATED_BYTES: u64 = 80 << 30;

impl Machine {
    pub fn new(setup: &Setup, gpus: &mut Gpus) -> anyhow::Result<Self> {
        match gpus {
            Gpus::Sim => Self::simulated(setup),
            Gpus::Cuda(cuda) => Self::real(setup, cuda),
        }
    }

    fn simulated(setup: &Setup) -> anyhow::Result<Self> {
        let capacity = setup.capacity.unwrap_or(SIMULATED_BYTES);
        let devices = SimDevices::new(setup, capacity)?;
        let sim = devices.sim().clone();
        let driver = match setup.plain {
            true => SimDriver::without_virtual_memory(sim.clone()),
            false => SimDriver::new(sim.clone()),
        };
        let driver = Arc::new(Metered::simulated(Arc::new(driver), sim));
        let pool = Pool::builder_shared(driver.clone()).peer_access(true).build()?;
        let end = devices.end();
        Ok(Self::over(setup, driver, pool, Arc::new(devices), capacity, end))
    }

    fn real(setup: &Setup, cuda: &mut Cuda) -> anyhow::Result<Self> {
        let devices = CudaDevices::new(cuda, setup.devices)?;
        let driver = cuda.driver(setup.devices, setup.plain)?;
        let mut limits = Vec::new();
        for id in (0..setup.devices).map(DeviceId) {
            let granularity = driver.device(id)?.granularity;
            let free = leave_some(driver.memory_info(id)?.0, granularity);
            limits.push(setup.capacity.map_or(free, |capacity| capacity.min(free)));
        }
        let driver = Arc::new(Metered::booked(Arc::new(driver)));
        devices.watch(driver.clone());
        let mut builder = Pool::builder_shared(driver.clone());
        builder = builder.peer_access(true).headroom(Headroom::Automatic);
        for (device, &limit) in (0..).zip(&limits) {
            builder = builder.device_capacity(DeviceId(device), limit);
        }
        let capacity = limits.into_iter().min().unwrap_or(0);
        Ok(Self::over(setup, driver, builder.build()?, Arc::new(devices), capacity, cuda::END))
    }

    fn over(
        setup: &Setup,
        driver: Arc<Metered>,
        pool: Pool,
        devices: Arc<dyn Devices>,
        capacity: u64,
        end: u64,
    ) -> Self {
        Self {
            driver,
            pool,
            devices,
            capacity,
            ledger: Ledger::new(usize::from(setup.devices)),
            occupancy: Occupancy::new(end),
            coverage: setup.coverage,
        }
    }

    /// Allocates on `stream` for the thread `who` and fills the block with a pattern of its own.
    /// `None` where the device has no memory for it.
    pub fn alloc(
        &self,
        who: usize,
        stream: &Stream,
        bytes: u64,
        rng: &mut Rng,
    ) -> Result<Option<Block>, Halt> {
        let block = self.alloc_bare(who, stream, bytes, rng)?;
        if let Some(block) = &block {
            self.fill(block, stream)?;
        }
        Ok(block)
    }

    /// As [`Machine::alloc`], for a block that a copy will fill.
    pub fn alloc_bare(
        &self,
        who: usize,
        stream: &Stream,
        bytes: u64,
        rng: &mut Rng,
    ) -> Result<Option<Block>, Halt> {
        let (ask, pattern) = (Ask::draw(rng), rng.next());
        self.devices.tick();
        let ledger = &self.ledger;
        let busy = || count(&ledger.busy);
        let memory = match ledger.alloc.time(|| ask.of(&self.pool, stream, bytes, busy)) {
            Ok(memory) => memory,
            Err(Error::OutOfMemory(_)) => {
                count(&ledger.out_of_memory);
                return Ok(None);
            }
            Err(error) => return Err(error.into()),
        };
        count(&ledger.allocations);
        if !self.occupancy.enter(memory.address(), size::granted(bytes)) {
            count(&ledger.overlaps);
        }
        let device = usize::from(stream.device().0);
        ledger.devices[device].add(bytes);
        Ok(Some(Block { memory, bytes, pattern, device, home: Some(stream.clone()), born: who }))
    }

    /// Fills the block with its pattern, from any device.
    pub fn fill(&self, block: &Block, stream: &Stream) -> Result<(), Halt> {
        let (address, bytes) = (block.memory.address(), block.bytes);
        self.touch(stream, &[Touch::write(address, bytes)])?;
        for (at, len) in self.coverage.parts(address, bytes) {
            self.devices.fill(stream, at, len, block.pattern)?;
        }
        Ok(())
    }

    /// Compares the block with its pattern when `stream` comes to it.
    pub fn check(&self, block: &Block, stream: &Stream) -> Result<(), Halt> {
        let (address, bytes) = (block.memory.address(), block.bytes);
        self.touch(stream, &[Touch::read(address, bytes)])?;
        for (at, len) in self.coverage.parts(address, bytes) {
            self.devices.check(stream, at, len, block.pattern)?;
        }
        Ok(())
    }

    /// Copies one block's content, pattern included, into another of the same size.
    ///
    /// Of samples only the first is copied: the others lie elsewhere in the other block.
    pub fn copy(&self, stream: &Stream, to: &mut Block, from: &Block) -> Result<(), Halt> {
        let (target, source, bytes) = (to.memory.address(), from.memory.address(), to.bytes);
        self.touch(stream, &[Touch::read(source, bytes), Touch::write(target, bytes)])?;
        let mut parts = self.coverage.parts(target, bytes);
        if let Some((_, len)) = parts.next() {
            self.devices.copy(stream, target, source, len)?;
        }
        for (at, len) in parts {
            self.devices.fill(stream, at, len, from.pattern)?;
        }
        to.pattern = from.pattern;
        Ok(())
    }

    /// Tells the oracle of a touch whose contents are only sampled.
    fn touch(&self, stream: &Stream, touches: &[Touch]) -> Result<(), Halt> {
        if self.coverage == Coverage::Sampled {
            self.devices.touch(stream, touches)?;
        }
        Ok(())
    }

    /// Says that `stream` uses the block until it is freed.
    pub fn record_use(&self, block: &Block, stream: &Stream) -> millpond::Result<()> {
        count(&self.ledger.uses);
        block.memory.record_use(stream)
    }

    /// Says that `stream` has touched the block for the last time.
    pub fn last_use(&self, block: &Block, stream: &Stream) -> millpond::Result<()> {
        count(&self.ledger.uses);
        block.memory.last_use(stream)
    }

    /// Later work of `to` comes after all that `from` has been given so far.
    pub fn wait(&self, to: &Stream, from: &Stream) -> millpond::Result<()> {
        if to.id() != from.id() {
            count(&self.ledger.waits);
            self.devices.tick();
            to.wait(from)?;
        }
        Ok(())
    }

    /// Submits the block's last check. From here on it does not need its stream any more.
    pub fn settle(&self, block: &mut Block) -> Result<(), Halt> {
        match block.home.take() {
            Some(home) => self.check(block, &home),
            None => Ok(()),
        }
    }

    /// Checks the block and frees it, as the thread `who`.
    pub fn free(&self, who: usize, mut block: Block) -> Result<(), Halt> {
        self.settle(&mut block)?;
        self.devices.tick();
        if !self.occupancy.leave(block.memory.address(), size::granted(block.bytes)) {
            count(&self.ledger.overlaps);
        }
        self.ledger.devices[block.device].sub(block.bytes);
        count(&self.ledger.frees);
        if who != block.born {
            count(&self.ledger.foreign_frees);
        }
        self.ledger.free.time(|| block.memory.free())?;
        Ok(())
    }
}
