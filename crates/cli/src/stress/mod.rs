//! `millpond stress`: pipeline training over GPUs with verified contents.
//!
//! Devices hold stages of a model, threads drive them, each device has streams to compute, send and
//! receive. Every block is filled with a pattern of its own and compared with it before it is freed;
//! what another stream or device may touch, and when, is told to the pool and to nobody else. A pool
//! that hands memory out too early shows up as wrong contents, and under the race oracle as a
//! hazard whatever the timing.

mod block;
mod contents;
mod cuda;
mod devices;
mod goal;
mod lanes;
mod ledger;
mod machine;
mod occupancy;
mod report;
mod ring;
mod rng;
mod run;
mod schedule;
mod stage;
mod total;
mod worker;

use crate::args::DriverName;
use crate::exit::Outcome;
use crate::gpus::{Gpus, first_line};
use crate::output;
use crate::size::Bytes;
use anyhow::{bail, ensure};
use clap::{Args, ValueEnum, value_parser};
use contents::Coverage;
use goal::Goal;
use millpond_simgpu::Completion;
use schedule::Schedule;
use std::hash::{BuildHasher, RandomState};
use std::time::Duration;
use total::Total;

/// Options of `millpond stress`.
#[derive(Debug, Args)]
pub(crate) struct StressArgs {
    /// Whose memory it is; NVIDIA GPUs where there are any, simulated ones elsewhere
    #[arg(long, value_enum)]
    driver: Option<DriverName>,
    /// GPUs; by default 4 simulated ones, or all real ones
    #[arg(long, value_parser = value_parser!(u16).range(1..=64))]
    devices: Option<u16>,
    /// Streams of each pipeline on each device: compute, send, receive, further ones to compute
    #[arg(long, default_value = "3", value_parser = streams)]
    streams: usize,
    /// Host threads that drive stages; as many as devices by default
    #[arg(long, value_parser = value_parser!(u16).range(1..=256))]
    threads: Option<u16>,
    /// The order of forward and backward passes
    #[arg(long, value_enum, default_value = "1f1b")]
    schedule: Choice,
    /// Run steps for so long; as all goals, in equal parts where there are several schedules
    #[arg(long, value_parser = seconds)]
    seconds: Option<f64>,
    /// Run so many steps
    #[arg(long, default_value_t = 20, conflicts_with = "seconds",
        value_parser = value_parser!(u64).range(1..))]
    steps: u64,
    /// Run steps until the pool has answered so many calls: allocations, frees, uses and waits; 1e8
    /// is a number too
    #[arg(long, conflicts_with_all = ["seconds", "steps"], value_name = "N",
        value_parser = operations)]
    operations: Option<u64>,
    /// Fill and compare the ends of each block and a stretch every 128 KiB, not every byte
    #[arg(long)]
    sample: bool,
    /// Where sizes, random orders and the devices' timing are drawn from; drawn itself by default
    #[arg(long)]
    seed: Option<u64>,
    /// Share of blocks that another thread frees than allocated them
    #[arg(long, default_value_t = 0.5, value_name = "SHARE", value_parser = share)]
    foreign_frees: f64,
    /// On simulated GPUs: work completes so many pool calls after its submission; without it, in an
    /// order that the seed decides
    #[arg(long, value_name = "N")]
    lag: Option<u64>,
    /// Each step on streams of its own: after a step a new stream takes the place of each, waits
    /// for it, and the old one is dropped
    #[arg(long)]
    streams_fresh: bool,
    /// Memory of each device; by default a simulated one has 80 GiB, a real one what is free, less a
    /// 32nd
    #[arg(long, value_name = "BYTES", value_parser = capacity)]
    capacity: Option<Bytes>,
    /// Memory in plain allocations instead of pages that are mapped
    #[arg(long)]
    plain: bool,
    /// On simulated GPUs, watch for races
    #[arg(long)]
    oracle: bool,
    /// A JSON object on standard output; with `--schedule all` one a schedule, and a closing one
    #[arg(long)]
    json: bool,
}

/// One schedule, or all of them in turn.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Choice {
    /// One forward, one backward: after a warm-up each stage alternates
    #[value(name = "1f1b")]
    OneForwardOneBackward,
    /// The same with two stages on each device, device 0 following the last one
    Interleaved,
    /// Any legal order, drawn from the seed
    Random,
    /// Each of them, on a pool of its own
    All,
}

impl Choice {
    fn schedules(self) -> &'static [Schedule] {
        match self {
            Self::OneForwardOneBackward => &Schedule::ALL[..1],
            Self::Interleaved => &Schedule::ALL[1..2],
            Self::Random => &Schedule::ALL[2..],
            Self::All => &Schedule::ALL,
        }
    }
}

