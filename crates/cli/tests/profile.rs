//! What `millpond profile` prints and writes.

mod common;

use common::{example, file, millpond};
use millpond::DeviceId;
use millpond::plan::Plan;
use serde_json::{Value, json};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

/// A path of this test program's own, at which there is nothing.
fn nothing_at(name: &str) -> PathBuf {
    let path = file(name, "");
    std::fs::remove_file(&path).expect("it was just made");
    path
}

#[track_caller]
fn profile(trace: &Path, options: &[&OsStr], status: i32) -> (String, String) {
    let head = [OsStr::new("profile"), trace.as_os_str()];
    let run = millpond(head.into_iter().chain(options.iter().copied()));
    assert_eq!(run.status, Some(status), "{}", run.stderr);
    assert!(!run.stderr.contains("panicked"), "{}", run.stderr);
    (run.stdout, run.stderr)
}

#[track_caller]
fn object(trace: &Path) -> Value {
    let (stdout, _) = profile(trace, &[OsStr::new("--json")], 0);
    assert_eq!(stdout.lines().count(), 1, "{stdout}");
    serde_json::from_str(&stdout).expect("JSON")
}

#[test]
fn figures_as_json() {
    // Two streams; of step 2 one request of three is as in step 1, and half of the bytes.
    let text = "a 1 3 0 1000\nm step 1\na 2 3 0 4000000\na 3 3 7 2000000\nf 2 0\na 4 3 0 600\nf 4 0\n\
                m step 2\na 5 3 0 4000000\nf 3 7\nf 5 0\na 6 3 7 3000000\na 7 3 0 1000000\n";
    let record = object(&file("figures.trace", text));
    assert_eq!(record["trace"], "figures");
    let devices = record["devices"].as_array().expect("devices");
    assert_eq!(devices.len(), 1);
    let device = &devices[0];
    for (path, value) in [
        ("/ordinal", json!(3)),
        ("/requests", json!(7)),
        ("/requested_bytes", json!(14_001_600)),
        ("/operations", json!(11)),
        ("/steps", json!(2)),
        ("/peak_live_bytes", json!(6_001_000)),
        ("/recurrence/requests", json!(1.0 / 3.0)),
        ("/recurrence/bytes", json!(0.5)),
        ("/lifetimes/within_step", json!({"blocks": 3, "bytes": 8_000_600})),
        ("/lifetimes/next_step", json!({"blocks": 1, "bytes": 2_000_000})),
        ("/lifetimes/longer/blocks", json!(0)),
        ("/lifetimes/never/blocks", json!(3)),
        ("/exact_reuse/hit_rate", json!(1.0 / 7.0)),
        ("/streams/0/requests", json!(5)),
        ("/streams/1/peak_live_bytes", json!(3_000_000)),
        ("/step_operations", json!([1, 6])),
        ("/advice/recommendation", json!("pool")),
        ("/plan/planned", json!(1)),
        ("/plan/step_requests", json!(3)),
        ("/plan/bytes", json!(4_000_256)),
        ("/plan/ratio", json!(1.0)),
    ] {
        assert_eq!(device.pointer(path), Some(&value), "{path}: {device}");
    }
    let reason = device["advice"]["reason"].as_str().expect("a reason");
    assert!(reason.contains("7 requests"), "{reason}");
}

#[test]
fn devices_one_by_one() {
    let record = object(&example("tiny_pipeline.trace"));
    let devices = record["devices"].as_array().expect("devices");
    assert_eq!(devices.len(), 4);
    for (ordinal, device) in devices.iter().enumerate() {
        assert_eq!(device["ordinal"], ordinal);
        assert_eq!(device["recurrence"], json!({"requests": 1.0, "bytes": 1.0}));
        assert_eq!(device["advice"]["recommendation"], "plan");
        // The third stream only sends.
        assert_eq!(device["streams"].as_array().map(Vec::len), Some(2), "{ordinal}");
    }
}

