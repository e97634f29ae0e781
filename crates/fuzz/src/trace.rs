//! Inputs of the trace reader: any bytes, and valid traces with damage done to them.
//!
//! ```text
//! # damage seed=7 zstd=1 hits=3 cut=200      a recipe: what is done to the trace that follows
//! a 1 0 0 4096                               the trace; none: one is made from the seed
//! ```
//!
//! What must hold of any input:
//!
//! ```text
//! a trace, or an error with the file's name, a line from 1 on and one printable line of text
//! an operation is its line, read anew: numbers without leading zeros, one blank between fields
//! all ways of reading agree; what is accepted is written and read back equal, plain and compressed
//! ```
//!
//! `tests/memory.rs` says how much memory it may take.

use millpond_trace::{Encoding, Op, RawReader, Reader, Trace, Writer};
use std::fmt::Write as _;

/// Numbers at the borders of what fields hold.
const EDGES: [&str; 20] = [
    "0",
    "1",
    "007",
    "65535",
    "65536",
    "1022",
    "1023",
    "1024",
    "4294967294",
    "4294967295",
    "4294967296",
    "9223372036854775806",
    "9223372036854775807",
    "9223372036854775808",
    "18446744073709551614",
    "18446744073709551615",
    "18446744073709551616",
    "340282366920938463463374607431768211456",
    "-1",
    "+1",
];

/// The bytes that the reader is given for an input: what a recipe makes, or the input itself, without
/// `raw:` where it begins so.
pub fn bytes_of(input: &[u8]) -> Vec<u8> {
    if let Some(raw) = input.strip_prefix(b"raw:") {
        return raw.to_vec();
    }
    match std::str::from_utf8(input).ok().and_then(Recipe::parse) {
        Some((recipe, text)) => recipe.cook(text),
        None if is_random(input) => Recipe::of(input).cook(""),
        None => input.to_vec(),
    }
}

/// The input as a file of the corpus has it.
pub fn as_file(input: &[u8]) -> String {
    let is_file = input.starts_with(b"raw:") || input.starts_with(b"# damage");
    if !is_file && is_random(input) {
        Recipe::of(input).to_string()
    } else {
        input.escape_ascii().to_string()
    }
}

/// Half of the random inputs are recipes.
fn is_random(input: &[u8]) -> bool {
    input.len() > 8 && input[0].is_multiple_of(2)
}

/// What is done to a trace, in this order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Recipe {
    /// Where places are drawn from.
    seed: u64,
    /// Operations of the trace that is made.
    ops: u64,
    /// Numbers replaced by one at a border.
    edges: u64,
    drops: u64,
    doubles: u64,
    swaps: u64,
    /// 0: plain; else so many frames.
    zstd: u64,
    /// Bytes replaced, after compression.
    hits: u64,
    /// Bytes left of the whole; 0: all.
    cut: u64,
    /// Header entries put in front; random inputs have none.
    entries: u64,
}

const FIELDS: [&str; 10] =
    ["seed", "ops", "edges", "drops", "doubles", "swaps", "zstd", "hits", "cut", "entries"];

impl Recipe {
    fn fields(&mut self) -> [&mut u64; FIELDS.len()] {
        let Self { seed, ops, edges, drops, doubles, swaps, zstd, hits, cut, entries } = self;
        [seed, ops, edges, drops, doubles, swaps, zstd, hits, cut, entries]
    }

    fn parse(text: &str) -> Option<(Self, &str)> {
        let (first, rest) = text.split_once('\n').unwrap_or((text, ""));
        let mut recipe = Self::default();
        for word in first.strip_prefix("# damage")?.split_whitespace() {
            // Words without `=` say why.
            let Some((key, value)) = word.split_once('=') else { continue };
            let at = FIELDS.iter().position(|field| *field == key)?;
            *recipe.fields()[at] = value.parse().ok()?;
        }
        Some((recipe, rest))
    }

    fn of(input: &[u8]) -> Self {
        let byte = |at: usize| u64::from(input.get(at).copied().unwrap_or(0));
        let few = |at: usize| byte(at).checked_sub(160).map_or(0, |many| many / 24);
        let seed = input
            .iter()
            .fold(0u64, |seed, byte| (seed ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3));
        Self {
            seed,
            ops: 1 + byte(1) % 96,
            edges: few(2),
            drops: few(3),
            doubles: few(4),
            swaps: few(5),
            zstd: byte(6) % 4,
            hits: few(7),
            entries: 0,
            cut: byte(8).checked_sub(200).map_or(0, |cut| cut * 19),
        }
    }

