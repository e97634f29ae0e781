//! Replays and costs over the CUDA driver: a driver in software, which watches contents and races.

mod common;

use common::{Run, example, file, over_cuda, run};
use serde_json::Value;

/// What the software driver says at the end of a program that did nothing wrong.
const CLEAN: &str = "fakecuda: 0 hazards, 0 faults, 0 violations; left: 0 pages, 0 mappings, \
                         0 reservations, 0 allocations (0 bytes), 0 streams, 0 events";

/// A replay of an example with JSON, over so many devices. Bytes exist where the pool's driver looks
/// whether they do.
fn replay(devices: u16, trace: &str, options: &[&str]) -> Run {
    let pool = !options.contains(&"--allocator");
    let mut command = over_cuda(devices);
    command.env("FAKECUDA_CONTENTS", if pool { "1" } else { "0" }).args(["replay", "--json"]);
    run(command.arg(example(trace)).args(options))
}

/// The report of a replay that ended with `status` and did nothing wrong.
#[track_caller]
fn report(devices: u16, trace: &str, options: &[&str], status: i32) -> Value {
    object(replay(devices, trace, options), status)
}

#[track_caller]
fn object(run: Run, status: i32) -> Value {
    assert_eq!(run.status, Some(status), "{}", run.stderr);
    assert!(run.stderr.contains(CLEAN), "{}", run.stderr);
    assert!(run.stderr.contains("driver: cuda ("), "{}", run.stderr);
    run.objects().swap_remove(0)
}

/// The command refuses, saying all of `words`.
#[track_caller]
fn refused(run: &Run, words: &[&str]) {
    assert_eq!(run.status, Some(2), "{} {}", run.stdout, run.stderr);
    for word in words {
        assert!(run.stderr.contains(word), "no `{word}`: {}", run.stderr);
    }
    assert!(!run.stderr.contains("panicked"), "{}", run.stderr);
}

fn number(report: &Value, path: &str) -> u64 {
    let value = report.pointer(path).and_then(Value::as_u64);
    value.unwrap_or_else(|| panic!("{path}: {report}"))
}

/// A trace's allocations and frees.
fn calls(trace: &str) -> (u64, u64) {
    let trace = millpond_trace::Trace::load(example(trace)).expect("a trace");
    let counts = trace.summary().counts;
    (counts.allocs, counts.frees)
}

#[test]
fn the_pool_makes_the_calls_that_it_makes_of_simulated_gpus() {
    for trace in ["tiny_two_streams.trace", "tiny_pipeline.trace"] {
        // Both complete work at once.
        let (cuda, sim) = (
            report(4, trace, &[], 0),
            common::replay(&[&example(trace)], &["--driver", "sim"]).objects().swap_remove(0),
        );
        assert_eq!((&cuda["driver"], &sim["driver"]), (&"cuda".into(), &"sim".into()));
        for same in [
            "driver_calls",
            "hits",
            "ladder",
            "cross_stream",
            "trace_waits",
            "ops",
            "mechanism",
            "reuse",
            "peak_live_bytes",
            "peak_reserved_bytes",
            "steady_memory_calls_per_step",
            "steady_event_calls_per_step",
        ] {
            assert_eq!(cuda[same], sim[same], "{trace}: {same}");
        }
        for nothing in ["lag", "hazards", "release_threshold"] {
            assert!(cuda[nothing].is_null(), "{nothing}: {cuda}");
        }
        let (time, warm) = (number(&cuda, "/driver_ns"), &cuda["warm"]["ns_per_op"]);
        assert!(time > 0 && time != number(&sim, "/driver_ns"), "the host's clock");
        assert!(warm.as_f64() > Some(0.0));
    }
}

#[test]
fn a_device_gives_what_is_free_less_a_part() {
    let mut command = over_cuda(1);
    let command = command.env("FAKECUDA_CAPACITY", "1G").args(["replay", "--json"]);
    let report = object(run(command.arg(example("tiny_two_streams.trace"))), 0);
    assert_eq!(number(&report, "/devices/0/capacity_bytes"), (1 << 30) / 32 * 31);
    let factor = ["--capacity", "1.5x"];
    let report = self::report(1, "tiny_two_streams.trace", &factor, 0);
    let (live, limit) = (number(&report, "/peak_live_bytes"), "/devices/0/capacity_bytes");
    assert_eq!(number(&report, limit), (live * 3 / 2).next_multiple_of(2 << 20));
    let run = replay(1, "tiny_two_streams.trace", &["--capacity", "81GiB"]);
    refused(&run, &["capacity", "too large", &(80_u64 << 30).to_string()]);
}

