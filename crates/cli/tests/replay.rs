//! What `millpond replay` reports.

mod common;

use common::{example, file, millpond, replay};
use serde_json::Value;
use std::path::Path;

/// The one object of a replay that ended with `status`.
#[track_caller]
fn object(trace: &Path, options: &[&str], status: i32) -> Value {
    let run = replay(&[trace], options);
    assert_eq!(run.status, Some(status), "{}", run.stderr);
    let mut objects = run.objects();
    assert_eq!(objects.len(), 1, "{}", run.stdout);
    objects.swap_remove(0)
}

fn is_count(value: &Value) -> bool {
    value.is_u64()
}

#[track_caller]
fn check(value: &Value, path: &str, test: impl Fn(&Value) -> bool) {
    let found = value.pointer(path);
    assert!(found.is_some_and(test), "{path}: {found:?}");
}

#[test]
fn the_contract() {
    let report = object(&example("tiny_pipeline.trace"), &["--oracle"], 0);
    check(&report, "/trace", |v| v == "tiny_pipeline");
    check(&report, "/mechanism", |v| v == "pool");
    check(&report, "/driver", |v| v == "sim");
    for (path, value) in [("/lag", 0), ("/threads", 1), ("/ops", 2056), ("/hazards", 0)] {
        check(&report, path, |v| *v == value);
    }
    for path in ["/peak_live_bytes", "/peak_reserved_bytes", "/driver_ns", "/bookkeeping_bytes"] {
        check(&report, path, |v| v.as_u64().is_some_and(|n| n > 0));
    }
    for call in ["alloc", "free", "create", "map", "set_access", "unmap", "release", "sync"] {
        check(&report, &format!("/driver_calls/{call}"), is_count);
    }
    for call in ["event_record", "event_query", "stream_wait"] {
        check(&report, &format!("/driver_calls/{call}"), is_count);
    }
    for what in ["memory_calls", "event_calls", "driver_ns"] {
        check(&report, &format!("/steady_{what}_per_step"), Value::is_f64);
    }
    check(&report, "/worst_driver_ns_per_step", is_count);
    check(&report, "/streams_fresh", |v| *v == false);
    for kind in ["alloc_ns", "free_ns"] {
        check(&report, &format!("/cold/{kind}/mean"), Value::is_f64);
        for figure in ["p50", "p99", "max"] {
            check(&report, &format!("/cold/{kind}/{figure}"), is_count);
        }
    }
    check(&report, "/warm/ns_per_op", |v| v.as_f64().is_some_and(|ns| ns > 0.0));
    check(&report, "/cross_stream/hits", |v| v.is_null() || v.is_u64());
    check(&report, "/cross_stream/waits", is_count);
    let layers = ["thread", "stream", "shard", "heap"];
    let hits = layers.map(|layer| report["hits"][layer].as_u64().expect(layer));
    let trace = millpond_trace::Trace::load(example("tiny_pipeline.trace")).expect("a trace");
    assert_eq!(hits.iter().sum::<u64>(), trace.summary().counts.allocs);
    check(&report, "/trace_waits", |v| v.as_u64().is_some_and(|n| n > 0));

    let devices = report["devices"].as_array().expect("devices");
    assert_eq!(devices.len(), 4);
    for (ordinal, (device, known)) in devices.iter().zip(&trace.summary().devices).enumerate() {
        check(device, "/ordinal", |v| *v == ordinal);
        check(device, "/oom", |v| *v == 0);
        check(device, "/peak_live_bytes", |v| *v == known.peak_live_bytes);
        check(device, "/peak_reserved_bytes", |v| v.as_u64() >= Some(known.peak_live_bytes));
        let shares = ["utilisation", "internal_fragmentation", "external_fragmentation"];
        let shares = shares.map(|share| device[share].as_f64().expect(share));
        assert!(shares.iter().all(|share| (0.0..=1.0).contains(share)), "{shares:?}");
        assert!((shares.iter().sum::<f64>() - 1.0).abs() < 1e-9, "{shares:?}");
    }
    for sum in ["peak_live_bytes", "peak_reserved_bytes"] {
        let parts = devices.iter().map(|device| device[sum].as_u64().expect(sum));
        check(&report, &format!("/{sum}"), |v| *v == parts.clone().sum::<u64>());
    }
}

