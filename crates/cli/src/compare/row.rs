//! One mechanism's figures on one trace: what `--json` prints.

use crate::mechanism::STEP;
use crate::replay::Record;
use serde::Serialize;

/// The tenth step is looked at, or the last where there are fewer.
const LATE: usize = 10;

/// Figures of one mechanism on one trace. Fragmentation of a step is 1 - peak live / peak reserved
/// within it; a step is taken to last 200 ms.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Row {
    pub trace: String,
    pub mechanism: String,
    pub lag: Option<u64>,
    /// Within each step.
    pub step_fragmentation: Vec<Option<f64>>,
    /// Within the first; and within the tenth, or the last of fewer.
    pub fragmentation_first: Option<f64>,
    pub fragmentation_tenth: Option<f64>,
    pub peak_live_bytes: u64,
    pub peak_reserved_bytes: u64,
    /// Of the whole replay: 1 - peak live / peak reserved.
    pub fragmentation: Option<f64>,
    /// Share of requests that a freed block served as it was.
    pub hit_rate: f64,
    /// Host time of an allocation or a free once warm.
    pub ns_per_op: Option<f64>,
    /// Calls that take, give back or map memory, of the whole replay.
    pub memory_calls: u64,
    /// Simulated time of the driver's calls over the second half, as a share of a step.
    pub driver_share: Option<f64>,
    /// Of copies, over the whole replay, as a share of a step.
    pub copy_share: f64,
    /// Blocks moved.
    pub moved_blocks: u64,
    /// Host time of merging all at once, per step.
    pub merge_ns_per_step: f64,
    /// Allocations refused with ample memory.
    pub oom: u64,
    /// And where memory is limited; by what each device could hold at most.
    pub oom_limited: u64,
    pub limited_to_bytes: u64,
    pub hazards: Option<u64>,
}

impl Row {
    /// From a replay with ample memory, and one with little.
    pub fn of(ample: Record, tight: &Record) -> Self {
        let step = STEP.as_nanos() as f64;
        let steps = ample.steps.max(1) as f64;
        let buckets = ample.buckets.as_deref().unwrap_or_default();
        let requests: u64 = buckets.iter().map(|bucket| bucket.requests).sum();
        let hits: u64 = buckets.iter().map(|bucket| bucket.hits).sum();
        let moves = ample.moves.unwrap_or_default();
        let merging = ample.merging.unwrap_or_default();
        let within = |at: usize| ample.step_fragmentation.get(at).copied().flatten();
        let late = ample.step_fragmentation.len().min(LATE);
        Self {
            fragmentation_first: within(0),
            fragmentation_tenth: late.checked_sub(1).and_then(within),
            fragmentation: ample.overhead().map(|overhead| 1.0 - 1.0 / overhead),
            hit_rate: hits as f64 / requests.max(1) as f64,
            ns_per_op: ample.warm.map(|warm| warm.ns_per_op),
            memory_calls: ample.driver_calls.memory(),
            driver_share: ample.steady_driver_ns_per_step.map(|ns| ns / step),
            copy_share: moves.ns as f64 / steps / step,
            moved_blocks: moves.blocks,
            merge_ns_per_step: merging.pass_ns as f64 / steps,
            oom: ample.oom(),
            oom_limited: tight.oom(),
            limited_to_bytes: tight.devices.iter().map(|device| device.capacity_bytes).sum(),
            hazards: ample.hazards.map(|hazards| hazards + tight.hazards.unwrap_or(0)),
            trace: ample.trace,
            mechanism: ample.mechanism,
            lag: ample.lag,
            peak_live_bytes: ample.peak_live_bytes,
            peak_reserved_bytes: ample.peak_reserved_bytes,
            step_fragmentation: ample.step_fragmentation,
        }
    }
}
