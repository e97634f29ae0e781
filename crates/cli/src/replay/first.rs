//! From what a first replay showed to the figures that are reported.

use super::allocator::{Allocator, Figures};
use super::crew::{Answer, Stage};
use super::record::{Cold, CrossStream, DeviceRecord, Record};
use super::timing::{Samples, empty_ns};
use super::watch::StepPeaks;
use crate::args::{AllocatorName, ReplayArgs, ReuseName};
use crate::gpus::Reading;
use millpond_trace::Trace;
use std::sync::PoisonError;

/// What is known of a first replay.
pub(super) struct First {
    /// When it began, and when it had come to the trace's end.
    pub before: Reading,
    pub after: Reading,
    /// What the allocator told at the trace's end.
    pub figures: Figures,
    /// Thread by thread.
    pub answers: Vec<Answer>,
}

/// Of each step after the first mark.
fn fragmentation(answer: &Answer) -> Vec<Option<f64>> {
    let of = |devices: &Vec<StepPeaks>| {
        let sum = |part: fn(&StepPeaks) -> u64| devices.iter().map(part).sum::<u64>();
        let (live, reserved) = (sum(|peaks| peaks.live), sum(|peaks| peaks.reserved));
        (reserved > 0).then(|| 1.0 - live as f64 / reserved as f64)
    };
    answer.steps.iter().skip(1).map(of).collect()
}

impl First {
    /// The figures, but for later replays and for hazards.
    pub fn record<A: Allocator>(
        self,
        trace: &Trace,
        stage: &Stage<A>,
        args: &ReplayArgs,
        driver: &'static str,
    ) -> Record {
        let summary = trace.summary();
        let devices = self.devices(stage);
        let Self { before, after, figures, answers } = self;
        let whole = after.since(&before);
        // The first thread's marks count.
        let marks = answers.first().map_or(&[][..], |answer| &answer.steady);
        let half = marks.first().map(|half| after.since(half));
        let ends = marks.iter().skip(1).chain([&after]);
        let worst = marks.iter().zip(ends).map(|(mark, end)| end.since(mark).driver_ns).max();
        let steps = stage.program.half_steps as f64;
        let step_fragmentation = answers.first().map_or_else(Vec::new, fragmentation);
        let (mut alloc, mut free) = (Samples::default(), Samples::default());
        for answer in answers {
            alloc.join(answer.alloc);
            free.join(answer.free);
        }
        let empty = empty_ns();
        let peer = args.allocator != AllocatorName::Pool;
        let reuse = args.reuse.unwrap_or(ReuseName::Wait).name();
        Record {
            trace: trace.name().to_owned(),
            mechanism: if peer { args.allocator.name().to_owned() } else { args.mechanism.name() },
            driver,
            reuse: (!peer).then_some(reuse),
            plain: args.plain,
            lag: stage.machine.sim.as_ref().map(|_| args.lag.unwrap_or(0)),
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
            step_fragmentation,
            buckets: figures.buckets,
            merging: figures.merging,
            moves: figures.moves,
            // All stream waits other than the trace's own are the allocator's.
            cross_stream: CrossStream {
                hits: figures.cross_stream_hits,
                waits: whole.calls.stream_wait,
            },
            ladder: figures.ladder,
            hits: figures.hits,
            hazards: None,
            bookkeeping_bytes: figures.bookkeeping_bytes,
            release_threshold: figures.release_threshold,
            trace_waits: whole.trace_waits,
        }
    }

    fn devices<A: Allocator>(&self, stage: &Stage<A>) -> Vec<DeviceRecord> {
        let parts = stage.program.devices.iter().zip(&self.figures.peak_reserved);
        let parts = parts.zip(stage.gauges.iter().zip(&stage.machine.limits));
        parts
            .enumerate()
            .map(|(index, ((device, &peak_reserved), (gauge, &limit)))| {
                let gauge = gauge.lock().unwrap_or_else(PoisonError::into_inner);
                let oom = self.answers.iter().filter_map(|answer| answer.refused.get(index)).sum();
                DeviceRecord::new(
                    device.ordinal,
                    limit,
                    gauge.peak_live,
                    self.figures.hits.map(|_| gauge.waste_at_peak),
                    peak_reserved,
                    oom,
                )
            })
            .collect()
    }
}
