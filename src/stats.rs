//! Counters, and what they add up to.

use crate::config::{BUCKETS, Bucket};
use crate::driver::DeviceId;
use crate::sync::{AtomicU64, Ordering};
use std::time::Duration;

/// What a pool holds and how it was used, at one moment. Threads that allocate meanwhile may be seen
/// half-way: the sums are exact when the pool is at rest.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Device by device.
    pub devices: Vec<DeviceStats>,
    /// Allocations by the layer that served them.
    pub hits: Hits,
    /// Reuse by size: below 1 MiB, to 100 MiB, above.
    pub buckets: [BucketStats; BUCKETS],
    /// Reuse across streams.
    pub cross_stream: CrossStream,
    /// Host memory of the pool's own tables, in bytes.
    pub bookkeeping_bytes: u64,
    /// Steps of the program that have begun: see [`crate::Pool::begin_step`].
    pub steps: u64,
    /// Streams whose event queries failed: their memory is not used for others any more.
    pub poisoned_streams: u64,
}

/// One device's memory.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeviceStats {
    /// The device.
    pub device: DeviceId,
    /// Bytes that users asked for and hold.
    pub live_bytes: u64,
    /// Physical bytes taken from the driver.
    pub reserved_bytes: u64,
    /// The most there ever were.
    pub peak_reserved_bytes: u64,
    /// The most there may be.
    pub limit_bytes: u64,
    /// How requests that no cache could serve were served.
    pub ladder: Ladder,
    /// What merging free memory came to, and cost.
    pub merging: Merging,
    /// Movable blocks that were moved.
    pub moves: Moves,
    /// What of it the buddy system has.
    pub buddy: BuddyStats,
}

/// Requests of a bucket of sizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct BucketStats {
    /// Which.
    pub bucket: Bucket,
    /// Requests that were served.
    pub requests: u64,
    /// Those served from a freed block as it was: by a cache, or whole by the heap.
    pub hits: u64,
    /// Bytes of freed blocks that lie in caches, over all devices.
    pub cached_bytes: u64,
}

impl BucketStats {
    /// Share of the requests that a freed block served as it was, from 0 to 1.
    #[must_use]
    pub fn hit_rate(&self) -> f64 {
        if self.requests == 0 { 0.0 } else { self.hits as f64 / self.requests as f64 }
    }
}

/// What merging free memory came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Merging {
    /// Times that two neighbours became one.
    pub merges: u64,
    /// Times that much was merged at once, and the host's time for it. Counted where
    /// [`crate::Builder::caching`], [`crate::Builder::recycling`] or [`crate::Builder::coalescing`] is
    /// not the default.
    pub passes: u64,
    /// In nanoseconds.
    pub pass_ns: u64,
    /// Blocks that had waited in a cache, and went back to the heap by a bound of it.
    pub recycled_blocks: u64,
    /// Their bytes.
    pub recycled_bytes: u64,
}

/// What step gaps have moved: see [`crate::Pool::step_gap`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Moves {
    /// Gaps there were.
    pub gaps: u64,
    /// Blocks moved.
    pub blocks: u64,
    /// Bytes copied.
    pub bytes: u64,
    /// How long the copies took, by the rate assumed at each gap.
    pub time: Duration,
}

/// The buddy system's part of a device's memory: see [`crate::Buddy`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct BuddyStats {
    /// Chunks that it cuts up.
    pub chunks: u32,
    /// Their bytes.
    pub chunk_bytes: u64,
    /// Bytes that users asked for and hold in chunks.
    pub live_bytes: u64,
    /// Bytes of the blocks that hold them.
    pub granted_bytes: u64,
    /// Bytes of blocks in chunks that were freed, and have not gone back into a tree.
    pub cached_bytes: u64,
}

/// How requests that no cache could serve were served, least harm first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Ladder {
    /// From idle memory known to be ordered before the stream's next work.
    pub fitted: u64,
    /// From idle memory, after asking the driver whether earlier work was over.
    pub completed: u64,
    /// With new pages.
    pub created: u64,
    /// With pages taken from idle memory elsewhere.
    pub moved: u64,
    /// By making the stream wait for another.
    pub waited: u64,
    /// Only after everything idle had been claimed and merged (counted above as well).
    pub gathered: u64,
    /// Times that the host waited for work in flight.
    pub host_waits: u64,
    /// Times that the user's callback said it had made room.
    pub callbacks: u64,
    /// Requests refused: out of memory.
    pub refused: u64,
}

/// Allocations by layer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Hits {
    /// From the calling thread's bins.
    pub thread: u64,
    /// From the stream's cache.
    pub stream: u64,
    /// From the device's shared free list.
    pub shard: u64,
    /// From a chunk of the buddy system's, without the heap.
    pub buddy: u64,
    /// From the place that a plan had for it.
    pub planned: u64,
    /// From the heap, fresh memory included.
    pub heap: u64,
}

/// Reuse across streams.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CrossStream {
    /// Allocations served with memory that another stream used last.
    pub hits: u64,
    /// Stream waits that the pool inserted for them. Waits that users asked for do not count.
    pub waits: u64,
}

/// Counters of one thread cache. Only the leasing thread writes; anybody may read.
#[derive(Default)]
pub struct Counters {
    pub thread_hits: AtomicU64,
    pub stream_hits: AtomicU64,
    pub shard_hits: AtomicU64,
    pub buddy_hits: AtomicU64,
    pub planned_hits: AtomicU64,
    pub heap_hits: AtomicU64,
    /// By bucket, without hits in the thread's bins: requests, and those that a cache served.
    pub requests: [AtomicU64; BUCKETS],
    pub cache_hits: [AtomicU64; BUCKETS],
}

/// Adds to a counter that only this thread writes: no read-modify-write instruction.
#[inline]
pub(crate) fn bump(counter: &AtomicU64, by: u64) {
    // Relaxed: a statistic, ordered with nothing.
    counter.store(counter.load(Ordering::Relaxed).wrapping_add(by), Ordering::Relaxed);
}