    fn cook(self, text: &str) -> Vec<u8> {
        let mut rng = Rng(self.seed);
        let made;
        let text = if text.is_empty() {
            made = make(&mut rng, self.ops.min(10_000));
            &made
        } else {
            text
        };
        let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
        for _ in 0..self.drops.min(99) {
            if let Some(at) = rng.index(lines.len()) {
                lines.remove(at);
            }
        }
        for _ in 0..self.doubles.min(99) {
            if let (Some(from), Some(to)) = (rng.index(lines.len()), rng.index(lines.len())) {
                lines.insert(to, lines[from].clone());
            }
        }
        for _ in 0..self.swaps.min(99) {
            if let (Some(one), Some(other)) = (rng.index(lines.len()), rng.index(lines.len())) {
                lines.swap(one, other);
            }
        }
        for _ in 0..self.edges.min(99) {
            let Some(line) = rng.index(lines.len()).map(|at| &mut lines[at]) else { continue };
            let mut words: Vec<&str> = line.split(' ').collect();
            let Some(at) = rng.index(words.len()) else { continue };
            words[at] = EDGES[rng.index(EDGES.len()).unwrap_or(0)];
            *line = words.join(" ");
        }
        let entry = || format!("# k={}", "v".repeat(400));
        lines.splice(0..0, (0..self.entries.min(9999)).map(|_| entry()));
        let mut bytes = lines.join("\n").into_bytes();
        bytes.push(b'\n');
        if self.zstd > 0 {
            let part = bytes.len().div_ceil(self.zstd as usize).max(1);
            let frames = bytes.chunks(part).map(|part| zstd::encode_all(part, 1));
            bytes = frames.map(|frame| frame.expect("a vector")).collect::<Vec<_>>().concat();
        }
        for _ in 0..self.hits.min(99) {
            if let Some(at) = rng.index(bytes.len()) {
                bytes[at] = rng.next() as u8;
            }
        }
        if self.cut > 0 {
            bytes.truncate(self.cut as usize);
        }
        bytes
    }
}

impl std::fmt::Display for Recipe {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("# damage")?;
        let mut copy = *self;
        for (name, value) in FIELDS.iter().zip(copy.fields()) {
            write!(f, " {name}={value}")?;
        }
        Ok(())
    }
}

/// A valid trace.
fn make(rng: &mut Rng, ops: u64) -> String {
    let mut text = String::from("# model=fuzz\n# note=a b = c\n");
    let mut live: Vec<(u64, u64)> = Vec::new();
    for turn in 0..ops {
        let stream = rng.next() % 4;
        let picked = rng.index(live.len());
        let line = match (rng.next() % 8, picked) {
            (0 | 1, Some(at)) => {
                let (id, home) = live.swap_remove(at);
                format!("f {id} {home}")
            }
            (2, Some(at)) => format!("u {} {stream}", live[at].0),
            (3, _) => format!("w {} {stream} {}", rng.next() % 3, stream + 1),
            (4, _) => format!("x 0 {stream} 1 {stream}"),
            (5, Some(_)) => format!("m step {turn}"),
            (6, Some(_)) => format!("m phase {}", ["forward", "other", "é"][(turn % 3) as usize]),
            _ => {
                // An odd factor permutes the numbers.
                let id = turn.wrapping_mul(0x9e37_79b9_7f4a_7c15);
                live.push((id, stream));
                format!("a {id} {} {stream} {}", rng.next() % 3, 1 + rng.next() % (1 << 40))
            }
        };
        let _ = writeln!(text, "{line}");
    }
    text
}

struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn index(&mut self, len: usize) -> Option<usize> {
        self.next().checked_rem(len as u64).map(|at| at as usize)
    }
}

