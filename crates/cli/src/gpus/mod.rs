//! The GPUs that the commands run on, and what their driver is asked.

mod books;
mod cuda;
mod library;
mod meter;
mod metered;

pub(crate) use books::Leaks;
pub(crate) use cuda::{Cuda, guarded, leave_some, told};
pub(crate) use meter::{Meter, Reading, own_wait};
pub(crate) use metered::Metered;

use crate::args::DriverName;
use crate::output;
use anyhow::Context;

/// Whose memory a command uses.
#[derive(Debug)]
pub(crate) enum Gpus {
    Sim,
    Cuda(Cuda),
}

impl Gpus {
    /// What was asked for; else NVIDIA GPUs where there are any, and simulated ones elsewhere.
    pub fn choose(asked: Option<DriverName>) -> anyhow::Result<Self> {
        library::open()?;
        Ok(match asked {
            Some(DriverName::Sim) => Self::Sim,
            Some(DriverName::Cuda) => {
                Self::Cuda(Cuda::find().context("no CUDA here (use --driver sim)")?)
            }
            None => Cuda::find().map_or(Self::Sim, Self::Cuda),
        })
    }

    pub fn name(&self) -> &'static str {
        match self {
            Self::Sim => "sim",
            Self::Cuda(_) => "cuda",
        }
    }
}

/// A command's first line: on standard error where standard output is for JSON.
pub(crate) fn first_line(line: &str, json: bool) -> anyhow::Result<()> {
    if json {
        eprintln!("{line}");
        return Ok(());
    }
    output::line(line)
}