#[test]
fn what_is_not_measured_is_null() {
    let one_step = file("one_step.trace", "m step 1\na 1 0 0 4096\n");
    let report = object(&one_step, &["--repeat", "1"], 0);
    for path in ["/warm", "/hazards", "/cold/free_ns"] {
        check(&report, path, Value::is_null);
    }
    for what in ["steady_memory_calls", "steady_driver_ns", "worst_driver_ns"] {
        check(&report, &format!("/{what}_per_step"), Value::is_null);
    }
}

#[test]
fn steady_figures_are_of_the_second_half() {
    // Three steps: the last one counts. All new memory comes in the first.
    let text: String =
        (1..4).map(|n| format!("m step {n}\na {n} 0 0 4194304\nf {n} 0\n")).collect();
    let report = object(&file("three_steps.trace", text), &[], 0);
    check(&report, "/driver_calls/create", |v| *v == 2);
    check(&report, "/steady_memory_calls_per_step", |v| v.as_f64() == Some(0.0));
    let text = "m step 1\na 1 0 0 4194304\nm step 2\na 2 0 0 4194304\na 3 0 0 4194304\n";
    let report = object(&file("growing.trace", text), &[], 0);
    check(&report, "/steady_memory_calls_per_step", |v| v.as_f64() >= Some(4.0));
}

#[test]
fn the_worst_step_is_one_of_the_second_half() {
    // The fourth and the fifth of five steps count: one takes all the time, or the other does.
    for busy in [4, 5] {
        let step = |n| {
            let bytes = if n == busy { 64 << 20 } else { 4096 };
            format!("m step {n}\na {n} 0 0 {bytes}\n")
        };
        let text: String = (1..=5).map(step).collect();
        let report = object(&file(&format!("busy_{busy}.trace"), text), &[], 0);
        let mean = report["steady_driver_ns_per_step"].as_f64().expect("a mean");
        check(&report, "/worst_driver_ns_per_step", |v| {
            v.as_f64().is_some_and(|worst| mean > 0.0 && worst == 2.0 * mean)
        });
    }
}

#[test]
fn own_waits_are_counted_apart() {
    let text = "a 1 0 0 4096\nw 0 1 0\nx 1 0 0 1\nw 0 1 0\nf 1 0\n";
    let report = object(&file("waits.trace", text), &[], 0);
    check(&report, "/trace_waits", |v| *v == 6);
    check(&report, "/driver_calls/event_record", |v| *v == 0);
    check(&report, "/driver_calls/stream_wait", |v| *v == 0);
    check(&report, "/ops", |v| *v == 5);
}

#[test]
fn no_hazards_in_the_small_traces() {
    let names = ["tiny_two_streams.trace", "tiny_pipeline.trace", "resnet50_b32.trace.zst"];
    let traces = names.map(example);
    let traces = [0, 1, 2].map(|i: usize| traces[i].as_path());
    for reuse in ["same-stream", "completed", "wait"] {
        for lag in ["0", "7", "50"] {
            let run = replay(&traces, &["--oracle", "--reuse", reuse, "--lag", lag]);
            assert_eq!(run.status, Some(0), "{reuse} {lag}: {}", run.stderr);
            let objects = run.objects();
            assert_eq!(objects.len(), 3);
            for report in objects {
                check(&report, "/hazards", |v| *v == 0);
                check(&report, "/reuse", |v| v == reuse);
            }
        }
    }
}

#[test]
fn a_use_that_nothing_orders_is_a_hazard() {
    // Stream 1 reads what stream 0 writes, and never waits for it.
    let text = "a 1 0 0 4096\nu 1 1\nf 1 0\n";
    let run = replay(&[&file("race.trace", text)], &["--oracle", "--repeat", "1"]);
    assert_eq!(run.status, Some(1));
    check(&run.objects()[0], "/hazards", |v| *v == 1);
    assert!(run.stderr.contains("hazard: unordered"), "{}", run.stderr);
}

#[test]
fn out_of_memory_is_counted_and_survived() {
    let text = "a 1 0 0 1048576\na 2 0 0 8388608\nu 2 1\nf 2 0\na 3 0 0 1048576\nf 1 0\n";
    let trace = file("too_much.trace", text);
    let report = object(&trace, &["--capacity", "2MiB", "--oracle"], 1);
    check(&report, "/devices/0/oom", |v| *v == 1);
    check(&report, "/devices/0/capacity_bytes", |v| *v == 2 << 20);
    check(&report, "/peak_live_bytes", |v| *v == 2 << 20);
    check(&report, "/hazards", |v| *v == 0);

    let run = replay(&[&example("resnet50_b32.trace.zst")], &["--capacity", "0.5x"]);
    assert_eq!(run.status, Some(1), "{}", run.stderr);
    check(&run.objects()[0], "/devices/0/oom", |v| v.as_u64() > Some(0));

    // The largest size that a trace may ask for.
    let text = "a 1 0 0 9223372036854775807\na 2 0 0 4096\n";
    let report = object(&file("largest.trace", text), &[], 1);
    check(&report, "/devices/0/oom", |v| *v == 1);
    check(&report, "/peak_live_bytes", |v| *v == 4096);
}

