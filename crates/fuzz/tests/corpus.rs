//! The corpus reaches every outcome that there is, and says why each file is there.

use millpond_fuzz::program::Program;
use millpond_fuzz::{api, trace};
use std::collections::BTreeSet;
use std::path::Path;

/// The files of a target, by name.
fn corpus(target: &str) -> Vec<(String, Vec<u8>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/__fuzz__").join(target);
    let files = std::fs::read_dir(folder.join("corpus")).expect("a corpus");
    let mut read: Vec<_> = files
        .map(|file| {
            let path = file.expect("readable").path();
            let name = path.file_name().expect("a file").to_string_lossy().into_owned();
            (name, std::fs::read(path).expect("readable"))
        })
        .collect();
    read.sort();
    assert!(read.iter().map(|(_, bytes)| bytes.len()).sum::<usize>() < 200_000);
    read
}

#[test]
fn programs_reach_every_outcome() {
    let mut reached = BTreeSet::new();
    for (name, bytes) in corpus("api") {
        let why = bytes.split(|byte| *byte == b'\n').next().unwrap_or_default();
        assert!(why.starts_with(b"# ") && why.len() > 10, "{name}: why is it there?");
        let text = std::str::from_utf8(&bytes).unwrap_or_else(|error| panic!("{name}: {error}"));
        let program = Program::parse(text).unwrap_or_else(|line| panic!("{name}: {line}"));
        reached.extend(api::run(&program));
    }
    let missing: Vec<_> = api::OUTCOMES.iter().filter(|name| !reached.contains(*name)).collect();
    assert!(missing.is_empty(), "{missing:?}");
}

#[test]
fn traces_reach_every_error() {
    let mut reached = BTreeSet::new();
    for (name, input) in corpus("trace_reader") {
        let outcome = trace::check(&trace::bytes_of(&input));
        let first = input.split(|byte| *byte == b'\n').next().unwrap_or_default();
        let accepted = String::from_utf8_lossy(first).contains("accepted");
        assert_eq!(accepted, outcome == "accepted", "{name}: {outcome}");
        reached.insert(outcome);
    }
    assert!(reached.contains("accepted"));
    let missing: Vec<_> = trace::KINDS.iter().filter(|kind| !reached.contains(**kind)).collect();
    assert!(missing.is_empty(), "{missing:?}");
}
