//! Running the command, and finding traces.

// Each test program uses a part of it.
#![allow(dead_code)]

use serde_json::Value;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// What a run of the command came to.
pub struct Run {
    pub status: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

impl Run {
    /// The JSON objects on standard output.
    #[track_caller]
    pub fn objects(&self) -> Vec<Value> {
        let lines = self.stdout.lines().map(serde_json::from_str);
        lines.collect::<Result<_, _>>().unwrap_or_else(|e| panic!("{e}: {}", self.stdout))
    }
}

/// Runs the command with these arguments, where there is no CUDA device.
pub fn millpond<S: AsRef<OsStr>>(args: impl IntoIterator<Item = S>) -> Run {
    let mut command = Command::new(env!("CARGO_BIN_EXE_millpond"));
    run(command.env_remove(LIBRARY).env("CUDA_VISIBLE_DEVICES", "").args(args))
}

/// The command over a CUDA driver in software with so many devices, whose bytes and races are
/// watched; it tells on standard error what it found.
pub fn over_cuda(devices: u16) -> Command {
    let program = std::env::current_exe().expect("this program");
    let library = program.with_file_name("libfakecuda.so");
    assert!(library.exists(), "{} is not there", library.display());
    let mut command = Command::new(env!("CARGO_BIN_EXE_millpond"));
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("FAKECUDA_")) {
        command.env_remove(name);
    }
    let devices = devices.to_string();
    command.env(LIBRARY, library).env("FAKECUDA_DEVICES", devices).env("FAKECUDA_REPORT", "1");
    command
}

/// The variable that names a library to take for the CUDA driver.
pub const LIBRARY: &str = "MILLPOND_CUDA_LIBRARY";

/// Runs a command to its end.
pub fn run(command: &mut Command) -> Run {
    let Output { status, stdout, stderr } = command.output().expect("it starts");
    let text = |bytes| String::from_utf8(bytes).expect("UTF-8");
    Run { status: status.code(), stdout: text(stdout), stderr: text(stderr) }
}

/// `millpond replay --json` over some traces.
pub fn replay(traces: &[&Path], options: &[&str]) -> Run {
    let head = ["replay", "--json"].map(OsStr::new);
    let options = options.iter().map(OsStr::new);
    millpond(head.into_iter().chain(options).chain(traces.iter().map(|path| path.as_os_str())))
}

/// The traces that come with the sources.
pub fn examples() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/traces")
}

/// One of the traces that come with the sources.
pub fn example(name: &str) -> PathBuf {
    examples().join(name)
}

/// A file of this test program's own.
pub fn file(name: &str, content: impl AsRef<[u8]>) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(env!("CARGO_CRATE_NAME"));
    std::fs::create_dir_all(&folder).expect("a folder for test files");
    let path = folder.join(name);
    std::fs::write(&path, content).expect("a test file");
    path
}
