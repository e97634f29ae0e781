//! `millpond stress`: pipeline training over simulated GPUs with verified contents.
//!
//! Devices hold stages of a model, threads drive them, each device has streams to compute, send and
//! receive. Every block is filled with a pattern of its own and compared with it before it is freed;
//! what another stream or device may touch, and when, is told to the pool and to nobody else. A pool
//! that hands memory out too early shows up as wrong contents, and under the race oracle as a
//! hazard whatever the timing.

mod block;
mod lanes;
mod ledger;
mod machine;
mod report;
mod rng;
mod run;
mod schedule;
mod stage;
mod worker;

use crate::exit::Outcome;
use crate::output;
use crate::size::Bytes;
use clap::{Args, value_parser};
use millpond_simgpu::Completion;
use schedule::Schedule;
use std::hash::{BuildHasher, RandomState};

/// Options of `millpond stress`.
#[derive(Debug, Args)]
pub(crate) struct StressArgs {
    /// Simulated GPUs
    #[arg(long, default_value_t = 4, value_parser = value_parser!(u16).range(1..=64))]
    devices: u16,
    /// Streams of each pipeline on each device: compute, send, receive, further ones to compute
    #[arg(long, default_value = "3", value_parser = streams)]
    streams: usize,
    /// Host threads that drive stages; as many as devices by default
    #[arg(long, value_parser = value_parser!(u16).range(1..=256))]
    threads: Option<u16>,
    /// The order of forward and backward passes
    #[arg(long, value_enum, default_value = "1f1b")]
    schedule: Schedule,
    /// Run steps for so long
    #[arg(long, value_parser = seconds)]
    seconds: Option<f64>,
    /// Run so many steps
    #[arg(long, default_value_t = 20, conflicts_with = "seconds",
        value_parser = value_parser!(u64).range(1..))]
    steps: u64,
    /// Where sizes, random orders and the devices' timing are drawn from; drawn itself by default
    #[arg(long)]
    seed: Option<u64>,
    /// Share of blocks that another thread frees than allocated them
    #[arg(long, default_value_t = 0.5, value_name = "SHARE", value_parser = share)]
    foreign_frees: f64,
    /// Work completes so many pool calls after its submission; without it, in an order that the seed
    /// decides
    #[arg(long, value_name = "N")]
    lag: Option<u64>,
    /// Each step on streams of its own: after a step a new stream takes the place of each, waits
    /// for it, and the old one is dropped
    #[arg(long)]
    streams_fresh: bool,
    /// Memory of each device
    #[arg(long, default_value = "80GiB", value_name = "BYTES")]
    capacity: Bytes,
    /// Watch for races
    #[arg(long)]
    oracle: bool,
    /// One JSON object on standard output
    #[arg(long)]
    json: bool,
}

impl StressArgs {
    /// Threads that drive stages.
    fn threads(&self) -> usize {
        usize::from(self.threads.unwrap_or(self.devices))
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

fn share(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(share) if (0.0..=1.0).contains(&share) => Ok(share),
        _ => Err("expected a number from 0 to 1".into()),
    }
}

/// Runs the command.
pub(crate) fn run(args: StressArgs) -> anyhow::Result<Outcome> {
    let seed = args.seed.unwrap_or_else(|| RandomState::new().hash_one(std::process::id()));
    // Before anything can go wrong: the seed repeats the run.
    let line = format!("driver: sim; seed: {seed}");
    if args.json {
        eprintln!("{line}")
    } else {
        println!("{line}")
    }
    let report = run::run(&args, seed)?;
    if args.json {
        output::json_line(&report)?;
    } else {
        print!("{report}");
    }
    report.explain();
    Ok(if report.ok { Outcome::Done } else { Outcome::Failed })
}