impl StressArgs {
    /// What each of `runs` runs is to reach.
    fn goal(&self, runs: usize) -> Goal {
        match (self.operations, self.seconds) {
            (Some(operations), _) => Goal::Operations(operations.div_ceil(runs as u64)),
            (None, Some(seconds)) => Goal::Time(Duration::from_secs_f64(seconds / runs as f64)),
            (None, None) => Goal::Steps(self.steps.div_ceil(runs as u64)),
        }
    }

    fn coverage(&self) -> Coverage {
        if self.sample { Coverage::Sampled } else { Coverage::Whole }
    }

    /// Simulated GPUs, unless it is said how many.
    const SIMULATED: u16 = 4;

    fn devices(&self) -> u16 {
        self.devices.unwrap_or(Self::SIMULATED)
    }

    /// Threads that drive stages.
    fn threads(&self) -> usize {
        usize::from(self.threads.unwrap_or(self.devices()))
    }

    fn completion(&self) -> Completion {
        self.lag.map_or(Completion::Scheduled, Completion::Lag)
    }
}

fn streams(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(streams @ 1..=64) => Ok(streams),
        _ => Err("expected 1 to 64".into()),
    }
}

fn seconds(text: &str) -> Result<f64, String> {
    match text.parse() {
        // A month: beyond any run, and within every clock.
        Ok(seconds) if seconds > 0.0 && seconds <= 2_592_000.0 => Ok(seconds),
        _ => Err("expected a number above 0 and up to 2592000".into()),
    }
}

fn operations(text: &str) -> Result<u64, String> {
    let whole = text.parse().ok().or_else(|| {
        let (digits, exponent) = text.split_once(['e', 'E'])?;
        digits.parse::<u64>().ok()?.checked_mul(10u64.checked_pow(exponent.parse().ok()?)?)
    });
    whole.filter(|&number| number > 0).ok_or_else(|| "expected a number as in 5000 or 1e8".into())
}

fn capacity(text: &str) -> Result<Bytes, String> {
    let bytes: Bytes = text.parse()?;
    // A page of the simulated devices, and what their addresses go up to.
    if (2 << 20..=16 << 40).contains(&bytes.0) {
        Ok(bytes)
    } else {
        Err("expected 2MiB to 16TiB".into())
    }
}

fn share(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(share) if (0.0..=1.0).contains(&share) => Ok(share),
        _ => Err("expected a number from 0 to 1".into()),
    }
}

/// Runs the command.
pub(crate) fn run(mut args: StressArgs) -> anyhow::Result<Outcome> {
    let mut gpus = Gpus::choose(args.driver)?;
    let mut driver = gpus.name().to_owned();
    if let Gpus::Cuda(cuda) = &gpus {
        driver = format!("{driver} ({})", cuda.describe());
        real(&mut args, cuda.present())?;
    }
    let seed = args.seed.unwrap_or_else(|| RandomState::new().hash_one(std::process::id()));
    // Before anything can go wrong: the seed repeats the run.
    first_line(&format!("driver: {driver}; seed: {seed}"), args.json)?;
    let schedules = args.schedule.schedules();
    let mut total = Total::new(&args, gpus.name(), seed);
    for &schedule in schedules {
        let report = run::run(&args, &mut gpus, schedule, args.goal(schedules.len()), seed)?;
        if args.json {
            output::json_line(&report)?;
        } else {
            print!("{report}");
        }
        report.explain();
        total.add(&report);
    }
    if !args.json {
        output::line(&total.to_string())?;
    } else if schedules.len() > 1 {
        output::json_line(&total)?;
    }
    Ok(if total.ok { Outcome::Done } else { Outcome::Failed })
}

/// What the options mean on so many real GPUs; refuses what has no meaning there.
fn real(args: &mut StressArgs, present: u16) -> anyhow::Result<()> {
    if args.oracle {
        bail!("--oracle: on real GPUs nobody sees what work touches (use --driver sim)");
    }
    if args.lag.is_some() {
        bail!("--lag: on real GPUs work takes the time that it takes (use --driver sim)");
    }
    let devices = *args.devices.get_or_insert(present.min(64));
    ensure!(devices <= present, "--devices {devices}: there are {present}");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_may_have_an_exponent() {
        for (text, number) in [("1", 1), ("5000", 5000), ("1e8", 100_000_000), ("25E1", 250)] {
            assert_eq!(operations(text), Ok(number));
        }
        for bad in
            ["", "0", "0e3", "e8", "1e", "1e20", "1.5e3", "-1", "1e-1", "99999999999999999999"]
        {
            assert!(operations(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_choice_runs_what_it_names() {
        assert_eq!(Choice::All.schedules(), Schedule::ALL);
        let one = |choice: Choice| {
            assert_eq!(choice.schedules().len(), 1);
            choice.schedules()[0]
        };
        assert_eq!(one(Choice::OneForwardOneBackward), Schedule::OneForwardOneBackward);
        assert_eq!(one(Choice::Interleaved), Schedule::Interleaved);
        assert_eq!(one(Choice::Random), Schedule::Random);
    }
}
