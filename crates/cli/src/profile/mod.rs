//! `millpond profile`: what a trace asks for, what suits it, and a plan of what recurs.

mod human;
mod picture;
mod record;

use crate::args::ProfileArgs;
use crate::exit::Outcome;
use crate::{output, replay};
use anyhow::Context;
use millpond::DeviceId;
use millpond::plan::{Plan, Profile};
use millpond_trace::Trace;
use record::{DeviceRecord, Record, recordings};

/// Runs the command.
pub(crate) fn run(args: &ProfileArgs) -> anyhow::Result<Outcome> {
    let trace = Trace::load(&args.trace)?;
    let recordings = recordings(&trace);
    let plan = Plan::of(recordings.iter().map(|(device, recording)| (*device, recording)));
    let devices = recordings.iter().map(|(device, recording)| {
        let DeviceId(ordinal) = *device;
        DeviceRecord::new(ordinal, Profile::of(recording), plan.device(*device))
    });
    let record = Record { trace: trace.name().to_owned(), devices: devices.collect() };
    if let Some(path) = &args.plan {
        plan.save(path)?;
    }
    if let Some(path) = &args.svg {
        let reserved = replay::reserved(&trace)?;
        let picture = picture::draw(&record, &reserved)?;
        std::fs::write(path, picture)
            .with_context(|| format!("{}: cannot be written", path.display()))?;
    }
    if args.json {
        output::json_line(&record)?;
    } else {
        human::print(&record)?;
    }
    Ok(Outcome::Done)
}
