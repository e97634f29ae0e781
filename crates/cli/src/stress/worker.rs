//! A host thread: its inbox, and the loop that runs its part of each step.
//!
//! Threads share no state but the devices and the pool. What one needs from another comes as a
//! message: a parcel (a block, and the stream whose work so far it has to come after), or a block
//! to be freed.

use super::block::Block;
use super::lanes::Lanes;
use super::machine::Machine;
use super::rng::Rng;
use super::schedule::{Op, Shape};
use super::stage::Stage;
use millpond::Stream;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender};

/// Why a thread stops before its work is done.
#[derive(Debug)]
pub(super) enum Halt {
    /// The run is over, or was given up elsewhere.
    Told,
    /// Something failed here.
    Failed(anyhow::Error),
}

impl<E: Into<anyhow::Error>> From<E> for Halt {
    fn from(error: E) -> Self {
        Self::Failed(error.into())
    }
}

/// What a step runs, and on which streams.
#[derive(Debug)]
pub(super) struct Step {
    pub number: u64,
    pub order: Vec<Op>,
    /// By pipeline, then by device.
    pub lanes: Vec<Lanes>,
}

/// What a parcel is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Cargo {
    /// The output of the stage before, on its device.
    Activation,
    /// A block on the device of the stage before, to write its gradient to.
    Credit,
    /// That block, written by the stage behind.
    Gradient,
}

/// Where a parcel goes: the stage, the microbatch, and what it holds.
pub(super) type Label = (usize, usize, Cargo);

/// A block for another stage; none if there was no memory for it.
#[derive(Debug)]
pub(super) struct Parcel {
    pub block: Option<Block>,
    /// The block may be touched after all that this stream has been given so far.
    pub after: Stream,
}

#[derive(Debug)]
pub(super) enum Message {
    Begin(Arc<Step>),
    Parcel(Label, Parcel),
    Free(Block),
    Quit,
}

/// What is common to all threads of a run.
pub(super) struct Crew {
    pub machine: Machine,
    pub shape: Shape,
    pub seed: u64,
    /// Threads that drive stages; one more only frees.
    pub drivers: usize,
    pub foreign_frees: f64,
    /// By thread.
    pub inboxes: Vec<Sender<Message>>,
}

impl Crew {
    fn thread_of(&self, stage: usize) -> usize {
        stage % self.drivers
    }

    fn post(&self, thread: usize, message: Message) -> Result<(), Halt> {
        self.inboxes[thread].send(message).map_err(|_| Halt::Told)
    }
}

/// One thread's side of the run.
pub(super) struct Worker {
    pub id: usize,
    pub crew: Arc<Crew>,
    inbox: Receiver<Message>,
    /// Parcels that came before they were asked for.
    parcels: HashMap<Label, Parcel>,
    stages: BTreeMap<usize, Stage>,
}

impl Worker {
    pub fn new(id: usize, crew: &Arc<Crew>, inbox: Receiver<Message>) -> Self {
        let stages = 0..crew.shape.stages();
        let own = stages.filter(|&stage| id < crew.drivers && crew.thread_of(stage) == id);
        let stages = own.map(|stage| (stage, Stage::new(stage, &crew.shape))).collect();
        Self { id, crew: Arc::clone(crew), inbox, parcels: HashMap::new(), stages }
    }

    /// Runs steps until told to quit; `done` hears of every step.
    pub fn run(&mut self, mut done: impl FnMut()) -> Result<(), Halt> {
        loop {
            match self.inbox.recv() {
                Ok(Message::Begin(step)) => {
                    self.step(&step)?;
                    done();
                }
                Ok(Message::Free(block)) => self.free_for_another(block)?,
                Ok(Message::Parcel(label, parcel)) => {
                    self.parcels.insert(label, parcel);
                }
                Ok(Message::Quit) | Err(_) => return self.finish(),
            }
        }
    }

    fn step(&mut self, step: &Step) -> Result<(), Halt> {
        // A stage works with the thread, and the thread has its stages: they take turns.
        let mut stages = std::mem::take(&mut self.stages);
        let outcome = self.run_stages(step, &mut stages);
        self.stages = stages;
        outcome
    }

    fn run_stages(&mut self, step: &Step, stages: &mut BTreeMap<usize, Stage>) -> Result<(), Halt> {
        for stage in stages.values_mut() {
            stage.begin(self, step)?;
        }
        for op in &step.order {
            let Some(stage) = stages.get_mut(&op.stage) else { continue };
            while let Ok(message) = self.inbox.try_recv() {
                self.take_in(message)?;
            }
            stage.run(self, step, *op)?;
        }
        Ok(())
    }

    /// Frees what the stages keep from step to step.
    fn finish(&mut self) -> Result<(), Halt> {
        for stage in std::mem::take(&mut self.stages).into_values() {
            for block in stage.into_kept() {
                self.crew.machine.free(self.id, block)?;
            }
        }
        Ok(())
    }

    fn take_in(&mut self, message: Message) -> Result<(), Halt> {
        match message {
            Message::Parcel(label, parcel) => {
                self.parcels.insert(label, parcel);
                Ok(())
            }
            Message::Free(block) => self.free_for_another(block),
            Message::Begin(_) | Message::Quit => Err(Halt::Told),
        }
    }

    /// A parcel, as soon as it is here.
    pub fn expect(&mut self, label: Label) -> Result<Parcel, Halt> {
        loop {
            if let Some(parcel) = self.parcels.remove(&label) {
                return Ok(parcel);
            }
            let message = self.inbox.recv().map_err(|_| Halt::Told)?;
            self.take_in(message)?;
        }
    }

    pub fn send(&self, label: Label, parcel: Parcel) -> Result<(), Halt> {
        self.crew.post(self.crew.thread_of(label.0), Message::Parcel(label, parcel))
    }

    /// Parts with a block: it is freed by the thread that allocated it, or, as often as asked for,
    /// by another.
    pub fn let_go(&self, block: Option<Block>, rng: &mut Rng) -> Result<(), Halt> {
        let foreign = rng.chance(self.crew.foreign_frees);
        let (other, checked) = (rng.next(), rng.once_in(2));
        let Some(mut block) = block else { return Ok(()) };
        let threads = self.crew.inboxes.len();
        let to = match (foreign, block.born == self.id) {
            (false, _) => block.born,
            (true, false) => self.id,
            (true, true) => (self.id + 1 + other as usize % (threads - 1)) % threads,
        };
        if to == self.id {
            return self.crew.machine.free(self.id, block);
        }
        if checked {
            // The other thread then frees without a word to the stream, which may be gone by then.
            self.crew.machine.settle(&mut block)?;
        }
        self.crew.post(to, Message::Free(block))
    }

    /// Frees a block for another thread. A thread that only frees does as autograd's do: it
    /// allocates some scratch on the block's stream first.
    fn free_for_another(&mut self, block: Block) -> Result<(), Halt> {
        let machine = &self.crew.machine;
        if let (Some(home), true) = (&block.home, self.id >= self.crew.drivers) {
            let mut rng = Rng::of(&[self.crew.seed, block.pattern]);
            if rng.once_in(8) {
                let bytes = 1 + rng.below(64 << 10);
                if let Some(scratch) = machine.alloc(self.id, home, bytes, &mut rng)? {
                    machine.free(self.id, scratch)?;
                }
            }
        }
        machine.free(self.id, block)
    }
}
