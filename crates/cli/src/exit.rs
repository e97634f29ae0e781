//! How the command ends: 0 done; 1 hazards or out of memory; 2 usage or unreadable input.

use std::process::ExitCode;

/// What a command that ran to its end found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Outcome {
    /// All well.
    Done,
    /// Hazards, wrong contents or out of memory.
    Failed,
}

/// The status of a command's end. An error, which its message goes to standard error for, is a
/// usage or input error.
pub(crate) fn code(result: anyhow::Result<Outcome>) -> ExitCode {
    match result {
        Ok(Outcome::Done) => ExitCode::SUCCESS,
        Ok(Outcome::Failed) => ExitCode::from(1),
        Err(error) => {
            eprintln!("millpond: {error:#}");
            ExitCode::from(2)
        }
    }
}

/// What the argument parser says: help and version on standard output, all else is a usage error.
pub(crate) fn usage(error: &clap::Error) -> ExitCode {
    if !error.use_stderr() {
        // Nothing to be done where standard output is gone.
        let _ = error.print();
        return ExitCode::SUCCESS;
    }
    let text = error.to_string();
    eprint!("millpond: {}", text.strip_prefix("error: ").unwrap_or(&text));
    ExitCode::from(2)
}
