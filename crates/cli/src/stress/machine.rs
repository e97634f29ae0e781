//! The simulated GPUs with the pool over them, and what stages do on both: every allocation is
//! filled, every block checked before it is freed, everything counted.

use super::block::{Ask, Block};
use super::contents::Coverage;
use super::ledger::{Ledger, count};
use super::occupancy::Occupancy;
use super::rng::Rng;
use super::worker::Halt;
use crate::gpus::Metered;
use millpond::driver::sim::SimDriver;
use millpond::{Error, Pool, Stream, size};
use millpond_simgpu::{Completion, Sim, Touch};
use std::sync::Arc;

/// What all threads of a run share.
pub(super) struct Machine {
    pub sim: Sim,
    pub driver: Arc<Metered>,
    pub pool: Pool,
    pub ledger: Ledger,
    occupancy: Occupancy,
    coverage: Coverage,
    oracle: bool,
}

/// How the devices are.
#[derive(Clone, Copy, Debug)]
pub(super) struct Setup {
    pub devices: u16,
    pub capacity: u64,
    pub completion: Completion,
    pub oracle: bool,
    pub coverage: Coverage,
    pub seed: u64,
}

/// Addresses of a device; what lies below the first and behind the last is nobody's.
const ADDRESSES: u64 = 16 << 40;

/// The simulated driver's handle of a stream.
fn raw(stream: &Stream) -> millpond_simgpu::Stream {
    stream.handle().into()
}

impl Machine {
    pub fn new(setup: &Setup) -> anyhow::Result<Self> {
        let sim = Sim::builder()
            .devices(setup.devices)
            .capacity(setup.capacity)
            .completion(setup.completion)
            .address_space(ADDRESSES)
            .contents(true)
            .oracle(setup.oracle)
            .seed(setup.seed)
            .build()?;
        let driver = Arc::new(SimDriver::new(sim.clone()));
        let driver = Arc::new(Metered::simulated(driver, sim.clone()));
        let pool = Pool::builder_shared(driver.clone()).peer_access(true).build()?;
        Ok(Self {
            sim,
            driver,
            pool,
            ledger: Ledger::new(usize::from(setup.devices)),
            occupancy: Occupancy::new(ADDRESSES * (u64::from(setup.devices) + 1)),
            coverage: setup.coverage,
            oracle: setup.oracle,
        })
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
        self.sim.tick();
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
            self.sim.fill(raw(stream), at, len, block.pattern)?;
        }
        Ok(())
    }

    /// Compares the block with its pattern when `stream` comes to it.
    pub fn check(&self, block: &Block, stream: &Stream) -> Result<(), Halt> {
        let (address, bytes) = (block.memory.address(), block.bytes);
        self.touch(stream, &[Touch::read(address, bytes)])?;
        for (at, len) in self.coverage.parts(address, bytes) {
            self.sim.check_fill(raw(stream), at, len, block.pattern)?;
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
            self.sim.copy(raw(stream), target, source, len)?;
        }
        for (at, len) in parts {
            self.sim.fill(raw(stream), at, len, from.pattern)?;
        }
        to.pattern = from.pattern;
        Ok(())
    }

    /// Tells the oracle of a touch whose contents are only sampled.
    fn touch(&self, stream: &Stream, touches: &[Touch]) -> Result<(), Halt> {
        if self.oracle && self.coverage == Coverage::Sampled {
            self.sim.launch(raw(stream), touches)?;
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
            self.sim.tick();
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
        self.sim.tick();
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
