//! `millpond replay`: recorded traces go through the pool.

mod allocator;
mod carry;
mod course;
mod crew;
mod first;
mod human;
mod life;
mod machine;
mod options;
mod peer;
mod pool;
mod program;
mod record;
mod run;
mod timing;
mod watch;

pub(crate) use course::{Course, reserved};

use crate::args::{AllocatorName, ReplayArgs};
use crate::exit::Outcome;
use crate::gpus::{Gpus, first_line};
use crate::output;
use allocator::Allocator;
use anyhow::bail;
use crew::{Answer, Crew, Job, Stage};
use first::First;
use indicatif::ProgressBar;
pub(crate) use life::Declared;
use machine::Machine;
use millpond_trace::Trace;
use program::Program;
pub(crate) use record::Record;
use record::Warm;
use std::path::Path;
use std::sync::Arc;

/// Hazards that are told in words.
const HAZARDS_SHOWN: usize = 5;

/// Replays each trace; one that cannot be read stops the command.
pub(crate) fn run(args: &ReplayArgs) -> anyhow::Result<Outcome> {
    let mut gpus = Gpus::choose(args.driver)?;
    first_line(&driver_line(&gpus), args.json)?;
    options::check(args, &gpus)?;
    let bar = output::progress(args.traces.len() as u64 * u64::from(args.repeat), "replay");
    let mut records = Vec::new();
    let outcome = all(args, &mut gpus, &bar, &mut records);
    // Whatever is reported now must not run into the bar.
    bar.finish_and_clear();
    human::print(&records, args.oracle)?;
    outcome
}

/// Replays the traces in turn, and prints the figures as JSON or keeps them for tables.
fn all(
    args: &ReplayArgs,
    gpus: &mut Gpus,
    bar: &ProgressBar,
    records: &mut Vec<Record>,
) -> anyhow::Result<Outcome> {
    let mut outcome = Outcome::Done;
    for path in &args.traces {
        let Replayed { record, hazards, out_of_memory } = replay(path, args, gpus, bar)?;
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

/// The figures of the first of the traces.
pub(crate) fn record(
    args: &ReplayArgs,
    gpus: &mut Gpus,
    bar: &ProgressBar,
) -> anyhow::Result<Record> {
    let Some(path) = args.traces.first() else { bail!("no trace is given") };
    Ok(replay(path, args, gpus, bar)?.record)
}

/// A trace's figures, and what makes the command fail.
struct Replayed {
    record: Record,
    /// The first hazards in words.
    hazards: Vec<String>,
    /// Whether an allocation of any replay was refused.
    out_of_memory: bool,
}

fn replay(
    path: &Path,
    args: &ReplayArgs,
    gpus: &mut Gpus,
    bar: &ProgressBar,
) -> anyhow::Result<Replayed> {
    let trace = Trace::load(path)?;
    bar.set_message(trace.name().to_owned());
    let most = match gpus {
        Gpus::Sim => u16::MAX,
        Gpus::Cuda(cuda) => {
            let (named, present) = (trace.summary().devices.len(), cuda.present());
            if named > usize::from(present) && !args.fold {
                bail!(
                    "{}: the trace names {named} devices, and there are {present} (--fold has them \
                     share)",
                    path.display()
                );
            }
            present
        }
    };
    let program = Program::compile(&trace, args.streams_fresh, most, args.mechanism.declares())?;
    let run = Run { trace, args, driver: gpus.name(), bar };
    match (gpus, args.allocator) {
        (Gpus::Sim, _) => run.on(Machine::simulated(&program, args)?, program),
        (Gpus::Cuda(cuda), AllocatorName::Pool) => {
            run.on(Machine::real(&program, args, cuda)?, program)
        }
        (Gpus::Cuda(cuda), _) => run.on(Machine::peer(&program, args, cuda)?, program),
    }
}

/// The replays of one trace.
struct Run<'a> {
    trace: Trace,
    args: &'a ReplayArgs,
    driver: &'static str,
    bar: &'a ProgressBar,
}

impl Run<'_> {
    fn on<A: Allocator>(self, machine: Machine<A>, program: Program) -> anyhow::Result<Replayed> {
        let Self { trace, args, driver, bar } = self;
        let lag = args.lag.is_some_and(|lag| lag > 0);
        let stage = Arc::new(Stage::new(machine, program, args.threads, lag, args.oracle));
        let allocator = &stage.machine.allocator;
        let crew = Crew::start(&stage, args.threads)?;

        let before = allocator.reading();
        let first = crew.all(Job::Measure)?;
        let after = allocator.reading();
        let figures = allocator.figures()?;
        allocator.stop_timing();
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

        let first = First { before, after, figures, answers: first };
        let record = first.record(&trace, &stage, args, driver);
        // The pool's end may show hazards, too: it gives all memory back.
        let sim = stage.machine.sim.clone();
        drop(stage);
        let sim = sim.filter(|_| args.oracle);
        let hazards = sim.iter().flat_map(|sim| sim.hazards());
        let hazards = hazards.take(HAZARDS_SHOWN).map(|hazard| hazard.to_string()).collect();
        let record = Record {
            warm: timing::median(&mut warm).map(|ns_per_op| Warm { ns_per_op }),
            hazards: sim.map(|sim| sim.hazard_count()),
            ..record
        };
        Ok(Replayed { record, hazards, out_of_memory })
    }
}

/// The first line: whose memory it is.
fn driver_line(gpus: &Gpus) -> String {
    match gpus {
        Gpus::Sim => {
            "driver: sim (simulated GPUs; their time is virtual, the pool's is real)".to_owned()
        }
        Gpus::Cuda(cuda) => format!("driver: cuda ({}; all times are real)", cuda.describe()),
    }
}

fn any_refused(answer: &Answer) -> bool {
    answer.refused.iter().any(|&refused| refused > 0)
}
