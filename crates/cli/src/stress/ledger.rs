//! What the threads of a stress run count.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Counters that all threads add to. Statistics: ordered with nothing.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    pub passes: AtomicU64,
    pub allocations: AtomicU64,
    pub frees: AtomicU64,
    /// Frees by another thread than the one that allocated.
    pub foreign_frees: AtomicU64,
    /// Requests that the devices had no memory for.
    pub out_of_memory: AtomicU64,
    /// `try_alloc` found another thread in the arena.
    pub busy: AtomicU64,
    /// Uses and last uses that were declared.
    pub uses: AtomicU64,
    /// Waits that the schedule itself submits.
    pub waits: AtomicU64,
    /// Blocks that shared memory with another live one.
    pub overlaps: AtomicU64,
    pub alloc: Clock,
    pub free: Clock,
    pub devices: Vec<Level>,
}

impl Ledger {
    pub fn new(devices: usize) -> Self {
        Self { devices: (0..devices).map(|_| Level::default()).collect(), ..Self::default() }
    }
}

impl Ledger {
    /// Calls that the pool has answered: allocations, frees, uses, waits.
    pub fn operations(&self) -> u64 {
        [&self.allocations, &self.frees, &self.uses, &self.waits]
            .iter()
            .map(|counter| counter.load(Relaxed))
            .sum()
    }
}

pub(super) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Relaxed);
}

/// Wall time of calls.
#[derive(Debug, Default)]
pub(super) struct Clock {
    ns: AtomicU64,
    longest: AtomicU64,
}

impl Clock {
    /// Runs `call` and adds the time it took.
    pub fn time<R>(&self, call: impl FnOnce() -> R) -> R {
        let start = Instant::now();
        let result = call();
        let ns = nanos(start.elapsed());
        self.ns.fetch_add(ns, Relaxed);
        self.longest.fetch_max(ns, Relaxed);
        result
    }

    /// Mean over `calls`, in nanoseconds.
    pub fn mean(&self, calls: u64) -> f64 {
        self.ns.load(Relaxed) as f64 / calls.max(1) as f64
    }

    pub fn longest(&self) -> u64 {
        self.longest.load(Relaxed)
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// Bytes held on a device, and the most there ever were.
#[derive(Debug, Default)]
pub(super) struct Level {
    now: AtomicU64,
    peak: AtomicU64,
}

impl Level {
    pub fn add(&self, bytes: u64) {
        let now = self.now.fetch_add(bytes, Relaxed) + bytes;
        self.peak.fetch_max(now, Relaxed);
    }

    pub fn sub(&self, bytes: u64) {
        self.now.fetch_sub(bytes, Relaxed);
    }

    pub fn peak(&self) -> u64 {
        self.peak.load(Relaxed)
    }
}
