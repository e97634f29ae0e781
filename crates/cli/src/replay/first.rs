//! From what a first replay showed to the figures that are reported.

use super::crew::{Answer, Stage};
use super::record::{Cold, CrossStream, DeviceRecord, Hits, Ladder, Record};
use super::timing::{Samples, empty_ns};
use crate::args::ReplayArgs;
use crate::gpus::Reading;
use millpond::Stats;
use millpond_trace::{Summary, Trace};
use std::sync::PoisonError;

/// What is known of a first replay.
pub(super) struct First {
    /// When it began, and when it had come to the trace's end.
    pub before: Reading,
    pub after: Reading,
    /// The pool at the trace's end.
    pub stats: Stats,
    /// Thread by thread.
    pub answers: Vec<Answer>,
}

impl First {
    /// The figures, but for later replays and for hazards.
    pub fn record(self, trace: &Trace, stage: &Stage, args: &ReplayArgs) -> Record {
        let summary = trace.summary();
        let devices = self.devices(summary, stage);
        let Self { before, after, stats, answers } = self;
        let whole = after.since(&before);
        // The first thread's marks count.
        let marks = answers.first().map_or(&[][..], |answer| &answer.steady);
        let half = marks.first().map(|half| after.since(half));
        let ends = marks.iter().skip(1).chain([&after]);
        let worst = marks.iter().zip(ends).map(|(mark, end)| end.since(mark).driver_ns).max();
        let steps = stage.program.half_steps as f64;
        let (mut alloc, mut free) = (Samples::default(), Samples::default());
        for answer in answers {
            alloc.join(answer.alloc);
            free.join(answer.free);
        }
        let empty = empty_ns();
        Record {
            trace: trace.name().to_owned(),
            mechanism: args.mechanism.name(),
            driver: "sim",
            reuse: args.reuse.name(),
            lag: args.lag,
            streams_fresh: args.streams_fresh,
            threads: args.threads,
            repeat: args.repeat,
            ops: summary.counts.ops(),
            allocs_and_frees: stage.program.calls(),
            steps: summary.counts.steps,
            peak_live_bytes: devices.iter().map(|device| device.peak_live_bytes).sum(),
            peak_reserved_bytes: devices.iter().map(|device| device.peak_reserved_bytes).sum(),
            devices,
            cold: Cold { alloc_ns: alloc.distribution(empty), free_ns: free.distribution(empty) },
            warm: None,
            driver_calls: whole.calls,
            steady_memory_calls_per_step: half.map(|half| half.calls.memory() as f64 / steps),
            steady_event_calls_per_step: half.map(|half| half.calls.events() as f64 / steps),
            driver_ns: whole.driver_ns,
            steady_driver_ns_per_step: half.map(|half| half.driver_ns as f64 / steps),
            worst_driver_ns_per_step: worst,
            cross_stream: cross_stream(&stats, whole.calls.stream_wait),
            ladder: Ladder::of(&stats),
            hits: Hits {
                thread: stats.hits.thread,
                stream: stats.hits.stream,
                shard: stats.hits.shard,
                heap: stats.hits.heap,
            },
            hazards: None,
            bookkeeping_bytes: stats.bookkeeping_bytes,
            trace_waits: whole.trace_waits,
        }
    }

    fn devices(&self, summary: &Summary, stage: &Stage) -> Vec<DeviceRecord> {
        let parts = summary.devices.iter().zip(&self.stats.devices);
        let parts = parts.zip(stage.gauges.iter().zip(&stage.machine.limits));
        parts
            .enumerate()
            .map(|(index, ((device, stats), (gauge, &limit)))| {
                let gauge = gauge.lock().unwrap_or_else(PoisonError::into_inner);
                let oom = self.answers.iter().filter_map(|answer| answer.refused.get(index)).sum();
                DeviceRecord::new(
                    device.ordinal,
                    limit,
                    gauge.peak_live,
                    gauge.waste_at_peak,
                    stats.peak_reserved_bytes,
                    oom,
                )
            })
            .collect()
    }
}

/// All stream waits other than the trace's own are the pool's.
fn cross_stream(stats: &Stats, waits: u64) -> CrossStream {
    CrossStream { hits: stats.cross_stream.hits, waits }
}
