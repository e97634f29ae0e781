//! What a pool's devices are asked for, written down as it happens.
//!
//! Every thread pushes to one queue of its device; whoever wants to know takes the queue over into a
//! list, under a lock. Pushing is lock-free but for the queue's own blocks, whose pusher a thread that is
//! stopped at the wrong place can hold up: recording is for reports, and for no path of a pool that does
//! not record.
//!
//! A free is written before the block is anybody's again, an allocation after it was had: of one block
//! the two come in order, and so do one's free and the next one's allocation. A move is written before
//! anybody can free the block where it has come to.

use crate::block::{Hint, StreamId};
use crate::plan::{Event, Recording};
use crate::sync::{AtomicBool, AtomicU64, Mutex, Ordering, lock};
use crossbeam_queue::SegQueue;
use std::collections::HashMap;

/// How much of what a pool is asked for it records: see [`crate::Builder::profiling`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Profiling {
    /// Steps from the start after which recording ends: see [`crate::Pool::begin_step`]. What comes
    /// before the first does not count as one. `None` for all.
    pub steps: Option<u64>,
    /// Most events of a device, after which its recording ends: allocations and frees, steps, and moves.
    pub events: u64,
}

impl Default for Profiling {
    /// All steps, and four million events a device (some 100 MB of host memory).
    fn default() -> Self {
        Self { steps: None, events: 1 << 22 }
    }
}

/// One device's record.
pub struct Recorder {
    limits: Profiling,
    /// Events so far, at most a few more than the limit.
    count: AtomicU64,
    on: AtomicBool,
    queue: SegQueue<Noted>,
    taken: Mutex<Taken>,
}

/// What is written down.
enum Noted {
    Event(Event),
    /// A block has another hint from now on, and is the same block.
    Moved {
        from: Hint,
        to: Hint,
    },
}

/// What was written down so far, by each block's first hint.
#[derive(Default)]
struct Taken {
    events: Vec<Event>,
    /// The first hints of blocks that were moved, by their present ones.
    moved: HashMap<u64, u64>,
}

impl Taken {
    fn take(&mut self, noted: Noted) {
        match noted {
            Noted::Event(Event::Free { block }) => {
                let block = self.moved.remove(&block).unwrap_or(block);
                self.events.push(Event::Free { block });
            }
            Noted::Event(event) => self.events.push(event),
            Noted::Moved { from, to } => {
                let first = self.moved.remove(&from.0).unwrap_or(from.0);
                self.moved.insert(to.0, first);
            }
        }
    }
}

impl Recorder {
    pub fn new(limits: Profiling) -> Self {
        Self {
            limits,
            count: AtomicU64::new(0),
            on: AtomicBool::new(true),
            queue: SegQueue::new(),
            taken: Mutex::default(),
        }
    }

    /// Whether it still records.
    #[inline]
    pub fn is_on(&self) -> bool {
        // Relaxed: what is written a little late, or early, is written all the same.
        self.on.load(Ordering::Relaxed)
    }

    /// Records no more.
    pub fn stop(&self) {
        self.on.store(false, Ordering::Relaxed);
    }

    /// A block was allocated; `hint` is its name, since no other grant has the same.
    pub fn allocated(&self, hint: Hint, stream: StreamId, bytes: u64) {
        self.push(Noted::Event(Event::Alloc {
            block: hint.0,
            stream: u32::from(stream.get()),
            bytes,
        }));
    }

    /// A block is about to be free.
    pub fn freeing(&self, hint: Hint) {
        self.push(Noted::Event(Event::Free { block: hint.0 }));
    }

    /// A block has come to lie elsewhere, under another hint.
    pub fn moved(&self, from: Hint, to: Hint) {
        self.push(Noted::Moved { from, to });
    }

    /// A step begins, by its number.
    pub fn step(&self, number: u64) {
        self.push(Noted::Event(Event::Step));
        if self.limits.steps.is_some_and(|steps| number > steps) {
            self.stop();
        }
    }

    fn push(&self, noted: Noted) {
        if !self.is_on() {
            return;
        }
        // Relaxed: a number, ordered with nothing.
        if self.count.fetch_add(1, Ordering::Relaxed) >= self.limits.events {
            return self.stop();
        }
        self.queue.push(noted);
    }

    /// Starts over: what was recorded is forgotten.
    pub fn restart(&self) {
        let mut taken = lock(&self.taken);
        while self.queue.pop().is_some() {}
        *taken = Taken::default();
        self.count.store(0, Ordering::Relaxed);
        self.on.store(true, Ordering::Relaxed);
    }

    /// What was recorded so far. `rank` gives a stream's number among those of the device.
    pub fn recording(&self, rank: impl Fn(u32) -> u32) -> Recording {
        let mut taken = lock(&self.taken);
        while let Some(noted) = self.queue.pop() {
            taken.take(noted);
        }
        let ranked = taken.events.iter().map(|&event| match event {
            Event::Alloc { block, stream, bytes } => {
                Event::Alloc { block, stream: rank(stream), bytes }
            }
            other => other,
        });
        ranked.collect()
    }

    /// Host memory held, in bytes.
    pub fn bytes(&self) -> u64 {
        // Relaxed: a figure.
        self.count.load(Ordering::Relaxed).min(self.limits.events) * size_of::<Noted>() as u64
    }
}
