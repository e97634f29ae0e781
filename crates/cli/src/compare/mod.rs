//! `millpond compare`: what each mechanism of the field makes of a trace.

mod chart;
mod human;
mod row;

use crate::args::{Capacity, CompareArgs, ReplayArgs};
use crate::exit::Outcome;
use crate::gpus::Gpus;
use crate::mechanism::Mechanism;
use crate::{output, replay};
use anyhow::Context;
use clap::ValueEnum;
use millpond_trace::Trace;
use row::Row;
use std::path::Path;

/// Runs the command: all mechanisms on each trace, and all traces.
pub(crate) fn run(args: &CompareArgs) -> anyhow::Result<Outcome> {
    let mechanisms = match args.mechanisms.is_empty() {
        true => Mechanism::value_variants(),
        false => &args.mechanisms[..],
    };
    // What cannot be read is told before hours of replays.
    for trace in &args.traces {
        Trace::load(trace)?;
    }
    let replays = args.traces.len() * mechanisms.len();
    let bar = output::progress(replays as u64, "compare");
    let mut rows = Vec::with_capacity(replays);
    let compared = all(args, mechanisms, &bar, &mut rows);
    bar.finish_and_clear();
    compared?;
    if !args.json {
        human::print(&rows)?;
    }
    if let Some(path) = &args.svg {
        let picture = chart::draw(&rows)?;
        std::fs::write(path, picture)
            .with_context(|| format!("{}: cannot be written", path.display()))?;
    }
    let mut failed = false;
    for row in &rows {
        let hazards = row.hazards.unwrap_or(0);
        if hazards > 0 || row.oom > 0 {
            failed = true;
            eprintln!(
                "millpond: {}: {}: {hazards} hazards, {} allocations refused although memory was ample",
                row.trace, row.mechanism, row.oom
            );
        }
    }
    Ok(if failed { Outcome::Failed } else { Outcome::Done })
}

fn all(
    args: &CompareArgs,
    mechanisms: &[Mechanism],
    bar: &indicatif::ProgressBar,
    rows: &mut Vec<Row>,
) -> anyhow::Result<()> {
    for trace in &args.traces {
        for &mechanism in mechanisms {
            let row = compare(trace, mechanism, args, bar)?;
            if args.json {
                bar.suspend(|| output::json_line(&row))?;
            }
            rows.push(row);
            bar.inc(1);
        }
    }
    Ok(())
}

/// One mechanism on one trace: once with memory enough, and once with little.
fn compare(
    trace: &Path,
    mechanism: Mechanism,
    args: &CompareArgs,
    bar: &indicatif::ProgressBar,
) -> anyhow::Result<Row> {
    let quiet = indicatif::ProgressBar::hidden();
    let replay = |capacity: Option<Capacity>, repeat: u32| {
        let args = ReplayArgs {
            lag: args.lag,
            oracle: args.oracle,
            capacity,
            repeat,
            ..ReplayArgs::simulated(trace, mechanism)
        };
        replay::record(&args, &mut Gpus::Sim, &quiet)
    };
    bar.set_message(mechanism.name());
    let ample = replay(None, args.repeat)?;
    let tight = replay(Some(args.capacity), 1)?;
    Ok(Row::of(ample, &tight))
}
