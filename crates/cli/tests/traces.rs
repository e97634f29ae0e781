//! All traces, with the race oracle on and completion that lags.
//!
//! `MILLPOND_TRACES` names a folder of traces, all of which run; without it, those that come with the
//! sources do, the largest left out.

mod common;

use common::{examples, replay};
use millpond_trace::Trace;
use std::io::Write;
use std::path::{Path, PathBuf};

/// More operations than this are too many for everyday.
const LARGE: u64 = 200_000;
/// Large, but it shows what the pool is for: several devices, streams and waits between them.
const ALWAYS: &str = "pp1f1b_4x8";

fn traces(folder: &Path) -> Vec<PathBuf> {
    let entries =
        std::fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut paths: Vec<PathBuf> = entries
        .map(|entry| entry.expect("a folder entry").path())
        .filter(|path| {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            name.ends_with(".trace") || name.ends_with(".trace.zst")
        })
        .collect();
    paths.sort();
    paths
}

#[test]
fn no_trace_shows_a_hazard() {
    let given = std::env::var_os("MILLPOND_TRACES").map(PathBuf::from);
    let paths = traces(given.as_deref().unwrap_or(&examples()));
    let (mut ran, mut left) = (0, 0);
    for path in &paths {
        let trace = Trace::load(path).unwrap_or_else(|error| panic!("{error}"));
        if trace.summary().counts.ops() > LARGE && trace.name() != ALWAYS && given.is_none() {
            left += 1;
            continue;
        }
        let run = replay(&[path], &["--oracle", "--lag", "7", "--repeat", "2"]);
        assert_eq!(run.status, Some(0), "{}: {}", path.display(), run.stderr);
        let objects = run.objects();
        assert_eq!(objects.len(), 1, "{}", path.display());
        assert_eq!(objects[0]["hazards"], 0, "{}: {}", path.display(), run.stderr);
        ran += 1;
    }
    // Not through a macro: the number is shown when the test passes, too.
    let _ = writeln!(std::io::stderr(), "{ran} traces ran, {left} were left to MILLPOND_TRACES");
    assert!(ran > 0, "there are no traces");
}
