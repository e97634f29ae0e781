//! What `millpond compare` prints and writes.

mod common;

use common::{example, file, millpond};
use serde_json::Value;
use std::ffi::OsStr;

fn compare(trace: &OsStr, options: &[&str], status: i32) -> (String, String) {
    let head = [OsStr::new("compare"), trace];
    let run = millpond(head.into_iter().chain(options.iter().map(OsStr::new)));
    assert_eq!(run.status, Some(status), "{}", run.stderr);
    assert!(!run.stderr.contains("panicked"), "{}", run.stderr);
    (run.stdout, run.stderr)
}

fn number(row: &Value, field: &str) -> f64 {
    row[field].as_f64().unwrap_or_else(|| panic!("{field} of {row}"))
}

#[test]
fn every_mechanism_has_its_figures_and_races_nowhere() {
    let trace = example("resnet50_b32.trace.zst");
    let options = ["--json", "--oracle", "--lag", "7", "--repeat", "2"];
    let (stdout, _) = compare(trace.as_os_str(), &options, 0);
    let rows: Vec<Value> =
        stdout.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let of = |name: &str| {
        rows.iter().find(|row| row["mechanism"] == name).unwrap_or_else(|| panic!("no {name}"))
    };
    assert!(rows.len() >= 18, "{} mechanisms", rows.len());
    for row in &rows {
        assert_eq!(row["hazards"], 0, "{row}");
        assert_eq!(row["oom"], 0, "{row}");
        assert_eq!(row["step_fragmentation"].as_array().map(Vec::len), Some(10), "{row}");
        let fragmentation = number(row, "fragmentation");
        assert!((0.0..0.2).contains(&fragmentation), "{row}");
        assert!(number(row, "ns_per_op") > 0.0);
    }
    // What practitioners quote, with some room for the lag.
    for (name, most) in
        [("bucketed", 0.03), ("buddy", 0.06), ("delayed", 0.1), ("generational", 0.08)]
    {
        let late = number(of(name), "fragmentation_tenth");
        assert!(late <= most, "{name}: {late}");
    }
    assert_eq!(number(of("no-reuse"), "hit_rate"), 0.0);
    assert!(number(of("simple"), "hit_rate") > 0.3);
    assert!(number(of("generational"), "copy_share") <= 0.05);
    // Work that lags is never known to be over at a mark; work that does not is.
    let options = ["--json", "--mechanisms", "compaction", "--repeat", "1"];
    let (stdout, _) = compare(trace.as_os_str(), &options, 0);
    let at_once: Value = serde_json::from_str(&stdout).expect("JSON");
    assert!(number(&at_once, "moved_blocks") > 0.0, "{at_once}");
    assert!(number(of("fixed"), "memory_calls") < number(of("pool"), "memory_calls") / 10.0);
}

#[test]
fn some_mechanisms_as_a_table_and_a_chart() {
    let trace = file("few.trace", "m step 0\na 1 0 0 4000000\nf 1 0\nm step 1\na 2 0 0 9000000\n");
    let chart = file("few.svg", "");
    let chart_name = chart.to_str().expect("a name");
    let options = ["--mechanisms", "pool,simple", "--svg", chart_name, "--repeat", "1"];
    let (stdout, _) = compare(trace.as_os_str(), &options, 0);
    assert!(stdout.contains("pool") && stdout.contains("simple") && !stdout.contains("buddy"));
    let picture = std::fs::read_to_string(&chart).expect("a picture");
    assert!(picture.starts_with("<svg") && picture.contains("simple"), "{picture}");
}

#[test]
fn what_cannot_be_compared() {
    let trace = file("fine.trace", "a 1 0 0 8\n");
    let (_, stderr) = compare(trace.as_os_str(), &["--mechanisms", "buddies"], 2);
    assert!(stderr.contains("buddies") && stderr.contains("delayed-buddy"), "{stderr}");
    let (_, stderr) = compare(OsStr::new("nowhere.trace"), &[], 2);
    assert!(stderr.contains("nowhere.trace"), "{stderr}");
    let broken = file("broken.trace", "a 1 0 0 8\nz\n");
    let (_, stderr) = compare(broken.as_os_str(), &["--json"], 2);
    assert!(stderr.contains("broken.trace:2"), "{stderr}");
    // Before the first is replayed.
    let (stdout, _) = compare(trace.as_os_str(), &[broken.to_str().expect("a name"), "--json"], 2);
    assert_eq!(stdout, "");
    // A picture that cannot be written takes no table with it.
    let trace = file("few2.trace", "m step 0\na 1 0 0 4000000\nf 1 0\n");
    let options = ["--mechanisms", "pool", "--svg", "/nowhere/out", "--repeat", "1"];
    let (stdout, stderr) = compare(trace.as_os_str(), &options, 2);
    assert!(stdout.contains("last step") && stderr.contains("/nowhere/out"), "{stdout} {stderr}");
}

#[test]
fn what_ample_memory_does_not_serve_is_told() {
    let trace = example("tiny_two_streams.trace");
    let (_, stderr) = compare(trace.as_os_str(), &["--mechanisms", "fixed", "--repeat", "1"], 1);
    assert!(stderr.contains("tiny_two_streams: fixed: 0 hazards, 1 allocations"), "{stderr}");
}
