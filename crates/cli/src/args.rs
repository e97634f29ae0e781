//! The command line.

use crate::costs::CostsArgs;
use crate::mechanism::Mechanism;
use crate::size::{Bytes, factor};
use crate::stress::StressArgs;
use clap::{Args, Parser, Subcommand, ValueEnum};
use millpond::{Headroom, Reuse};
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// A lock-free, multi-stream, multi-GPU device-memory pool: replay traces, stress it, time its driver.
#[derive(Debug, Parser)]
#[command(name = "millpond", version, arg_required_else_help = true)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Replays recorded allocation traces; reports time per call, memory, driver calls and hazards
    Replay(ReplayArgs),
    /// Replays traces through every memory-management mechanism; fragmentation, reuse, time, calls
    Compare(CompareArgs),
    /// Drives pipeline schedules over devices, streams and threads with verified contents
    Stress(StressArgs),
    /// Says what a trace asks for, which way of managing memory suits it, and plans what recurs
    Profile(ProfileArgs),
    /// Times the driver's calls; prints a table, or prices for simulated GPUs
    Costs(CostsArgs),
}

#[derive(Debug, Args)]
pub(crate) struct ReplayArgs {
    /// Traces to replay, compressed or not
    #[arg(required = true, value_name = "TRACE")]
    pub traces: Vec<PathBuf>,

    /// Whose memory it is; NVIDIA GPUs where there are any, simulated ones elsewhere
    #[arg(long, value_enum)]
    pub driver: Option<DriverName>,

    /// Who serves the memory: the pool, or what it is compared with, over NVIDIA GPUs
    #[arg(long, value_enum, default_value_t = AllocatorName::Pool)]
    pub allocator: AllocatorName,

    /// The memory-management mechanism
    #[arg(long, value_enum, default_value_t = Mechanism::Pool, value_name = "NAME")]
    pub mechanism: Mechanism,

    /// With --mechanism planned: the plan to begin with, as `profile --plan` writes it
    #[arg(long, value_name = "FILE")]
    pub plan: Option<PathBuf>,

    /// When memory that one stream freed may serve another; "wait" by default
    #[arg(long, value_enum)]
    pub reuse: Option<ReuseName>,

    /// Most memory of each device, rounded up to pages: bytes, or a multiple of the trace's peak on
    /// that device (times the threads); without it a simulated device has 80 GiB, a real one what is
    /// free, less a 32nd, and the pool holds little more than it needs
    #[arg(long, value_name = "8GiB|1.02x")]
    pub capacity: Option<Capacity>,

    /// How much more than the most that was ever live may be held while idle pages could be moved:
    /// a share of it, or "unbounded"; unbounded where a capacity is set, else under one per cent
    #[arg(long, value_name = "0.02|unbounded")]
    pub headroom: Option<HeadroomArg>,

    /// The size of a page, in which memory is taken from the driver and moved: a power of two from
    /// 2 MiB, which it is by default, to 1 GiB
    #[arg(long, value_name = "4MiB", value_parser = page)]
    pub page: Option<Bytes>,

    /// Memory in plain allocations instead of pages that are mapped
    #[arg(long)]
    pub plain: bool,

    /// On real GPUs: the trace's devices on those that there are, in turn, where there are fewer
    #[arg(long)]
    pub fold: bool,

    /// On simulated GPUs: an event completes so many trace operations after its record; 0 by default
    #[arg(long, value_name = "N")]
    pub lag: Option<u64>,

    /// On simulated GPUs: what driver calls cost, as `millpond costs --json` prints it
    #[arg(long, value_name = "FILE")]
    pub costs: Option<PathBuf>,

    /// With cuda-async: idle memory that the driver's pool keeps, in bytes, or "max" for all;
    /// without it the driver's own setting, which is 0
    #[arg(long, value_name = "1GiB|max", value_parser = threshold)]
    pub release_threshold: Option<Bytes>,

    /// Each step on streams of its own: at its mark a new stream takes the place of each of the
    /// trace's, waits for it, and the old one is dropped
    #[arg(long)]
    pub streams_fresh: bool,

    /// Copies of the trace replayed at once, each with streams of its own
    #[arg(long, default_value_t = 1, value_name = "N",
          value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub threads: u16,

    /// Replays on one pool: a cold one, then warm ones
    #[arg(long, default_value_t = 3, value_name = "N",
          value_parser = clap::value_parser!(u32).range(1..))]
    pub repeat: u32,

    /// On simulated GPUs, look for races: each block gets a first write and last reads, and all touches are checked
    #[arg(long)]
    pub oracle: bool,

    /// One JSON object a trace on standard output
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct ProfileArgs {
    /// The trace, compressed or not
    #[arg(value_name = "TRACE")]
    pub trace: PathBuf,

    /// Where to write a plan of what recurs from step to step
    #[arg(long, value_name = "OUT")]
    pub plan: Option<PathBuf>,

    /// Where to write a picture of sizes, of memory over time and of lifetimes, as SVG
    #[arg(long, value_name = "OUT")]
    pub svg: Option<PathBuf>,

    /// A JSON object on standard output
    #[arg(long)]
    pub json: bool,
}

impl ReplayArgs {
    /// One trace through the pool on simulated GPUs, everything else as without options.
    pub(crate) fn simulated(trace: &Path, mechanism: Mechanism) -> Self {
        Self {
            traces: vec![trace.to_owned()],
            driver: Some(DriverName::Sim),
            allocator: AllocatorName::Pool,
            mechanism,
            plan: None,
            reuse: None,
            capacity: None,
            headroom: None,
            page: None,
            plain: false,
            fold: false,
            lag: None,
            costs: None,
            release_threshold: None,
            streams_fresh: false,
            threads: 1,
            repeat: 3,
            oracle: false,
            json: false,
        }
    }
}

