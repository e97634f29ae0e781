//! `millpond stress` over the CUDA driver: a driver in software, which watches contents and races.

mod common;

use common::{Run, over_cuda, run};
use serde_json::Value;
use std::process::Command;

/// The report of a run that went well, by its own account and by the driver's.
#[track_caller]
fn clean(command: &mut Command) -> Value {
    let Run { status, stdout, stderr } = run(command);
    assert_eq!(status, Some(0), "{stdout} {stderr}");
    let watched = "fakecuda: 0 hazards, 0 faults, 0 violations; left: 0 pages, 0 mappings, \
                   0 reservations, 0 allocations (0 bytes), 0 streams, 0 events";
    assert!(stderr.contains(watched), "{stderr}");
    assert!(stderr.contains("driver: cuda ("), "{stderr}");
    let report: Value = serde_json::from_str(&stdout).expect("an object");
    assert_eq!((&report["driver"], &report["ok"]), (&"cuda".into(), &true.into()));
    for none in ["hazards", "lag"] {
        assert!(report[none].is_null(), "{none}: {report}");
    }
    for zero in ["mismatches", "overlaps", "oom"] {
        assert_eq!(report[zero], 0, "{report}");
    }
    assert!(report["leaks"].as_object().expect("leaks").values().all(|left| *left == 0));
    assert_eq!(report["allocations"], report["frees"]);
    report
}

fn stress(devices: u16, options: &[&str]) -> Command {
    let mut command = over_cuda(devices);
    command.args(["stress", "--json", "--steps", "4"]).args(options);
    command
}

#[test]
fn every_schedule_whatever_the_order_in_which_streams_run() {
    for schedule in ["1f1b", "interleaved", "random"] {
        for seed in ["1", "2"] {
            let mut command = stress(2, &["--schedule", schedule, "--seed", seed]);
            let report = clean(command.env("FAKECUDA_SEED", seed));
            assert_eq!(report["schedule"], schedule);
            // All that there are.
            assert_eq!(report["devices"].as_array().map(Vec::len), Some(2));
        }
    }
}

#[test]
fn streams_devices_and_threads_in_any_numbers() {
    for (devices, streams, threads) in [("1", "1", "3"), ("1", "5", "2"), ("3", "2", "4")] {
        let options = ["--devices", devices, "--streams", streams, "--threads", threads];
        let report = clean(stress(3, &options).env("FAKECUDA_SEED", "9"));
        assert_eq!(
            report["devices"].as_array().map(|all| all.len().to_string()),
            Some(devices.into())
        );
    }
}

#[test]
fn samples_and_fresh_streams() {
    for options in [&["--sample"][..], &["--streams-fresh"], &["--sample", "--streams-fresh"]] {
        clean(stress(2, options).env("FAKECUDA_SEED", "4"));
    }
}

#[test]
fn a_capacity_is_kept_to() {
    let report = clean(&mut stress(2, &["--capacity", "64MiB"]));
    assert_eq!(report["capacity_bytes"], 64 << 20);
    // More than there is: what is free, less a part.
    let mut command = stress(1, &["--capacity", "2GiB"]);
    let report = clean(command.env("FAKECUDA_CAPACITY", "1G"));
    let given = report["capacity_bytes"].as_u64();
    assert!(given < Some(1 << 30) && given > Some(900 << 20), "{report}");
}

#[test]
fn what_real_gpus_have_no_part_in_is_refused() {
    let mut apart = stress(2, &[]);
    apart.env("FAKECUDA_PEERS", "0");
    for (mut command, words) in [
        (stress(1, &["--oracle"]), ["--oracle", "--driver sim"]),
        (stress(1, &["--lag", "7"]), ["--lag", "--driver sim"]),
        (stress(2, &["--devices", "3"]), ["--devices 3", "there are 2"]),
        (apart, ["device 0", "--devices 1"]),
    ] {
        let run = run(&mut command);
        assert_eq!(run.status, Some(2), "{}", run.stdout);
        for word in words {
            assert!(run.stderr.contains(word), "no `{word}`: {}", run.stderr);
        }
    }
    clean(stress(2, &["--devices", "1"]).env("FAKECUDA_PEERS", "0"));
}

#[test]
fn bytes_that_are_not_kept_are_wrong_contents() {
    // The driver does all that it is told, and keeps nothing of what is written.
    let run = run(stress(1, &["--seed", "1"]).env("FAKECUDA_CONTENTS", "0"));
    assert_eq!(run.status, Some(1), "{} {}", run.stdout, run.stderr);
    let report = &run.objects()[0];
    // Every block was filled and compared at least once before it was freed.
    assert!(report["mismatches"].as_u64() >= report["frees"].as_u64(), "{report}");
    assert_eq!(report["ok"], false);
    assert!(run.stderr.contains("wrong contents at 0x"), "{}", run.stderr);
}