#[test]
fn a_trace_of_more_devices_is_refused_or_folded() {
    refused(&replay(2, "tiny_pipeline.trace", &[]), &["4 devices", "there are 2", "--fold"]);
    let folded = report(2, "tiny_pipeline.trace", &["--fold"], 0);
    let devices = folded["devices"].as_array().expect("devices");
    let ordinals: Vec<_> = devices.iter().map(|device| number(device, "/ordinal")).collect();
    assert_eq!(ordinals, [0, 1]);
    let apart = report(4, "tiny_pipeline.trace", &["--fold"], 0);
    for field in ["ops", "trace_waits"] {
        assert_eq!(folded[field], apart[field]);
    }
    // Two devices' blocks on one are at most both peaks, and more than either.
    for device in 0..2 {
        let peak = |report: &Value, nth| number(&report["devices"][nth], "/peak_live_bytes");
        let (one, other) = (peak(&apart, device), peak(&apart, device + 2));
        let both = peak(&folded, device);
        assert!(one.max(other) < both && both <= one + other, "{one} {other} {both}");
    }
}

#[test]
fn what_real_gpus_have_no_part_in() {
    let trace = "tiny_two_streams.trace";
    for option in [&["--oracle"][..], &["--lag", "0"], &["--costs", "costs.json"]] {
        refused(&replay(1, trace, option), &[option[0], "--driver sim"]);
    }
    for option in [
        &["--capacity", "1GiB"][..],
        &["--headroom", "0.1"],
        &["--page", "4MiB"],
        &["--reuse", "wait"],
        &["--plain"],
    ] {
        for allocator in ["cuda-async", "cuda-plain"] {
            let options = [option, &["--allocator", allocator]].concat();
            refused(&replay(1, trace, &options), &[option[0], allocator, "setting of the pool"]);
        }
    }
    let options = ["--allocator", "cuda-plain", "--release-threshold", "max"];
    refused(&replay(1, trace, &options), &["--release-threshold", "cuda-async"]);
}

/// What is said of the driver's own allocators.
#[track_caller]
fn check_peer(report: &Value, trace: &str, allocator: &str) {
    let (allocs, frees) = calls(trace);
    assert_eq!(report["mechanism"], allocator);
    let counted =
        ["alloc", "free"].map(|call| number(&report["driver_calls"], &format!("/{call}")));
    assert_eq!(counted, [allocs, frees]);
    for none in ["reuse", "hits", "ladder", "bookkeeping_bytes", "hazards"] {
        assert!(report[none].is_null(), "{none}: {report}");
    }
    let reserved = number(report, "/peak_reserved_bytes");
    assert!(reserved >= number(report, "/peak_live_bytes"), "{report}");
    assert!(number(report, "/driver_ns") > 0);
}

#[test]
fn allocations_in_stream_order() {
    for trace in ["tiny_two_streams.trace", "tiny_pipeline.trace"] {
        for (threshold, kept) in [(None, 0), (Some("8MiB"), 8 << 20), (Some("max"), u64::MAX)] {
            let mut options = vec!["--allocator", "cuda-async", "--repeat", "2"];
            options.extend(threshold.iter().flat_map(|bytes| ["--release-threshold", bytes]));
            let report = report(4, trace, &options, 0);
            check_peer(&report, trace, "cuda-async");
            assert_eq!(number(&report, "/release_threshold"), kept);
            // An event and a wait for each stream that used a block, apart from the trace's own.
            let waits = number(&report, "/driver_calls/stream_wait");
            assert_eq!(number(&report, "/driver_calls/event_record"), waits);
            assert!(waits > 0 && number(&report, "/cross_stream/waits") == waits, "{report}");
            let pool = self::report(4, trace, &["--repeat", "1"], 0);
            assert_eq!(report["trace_waits"], pool["trace_waits"]);
        }
    }
    // What one replay keeps is not the next one's.
    let run = run(over_cuda(1)
        .args(["replay", "--json", "--allocator", "cuda-async", "--release-threshold", "max"])
        .args([example("prefetch_4loaders.trace.zst"), example("tiny_two_streams.trace")])
        .args(["--repeat", "1"])
        .env("FAKECUDA_CONTENTS", "0")
        .env("FAKECUDA_ORACLE", "0"));
    assert_eq!(run.status, Some(0), "{}", run.stderr);
    let small = &run.objects()[1];
    assert!(number(small, "/peak_reserved_bytes") < 100 << 20, "{small}");
}

