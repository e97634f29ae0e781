//! Compressed traces: known by content, and damaged in every way.

use std::io::Write;
use std::path::{Path, PathBuf};

use millpond_trace::{Encoding, Header, Op, Trace, TraceErrorKind, Writer};

const BLOCKS: u64 = 20_000;

fn write(encoding: Encoding) -> Vec<u8> {
    let mut header = Header::new();
    assert!(header.push("model", "none"));
    let mut writer = Writer::new("memory", Vec::new(), encoding, &header).expect("a vector");
    for id in 0..BLOCKS {
        let (stream, bytes) = (0, 1 + id * id % 7919);
        let alloc = Op::Alloc { id, device: 0, stream, bytes };
        writer.write(&alloc).expect("a vector");
        writer.write(&Op::Free { id, stream }).expect("a vector");
    }
    writer.finish().expect("a vector")
}

fn compressed() -> Vec<u8> {
    write(Encoding::Zstd { level: 3 })
}

fn file(name: &str, bytes: &[u8]) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::write(&path, bytes).expect("the folder for temporary files is writable");
    path
}

#[test]
fn is_known_by_content_whatever_the_name() {
    let (plain, compressed) = (write(Encoding::Plain), compressed());
    assert!(compressed.len() < plain.len() / 2);
    for (name, bytes) in [
        ("plain.trace", &plain),
        ("plain.trace.zst", &plain),
        ("compressed.trace", &compressed),
        ("compressed.txt", &compressed),
        ("compressed.trace.zst", &compressed),
    ] {
        let trace = Trace::load(file(name, bytes)).expect(name);
        assert_eq!(trace.blocks() as u64, BLOCKS, "{name}");
        assert_eq!(trace.header().get("model"), Some("none"), "{name}");
    }
}

#[test]
fn frames_may_be_several_and_skippable() {
    let mut bytes = vec![0x50, 0x2A, 0x4D, 0x18, 3, 0, 0, 0, 1, 2, 3];
    for text in ["# k=v\na 1 0 0 8\nf 1", " 0\na 2 0 0 8\n"] {
        let mut encoder = zstd::Encoder::new(Vec::new(), 1).expect("an encoder");
        encoder.write_all(text.as_bytes()).expect("a vector");
        bytes.extend(encoder.finish().expect("a vector"));
    }
    let trace = Trace::read("t", bytes.as_slice()).expect("valid");
    assert_eq!(trace.ops().len(), 3);
}

#[test]
fn truncation_is_told_with_the_line_reached() {
    let whole = compressed();
    let mut farthest = 0;
    for len in (4..whole.len()).step_by(997) {
        let error = Trace::read("cut.trace.zst", &whole[..len]).expect_err("cut short");
        assert!(matches!(error.kind, TraceErrorKind::Truncated), "{len} bytes: {error}");
        assert!(error.to_string().starts_with("cut.trace.zst:"), "{error}");
        farthest = farthest.max(error.line);
    }
    assert!(farthest > BLOCKS, "reads on up to the cut: {farthest}");
}

#[test]
fn truncation_within_the_magic_is_an_unknown_word_or_empty() {
    let whole = compressed();
    for len in 0..4 {
        let error = Trace::read("cut", &whole[..len]).expect_err("cut short");
        assert_eq!(error.line, 1, "{error}");
    }
}

#[test]
fn garbage_behind_the_magic_is_damage() {
    let mut bytes = vec![0x28, 0xB5, 0x2F, 0xFD];
    bytes.extend([0xFF; 64]);
    let error = Trace::read("bad", bytes.as_slice()).expect_err("garbage");
    assert!(matches!(error.kind, TraceErrorKind::Damaged(_)), "{error}");
    assert_eq!(error.line, 1);

    let mut trailing = compressed();
    trailing.extend(b"not a frame");
    let error = Trace::read("bad", trailing.as_slice()).expect_err("trailing garbage");
    assert!(matches!(error.kind, TraceErrorKind::Damaged(_)), "{error}");
    assert_eq!(error.line, 1 + 2 * BLOCKS + 1);
}

#[test]
fn a_flipped_bit_is_never_another_trace() {
    let mut writer = Writer::new("memory", Vec::new(), Encoding::Zstd { level: 3 }, &Header::new())
        .expect("a vector");
    for id in 0..300 {
        let alloc = Op::Alloc { id, device: 0, stream: 0, bytes: 1 + id * id * 7919 % 104_729 };
        writer.write(&alloc).expect("a vector");
    }
    let whole = writer.finish().expect("a vector");
    let trace = Trace::read("t", whole.as_slice()).expect("valid");
    for bit in 0..8 * whole.len() {
        let mut bytes = whole.clone();
        bytes[bit / 8] ^= 1 << (bit % 8);
        if let Ok(other) = Trace::read("t", bytes.as_slice()) {
            assert_eq!(other.ops(), trace.ops(), "bit {bit}");
        }
    }
}

#[test]
fn an_empty_frame_holds_nothing() {
    let bytes = zstd::encode_all(&b""[..], 3).expect("a vector");
    let error = Trace::read("empty", bytes.as_slice()).expect_err("empty");
    assert!(matches!(error.kind, TraceErrorKind::Empty), "{error}");
}