#[test]
fn capacities_in_multiples_of_the_peak() {
    let text = "a 1 0 0 4194304\na 2 3 0 1048577\nf 1 0\n";
    let report = object(&file("two_devices.trace", text), &["--capacity", "1.5x"], 0);
    check(&report, "/devices/0/capacity_bytes", |v| *v == 6 << 20);
    check(&report, "/devices/1/ordinal", |v| *v == 3);
    check(&report, "/devices/1/capacity_bytes", |v| *v == 2 << 20);
    let report = object(&example("tiny_two_streams.trace"), &["--capacity", "200GiB"], 0);
    check(&report, "/devices/0/capacity_bytes", |v| *v == 200_u64 << 30);
}

#[test]
fn the_highest_device_is_one_of_its_own() {
    let report = object(&file("high.trace", "a 1 1023 0 4096\nf 1 0\n"), &["--oracle"], 0);
    check(&report, "/devices/0/ordinal", |v| *v == 1023);
    assert_eq!(report["devices"].as_array().map(Vec::len), Some(1));
}

#[test]
fn a_line_a_trace() {
    let (one, two) = (example("tiny_two_streams.trace"), example("tiny_pipeline.trace"));
    let run = replay(&[&one, &two, &one], &[]);
    assert_eq!(run.status, Some(0));
    let names: Vec<_> = run.objects().iter().map(|report| report["trace"].clone()).collect();
    assert_eq!(names, ["tiny_two_streams", "tiny_pipeline", "tiny_two_streams"]);
    assert!(run.stderr.starts_with("driver: sim"), "{}", run.stderr);
}

#[test]
fn threads_replay_copies() {
    let trace = example("tiny_pipeline.trace");
    let single = object(&trace, &[], 0);
    for lag in ["0", "7"] {
        let report = object(&trace, &["--threads", "2", "--oracle", "--lag", lag], 0);
        check(&report, "/threads", |v| *v == 2);
        check(&report, "/hazards", |v| *v == 0);
        check(&report, "/trace_waits", |v| {
            v.as_u64() == single["trace_waits"].as_u64().map(|n| n * 2)
        });
        check(&report, "/warm/ns_per_op", Value::is_f64);
        let all: u64 =
            report["hits"].as_object().expect("hits").values().filter_map(Value::as_u64).sum();
        let one: u64 =
            single["hits"].as_object().expect("hits").values().filter_map(Value::as_u64).sum();
        assert_eq!(all, 2 * one);
    }
}

#[test]
fn tables_for_people() {
    let trace = example("tiny_pipeline.trace");
    let trace = trace.to_str().expect("UTF-8");
    let run = millpond(["replay", trace]);
    assert_eq!((run.status, run.stderr.as_str()), (Some(0), ""));
    assert!(run.stdout.starts_with("driver: sim"), "{}", run.stdout);
    for word in ["tiny_pipeline", "reserved / live", "utilisation", "hazards"] {
        assert!(run.stdout.contains(word), "{}", run.stdout);
    }
    let run = millpond(["replay", trace, trace]);
    assert!(run.stdout.contains("geometric mean"), "{}", run.stdout);
}

#[test]
fn what_recurs_is_planned() {
    // The most that is reserved over what is live: small programs keep some megabytes in hand.
    for (name, most) in [
        ("gpt2_1p3b_bf16.trace.zst", 1.01),
        ("fsdp1_llama3b.trace.zst", 1.02),
        ("resnet50_b32.trace.zst", 1.015),
    ] {
        let options = ["--mechanism", "planned", "--oracle", "--lag", "7", "--repeat", "1"];
        let report = object(&example(name), &options, 0);
        check(&report, "/mechanism", |v| v == "planned");
        check(&report, "/hazards", |v| *v == 0);
        let hits = |layer: &str| report["hits"][layer].as_u64().expect("a number");
        assert!(hits("planned") > hits("heap") / 2, "{}", report["hits"]);
        let bytes = |what: &str| report[what].as_f64().expect("a number");
        let ratio = bytes("peak_reserved_bytes") / bytes("peak_live_bytes");
        assert!(ratio <= most, "{name}: {ratio}");
    }
}
