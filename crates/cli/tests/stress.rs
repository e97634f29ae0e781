//! `millpond stress`: every schedule runs clean, says what it did, and repeats from its seed.

mod common;

use common::{Run, millpond};
use serde_json::Value;

/// `millpond stress --json` with few steps.
fn stress(options: &[&str]) -> Run {
    millpond(["stress", "--json", "--steps", "3"].iter().chain(options))
}

/// The report of a run that went well.
#[track_caller]
fn report(options: &[&str]) -> Value {
    let run = stress(options);
    assert_eq!(run.status, Some(0), "{options:?}: {} {}", run.stdout, run.stderr);
    let mut objects = run.objects();
    assert_eq!(objects.len(), 1, "{}", run.stdout);
    let report = objects.remove(0);
    assert_eq!(report["ok"], true);
    assert_eq!(report["mismatches"], 0);
    assert_eq!(report["leaks"]["bytes"], 0);
    assert_eq!(report["allocations"], report["frees"]);
    report
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value} is no number"))
}

#[test]
fn every_schedule_runs_clean_under_the_oracle() {
    for schedule in ["1f1b", "interleaved", "random"] {
        for threads in ["1", "2", "4"] {
            let options = ["--schedule", schedule, "--threads", threads, "--oracle", "--seed", "5"];
            let report = report(&options);
            assert_eq!(report["hazards"], 0);
            assert_eq!(report["schedule"], schedule);
            assert_eq!(report["threads"].to_string(), threads);
            assert_eq!(report["steps"], 3);
        }
    }
}

#[test]
fn streams_devices_and_threads_in_any_numbers() {
    for (devices, streams, threads) in
        [("1", "1", "1"), ("1", "3", "3"), ("2", "2", "2"), ("3", "8", "4")]
    {
        let options =
            ["--devices", devices, "--streams", streams, "--threads", threads, "--oracle"];
        assert_eq!(report(&options)["hazards"], 0);
    }
}

#[test]
fn the_report_adds_up() {
    let report = report(&["--seed", "11"]);
    let hits = ["thread", "stream", "shard", "heap"].map(|layer| number(&report["hits"][layer]));
    assert_eq!(hits.iter().sum::<u64>(), number(&report["allocations"]));
    assert!(report["hazards"].is_null(), "not watched for");
    assert_eq!(report["sampled"], false);
    let calls = ["allocations", "frees", "uses", "schedule_waits"];
    let sum: u64 = calls.iter().map(|call| number(&report[*call])).sum();
    assert_eq!(number(&report["operations"]), sum);
    assert_eq!(report["seed"], 11);
    let devices = report["devices"].as_array().expect("devices");
    assert_eq!(devices.len(), 4);
    for (ordinal, device) in devices.iter().enumerate() {
        assert_eq!(number(&device["ordinal"]), ordinal as u64);
        let (live, reserved) = (&device["peak_live_bytes"], &device["peak_reserved_bytes"]);
        assert!(0 < number(live) && number(live) <= number(reserved), "{device}");
    }
    for call in ["create", "map", "set_access", "unmap", "release", "event_record", "event_query"] {
        number(&report["driver_calls"][call]);
    }
    assert!(number(&report["driver_calls"]["create"]) > 0);
    for field in ["waits", "schedule_waits", "busy", "oom", "bookkeeping_bytes"] {
        number(&report[field]);
    }
    for field in ["ops_per_s", "elapsed_s"] {
        assert!(report[field].as_f64().is_some_and(|value| value > 0.0), "{field}");
    }
    assert!(report["alloc_ns"]["mean"].as_f64().is_some());
}

#[test]
fn a_seed_repeats_what_the_threads_ask_for() {
    let count = |seed| {
        // The thread that frees for others allocates as well: without frees for others it rests.
        let options = ["--seed", seed, "--schedule", "random", "--foreign-frees", "0"];
        number(&report(&options)["allocations"])
    };
    assert_eq!(count("7"), count("7"));
    assert_ne!(count("7"), count("8"));
}

#[test]
fn the_share_of_foreign_frees_is_kept() {
    for (share, low, high) in [("0", 0.0, 0.02), ("0.5", 0.4, 0.6), ("1", 0.95, 1.0)] {
        let report = report(&["--foreign-frees", share, "--threads", "2"]);
        let found = report["foreign_share"].as_f64().expect("a share");
        assert!((low..=high).contains(&found), "{found} instead of {share}");
    }
}

