//! Whatever is wrong with what the command is given: status 2, a message, no panic.

mod common;

use common::{example, file, millpond, replay};
use std::ffi::OsStr;
use std::path::Path;

/// The command refuses the arguments, saying all of `words`.
#[track_caller]
fn refused<S: AsRef<OsStr>>(args: impl IntoIterator<Item = S>, words: &[&str]) {
    let run = millpond(args);
    assert_eq!(run.status, Some(2), "{} {}", run.stdout, run.stderr);
    // Behind the line that says which driver, if it came that far.
    let message = run.stderr.lines().find(|line| line.starts_with("millpond: "));
    assert!(message.is_some(), "no message: {}", run.stderr);
    for word in words {
        assert!(run.stderr.contains(word), "no `{word}`: {}", run.stderr);
    }
    assert!(!run.stderr.contains("panicked"), "{}", run.stderr);
}

/// The command refuses the trace, naming file and line.
#[track_caller]
fn refused_trace(path: &Path, line: u64, words: &[&str]) {
    let place = format!("{}:{line}: ", path.display());
    let mut all = vec![place.as_str()];
    all.extend(words);
    refused([OsStr::new("replay"), path.as_os_str()], &all);
    refused([OsStr::new("replay"), OsStr::new("--json"), path.as_os_str()], &all);
}

#[track_caller]
fn refused_text(name: &str, text: &str, line: u64, words: &[&str]) {
    refused_trace(&file(name, text), line, words);
}

#[track_caller]
fn refused_option(option: &[&str], words: &[&str]) {
    let trace = example("tiny_two_streams.trace");
    let trace = trace.to_str().expect("UTF-8");
    refused([&["replay", trace], option].concat(), words);
}

#[test]
fn a_truncated_zstd_file() {
    let whole = std::fs::read(example("resnet50_b32.trace.zst")).expect("an example");
    for (name, bytes) in [("half", whole.len() / 2), ("last", whole.len() - 1), ("magic", 6)] {
        let path = file(&format!("{name}.trace.zst"), &whole[..bytes]);
        let run = replay(&[&path], &[]);
        assert_eq!(run.status, Some(2), "{}", run.stderr);
        let place = format!("millpond: {}:", path.display());
        assert!(run.stderr.contains(&place), "{}", run.stderr);
        assert!(!run.stderr.contains("panicked"), "{}", run.stderr);
        assert_eq!(run.stdout, "");
    }
}

#[test]
fn bad_lines() {
    refused_text("verb.trace", "a 1 0 0 8\nfree 1 0\n", 2, &["unknown operation `free`"]);
    refused_text("id.trace", "a 1 0 0 8\nf 2 0\n", 2, &["id 2", "never allocated"]);
    refused_text("twice.trace", "a 1 0 0 8\nf 1 0\n\nf 1 0\n", 4, &["double free of id 1"]);
    refused_text("zero.trace", "a 1 0 0 0\n", 1, &["size 0"]);
    let text = "a 1 0 0 9223372036854775808\n";
    refused_text("huge.trace", text, 1, &["size 9223372036854775808 is too large"]);
    refused_text("device.trace", "a 1 1024 0 8\n", 1, &["device 1024"]);
    refused_text("wait.trace", "a 1 0 0 8\nx 0 0 1024 0\n", 2, &["device 1024"]);
    refused_text("short.trace", "a 1 0\n", 1, &["missing"]);
}

#[test]
fn no_trace_at_all() {
    refused_trace(&file("empty.trace", ""), 1, &[]);
    refused_trace(&file("marks.trace", "m step 1\n"), 1, &[]);
    let missing = file("here.trace", "").with_file_name("not_here.trace");
    refused([OsStr::new("replay"), missing.as_os_str()], &["not_here.trace: cannot be opened"]);
    let folder = missing.with_file_name("");
    refused([OsStr::new("replay"), folder.as_os_str()], &[]);
    refused(["replay"], &["TRACE"]);
    refused(["replay", ""], &["TRACE"]);
}

#[test]
fn usage() {
    refused::<&str>([], &["Usage"]);
    refused(["rewind"], &["rewind"]);
    refused_option(&["--frobnicate"], &["--frobnicate"]);
    refused_option(&["--mechanism", "buddies"], &["buddies", "pool"]);
    refused_option(&["--reuse", "never"], &["never", "same-stream", "completed", "wait"]);
    refused_option(&["--driver", "rocm"], &["rocm", "sim", "cuda"]);
    refused_option(&["--driver", "cuda"], &["CUDA"]);
    for capacity in ["", "x", "0", "0x", "0GiB", "-8GiB", "8GB", "1e3x", "infx", "99999999TiB"] {
        refused_option(&[&format!("--capacity={capacity}")], &["capacity"]);
    }
    // A size, but more than any device has.
    refused_option(&["--capacity", "1000TiB"], &["capacity", "too large"]);
    refused_option(&["--capacity", "99999999999x"], &["capacity", "too large"]);
    for number in ["--lag", "--threads", "--repeat"] {
        refused_option(&[number, "-1"], &[]);
        refused_option(&[number, "many"], &[number]);
    }
    refused_option(&["--threads", "0"], &["--threads"]);
    refused_option(&["--repeat", "0"], &["--repeat"]);
}

#[test]
fn what_came_before_is_printed() {
    let (good, bad) = (example("tiny_two_streams.trace"), file("bad.trace", "a 1 0 0 8\nz\n"));
    let run = replay(&[&good, &bad, &good], &[]);
    assert_eq!(run.status, Some(2));
    assert_eq!(run.objects().len(), 1);
    assert!(run.stderr.contains("bad.trace:2: "), "{}", run.stderr);
}

#[test]
fn asking_for_help_is_no_error() {
    for args in [&["--help"][..], &["--version"], &["replay", "--help"], &["help", "replay"]] {
        let run = millpond(args);
        assert_eq!((run.status, run.stderr.as_str()), (Some(0), ""), "{args:?}");
        assert!(run.stdout.contains("millpond"), "{}", run.stdout);
    }
}
