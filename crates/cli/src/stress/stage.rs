//! One stage of a pipeline: what its forward and backward passes allocate, touch, send and free.
//!
//! ```text
//! forward    receive: copy the activation over from the device before, free it there
//!            compute: read it, allocate what the backward pass needs and scratch, make an output
//!            send:    copy the output to a block of its own for the stage behind
//!            receive: allocate a block for the gradient to come, lend it to the stage behind
//! backward   receive: take the block back; compute: read it and all that was kept, free it
//!            send:    copy the gradient into the block that the stage before has lent
//! ```

use super::block::Block;
use super::lanes::Lanes;
use super::ledger::count;
use super::rng::Rng;
use super::schedule::{Op, Pass, Shape};
use super::worker::{Cargo, Halt, Parcel, Step, Worker};
use millpond::Stream;
use std::collections::HashMap;

/// A stage and what it holds.
pub(super) struct Stage {
    number: usize,
    device: usize,
    pipeline: usize,
    devices: usize,
    first: bool,
    last: bool,
    /// What the backward pass of a microbatch needs, with the stream that computed it.
    saved: HashMap<usize, (Vec<Option<Block>>, Stream)>,
    /// Weights: kept from step to step.
    kept: Vec<Block>,
}

/// A pass under way: who runs it, where, and what is drawn for it.
struct Turn<'w> {
    worker: &'w mut Worker,
    lanes: &'w Lanes,
    /// Bytes that stages exchange for this microbatch.
    wire: u64,
    rng: Rng,
}

impl Stage {
    pub fn new(number: usize, shape: &Shape) -> Self {
        Self {
            number,
            device: shape.device_of(number),
            pipeline: shape.pipeline_of(number),
            devices: shape.devices,
            first: shape.is_first(number),
            last: shape.is_last(number),
            saved: HashMap::new(),
            kept: Vec::new(),
        }
    }

