//! `millpond replay`: recorded traces go through the pool.

mod carry;
mod crew;
mod first;
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
use crew::{Answer, Crew, Job, Stage};
use first::First;
use indicatif::ProgressBar;
use machine::Machine;
use millpond_trace::Trace;
use program::Program;
use record::{Record, Warm};
use std::path::Path;
use std::sync::Arc;

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
    let outcome = all(args, &bar, &mut records);
    // Whatever is reported now must not run into the bar.
    bar.finish_and_clear();
    human::print(&records, args.oracle)?;
    outcome
}

/// Replays the traces in turn, and prints the figures as JSON or keeps them for tables.
fn all(args: &ReplayArgs, bar: &ProgressBar, records: &mut Vec<Record>) -> anyhow::Result<Outcome> {
    let mut outcome = Outcome::Done;
    for path in &args.traces {
        let Replayed { record, hazards, out_of_memory } = replay(path, args, bar)?;
        for hazard in &hazards {
            bar.suspend(|| eprintln!("{}: hazard: {hazard}", record.trace));
        }
        if out_of_memory {
            bar.suspend(|| eprintln!("millpond: {}: allocations found no memory", record.trace));
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
    Ok(outcome)
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
    let program = Program::compile(&trace, args.streams_fresh)?;
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

    let first = First { before, after, stats, answers: first };
    let record = first.record(&trace, &stage, args);
    // The pool's end may show hazards, too: it gives all memory back.
    let sim = machine.sim.clone();
    drop(stage);
    let hazards = sim.hazards();
    let hazards = hazards.iter().take(HAZARDS_SHOWN).map(ToString::to_string).collect();
    let record = Record {
        warm: timing::median(&mut warm).map(|ns_per_op| Warm { ns_per_op }),
        hazards: args.oracle.then(|| sim.hazard_count()),
        ..record
    };
    Ok(Replayed { record, hazards, out_of_memory })
}

fn any_refused(answer: &Answer) -> bool {
    answer.refused.iter().any(|&refused| refused > 0)
}
