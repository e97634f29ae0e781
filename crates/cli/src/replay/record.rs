//! The result of one trace's replay: what `--json` prints.

use super::timing::Distribution;
use crate::driver_calls::DriverCalls;
use millpond::Stats;
use serde::Serialize;

/// One trace's figures. Memory, hits and driver calls are those of the first replay up to the
/// trace's end, without the calls of the trace's own waits.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Record {
    pub trace: String,
    pub mechanism: String,
    pub driver: &'static str,
    /// Null where the pool is not the allocator; so are `hits`, `ladder` and `bookkeeping_bytes`.
    pub reuse: Option<&'static str>,
    /// Whether memory was taken in plain allocations.
    pub plain: bool,
    /// Null on real GPUs: work takes the time that it takes.
    pub lag: Option<u64>,
    /// Each step ran on streams of its own.
    pub streams_fresh: bool,
    pub threads: u16,
    /// Replays.
    pub repeat: u32,
    /// Operations of one copy.
    pub ops: u64,
    /// Allocations and frees of one copy.
    pub allocs_and_frees: u64,
    pub steps: u64,
    pub devices: Vec<DeviceRecord>,
    pub peak_live_bytes: u64,
    pub peak_reserved_bytes: u64,
    pub cold: Cold,
    pub warm: Option<Warm>,
    /// Of the allocator. Its time is simulated on simulated GPUs, and the host's clock on real ones.
    pub driver_calls: DriverCalls,
    pub steady_memory_calls_per_step: Option<f64>,
    pub steady_event_calls_per_step: Option<f64>,
    pub driver_ns: u64,
    pub steady_driver_ns_per_step: Option<f64>,
    /// The most in one step of the second half; of all devices, as the mean.
    pub worst_driver_ns_per_step: Option<u64>,
    /// Of each step: 1 - peak live / peak reserved within it, both sums over devices. Of the first
    /// thread; null where nothing was reserved, or nobody says what is.
    pub step_fragmentation: Vec<Option<f64>>,
    /// Reuse by bucket of sizes.
    pub buckets: Option<Vec<BucketRecord>>,
    pub merging: Option<MergingRecord>,
    pub moves: Option<MovesRecord>,
    pub cross_stream: CrossStream,
    pub hits: Option<Hits>,
    pub ladder: Option<Ladder>,
    /// With `--oracle`: of all replays.
    pub hazards: Option<u64>,
    pub bookkeeping_bytes: Option<u64>,
    /// Of the driver's own pool: idle bytes above which it gives memory back.
    pub release_threshold: Option<u64>,
    pub trace_waits: u64,
}

/// One device's figures.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct DeviceRecord {
    pub ordinal: u16,
    pub capacity_bytes: u64,
    pub peak_live_bytes: u64,
    pub peak_reserved_bytes: u64,
    /// Null where nothing was reserved; so are the other shares, which are null, too, where the
    /// allocator does not say what it grants.
    pub utilisation: Option<f64>,
    pub internal_fragmentation: Option<f64>,
    pub external_fragmentation: Option<f64>,
    /// Allocations refused for want of memory.
    pub oom: u64,
}

impl DeviceRecord {
    /// `waste_bytes`: granted beyond what was asked for, when `peak_live_bytes` were live; if known.
    pub fn new(
        ordinal: u16,
        capacity_bytes: u64,
        peak_live_bytes: u64,
        waste_bytes: Option<u64>,
        peak_reserved_bytes: u64,
        oom: u64,
    ) -> Self {
        let share = |bytes: u64| {
            (peak_reserved_bytes > 0).then(|| bytes as f64 / peak_reserved_bytes as f64)
        };
        Self {
            ordinal,
            capacity_bytes,
            peak_live_bytes,
            peak_reserved_bytes,
            utilisation: share(peak_live_bytes),
            internal_fragmentation: waste_bytes.and_then(share),
            external_fragmentation: waste_bytes.and_then(|waste| {
                share(peak_reserved_bytes.saturating_sub(peak_live_bytes + waste))
            }),
            oom,
        }
    }
}

/// Times of single calls in the first replay.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Cold {
    pub alloc_ns: Option<Distribution>,
    pub free_ns: Option<Distribution>,
}

/// Times of the later replays.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Warm {
    pub ns_per_op: f64,
}

/// Memory that went from one stream to another.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct CrossStream {
    /// Blocks that one stream got from another.
    pub hits: Option<u64>,
    /// Stream waits that the allocator inserted for it.
    pub waits: u64,
}

/// Allocations by the layer that served them.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Hits {
    pub thread: u64,
    pub stream: u64,
    pub shard: u64,
    pub buddy: u64,
    pub planned: u64,
    pub heap: u64,
}

/// How the heap served what it was asked for, least harm first; sums over devices.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(crate) struct Ladder {
    pub fitted: u64,
    pub completed: u64,
    pub created: u64,
    pub moved: u64,
    pub waited: u64,
    /// Of those above: only after everything idle had been claimed and merged.
    pub gathered: u64,
    pub host_waits: u64,
    pub refused: u64,
}

impl Ladder {
    pub fn of(stats: &Stats) -> Self {
        let mut sum = Self::default();
        for device in &stats.devices {
            let ladder = device.ladder;
            sum.fitted += ladder.fitted;
            sum.completed += ladder.completed;
            sum.created += ladder.created;
            sum.moved += ladder.moved;
            sum.waited += ladder.waited;
            sum.gathered += ladder.gathered;
            sum.host_waits += ladder.host_waits;
            sum.refused += ladder.refused;
        }
        sum
    }
}

/// Requests of a bucket of sizes: below 1 MiB, to 100 MiB, above.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct BucketRecord {
    pub requests: u64,
    pub hits: u64,
    pub cached_bytes: u64,
}

/// What merging free memory came to; sums over devices.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(crate) struct MergingRecord {
    pub merges: u64,
    pub passes: u64,
    /// Host time.
    pub pass_ns: u64,
    pub recycled_blocks: u64,
    pub recycled_bytes: u64,
}

/// Movable blocks that were moved at step gaps; sums over devices.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(crate) struct MovesRecord {
    pub gaps: u64,
    pub blocks: u64,
    pub bytes: u64,
    /// The copies' time on the devices, by the rate assumed.
    pub ns: u64,
}

impl MergingRecord {
    pub fn of(stats: &Stats) -> Self {
        let mut sum = Self::default();
        for device in &stats.devices {
            let merging = device.merging;
            sum.merges += merging.merges;
            sum.passes += merging.passes;
            sum.pass_ns += merging.pass_ns;
            sum.recycled_blocks += merging.recycled_blocks;
            sum.recycled_bytes += merging.recycled_bytes;
        }
        sum
    }
}

impl MovesRecord {
    pub fn of(stats: &Stats) -> Self {
        let mut sum = Self::default();
        for device in &stats.devices {
            let moves = device.moves;
            sum.gaps += moves.gaps;
            sum.blocks += moves.blocks;
            sum.bytes += moves.bytes;
            sum.ns += u64::try_from(moves.time.as_nanos()).unwrap_or(u64::MAX);
        }
        sum
    }
}

impl Record {
    /// Reserved over live: sums over devices of each device's peak.
    pub fn overhead(&self) -> Option<f64> {
        let live = self.peak_live_bytes;
        (live > 0).then(|| self.peak_reserved_bytes as f64 / live as f64)
    }

    /// Refused allocations of the first replay.
    pub fn oom(&self) -> u64 {
        self.devices.iter().map(|device| device.oom).sum()
    }
}