#[test]
fn uses_on_one_stream_are_waited_for_once() {
    // Twice on stream 1, once on its own, once on stream 2: two waits.
    let text = "a 1 0 0 4096\nw 0 1 0\nw 0 2 0\nu 1 1\nu 1 1\nu 1 0\nu 1 2\nf 1 0\n";
    let trace = file("uses.trace", text);
    let run = run(over_cuda(1).args(["replay", "--json", "--allocator", "cuda-async"]).arg(trace));
    let report = object(run, 0);
    assert_eq!(number(&report, "/driver_calls/stream_wait"), 2);
    assert_eq!(number(&report, "/trace_waits"), 4);
}

#[test]
fn plain_allocations() {
    for trace in ["tiny_two_streams.trace", "tiny_pipeline.trace"] {
        let report = report(4, trace, &["--allocator", "cuda-plain", "--repeat", "2"], 0);
        check_peer(&report, trace, "cuda-plain");
        assert!(report["release_threshold"].is_null());
        assert_eq!(number(&report, "/driver_calls/event_record"), 0);
        assert_eq!(number(&report, "/cross_stream/waits"), 0);
    }
}

#[test]
fn out_of_memory_is_counted_whoever_serves() {
    for allocator in ["pool", "cuda-async", "cuda-plain"] {
        let mut command = over_cuda(1);
        command.env("FAKECUDA_CAPACITY", "24M").args(["replay", "--json"]);
        command.args(["--allocator", allocator]).arg(example("tiny_two_streams.trace"));
        let report = object(run(&mut command), 1);
        assert!(number(&report, "/devices/0/oom") > 0, "{allocator}: {report}");

        let huge = file("huge.trace", "a 1 0 0 9223372036854775807\na 2 0 0 4096\n");
        let mut command = over_cuda(1);
        command.args(["replay", "--json", "--allocator", allocator]).arg(huge);
        let report = object(run(&mut command), 1);
        assert_eq!(number(&report, "/devices/0/oom"), 1, "{allocator}");
    }
}

#[test]
fn threads_and_fresh_streams() {
    for allocator in [&[][..], &["--allocator", "cuda-async"], &["--allocator", "cuda-plain"]] {
        let options = ["--threads", "3", "--streams-fresh", "--repeat", "2"];
        let report = report(4, "tiny_pipeline.trace", &[allocator, &options].concat(), 0);
        assert_eq!((&report["threads"], &report["streams_fresh"]), (&3.into(), &true.into()));
    }
}

#[test]
fn people_are_told_what_is_real() {
    let run = run(over_cuda(1).arg("replay").arg(example("tiny_two_streams.trace")));
    assert_eq!(run.status, Some(0), "{}", run.stderr);
    for word in ["driver: cuda (fakecuda; all times are real)", "host's clock", "pool, wait, real"]
    {
        assert!(run.stdout.contains(word), "no `{word}`: {}", run.stdout);
    }
}

#[test]
fn costs_of_a_driver_price_simulated_gpus() {
    let run = run(over_cuda(2).args(["costs", "--json", "--samples", "3"]));
    let prices = file("costs.json", &run.stdout);
    let costs = object(run, 0);
    assert_eq!((&costs["driver"], &costs["devices"]), (&"cuda".into(), &2.into()));
    let rows = costs["rows"].as_array().expect("rows");
    let of = |call: &str| rows.iter().filter(|row| row["call"] == call).collect::<Vec<_>>();
    for call in ["cuMemAllocAsync", "cuMemFreeAsync", "cuMemAlloc", "cuMemCreate"] {
        assert!(!of(call).is_empty(), "{call}: {costs}");
    }
    for devices in [1, 2] {
        let access = of("cuMemSetAccess").into_iter().filter(|row| row["devices"] == devices);
        assert_eq!(access.count(), 4, "{costs}");
    }
    let prices = prices.to_str().expect("UTF-8");
    let options = ["--driver", "sim", "--costs", prices];
    let run = common::replay(&[&example("tiny_pipeline.trace")], &options);
    assert_eq!(run.status, Some(0), "{}", run.stderr);
    assert!(number(&run.objects()[0], "/driver_ns") > 0);
}
