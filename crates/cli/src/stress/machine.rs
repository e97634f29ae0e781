//! The simulated GPUs with the pool over them, and what stages do on both: every allocation is
//! filled, every block checked before it is freed, everything counted.

use super::block::{Ask, Block};
use super::ledger::{Ledger, count};
use super::rng::Rng;
use super::worker::Halt;
use millpond::driver::sim::SimDriver;
use millpond::{Error, Pool, Stream};
use millpond_simgpu::{Completion, Sim};

/// What all threads of a run share.
pub(super) struct Machine {
    pub sim: Sim,
    pub pool: Pool,
    pub ledger: Ledger,
}

/// How the devices are.
#[derive(Clone, Copy, Debug)]
pub(super) struct Setup {
    pub devices: u16,
    pub capacity: u64,
    pub completion: Completion,
    pub oracle: bool,
    pub seed: u64,
}

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
            .contents(true)
            .oracle(setup.oracle)
            .seed(setup.seed)
            .build()?;
        let pool = Pool::builder(SimDriver::new(sim.clone())).peer_access(true).build()?;
        Ok(Self { sim, pool, ledger: Ledger::new(usize::from(setup.devices)) })
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
        let device = usize::from(stream.device().0);
        ledger.devices[device].add(bytes);
        Ok(Some(Block { memory, bytes, pattern, device, home: Some(stream.clone()), born: who }))
    }

    /// Fills the block with its pattern, from any device.
    pub fn fill(&self, block: &Block, stream: &Stream) -> Result<(), Halt> {
        self.sim.fill(raw(stream), block.memory.address(), block.bytes, block.pattern)?;
        Ok(())
    }

    /// Compares the block with its pattern when `stream` comes to it.
    pub fn check(&self, block: &Block, stream: &Stream) -> Result<(), Halt> {
        self.sim.check_fill(raw(stream), block.memory.address(), block.bytes, block.pattern)?;
        Ok(())
    }

    /// Copies one block's content, pattern included, into another, which is at most as long.
    pub fn copy(&self, stream: &Stream, to: &mut Block, from: &Block) -> Result<(), Halt> {
        self.sim.copy(raw(stream), to.memory.address(), from.memory.address(), to.bytes)?;
        to.pattern = from.pattern;
        Ok(())
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
        self.ledger.devices[block.device].sub(block.bytes);
        count(&self.ledger.frees);
        if who != block.born {
            count(&self.ledger.foreign_frees);
        }
        self.ledger.free.time(|| block.memory.free())?;
        Ok(())
    }
}
