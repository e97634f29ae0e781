//! `--streams-fresh`: streams that come and go strand no memory and are not kept in the books.

mod common;

use common::{example, file, millpond, replay};
use serde_json::Value;
use std::fmt::Write;
use std::path::Path;

/// The report of a replay without a hazard.
#[track_caller]
fn report(trace: &Path, options: &[&str]) -> Value {
    let report = clean(trace, &[&["--oracle", "--repeat", "1"], options].concat());
    assert_eq!(report["hazards"], 0);
    report
}

#[track_caller]
fn clean(trace: &Path, options: &[&str]) -> Value {
    let run = replay(&[trace], options);
    assert_eq!(run.status, Some(0), "{options:?}: {}", run.stderr);
    run.objects().swap_remove(0)
}

#[track_caller]
fn number(report: &Value, field: &str) -> u64 {
    report[field].as_u64().unwrap_or_else(|| panic!("{field}: {}", report[field]))
}

#[track_caller]
fn overhead(report: &Value) -> f64 {
    number(report, "peak_reserved_bytes") as f64 / number(report, "peak_live_bytes") as f64
}

/// A model whose weights live through all steps, and whose activations live from one step into the
/// next; a second stream copies some of them.
fn training(steps: u64) -> String {
    let mut text = String::from("a 1 0 0 94371840\nu 1 1\na 2 0 1 700\n");
    for step in 0..steps {
        let _ = writeln!(text, "m step {step}");
        for part in 1..=6 {
            let id = 10 * (step + 1) + part;
            let _ = writeln!(text, "a {id} 0 0 {}", part * 3_000_000);
            if part % 2 == 0 {
                let _ = writeln!(text, "w 0 1 0\nu {id} 1");
            }
            // The first three are freed in the step after.
            if part > 3 {
                let _ = writeln!(text, "f {id} 0");
            } else if step > 0 {
                let _ = writeln!(text, "f {} 0", id - 10);
            }
        }
    }
    text + "w 0 0 1\nf 1 0\nf 2 1\n"
}

#[test]
fn a_long_run_holds_what_a_short_one_does() {
    let short = file("short.trace", training(10));
    let long = file("long.trace", training(400));
    for lag in ["0", "7", "50"] {
        let fresh = ["--lag", lag, "--streams-fresh"];
        let (plain, short, long) =
            (report(&long, &["--lag", lag]), report(&short, &fresh), report(&long, &fresh));
        assert_eq!(plain["streams_fresh"], false);
        assert_eq!(long["streams_fresh"], true);
        // Work in flight on the old streams may cost a page or two.
        let reserved = |report| number(report, "peak_reserved_bytes");
        assert!(reserved(&long) <= reserved(&plain) + 2 * (2 << 20), "lag {lag}: {long}");
        // Tables grow in chunks; 800 streams would take several times as much if they were kept.
        for (field, more) in [("peak_reserved_bytes", 2 << 20), ("bookkeeping_bytes", 64 << 10)] {
            let (short, long) = (number(&short, field), number(&long, field));
            assert!(long <= short + more, "lag {lag}, {field}: {short}, then {long}");
        }
    }
}

#[test]
fn the_waits_for_the_old_streams_are_the_traces_own() {
    let trace = file("waits.trace", training(12));
    // Without the oracle, and with later replays.
    let (plain, fresh) = (clean(&trace, &[]), clean(&trace, &["--streams-fresh"]));
    // A record and a wait for each of two streams at each mark.
    assert_eq!(number(&fresh, "trace_waits"), number(&plain, "trace_waits") + 12 * 2 * 2);
    assert_eq!(fresh["ops"], plain["ops"]);
}

#[test]
fn a_use_that_nothing_orders_is_still_a_hazard() {
    // The stream that takes the place of stream 1 never waits for stream 0, and the pool cannot
    // have seen the write done.
    let trace = file("race.trace", "a 1 0 0 4096\na 2 0 1 4096\nm step 1\nu 1 1\nf 1 0\n");
    let run = replay(&[&trace], &["--oracle", "--streams-fresh", "--repeat", "1", "--lag", "50"]);
    assert_eq!((run.status, &run.objects()[0]["hazards"]), (Some(1), &Value::from(1)));
}

#[test]
fn recorded_programs_reserve_what_they_do_on_lasting_streams() {
    for name in ["tiny_pipeline.trace", "prefetch_4loaders.trace.zst"] {
        let trace = example(name);
        let plain = report(&trace, &["--lag", "7"]);
        let fresh = report(&trace, &["--lag", "7", "--streams-fresh"]);
        assert_eq!(plain["peak_live_bytes"], fresh["peak_live_bytes"]);
        let (plain, fresh) = (overhead(&plain), overhead(&fresh));
        assert!(fresh <= plain * 1.05, "{name}: {fresh:.4} instead of {plain:.4}");
    }
}

#[test]
fn copies_change_streams_on_their_own() {
    report(
        &example("tiny_pipeline.trace"),
        &["--lag", "7", "--streams-fresh", "--threads", "2", "--capacity", "1.3x"],
    );
}

#[test]
fn pipelines_change_streams_after_each_step() {
    let run = |options: &[&str]| {
        let fixed = ["stress", "--json", "--oracle", "--steps", "12", "--seed", "9"];
        let run = millpond(fixed.iter().chain(options));
        assert_eq!(run.status, Some(0), "{options:?}: {} {}", run.stdout, run.stderr);
        run.objects().swap_remove(0)
    };
    for options in [&["--threads", "2"][..], &["--schedule", "random", "--devices", "2"]] {
        let (plain, fresh) = (run(options), run(&[options, &["--streams-fresh"]].concat()));
        assert_eq!(
            (&plain["streams_fresh"], &fresh["streams_fresh"]),
            (&false.into(), &true.into())
        );
        assert_eq!((&fresh["hazards"], &fresh["leaks"]["streams"]), (&0.into(), &0.into()));
        // How threads come to run changes what is live when; memory stranded would be steps of it.
        let reserved = |report| number(report, "peak_reserved_bytes");
        assert!(reserved(&fresh) * 2 <= reserved(&plain) * 3, "{plain} {fresh}");
    }
}
