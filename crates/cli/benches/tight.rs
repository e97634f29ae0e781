//! Memory that is just enough: what each trace costs at 1.02, 1.05 and 1.2 times its peak.
//!
//! Every trace of the folder `MILLPOND_TRACES` (those that come with the sources without it; or the
//! files and folders given as arguments) is replayed once at each capacity, with completion that
//! lags 0 and 50 operations. Calls and times are a device's in one step of the second half of the
//! steps; times are simulated. A trace that peaks below 1 GiB gets 1.06 times instead of 1.02: the
//! pages of its small blocks weigh more there.
//!
//! `cargo bench -p millpond-cli --bench tight [-- TRACE...]`

use anyhow::{Context, ensure};
use comfy_table::{CellAlignment, Table, presets};
use millpond_trace::Trace;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;

const LAGS: [u64; 2] = [0, 50];
const SMALL: u64 = 1 << 30;

fn main() -> anyhow::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/traces");
    // Cargo says so when it measures; otherwise it tests that this runs at all.
    if !arguments.iter().any(|argument| argument == "--bench") {
        let row = row(&examples.join("tiny_two_streams.trace"), 1.5, 0)?;
        ensure!(row[2] == "completed", "{row:?}");
        return Ok(());
    }
    let mut given: Vec<PathBuf> =
        arguments.iter().filter(|argument| !argument.starts_with('-')).map(PathBuf::from).collect();
    if given.is_empty() {
        given.push(std::env::var_os("MILLPOND_TRACES").map_or(examples, PathBuf::from));
    }
    for path in traces(&given)? {
        let trace = Trace::load(&path)?;
        let peak: u64 = trace.summary().devices.iter().map(|device| device.peak_live_bytes).sum();
        let mut table = table();
        for factor in [if peak < SMALL { 1.06 } else { 1.02 }, 1.05, 1.2] {
            for lag in LAGS {
                table.add_row(row(&path, factor, lag)?);
            }
        }
        println!("{}, {:.2} GiB\n{table}\n", trace.name(), peak as f64 / SMALL as f64);
    }
    Ok(())
}

/// The files given, and the traces of the folders given.
fn traces(given: &[PathBuf]) -> anyhow::Result<Vec<PathBuf>> {
    let mut traces = Vec::new();
    // Cargo runs this in its package's folder, not where it was called.
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let rooted = |path: &PathBuf| if path.exists() { path.clone() } else { root.join(path) };
    for path in given.iter().map(rooted) {
        if !path.is_dir() {
            traces.push(path);
            continue;
        }
        let entries = path.read_dir().with_context(|| path.display().to_string())?;
        let mut found =
            entries.map(|entry| Ok(entry?.path())).collect::<anyhow::Result<Vec<_>>>()?;
        found.retain(|path| {
            let name = path.to_string_lossy();
            name.ends_with(".trace") || name.ends_with(".trace.zst")
        });
        found.sort();
        traces.extend(found);
    }
    ensure!(!traces.is_empty(), "no traces in {given:?}");
    Ok(traces)
}

fn table() -> Table {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING).set_header([
        "capacity",
        "lag",
        "outcome",
        "memory calls",
        "driver ms",
        "worst step, ms",
        "event calls",
        "syncs in all",
    ]);
    for column in table.column_iter_mut() {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

/// One replay.
fn row(trace: &Path, factor: f64, lag: u64) -> anyhow::Result<[String; 8]> {
    let report = replay(trace, factor, lag)?;
    let devices = report["devices"].as_array().context("no devices")?;
    let refused: u64 = devices.iter().filter_map(|device| device["oom"].as_u64()).sum();
    // Null with fewer than two steps.
    let share = |field: &str, unit: f64, digits: usize| match report[field].as_f64() {
        Some(value) => format!("{:.digits$}", value / unit / devices.len() as f64),
        None => "-".to_owned(),
    };
    Ok([
        format!("{factor:.2} x"),
        lag.to_string(),
        if refused == 0 { "completed".to_owned() } else { format!("{refused} refused") },
        share("steady_memory_calls_per_step", 1.0, 1),
        share("steady_driver_ns_per_step", 1e6, 3),
        share("worst_driver_ns_per_step", 1e6, 3),
        share("steady_event_calls_per_step", 1.0, 1),
        report["driver_calls"]["sync"].to_string(),
    ])
}

fn replay(trace: &Path, factor: f64, lag: u64) -> anyhow::Result<Value> {
    let output = Command::new(env!("CARGO_BIN_EXE_millpond"))
        .args(["replay", "--driver", "sim", "--json", "--repeat", "1"])
        .args(["--capacity", &format!("{factor}x"), "--lag", &lag.to_string()])
        .arg(trace)
        .output()?;
    let told = String::from_utf8_lossy(&output.stderr);
    // 1: some requests were refused.
    ensure!(matches!(output.status.code(), Some(0 | 1)), "{}: {told}", trace.display());
    serde_json::from_slice(&output.stdout).with_context(|| told.into_owned())
}