#[test]
fn all_schedules_in_one_command_end_with_their_sum() {
    let options = ["--operations", "6e3", "--schedule", "all", "--threads", "6", "--sample"];
    let run = millpond(["stress", "--json", "--oracle", "--seed", "4"].iter().chain(&options));
    assert_eq!(run.status, Some(0), "{} {}", run.stdout, run.stderr);
    let objects = run.objects();
    let (total, parts) = objects.split_last().expect("a total");
    let names: Vec<_> = parts.iter().map(|part| part["schedule"].clone()).collect();
    assert_eq!(names, ["1f1b", "interleaved", "random"]);
    assert_eq!(total["schedules"], Value::Array(names));
    assert_eq!((&total["schedule"], &total["sampled"]), (&"all".into(), &true.into()));
    assert_eq!((&total["hazards"], &total["overlaps"]), (&0.into(), &0.into()));
    for part in parts {
        assert!(number(&part["operations"]) >= 2000, "{part}");
    }
    for field in ["operations", "allocations", "frees", "uses", "schedule_waits", "steps"] {
        let sum: u64 = parts.iter().map(|part| number(&part[field])).sum();
        assert!(sum > 0 && number(&total[field]) == sum, "{field}: {total}");
    }
    let kinds = ["allocations", "frees", "uses", "schedule_waits"];
    let sum: u64 = kinds.iter().map(|kind| number(&total[*kind])).sum();
    assert_eq!(number(&total["operations"]), sum);
    assert!(number(&total["invariant_checks"]) >= 3, "at least at the end of each");
}

#[test]
fn samples_go_with_everything_else() {
    for options in [
        &["--streams-fresh", "--threads", "5"][..],
        &["--capacity", "200MiB", "--schedule", "random"],
        &["--devices", "1", "--streams", "1", "--threads", "2", "--oracle"],
    ] {
        let report = report(&[options, &["--sample", "--seed", "2"]].concat());
        assert_eq!((&report["sampled"], &report["overlaps"]), (&true.into(), &0.into()));
    }
}

#[test]
fn completion_may_lag() {
    for lag in ["0", "50"] {
        let report = report(&["--lag", lag, "--oracle"]);
        assert_eq!((&report["hazards"], report["lag"].to_string()), (&Value::from(0), lag.into()));
    }
}

#[test]
fn a_time_ends_the_run() {
    let run = millpond(["stress", "--json", "--seconds", "0.2", "--devices", "2"]);
    assert_eq!(run.status, Some(0), "{}", run.stderr);
    assert!(number(&run.objects()[0]["steps"]) > 0);
}

#[test]
fn out_of_memory_is_reported_and_survived() {
    let run = stress(&["--capacity", "10MiB", "--oracle", "--seed", "3"]);
    assert_eq!(run.status, Some(1), "{} {}", run.stdout, run.stderr);
    let report = &run.objects()[0];
    assert!(number(&report["oom"]) > 0);
    assert_eq!((&report["hazards"], &report["mismatches"]), (&Value::from(0), &Value::from(0)));
    assert_eq!(report["leaks"]["bytes"], 0);
    assert_eq!(report["failures"], Value::Array(Vec::new()));
    assert!(run.stderr.contains("found no memory"), "{}", run.stderr);
}

#[test]
fn people_get_tables_and_the_seed() {
    let run = millpond(["stress", "--steps", "1", "--seed", "42", "--devices", "2"]);
    assert_eq!(run.status, Some(0), "{}", run.stderr);
    for word in
        ["seed: 42", "peak reserved", "hits: thread cache", "waits inserted", " operations ("]
    {
        assert!(run.stdout.contains(word), "no `{word}`: {}", run.stdout);
    }
    assert_eq!(run.stderr, "", "no progress bar where there is no terminal");
}

#[test]
fn what_makes_no_sense_is_refused() {
    for options in [
        &["--devices", "0"][..],
        &["--devices", "65"],
        &["--streams", "0"],
        &["--streams", "x"],
        &["--threads", "0"],
        &["--schedule", "gpipe"],
        &["--steps", "0"],
        &["--seconds", "0"],
        &["--seconds", "-1"],
        &["--seconds", "NaN"],
        &["--seconds", "1", "--steps", "2"],
        &["--operations", "0"],
        &["--operations", "1e20"],
        &["--operations", "many"],
        &["--operations", "9", "--seconds", "2"],
        &["--operations", "9", "--steps", "2"],
        &["--seed", "-1"],
        &["--foreign-frees", "1.5"],
        &["--foreign-frees", "NaN"],
        &["--capacity", "lots"],
        &["--capacity", "0"],
        &["--capacity", "1MiB"],
        &["--capacity", "99999TiB"],
        &["--lag", "soon"],
        &["--unknown"],
        &["operand"],
    ] {
        let run = millpond(["stress"].iter().chain(options));
        assert_eq!(run.status, Some(2), "{options:?}: {} {}", run.stdout, run.stderr);
        assert!(run.stderr.starts_with("millpond: "), "{options:?}: {}", run.stderr);
        assert!(!run.stderr.contains("panicked"), "{options:?}: {}", run.stderr);
    }
}

#[test]
fn a_device_without_room_for_a_page_is_no_reason_to_panic() {
    for capacity in ["0", "1KiB"] {
        let run = stress(&["--capacity", capacity, "--devices", "1"]);
        assert!(matches!(run.status, Some(1 | 2)), "{capacity}: {} {}", run.stdout, run.stderr);
        assert!(!run.stderr.contains("panicked"), "{capacity}: {}", run.stderr);
    }
}