/// Reads in every way there is; panics with what is wrong. Says what came of it: the kind of error,
/// or `accepted`.
pub fn check(bytes: &[u8]) -> String {
    const NAME: &str = "dir/fuzz.trace";
    let read = Trace::read(NAME, bytes);
    let streamed = Reader::new(NAME, bytes).and_then(|mut reader| {
        let ops = reader.by_ref().map(|record| record.map(|record| record.op));
        let ops = ops.collect::<Result<Vec<Op>, _>>()?;
        Ok((ops, reader.header().clone(), reader.into_summary()))
    });
    let raw = RawReader::new(NAME, bytes).and_then(|reader| {
        reader.map(|record| record.map(|record| record.op)).collect::<Result<Vec<Op>, _>>()
    });
    let (trace, (ops, header, summary)) = match (read, streamed) {
        (Ok(trace), Ok(streamed)) => (trace, streamed),
        (Err(one), Err(other)) => {
            let text = one.to_string();
            assert_eq!(text, other.to_string());
            assert!(text.starts_with(&format!("{NAME}:{}: ", one.line)), "{text}");
            assert!(one.line >= 1 && one.line <= lines(bytes), "{text}");
            assert!(!text.contains(char::is_control) && text.len() < 400, "{text:?}");
            let kind = format!("{:?}", one.kind);
            return kind.split(['(', ' ', '{']).next().unwrap_or_default().to_owned();
        }
        (one, other) => panic!("{one:?} but {other:?}"),
    };
    assert_eq!(raw.expect("each line by itself was read before"), ops);
    assert_eq!(trace.summary(), &summary);
    assert_eq!(trace.header(), &header);
    assert_eq!(trace.ops().len(), ops.len());
    let original = |mut op: Op| {
        if let Op::Alloc { id, .. } | Op::Free { id, .. } | Op::Use { id, .. } = &mut op {
            *id = trace.id(*id as usize).expect("a block");
        }
        op
    };
    let text =
        if is_zstd(bytes) { zstd::decode_all(bytes).expect("it was read") } else { bytes.to_vec() };
    let text: Vec<&[u8]> = text.split(|byte| *byte == b'\n').collect();
    for (at, (dense, op)) in trace.ops().iter().zip(&ops).enumerate() {
        assert_eq!(&original(dense.clone()), op);
        let line = trace.line(at).and_then(|line| text.get(line as usize - 1).copied());
        assert_eq!(op.to_string(), plain(line.expect("a line of the text")));
    }
    for encoding in [Encoding::Plain, Encoding::Zstd { level: 1 }] {
        let mut writer = Writer::new(NAME, Vec::new(), encoding, &header).expect("a vector");
        ops.iter().for_each(|op| writer.write(op).expect("it was accepted"));
        let written = writer.finish().expect("a vector");
        let again = Trace::read(NAME, written.as_slice()).expect("it was written");
        assert_eq!((again.header(), again.ops()), (&header, trace.ops()));
        assert_eq!(again.summary(), &summary);
    }
    "accepted".to_owned()
}

/// A line as the writer has it. The name of a phase is no number, whatever it looks like.
fn plain(line: &[u8]) -> String {
    let text = String::from_utf8_lossy(line);
    let words: Vec<_> = text.split([' ', '\t', '\r']).filter(|word| !word.is_empty()).collect();
    let number = |word: &&str| match word.trim_start_matches('0') {
        "" => "0".to_owned(),
        digits if digits.bytes().all(|byte| byte.is_ascii_digit()) => digits.to_owned(),
        _ => (*word).to_owned(),
    };
    if words.get(1) == Some(&"phase") {
        return words.join(" ");
    }
    words.iter().map(number).collect::<Vec<_>>().join(" ")
}

fn is_zstd(bytes: &[u8]) -> bool {
    matches!(bytes, [0x28, 0xB5, 0x2F, 0xFD, ..] | [0x50..=0x5F, 0x2A, 0x4D, 0x18, ..])
}

/// No error stands behind the last line; where the text is compressed nobody knows how many.
fn lines(bytes: &[u8]) -> u64 {
    let ends = bytes.iter().filter(|byte| **byte == b'\n').count() as u64 + 1;
    if is_zstd(bytes) { u64::MAX } else { ends }
}

/// Every kind of error that an input can have, by name: `Open`, `Write` and `Read` are the system's,
/// and `TooManyBlocks` needs more of them than memory holds.
pub const KINDS: [&str; 24] = [
    "Truncated",
    "Damaged",
    "Empty",
    "LineTooLong",
    "UnknownVerb",
    "UnknownMark",
    "MissingField",
    "SurplusField",
    "BadNumber",
    "BadPhase",
    "BadHeader",
    "HeaderTooLong",
    "SizeZero",
    "SizeTooLarge",
    "DeviceTooLarge",
    "SelfWait",
    "AcrossOneDevice",
    "DuplicateId",
    "FreeOfUnknownId",
    "UseOfUnknownId",
    "DoubleFree",
    "UseAfterFree",
    "WrongStream",
    "TooManyBytes",
];
