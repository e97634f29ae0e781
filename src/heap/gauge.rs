//! A device's figures, readable by anybody at any time.

use crate::config::{BUCKETS, Bucket};
use crate::stats::{Ladder, Merging, Moves, bump};
use crate::sync::{AtomicU64, Ordering};
use std::time::Duration;

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
    /// The program's step, as it was last told.
    step: AtomicU64,
    /// Requests that the heap served from a cached block as it was, by bucket.
    reused: [AtomicU64; BUCKETS],
    merges: AtomicU64,
    passes: AtomicU64,
    merge_ns: AtomicU64,
    recycled_blocks: AtomicU64,
    recycled_bytes: AtomicU64,
    /// Granted bytes of large blocks in users' hands, and the most since the last step's end. Counted
    /// only where somebody asks for them.
    large: AtomicU64,
    large_peak: AtomicU64,
    /// Movable blocks: gaps, blocks and bytes moved, and how long that takes by estimate.
    gaps: AtomicU64,
    moved: AtomicU64,
    moved_bytes: AtomicU64,
    moved_ns: AtomicU64,
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

    pub fn set_step(&self, step: u64) {
        self.step.store(step, Ordering::Relaxed);
    }

    pub fn step(&self) -> u64 {
        self.step.load(Ordering::Relaxed)
    }

    /// A request of `bytes` was served from a cached block as it was.
    pub(super) fn count_reused(&self, bytes: u64) {
        bump(&self.reused[Bucket::of(bytes) as usize], 1);
    }

    pub fn reused(&self, bucket: Bucket) -> u64 {
        self.reused[bucket as usize].load(Ordering::Relaxed)
    }

    /// Two extents became one.
    pub(super) fn count_merge(&self) {
        bump(&self.merges, 1);
    }

    /// Extents were merged all at once, which took `time`.
    pub(super) fn count_pass(&self, time: Duration) {
        bump(&self.passes, 1);
        bump(&self.merge_ns, u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
    }

    /// A block that waited went back to the heap.
    pub(super) fn count_recycled(&self, bytes: u64) {
        bump(&self.recycled_blocks, 1);
        bump(&self.recycled_bytes, bytes);
    }

    pub fn merging(&self) -> Merging {
        Merging {
            merges: self.merges.load(Ordering::Relaxed),
            passes: self.passes.load(Ordering::Relaxed),
            pass_ns: self.merge_ns.load(Ordering::Relaxed),
            recycled_blocks: self.recycled_blocks.load(Ordering::Relaxed),
            recycled_bytes: self.recycled_bytes.load(Ordering::Relaxed),
        }
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

    /// A large block comes into a user's hands.
    pub fn large_taken(&self, bytes: u64) {
        let held = self.large.fetch_add(bytes, Ordering::Relaxed) + bytes;
        if held > self.large_peak.load(Ordering::Relaxed) {
            self.large_peak.fetch_max(held, Ordering::Relaxed);
        }
    }

    /// And is freed.
    pub fn large_freed(&self, bytes: u64) {
        self.large.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Those in users' hands.
    pub fn large(&self) -> u64 {
        self.large.load(Ordering::Relaxed)
    }

    /// The most large blocks' bytes at once since the last step's end.
    pub fn peak_of_step(&self) -> u64 {
        self.large_peak.load(Ordering::Relaxed)
    }

    /// The same; what comes next counts anew.
    pub fn end_of_step(&self) -> u64 {
        self.large_peak.swap(self.large.load(Ordering::Relaxed), Ordering::Relaxed)
    }

    /// A step gap has moved so many blocks.
    pub fn count_moves(&self, blocks: u64, bytes: u64, time: Duration) {
        self.gaps.fetch_add(1, Ordering::Relaxed);
        self.moved.fetch_add(blocks, Ordering::Relaxed);
        self.moved_bytes.fetch_add(bytes, Ordering::Relaxed);
        self.moved_ns.fetch_add(time.as_nanos() as u64, Ordering::Relaxed);
    }

    pub fn moves(&self) -> Moves {
        Moves {
            gaps: self.gaps.load(Ordering::Relaxed),
            blocks: self.moved.load(Ordering::Relaxed),
            bytes: self.moved_bytes.load(Ordering::Relaxed),
            time: Duration::from_nanos(self.moved_ns.load(Ordering::Relaxed)),
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
