//! The traces that come with the project are valid and are what their table says. With
//! `MILLPOND_TRACES` set to a folder, every trace of that folder is validated too.

use std::path::{Path, PathBuf};

use millpond_trace::{Trace, TraceError};

/// Name; operations; allocations; steps; devices; streams; u; w; x; peak blocks; peak live MiB,
/// all devices together, rounded down.
type Row = (&'static str, [u64; 10]);

const TABLE: [Row; 7] = [
    ("fsdp1_llama3b", [68_754, 31_404, 8, 1, 4, 2_952, 3_224, 0, 722, 28_910]),
    ("gpt2_1p3b_bf16", [42_255, 21_590, 8, 1, 1, 0, 0, 0, 1_512, 35_503]),
    ("pp1f1b_4x8", [280_106, 139_664, 6, 4, 12, 576, 576, 288, 1_873, 32_565]),
    ("prefetch_4loaders", [66_244, 33_303, 40, 1, 5, 80, 40, 0, 781, 6_089]),
    ("resnet50_b32", [17_722, 9_102, 10, 1, 1, 0, 0, 0, 805, 2_881]),
    ("tiny_pipeline", [2_056, 856, 3, 4, 12, 144, 144, 72, 68, 334]),
    ("tiny_two_streams", [57, 24, 3, 1, 2, 6, 6, 0, 6, 36]),
];

fn traces_in(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
    let mut traces: Vec<PathBuf> = entries
        .map(|entry| entry.expect("a readable folder").path())
        .filter(|path| {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            name.ends_with(".trace") || name.ends_with(".trace.zst")
        })
        .collect();
    traces.sort();
    traces
}

#[test]
fn checked_in_traces_are_what_the_table_says() -> Result<(), TraceError> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/traces");
    let paths = traces_in(&folder);
    assert_eq!(paths.len(), TABLE.len(), "{paths:?}");
    for (path, (name, row)) in paths.iter().zip(TABLE) {
        let trace = Trace::load(path)?;
        let sum = trace.summary();
        let counts = sum.counts;
        let found = [
            counts.ops(),
            counts.allocs,
            counts.steps,
            sum.devices.len() as u64,
            sum.streams().count() as u64,
            counts.uses,
            counts.waits,
            counts.waits_across,
            sum.peak_live_blocks,
            sum.peak_live_bytes >> 20,
        ];
        assert_eq!((trace.name(), found), (name, row));
        assert_eq!(trace.blocks() as u64, counts.allocs);
        assert_eq!(trace.header().get("steps"), Some(counts.steps.to_string().as_str()));
    }
    Ok(())
}

#[test]
fn traces_of_the_environment_are_valid() -> Result<(), TraceError> {
    let Some(folder) = std::env::var_os("MILLPOND_TRACES") else {
        println!("MILLPOND_TRACES is not set: skipped");
        return Ok(());
    };
    let paths = traces_in(Path::new(&folder));
    assert!(!paths.is_empty(), "no trace in {}", folder.display());
    for path in &paths {
        let trace = Trace::load(path)?;
        assert!(trace.summary().sum_of_device_peaks() >= trace.summary().peak_live_bytes);
    }
    println!("{} traces validated", paths.len());
    Ok(())
}
