//! `millpond replay`: recorded traces go through the pool.

mod calls;
mod crew;
mod driver;
mod human;
mod machine;
mod program;
mod record;
mod run;
mod timing;
mod watch;

use crate::args::{DriverName, ReplayArgs};
use crate::exit::Outcome;
use crate::output;
use anyhow::bail;
use calls::Reading;
use crew::{Answer, Crew, Job, Stage};
use indicatif::ProgressBar;
use machine::Machine;
use millpond::Stats;
use millpond_trace::{Summary, Trace};
use program::Program;
use record::{Cold, CrossStream, DeviceRecord, Hits, Record, Warm};
use std::path::Path;
use std::sync::{Arc, PoisonError};
use timing::Samples;

/// Hazards that are told in words.
const HAZARDS_SHOWN: usize = 5;

/// Replays each trace; one that cannot be read stops the command.
pub(crate) fn run(args: &ReplayArgs) -> anyhow::Result<Outcome> {
    if args.driver == Some(DriverName::Cuda) {
        bail!("this build has no CUDA driver (use --driver sim)");
    }
    let driver = "driver: sim (simulated GPUs; their time is virtual, the pool's is real)";
    if args.json {
        eprintln!("{driver}");
    } else {
        output::line(driver)?;
    }
    let bar = output::progress(args.traces.len() as u64 * u64::from(args.repeat), "replay");
    let mut records = Vec::new();
    let mut outcome = Outcome::Done;
    for path in &args.traces {
        let Replayed { record, hazards, out_of_memory } =
            bar_cleared(replay(path, args, &bar), &bar)?;
        for hazard in &hazards {
            bar.suspend(|| eprintln!("{}: hazard: {hazard}", record.trace));
        }
        if out_of_memory || record.hazards.is_some_and(|hazards| hazards > 0) {
            outcome = Outcome::Failed;
        }
        if args.json {
            bar.suspend(|| output::json_line(&record))?;
        } else {
            records.push(record);
        }
    }
    bar.finish_and_clear();
    if !args.json {
        human::print(&records)?;
    }
    Ok(outcome)
}

/// Takes the bar off the terminal before an error is reported there.
fn bar_cleared<T>(result: anyhow::Result<T>, bar: &ProgressBar) -> anyhow::Result<T> {
    result.inspect_err(|_| bar.finish_and_clear())
}

/// A trace's figures, and what makes the command fail.
struct Replayed {
    record: Record,
    /// The first hazards in words.
    hazards: Vec<String>,
    /// Whether an allocation of any replay was refused.
    out_of_memory: bool,
}

fn replay(path: &Path, args: &ReplayArgs, bar: &ProgressBar) -> anyhow::Result<Replayed> {
    let trace = Trace::load(path)?;
    bar.set_message(trace.name().to_owned());
    let program = Program::compile(&trace)?;
    let summary = trace.summary();
    let machine = Machine::build(summary, args)?;
    let stage = Arc::new(Stage::new(machine, program, args.threads, args.lag > 0, args.oracle));
    let machine = &stage.machine;
    let crew = Crew::start(&stage, args.threads)?;

    let before = machine.reading();
    let first = crew.all(Job::Measure)?;
    let after = machine.reading();
    let stats = machine.pool.stats();
    crew.all(Job::Clear)?;
    bar.inc(1);

    let mut warm = Vec::new();
    let mut out_of_memory = first.iter().any(any_refused);
    for _ in 1..args.repeat {
        let answers = crew.all(Job::Time)?;
        out_of_memory |= answers.iter().any(any_refused);
        let slowest = answers.iter().map(|answer| answer.time).max().unwrap_or_default();
        warm.push(slowest.as_nanos() as f64 / stage.program.calls() as f64);
        crew.all(Job::Clear)?;
        bar.inc(1);
    }
    crew.end()?;

    let sim = &machine.sim;
    let hazards = sim.hazards();
    let hazards = hazards.iter().take(HAZARDS_SHOWN).map(ToString::to_string).collect();
    let first = First { before, after, stats, answers: first };
    let record = Record {
        warm: timing::median(&mut warm).map(|ns_per_op| Warm { ns_per_op }),
        hazards: args.oracle.then(|| sim.hazard_count()),
        ..first.record(&trace, &stage, args)
    };
    Ok(Replayed { record, hazards, out_of_memory })
}

fn any_refused(answer: &Answer) -> bool {
    answer.refused.iter().any(|&refused| refused > 0)
}

/// What is known of a first replay.
struct First {
    before: Reading,
    after: Reading,
    stats: Stats,
    answers: Vec<Answer>,
}

impl First {
    /// The figures, but for later replays and for hazards.
    fn record(self, trace: &Trace, stage: &Stage, args: &ReplayArgs) -> Record {
        let summary = trace.summary();
        let devices = self.devices(summary, stage);
        let Self { before, after, stats, answers } = self;
        let whole = after.since(&before);
        // The first thread's marks count.
        let half = answers.first().and_then(|answer| answer.half.as_ref());
        let half = half.map(|half| after.since(half));
        let steps = stage.program.half_steps as f64;
        let (mut alloc, mut free) = (Samples::default(), Samples::default());
        for answer in answers {
            alloc.join(answer.alloc);
            free.join(answer.free);
        }
        let empty = timing::empty_ns();
        Record {
            trace: trace.name().to_owned(),
            mechanism: args.mechanism.name(),
            driver: "sim",
            reuse: args.reuse.name(),
            lag: args.lag,
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
            cross_stream: cross_stream(&stats, whole.calls.stream_wait),
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

/// The pool does not count the blocks that pass between streams: `hits` is not known. All stream
/// waits other than the trace's own are the pool's.
fn cross_stream(_: &Stats, waits: u64) -> CrossStream {
    CrossStream { hits: None, waits }
}