    fn lanes<'s>(&self, step: &'s Step) -> &'s Lanes {
        &step.lanes[self.pipeline * self.devices + self.device]
    }

    /// What lives on after the last step.
    pub fn into_kept(self) -> Vec<Block> {
        self.kept
    }

    /// Before a step: weights at first, and their move to the streams of this step.
    pub fn begin(&mut self, worker: &mut Worker, step: &Step) -> Result<(), Halt> {
        let machine = &worker.crew.machine;
        let lanes = self.lanes(step);
        let compute = lanes.compute(0);
        if step.number == 0 {
            let mut rng = Rng::of(&[worker.crew.seed, 3, self.number as u64]);
            for bytes in [3 << 20, 40 << 10, 700] {
                let bytes = bytes + rng.below(bytes);
                self.kept.extend(machine.alloc(worker.id, compute, bytes, &mut rng)?);
            }
        }
        for block in &mut self.kept {
            if let Some(home) = block.home.as_mut().filter(|home| home.id() != compute.id()) {
                machine.wait(compute, home)?;
                machine.record_use(block, compute)?;
                block.home = Some(compute.clone());
            }
        }
        for turn in 1..lanes.computing() {
            machine.wait(lanes.compute(turn), compute)?;
        }
        Ok(())
    }

    pub fn run(&mut self, worker: &mut Worker, step: &Step, op: Op) -> Result<(), Halt> {
        count(&worker.crew.machine.ledger.passes);
        let (microbatch, seed) = (op.microbatch as u64, worker.crew.seed);
        // A microbatch's length is the same at every stage.
        let mut draw = Rng::of(&[seed, 1, step.number, self.pipeline as u64, microbatch]);
        let most = if draw.once_in(6) { 2 << 20 } else { 192 << 10 };
        let wire = 1 + draw.below(most);
        let rng = Rng::of(&[seed, 2, step.number, self.number as u64, microbatch, op.pass as u64]);
        let mut turn = Turn { worker, lanes: self.lanes(step), wire, rng };
        match op.pass {
            Pass::Forward => self.forward(&mut turn, op.microbatch),
            Pass::Backward => self.backward(&mut turn, op.microbatch),
        }?;
        turn.trim(self.device)
    }

    fn forward(&mut self, turn: &mut Turn<'_>, microbatch: usize) -> Result<(), Halt> {
        let (compute, send) = (turn.lanes.compute(microbatch), turn.lanes.send());
        let mut saved = vec![if self.first {
            turn.alloc(compute, turn.wire)?
        } else {
            turn.receive(self.number, microbatch, compute)?
        }];
        for block in &self.kept {
            turn.read(Some(block), compute)?;
        }
        turn.scratch(compute)?;
        for _ in 0..3 + turn.rng.below(3) {
            let bytes = turn.size();
            saved.push(turn.alloc(compute, bytes)?);
        }
        let output = turn.alloc(compute, turn.wire)?;
        if self.last {
            saved.push(output);
        } else {
            turn.ship(output, compute, self.number + 1, microbatch)?;
            let receive = turn.lanes.receive();
            let block = turn.alloc_bare(receive, turn.wire)?;
            let parcel = Parcel { block, after: receive.clone() };
            turn.worker.send((self.number + 1, microbatch, Cargo::Credit), parcel)?;
        }
        if turn.rng.once_in(4) {
            // Something else goes out as well, a metric say: another stream reads a saved block.
            turn.machine().wait(send, compute)?;
            if let Some(block) = saved.last().and_then(Option::as_ref) {
                turn.machine().check(block, send)?;
                turn.done(block, send)?;
            }
        }
        self.saved.insert(microbatch, (saved, compute.clone()));
        Ok(())
    }

    fn backward(&mut self, turn: &mut Turn<'_>, microbatch: usize) -> Result<(), Halt> {
        let (compute, send) = (turn.lanes.compute(microbatch + 1), turn.lanes.send());
        let gradient = if self.last {
            turn.alloc(compute, turn.wire)?
        } else {
            let parcel = turn.worker.expect((self.number, microbatch, Cargo::Gradient))?;
            let receive = turn.lanes.receive();
            turn.machine().wait(receive, &parcel.after)?;
            turn.machine().wait(compute, receive)?;
            turn.read(parcel.block.as_ref(), compute)?;
            parcel.block
        };
        let Some((saved, computed)) = self.saved.remove(&microbatch) else { return Ok(()) };
        turn.machine().wait(compute, &computed)?;
        turn.scratch(compute)?;
        for block in saved {
            turn.read(block.as_ref(), compute)?;
            turn.let_go(block)?;
            turn.scratch(compute)?;
        }
        if !self.first {
            let next = turn.alloc(compute, turn.wire)?;
            let credit = turn.worker.expect((self.number, microbatch, Cargo::Credit))?;
            turn.machine().wait(send, compute)?;
            turn.machine().wait(send, &credit.after)?;
            let mut lent = credit.block;
            match (&mut lent, &next) {
                (Some(lent), Some(next)) => {
                    turn.machine().copy(send, lent, next)?;
                    turn.machine().record_use(lent, send)?;
                    turn.done(next, send)?;
                }
                // Nothing to send: the block goes back filled with something all the same.
                (Some(lent), None) => {
                    turn.machine().fill(lent, send)?;
                    turn.machine().record_use(lent, send)?;
                }
                (None, _) => {}
            }
            let parcel = Parcel { block: lent, after: send.clone() };
            turn.worker.send((self.number - 1, microbatch, Cargo::Gradient), parcel)?;
            turn.let_go(next)?;
        }
        turn.let_go(gradient)
    }
}

