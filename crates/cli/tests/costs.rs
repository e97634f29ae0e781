//! `millpond costs`, and replays at the prices that it prints.

mod common;

use common::{Run, example, file, millpond, replay};
use serde_json::{Value, json};
use std::path::Path;

const TRACE: &str = "tiny_pipeline.trace";

/// A replay at the prices of a file.
fn at(prices: &Path) -> Run {
    let prices = prices.to_str().expect("UTF-8");
    replay(&[&example(TRACE)], &["--driver", "sim", "--repeat", "1", "--costs", prices])
}

/// The report of a replay at these prices.
#[track_caller]
fn report(name: &str, prices: &Value) -> Value {
    let run = at(&file(name, prices.to_string()));
    assert_eq!(run.status, Some(0), "{}", run.stderr);
    run.objects().swap_remove(0)
}

#[test]
fn what_the_one_command_prints_the_other_reads() {
    let run = millpond(["costs", "--driver", "sim", "--json", "--samples", "3"]);
    assert_eq!(run.status, Some(0), "{}", run.stderr);
    let costs = &run.objects()[0];
    assert_eq!((&costs["driver"], &costs["devices"]), (&"sim".into(), &1.into()));
    for call in ["cuEventCreate", "cuEventRecord", "cuEventQuery", "cuStreamWaitEvent"] {
        assert!(costs["ns"][call].is_u64(), "{call}: {costs}");
    }
    for call in ["cuMemCreate", "cuMemMap", "cuMemSetAccess", "cuMemUnmap", "cuMemRelease"] {
        assert!(costs["ns"][call].is_u64(), "{call}: {costs}");
    }
    let rows = costs["rows"].as_array().expect("rows");
    assert!(rows.iter().all(|row| row["samples"].as_u64() >= Some(3)), "{costs}");

    let replayed = at(&file("printed.json", &run.stdout));
    assert_eq!(replayed.status, Some(0), "{}", replayed.stderr);
    // The replay's calls at these prices: the largest part is that of the pages.
    let report = replayed.objects().swap_remove(0);
    let calls = |call: &str| report["driver_calls"][call].as_u64().expect("a number");
    let price = |call: &str| costs["ns"][call].as_u64().expect("a price");
    let least = calls("create") * price("cuMemCreate") + calls("map") * price("cuMemMap");
    let found = report["driver_ns"].as_u64().expect("a time");
    assert!(calls("create") > 0 && found >= least, "{found} instead of {least} or more");
    let default = replay(&[&example(TRACE)], &["--repeat", "1"]).objects().swap_remove(0);
    assert_eq!(report["driver_calls"], default["driver_calls"]);
    assert_ne!(report["driver_ns"], default["driver_ns"]);
}

#[test]
fn each_call_costs_what_the_file_says() {
    let calls = [
        ("cuMemCreate", "create"),
        ("cuMemMap", "map"),
        ("cuMemUnmap", "unmap"),
        ("cuEventRecord", "event_record"),
        ("cuEventQuery", "event_query"),
        ("cuStreamWaitEvent", "stream_wait"),
    ];
    let all = [
        "cuMemAlloc",
        "cuMemFree",
        "cuMemCreate",
        "cuMemMap",
        "cuMemSetAccess",
        "cuMemUnmap",
        "cuMemRelease",
        "cuMemAddressReserve",
        "cuEventCreate",
        "cuEventRecord",
        "cuEventQuery",
        "cuStreamWaitEvent",
        "cuCtxSynchronize",
    ];
    for (call, counted) in calls {
        let ns: serde_json::Map<_, _> =
            all.iter().map(|&name| (name.to_owned(), u64::from(name == call).into())).collect();
        let report = report("one.json", &json!({"ns": ns, "access_unit_ns": 0}));
        // The trace's own waits are not the pool's.
        assert_eq!(report["driver_ns"], report["driver_calls"][counted], "{call}: {report}");
    }
}

#[test]
fn files_that_hold_no_prices_are_named() {
    for (name, text, word) in [
        ("empty.json", "", "no prices"),
        ("list.json", "[1, 2]", "no prices"),
        ("missing.json", r#"{"ns": {}}"#, "access_unit_ns"),
        ("negative.json", r#"{"ns": {"cuMemMap": -1}, "access_unit_ns": 0}"#, "no prices"),
        ("unknown.json", r#"{"ns": {"cuMemMop": 1}, "access_unit_ns": 0}"#, "cuMemMop"),
        ("huge.json", r#"{"ns": {"cuMemMap": 99999999999}, "access_unit_ns": 0}"#, "too much"),
    ] {
        let path = file(name, text);
        let run = at(&path);
        assert_eq!(run.status, Some(2), "{name}: {}", run.stderr);
        for word in [path.to_str().expect("UTF-8"), word] {
            assert!(run.stderr.contains(word), "{name}: no `{word}`: {}", run.stderr);
        }
    }
    let run = at(Path::new("/nowhere/costs.json"));
    assert_eq!(run.status, Some(2));
    assert!(run.stderr.contains("/nowhere/costs.json: cannot be read"), "{}", run.stderr);
}

#[test]
fn costs_are_of_a_real_driver_unless_one_says_so() {
    let run = millpond(["costs"]);
    assert_eq!(run.status, Some(2), "{}", run.stdout);
    assert!(run.stderr.contains("no CUDA here"), "{}", run.stderr);
    let run = millpond(["costs", "--driver", "sim", "--samples", "2"]);
    assert_eq!(run.status, Some(0), "{}", run.stderr);
    for word in ["driver: sim", "cuMemSetAccess", "cuMemAddressReserve", "access: "] {
        assert!(run.stdout.contains(word), "no `{word}`: {}", run.stdout);
    }
    for samples in ["0", "-1", "x"] {
        assert_eq!(millpond(["costs", "--samples", samples]).status, Some(2));
    }
}
