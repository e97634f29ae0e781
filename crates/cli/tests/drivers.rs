//! Which driver a command takes, and what it refuses to do over it.

mod common;

use common::{LIBRARY, example, file, millpond, run};
use std::process::Command;

fn tiny() -> String {
    example("tiny_two_streams.trace").to_str().expect("UTF-8").to_owned()
}

/// The command refuses these options of a replay, saying all of `words`.
#[track_caller]
fn refused(options: &[&str], words: &[&str]) {
    let run = millpond([&["replay", &tiny()], options].concat());
    assert_eq!(run.status, Some(2), "{options:?}: {} {}", run.stdout, run.stderr);
    for word in words {
        assert!(run.stderr.contains(word), "{options:?}: no `{word}`: {}", run.stderr);
    }
    assert!(!run.stderr.contains("panicked"), "{}", run.stderr);
}

#[test]
fn without_a_cuda_device_the_gpus_are_simulated() {
    let run = millpond(["replay", "--json", &tiny()]);
    assert_eq!(run.status, Some(0), "{}", run.stderr);
    assert!(run.stderr.starts_with("driver: sim"), "{}", run.stderr);
    let report = &run.objects()[0];
    assert_eq!((&report["driver"], &report["lag"]), (&"sim".into(), &0.into()));
    assert_eq!((&report["plain"], report["release_threshold"].is_null()), (&false.into(), true));
}

#[test]
fn cuda_that_is_not_there_is_refused_with_the_drivers_reason() {
    refused(&["--driver", "cuda"], &["no CUDA here", "cuInit failed", "(code 100)"]);
}

#[test]
fn a_library_that_cannot_be_opened_is_named() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_millpond"));
    let nowhere = file("no_library.so", "").with_file_name("nowhere.so");
    let run = run(command.args(["replay", &tiny()]).env(LIBRARY, &nowhere));
    assert_eq!(run.status, Some(2), "{}", run.stdout);
    for word in [LIBRARY, "nowhere.so"] {
        assert!(run.stderr.contains(word), "{}", run.stderr);
    }
}

#[test]
fn what_simulated_gpus_have_no_part_in() {
    for allocator in ["cuda-async", "cuda-plain"] {
        refused(&["--allocator", allocator], &[allocator, "--driver cuda"]);
    }
    refused(&["--fold"], &["--fold", "--driver cuda"]);
    refused(&["--release-threshold", "max"], &["--allocator cuda-async"]);
    refused(&["--release-threshold", "most"], &["--release-threshold"]);
    refused(&["--allocator", "cnmem"], &["pool", "cuda-async", "cuda-plain"]);
}
