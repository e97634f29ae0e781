//! The millpond command.

mod args;
mod compare;
mod costs;
mod driver_calls;
mod exit;
mod gpus;
mod mechanism;
mod output;
mod profile;
mod replay;
mod size;
mod stress;

use args::{Cli, Command};
use clap::Parser;
use std::process::ExitCode;

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return exit::usage(&error),
    };
    exit::code(match cli.command {
        Command::Replay(args) => replay::run(&args),
        Command::Compare(args) => compare::run(&args),
        Command::Stress(args) => stress::run(args),
        Command::Profile(args) => profile::run(&args),
        Command::Costs(args) => costs::run(&args),
    })
}
