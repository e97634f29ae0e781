//! Streams as queues, run in an order that a seed decides.
//!
//! Each stream is a queue of operations. A *step* takes the operation at the head of one stream
//! whose head is runnable, and runs it: work and records always are, a wait once the record it
//! captured has run, a rendezvous once it is at the head of all its streams. Any order that steps
//! can produce is one that a device may produce; which of them is taken depends on the seed and on
//! the calls made, on nothing else.
//!
//! Two habits make the orders worse than a fair draw would. *Pace*: how many steps a host call
//! brings is drawn anew once in a while, from none to many, so that queues grow long and run dry.
//! *Laggard*: one stream is passed over as long as another can run, and gets no turn by itself.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::meeting::Party;
use crate::memory::{Memory, Mismatch, Work};
use crate::rng::Rng;

/// Most steps that a host call brings, at the paces there are.
const PACES: [usize; 4] = [0, 1, 3, 8];
/// One in so many host calls draws a new pace and a new laggard.
const MOOD: usize = 32;
/// How many failed checks are kept in detail.
const KEPT: usize = 64;

/// Whether a record has run.
pub(crate) type Flag = Arc<AtomicBool>;

/// An operation in a stream's queue.
#[derive(Debug)]
pub(crate) enum Op {
    Work(Work),
    Record(Flag),
    Wait(Flag),
    Meet(Arc<Party>),
}

/// One stream's queue. It outlives the stream's handle as long as it is not idle.
#[derive(Debug)]
struct Queue {
    device: u16,
    ops: VecDeque<Op>,
    hangs: bool,
    /// The handle is gone.
    closed: bool,
}

impl Queue {
    fn is_idle(&self) -> bool {
        self.ops.is_empty() && !self.hangs
    }
}

/// What running work has brought to light.
#[derive(Debug, Default)]
pub(crate) struct Findings {
    /// Content checks that failed; the first ones in detail.
    pub mismatches: u64,
    pub kept: Vec<Mismatch>,
    /// Work that found no memory where it touched.
    pub faults: u64,
}

impl Findings {
    /// Runs `work` and takes down how it went.
    pub(crate) fn run(&mut self, memory: &mut Memory, work: &Work) {
        let outcome = memory.run(work);
        self.faults += u64::from(outcome.faulted);
        if let Some(mismatch) = outcome.mismatch {
            self.mismatches += 1;
            if self.kept.len() < KEPT {
                self.kept.push(mismatch);
            }
        }
    }
}

/// All queues, and the generator that decides between them.
#[derive(Debug)]
pub(crate) struct Scheduler {
    /// By the stream's serial number, which is never reused.
    queues: BTreeMap<u32, Queue>,
    rng: Rng,
    pace: usize,
    laggard: Option<u32>,
}

impl Scheduler {
    pub(crate) fn new(seed: u64) -> Self {
        Self { queues: BTreeMap::new(), rng: Rng::new(seed), pace: PACES[1], laggard: None }
    }

    pub(crate) fn open(&mut self, stream: u32, device: u16) {
        let queue = Queue { device, ops: VecDeque::new(), hangs: false, closed: false };
        self.queues.insert(stream, queue);
    }

    /// The handle is gone; what was submitted still runs.
    pub(crate) fn close(&mut self, stream: u32) {
        if let Some(queue) = self.queues.get_mut(&stream) {
            queue.closed = true;
        }
        self.sweep(stream);
    }

    fn sweep(&mut self, stream: u32) {
        let queue = self.queues.get(&stream);
        if queue.is_some_and(|queue| queue.closed && queue.is_idle()) {
            self.queues.remove(&stream);
        }
    }

    pub(crate) fn push(&mut self, stream: u32, op: Op) {
        if let Some(queue) = self.queues.get_mut(&stream) {
            queue.ops.push_back(op);
        }
    }

    pub(crate) fn set_hang(&mut self, stream: u32, hangs: bool) {
        if let Some(queue) = self.queues.get_mut(&stream) {
            queue.hangs = hangs;
        }
        self.sweep(stream);
    }