impl Turn<'_> {
    fn machine(&self) -> &super::machine::Machine {
        &self.worker.crew.machine
    }

    /// A size as layers have them: many small ones, most up to some hundred KiB, a few large.
    fn size(&mut self) -> u64 {
        let most = [2 << 10, 64 << 10, 64 << 10, 384 << 10, 384 << 10, 3 << 20];
        let most = most[self.rng.below(most.len() as u64) as usize];
        // Training repeats its shapes: half of the sizes are round.
        let bytes = 1 + self.rng.below(most);
        if self.rng.once_in(2) { bytes.next_multiple_of(most / 4) } else { bytes }
    }

    fn alloc(&mut self, stream: &Stream, bytes: u64) -> Result<Option<Block>, Halt> {
        self.worker.crew.machine.alloc(self.worker.id, stream, bytes, &mut self.rng)
    }

    fn alloc_bare(&mut self, stream: &Stream, bytes: u64) -> Result<Option<Block>, Halt> {
        self.worker.crew.machine.alloc_bare(self.worker.id, stream, bytes, &mut self.rng)
    }

    fn let_go(&mut self, block: Option<Block>) -> Result<(), Halt> {
        self.worker.let_go(block, &mut self.rng)
    }

    /// A stream reads a block, now and until it is freed.
    fn read(&self, block: Option<&Block>, stream: &Stream) -> Result<(), Halt> {
        let Some(block) = block else { return Ok(()) };
        self.machine().check(block, stream)?;
        Ok(self.machine().record_use(block, stream)?)
    }

    /// A stream has touched a block for the last time; or it says so only at the free. The block's
    /// own stream has yet to check it.
    fn done(&mut self, block: &Block, stream: &Stream) -> Result<(), Halt> {
        let own = block.home.as_ref().is_some_and(|home| home.id() == stream.id());
        if self.rng.once_in(3) || own {
            self.machine().record_use(block, stream)?;
        } else {
            self.machine().last_use(block, stream)?;
        }
        Ok(())
    }

    /// Scratch of a layer: freed as soon as the work that uses it is submitted.
    fn scratch(&mut self, stream: &Stream) -> Result<(), Halt> {
        for _ in 0..self.rng.below(3) {
            let bytes = self.size();
            let block = self.alloc(stream, bytes)?;
            self.let_go(block)?;
        }
        Ok(())
    }

    /// Copies the activation over from the stage before, for `compute` to read.
    fn receive(
        &mut self,
        stage: usize,
        microbatch: usize,
        compute: &Stream,
    ) -> Result<Option<Block>, Halt> {
        let parcel = self.worker.expect((stage, microbatch, Cargo::Activation))?;
        let receive = self.lanes.receive();
        self.machine().wait(receive, &parcel.after)?;
        let Some(sent) = parcel.block else { return Ok(None) };
        let mut local = self.alloc_bare(receive, sent.bytes)?;
        if let Some(local) = &mut local {
            self.machine().copy(receive, local, &sent)?;
            self.done(&sent, receive)?;
        }
        self.let_go(Some(sent))?;
        self.machine().wait(compute, receive)?;
        self.read(local.as_ref(), compute)?;
        Ok(local)
    }

    /// Copies an output to a block for the next stage.
    fn ship(
        &mut self,
        output: Option<Block>,
        compute: &Stream,
        to: usize,
        microbatch: usize,
    ) -> Result<(), Halt> {
        let send = self.lanes.send();
        self.machine().wait(send, compute)?;
        let mut parcel = None;
        if let Some(output) = &output {
            parcel = self.alloc_bare(send, output.bytes)?;
            if let Some(parcel) = &mut parcel {
                self.machine().copy(send, parcel, output)?;
                self.done(output, send)?;
            }
        }
        self.let_go(output)?;
        let parcel = Parcel { block: parcel, after: send.clone() };
        self.worker.send((to, microbatch, Cargo::Activation), parcel)
    }

    /// Once in a while memory goes back to the driver in the middle of everything.
    fn trim(&mut self, device: usize) -> Result<(), Halt> {
        if self.rng.once_in(256) {
            let pool = &self.machine().pool;
            let device = millpond::DeviceId(device as u16);
            let target = pool.trim(device, u64::MAX)? / 2;
            pool.trim(device, target)?;
        }
        Ok(())
    }
}
