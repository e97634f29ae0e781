//! A device's figures, readable by anybody at any time.

use crate::stats::Ladder;
use crate::sync::{AtomicU64, Ordering};

/// How a miss was served, or what it took: least harm first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rung {
    /// Idle memory that was known to be ordered before the stream's next work.
    Fitted,
    /// Idle memory, after asking the driver whether earlier work was over.
    Completed,
    /// New pages.
    Created,
    /// Pages taken from idle memory elsewhere.
    Moved,
    /// The stream was made to wait for another.
    Waited,
    /// Everything idle was claimed and merged first.
    Gathered,
    /// The host waited for work in flight.
    HostWait,
    /// The user's callback made room.
    Callback,
    /// There was no memory.
    Refused,
}

impl Rung {
    const COUNT: usize = 9;
}

/// Counters and sizes. The arena's holder writes most of them.
#[derive(Default)]
pub struct Gauge {
    reserved: AtomicU64,
    peak: AtomicU64,
    /// Allocations served with memory that another stream used last.
    cross_hits: AtomicU64,
    rungs: [AtomicU64; Rung::COUNT],
}

// Relaxed throughout: statistics, ordered with nothing.
impl Gauge {
    pub(super) fn set_reserved(&self, bytes: u64) {
        self.reserved.store(bytes, Ordering::Relaxed);
        self.peak.fetch_max(bytes, Ordering::Relaxed);
    }

    pub fn count_cross_hit(&self) {
        self.cross_hits.fetch_add(1, Ordering::Relaxed);
    }

    pub fn cross_hits(&self) -> u64 {
        self.cross_hits.load(Ordering::Relaxed)
    }

    pub fn count(&self, rung: Rung) {
        self.rungs[rung as usize].fetch_add(1, Ordering::Relaxed);
    }

    pub fn ladder(&self) -> Ladder {
        let count = |rung: Rung| self.rungs[rung as usize].load(Ordering::Relaxed);
        Ladder {
            fitted: count(Rung::Fitted),
            completed: count(Rung::Completed),
            created: count(Rung::Created),
            moved: count(Rung::Moved),
            waited: count(Rung::Waited),
            gathered: count(Rung::Gathered),
            host_waits: count(Rung::HostWait),
            callbacks: count(Rung::Callback),
            refused: count(Rung::Refused),
        }
    }

    /// Physical bytes held.
    pub fn reserved(&self) -> u64 {
        self.reserved.load(Ordering::Relaxed)
    }

    pub fn peak(&self) -> u64 {
        self.peak.load(Ordering::Relaxed)
    }
}