#[derive(Debug, Args)]
pub(crate) struct CompareArgs {
    /// Traces to replay, compressed or not, over simulated GPUs
    #[arg(required = true, value_name = "TRACE")]
    pub traces: Vec<PathBuf>,

    /// The mechanisms to compare; all of them without this
    #[arg(long, value_enum, value_delimiter = ',', value_name = "A,B,...")]
    pub mechanisms: Vec<Mechanism>,

    /// What memory is limited to in a second replay, to see whether it is enough: bytes of each
    /// device, or a multiple of its peak
    #[arg(long, value_name = "8GiB|1.05x", default_value = "1.05x")]
    pub capacity: Capacity,

    /// An event completes so many trace operations after its record; 0 by default
    #[arg(long, value_name = "N")]
    pub lag: Option<u64>,

    /// Replays with ample memory: a cold one, then warm ones
    #[arg(long, default_value_t = 3, value_name = "N",
          value_parser = clap::value_parser!(u32).range(1..))]
    pub repeat: u32,

    /// Look for races in all replays
    #[arg(long)]
    pub oracle: bool,

    /// Writes a chart
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,

    /// One JSON object a trace and mechanism on standard output
    #[arg(long)]
    pub json: bool,
}

/// Where device memory comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum DriverName {
    /// Simulated GPUs, in this process
    Sim,
    /// NVIDIA GPUs
    Cuda,
}

/// Who serves memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum AllocatorName {
    /// Millpond
    Pool,
    /// cuMemAllocAsync and cuMemFreeAsync
    CudaAsync,
    /// cuMemAlloc and cuMemFree
    CudaPlain,
}

impl AllocatorName {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Pool => "pool",
            Self::CudaAsync => "cuda-async",
            Self::CudaPlain => "cuda-plain",
        }
    }
}

/// [`Reuse`] on the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ReuseName {
    /// Only where the order is known already
    SameStream,
    /// Once the work that used it has completed
    Completed,
    /// Also earlier, the new stream waiting for the old
    Wait,
}

impl ReuseName {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::SameStream => "same-stream",
            Self::Completed => "completed",
            Self::Wait => "wait",
        }
    }
}

impl From<ReuseName> for Reuse {
    fn from(name: ReuseName) -> Self {
        match name {
            ReuseName::SameStream => Self::SameStream,
            ReuseName::Completed => Self::Completed,
            ReuseName::Wait => Self::Wait,
        }
    }
}

/// A release threshold.
fn threshold(text: &str) -> Result<Bytes, String> {
    if text == "max" { Ok(Bytes(u64::MAX)) } else { text.parse() }
}

/// The size of a page.
fn page(text: &str) -> Result<Bytes, String> {
    let bytes: Bytes = text.parse()?;
    let fits = (2 << 20..=1 << 30).contains(&bytes.0) && bytes.0.is_power_of_two();
    fits.then_some(bytes).ok_or_else(|| "expected a power of two from 2MiB to 1GiB".to_owned())
}

/// [`Headroom`] on the command line.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct HeadroomArg(pub Headroom);

impl FromStr for HeadroomArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "unbounded" {
            return Ok(Self(Headroom::Unbounded));
        }
        let share = factor(text).map(|share| Self(Headroom::Share(share)));
        share.ok_or_else(|| "expected a share as in 0.02, or \"unbounded\"".to_owned())
    }
}

/// How much of each device a pool may take.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Capacity {
    Bytes(u64),
    /// Times the trace's peak on the device.
    Factor(f64),
}

impl FromStr for Capacity {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let capacity = match text.strip_suffix('x') {
            Some(number) => factor(number).map(Self::Factor),
            None => text.parse().ok().map(|Bytes(bytes)| Self::Bytes(bytes)),
        };
        capacity
            .filter(|&capacity| capacity != Self::Bytes(0) && capacity != Self::Factor(0.0))
            .ok_or_else(|| "expected bytes as in 8GiB, or a multiple as in 1.02x".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_parser_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn reads_pages() {
        assert_eq!(page("4MiB"), Ok(Bytes(4 << 20)));
        assert!(["0", "1", "1MiB", "3MiB", "2GiB", "x"].into_iter().all(|bad| page(bad).is_err()));
    }

    #[test]
    fn reads_thresholds() {
        assert_eq!(threshold("max"), Ok(Bytes(u64::MAX)));
        assert_eq!(threshold("1GiB"), Ok(Bytes(1 << 30)));
        assert!(threshold("all").is_err());
    }

    #[test]
    fn reads_headroom() {
        assert_eq!("unbounded".parse(), Ok(HeadroomArg(Headroom::Unbounded)));
        assert_eq!("0.02".parse(), Ok(HeadroomArg(Headroom::Share(0.02))));
        for bad in ["", "none", "-1", "2%", "1e3", "0.1.2"] {
            assert!(bad.parse::<HeadroomArg>().is_err(), "{bad}");
        }
    }

    #[test]
    fn reads_capacities() {
        assert_eq!("8GiB".parse(), Ok(Capacity::Bytes(8 << 30)));
        assert_eq!("4096".parse(), Ok(Capacity::Bytes(4096)));
        assert_eq!("1.02x".parse(), Ok(Capacity::Factor(1.02)));
        for bad in ["", "x", "0", "0x", "0GiB", "-1x", "1e3x", "8GB", "1.2.3x", "lots"] {
            assert!(bad.parse::<Capacity>().is_err(), "{bad}");
        }
    }
}