    pub(crate) fn unhang_all(&mut self) {
        for queue in self.queues.values_mut() {
            queue.hangs = false;
        }
        self.queues.retain(|_, queue| !(queue.closed && queue.is_idle()));
    }

    /// Whether any stream hangs.
    pub(crate) fn any_hangs(&self) -> bool {
        self.queues.values().any(|queue| queue.hangs)
    }

    pub(crate) fn is_idle(&self, stream: u32) -> bool {
        self.queues.get(&stream).is_none_or(Queue::is_idle)
    }

    /// Whether all work of a device is done, that of destroyed streams included.
    pub(crate) fn is_device_idle(&self, device: u16) -> bool {
        let mut queues = self.queues.values();
        queues.all(|queue| queue.device != device || queue.is_idle())
    }

    /// The steps that one host call brings.
    pub(crate) fn some_steps(&mut self, memory: &mut Memory, findings: &mut Findings) {
        if self.rng.below(MOOD) == 0 {
            self.pace = PACES[self.rng.below(PACES.len())];
            let nth = self.rng.below(self.queues.len() + 1);
            self.laggard = self.queues.keys().nth(nth).copied();
        }
        for _ in 0..self.rng.below(self.pace + 1) {
            if !self.step(memory, findings) {
                break;
            }
        }
    }

    /// Runs one operation; `false` where none is runnable.
    pub(crate) fn step(&mut self, memory: &mut Memory, findings: &mut Findings) -> bool {
        let mut runnable: Vec<u32> = self.queues.keys().copied().collect();
        runnable.retain(|stream| self.is_runnable(*stream));
        if let (Some(laggard), true) = (self.laggard, runnable.len() > 1) {
            runnable.retain(|stream| *stream != laggard);
        }
        if runnable.is_empty() {
            return false;
        }
        let stream = runnable[self.rng.below(runnable.len())];
        match self.pop(stream) {
            Some(Op::Work(work)) => findings.run(memory, &work),
            Some(Op::Record(flag)) => flag.store(true, Ordering::Release),
            Some(Op::Meet(party)) => {
                for other in party.streams() {
                    if other != stream {
                        self.pop(other);
                    }
                }
            }
            Some(Op::Wait(_)) | None => {}
        }
        true
    }

    fn pop(&mut self, stream: u32) -> Option<Op> {
        let op = self.queues.get_mut(&stream)?.ops.pop_front();
        self.sweep(stream);
        op
    }

    fn is_runnable(&self, stream: u32) -> bool {
        match self.head(stream) {
            None => false,
            Some(Op::Work(_) | Op::Record(_)) => true,
            Some(Op::Wait(flag)) => flag.load(Ordering::Acquire),
            Some(Op::Meet(party)) => {
                let here = |other: u32| match self.head(other) {
                    Some(Op::Meet(there)) => Arc::ptr_eq(party, there),
                    _ => false,
                };
                party.is_complete() && party.streams().into_iter().all(here)
            }
        }
    }

    /// The operation at the head of a stream that does not hang.
    fn head(&self, stream: u32) -> Option<&Op> {
        let queue = self.queues.get(&stream).filter(|queue| !queue.hangs)?;
        queue.ops.front()
    }

    /// Why nothing moves: what each stream with work left stands before.
    pub(crate) fn describe(&self) -> String {
        let mut text = String::from("no stream can run");
        for (stream, queue) in &self.queues {
            let why = match queue.ops.front() {
                _ if queue.hangs => "hangs",
                None => continue,
                Some(Op::Work(_) | Op::Record(_)) => "can run",
                Some(Op::Wait(_)) => "waits for an event",
                Some(Op::Meet(party)) if party.is_complete() => "waits for a rendezvous",
                Some(Op::Meet(_)) => "waits for a rendezvous that others have yet to join",
            };
            let (device, left) = (queue.device, queue.ops.len());
            text.push_str(&format!(
                "; stream no. {stream} of device {device} {why} ({left} operations left)"
            ));
        }
        text
    }
}