#[test]
fn plans_are_written() {
    let trace = example("resnet50_b32.trace.zst");
    let path = nothing_at("resnet50.plan.json");
    let (stdout, _) = profile(&trace, &[OsStr::new("--plan"), path.as_os_str()], 0);
    for words in ["resnet50_b32, device 0", "plan: ", "of their peak", "within a step"] {
        assert!(stdout.contains(words), "no `{words}`: {stdout}");
    }
    let plan = Plan::load(&path).expect("a plan");
    let plan = plan.device(DeviceId(0)).expect("a plan of device 0");
    assert_eq!(plan.slots(), 862);
    assert!(plan.requests().len() > 400 && plan.ratio() <= 1.01, "{}", plan.ratio());

    // It serves from the second step on, since the first is another; two steps earlier than without it.
    let replay = |options: &[&OsStr]| -> Value {
        let head =
            ["replay", "--driver", "sim", "--mechanism", "planned", "--repeat", "1", "--json"];
        let run = millpond(head.map(OsStr::new).into_iter().chain(options.iter().copied()));
        assert_eq!(run.status, Some(0), "{}", run.stderr);
        serde_json::from_str(&run.stdout).expect("JSON")
    };
    let hits = |record: &Value| record["hits"]["planned"].as_u64().expect("a number");
    let without = replay(&[trace.as_os_str()]);
    let with = replay(&[trace.as_os_str(), OsStr::new("--plan"), path.as_os_str()]);
    let least = hits(&without) + plan.requests().len() as u64;
    assert!(hits(&with) > least, "{} of {least}", hits(&with));
    let tenth = &with["step_fragmentation"][9];
    assert!(tenth.as_f64().expect("a number") < 0.007, "{tenth}");

    let other = [OsStr::new("replay"), trace.as_os_str(), OsStr::new("--plan"), path.as_os_str()];
    let run = millpond(other);
    assert_eq!(run.status, Some(2), "{}", run.stdout);
    assert!(run.stderr.contains("--mechanism planned"), "{}", run.stderr);
    std::fs::write(&path, "{}").expect("a file");
    let run = millpond(other.into_iter().chain(["--mechanism", "planned"].map(OsStr::new)));
    assert_eq!(run.status, Some(2), "{}", run.stdout);
    assert!(run.stderr.contains("resnet50.plan.json"), "{}", run.stderr);
}

#[test]
fn pictures_are_written() {
    let trace = example("tiny_pipeline.trace");
    let path = nothing_at("tiny.svg");
    profile(&trace, &[OsStr::new("--svg"), path.as_os_str()], 0);
    let picture = std::fs::read_to_string(&path).expect("a picture");
    assert!(picture.starts_with("<svg") && picture.trim_end().ends_with("</svg>"));
    assert_eq!(picture.matches("reserved by the pool").count(), 4, "a panel for each device");
    for words in ["tiny_pipeline, device 3", "sizes, %", "blocks live, %", "to the next step"] {
        assert!(picture.contains(words), "no `{words}`");
    }
    // Live and reserved of four devices, and a line for each step of each.
    let lines = picture.matches("<polyline").count();
    assert!(lines >= 4 * (2 + 3), "{lines} lines");
    // The largest bars are those of the figures: 99 % of the bytes live within a step or to the end.
    assert!(picture.matches("<rect").count() > 40);
}

#[test]
fn what_is_wrong_is_told() {
    let usage = |args: &[&str]| {
        let run = millpond(args);
        assert_eq!(run.status, Some(2), "{args:?}: {}", run.stdout);
        assert!(run.stderr.starts_with("millpond: "), "{}", run.stderr);
        run.stderr
    };
    assert!(usage(&["profile"]).contains("TRACE"));
    assert!(usage(&["profile", "one", "two"]).contains("two"));
    assert!(usage(&["profile", "/nowhere.trace"]).contains("/nowhere.trace"));
    usage(&["profile", "x.trace", "--frobnicate"]);
    let bad = file("bad.trace", "a 1 0 0 8\nf 2 0\n");
    let (_, stderr) = profile(&bad, &[], 2);
    assert!(stderr.contains("bad.trace:2: "), "{stderr}");
    let trace = example("tiny_two_streams.trace");
    for option in ["--plan", "--svg"] {
        let (_, stderr) = profile(&trace, &[OsStr::new(option), OsStr::new("/nowhere/out")], 2);
        assert!(stderr.contains("/nowhere/out"), "{stderr}");
    }
}
