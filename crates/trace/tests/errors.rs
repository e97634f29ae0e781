//! Every kind of bad input, with the line and the message that it gives.

use std::io::{self, Read};
use std::path::Path;

use millpond_trace::{
    Encoding, Header, MAX_LINE, Op, RawReader, Reader, Trace, TraceError, TraceErrorKind, Writer,
};

fn error(text: impl AsRef<[u8]>) -> TraceError {
    let text = text.as_ref();
    let error = Trace::read("t.trace", text).expect_err("a bad trace");
    // Streaming finds the same, and stops there.
    let mut reader = Reader::new("t.trace", text).expect("readable");
    let streamed = reader.by_ref().find_map(Result::err).expect("an error");
    assert_eq!(streamed.to_string(), error.to_string());
    assert!(reader.next().is_none(), "a reader ends after an error");
    error
}

#[track_caller]
fn check(text: impl AsRef<[u8]>, expected: &str) {
    assert_eq!(error(text).to_string(), format!("t.trace:{expected}"));
}

#[test]
fn unknown_words() {
    check(
        "a 1 0 0 8\nfree 1 0\n",
        "2: unknown operation `free` (expected a, f, u, w, x, m or a # line)",
    );
    check("m epoch 3\n", "1: unknown mark `epoch` (expected `m step <n>` or `m phase <name>`)");
    check("A 1 0 0 8\n", "1: unknown operation `A` (expected a, f, u, w, x, m or a # line)");
}

#[test]
fn missing_fields() {
    let alloc = "(expected `a <id> <device> <stream> <size>`)";
    check("a\n", &format!("1: id is missing {alloc}"));
    check("a 1\n", &format!("1: device is missing {alloc}"));
    check("a 1 0\n", &format!("1: stream is missing {alloc}"));
    check("a 1 0 0", &format!("1: size is missing {alloc}"));
    check("f 1\n", "1: stream is missing (expected `f <id> <stream>`)");
    check("u 1\n", "1: stream is missing (expected `u <id> <stream>`)");
    check("w 0 1\n", "1: signaller is missing (expected `w <device> <waiter> <signaller>`)");
    check(
        "x 0 1 1\n",
        "1: signaller is missing (expected `x <device> <waiter> <device> <signaller>`)",
    );
    check("m\n", "1: mark is missing (expected `m step <n>` or `m phase <name>`)");
    check("m step\n", "1: step is missing (expected `m step <n>`)");
    check("m phase\n", "1: phase is missing (expected `m phase <name>`)");
}

#[test]
fn surplus_fields() {
    check("\n\na 1 0 0 8 9\n", "3: surplus field `9` (expected `a <id> <device> <stream> <size>`)");
    check("m phase two words\n", "1: surplus field `words` (expected `m phase <name>`)");
    check("a 1 0 0 8 # why\n", "1: surplus field `#` (expected `a <id> <device> <stream> <size>`)");
}

#[test]
fn malformed_numbers() {
    check(
        "a -1 0 0 8\n",
        "1: `-1` is not a valid id (expected an integer from 0 to 18446744073709551615)",
    );
    check(
        "a 1 0 0 8MiB\n",
        "1: `8MiB` is not a valid size (expected an integer from 0 to 9223372036854775807)",
    );
    check("a 1 0x0 0 8\n", "1: `0x0` is not a valid device (expected an integer from 0 to 1023)");
    check(
        "a 1 0 4294967296 8\n",
        "1: `4294967296` is not a valid stream (expected an integer from 0 to 4294967295)",
    );
    check(
        "f 18446744073709551616 0\n",
        "1: `18446744073709551616` is not a valid id \
         (expected an integer from 0 to 18446744073709551615)",
    );
    check(
        "w 0 one 0\n",
        "1: `one` is not a valid waiter (expected an integer from 0 to 4294967295)",
    );
    check(
        "m step 1.5\n",
        "1: `1.5` is not a valid step (expected an integer from 0 to 18446744073709551615)",
    );
}

#[test]
fn sizes_and_devices_out_of_range() {
    let range = "(expected 1 to 9223372036854775807 bytes)";
    check("a 1 0 0 0\n", &format!("1: size 0 {range}"));
    for size in ["9223372036854775808", "18446744073709551616"] {
        let text = format!("a 1 0 0 9223372036854775807\nf 1 0\na 2 0 0 {size}\n");
        check(text, &format!("3: size {size} is too large {range}"));
    }
    for device in ["1024", "65536", "99999999999999999999"] {
        let what = format!("1: device {device} is out of range (expected 0 to 1023)");
        check(format!("a 1 {device} 0 8\n"), &what);
        check(format!("w {device} 0 1\n"), &what);
        check(format!("x 0 0 {device} 1\n"), &what);
    }
}

#[test]
fn waits_that_make_no_sense() {
    check("w 3 7 7\n", "1: stream 7 of device 3 waits for itself (expected two streams)");
    check("x 3 7 3 7\n", "1: stream 7 of device 3 waits for itself (expected two streams)");
    check("x 3 7 3 6\n", "1: x between device 3 and itself (expected two devices, or a w line)");
}

#[test]
fn ids_out_of_order() {
    let live = "(expected a live block's id)";
    check(
        "# k=v\na 5 0 0 8\nf 5 0\na 5 0 0 8\n",
        "4: id 5 was allocated before, on line 2 (expected an id not used yet)",
    );
    check(
        "a 5 0 0 8\nf 4 0\n",
        "2: free of id 4, which was never allocated (expected the id of a live block)",
    );
    check(
        "a 5 0 0 8\nu 4 1\n",
        "2: use of id 4, which was never allocated (expected the id of a live block)",
    );
    check(
        "a 5 0 0 8\nf 5 0\n\nf 5 0\n",
        &format!("4: double free of id 5, freed before on line 2 {live}"),
    );
    check("a 5 0 0 8\nf 5 0\nu 5 1\n", &format!("3: use of id 5 after its free on line 2 {live}"));
    check(
        "a 5 0 2 8\nf 5 1\n",
        "2: free of id 5 on stream 1 (expected stream 2, where it was allocated)",
    );
}

#[test]
fn more_bytes_than_can_be_counted() {
    let text: String = (1..4).map(|id| format!("a {id} {id} 0 9223372036854775807\n")).collect();
    check(text, "3: more than 2^64 - 1 bytes are live (expected fewer over all devices together)");
}

#[test]
fn nothing_to_replay() {
    let what = "the trace holds no operations (expected at least one a, f, u, w or x line)";
    check("", &format!("1: {what}"));
    check("# k=v\n\n", &format!("2: {what}"));
    check("m step 1\nm phase forward\n", &format!("2: {what}"));
}

#[test]
fn lines_without_end() {
    let what = "the line is too long (expected at most 65536 bytes: is this a trace?)";
    let mut text = b"a 1 0 0 8\n".to_vec();
    text.resize(text.len() + 10 * MAX_LINE, 0);
    check(&text, &format!("2: {what}"));

    let longest = format!("#{}\na 1 0 0 8\n", "x".repeat(MAX_LINE - 1));
    assert!(Trace::read("t", longest.as_bytes()).is_ok());
    check(format!("#{longest}"), &format!("1: {what}"));
}

#[test]
fn text_that_is_none() {
    let error = error(b"\x00\xff\x1b[2J 1 2\n");
    assert!(matches!(error.kind, TraceErrorKind::UnknownVerb(_)));
    assert!(!error.to_string().contains(char::is_control));
    check(
        b"a 1 0 0 8\nm phase \xff\n",
        "2: `\u{fffd}` is not a valid phase name \
         (expected one printable UTF-8 word of at most 255 bytes)",
    );
    check(
        b"# key=\xff\n",
        "1: bad header entry `key=\u{fffd}` \
         (expected `# key=value` in printable UTF-8, at most 4096 bytes)",
    );
    check(
        b"# key=\x1b[2J\n",
        "1: bad header entry `key=\\u{1b}[2J` \
         (expected `# key=value` in printable UTF-8, at most 4096 bytes)",
    );
}

#[test]
fn files_that_cannot_be_read() {
    let missing = Path::new(env!("CARGO_TARGET_TMPDIR")).join("no such file");
    let error = Trace::load(&missing).expect_err("no such file");
    assert!(matches!(error.kind, TraceErrorKind::Open(_)));
    let expected = format!("{}: cannot be opened: ", missing.display());
    assert!(error.to_string().starts_with(&expected), "{error}");

    let error = Trace::load(env!("CARGO_TARGET_TMPDIR")).expect_err("a directory");
    assert!(matches!(error.kind, TraceErrorKind::Open(_) | TraceErrorKind::Read(_)));
    assert_eq!(error.line, 0);
}

#[test]
fn inputs_that_fail_midway() {
    struct Fails;
    impl Read for Fails {
        fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
            Err(io::Error::other("unplugged"))
        }
    }
    let error = Trace::read("t", Fails).expect_err("fails at once");
    assert_eq!(error.to_string(), "t: cannot be read: unplugged");
    let text = "a 1 0 0 8\nf 1 0\nf 1".as_bytes();
    let error = Trace::read("t", text.chain(Fails)).expect_err("fails midway");
    assert_eq!(error.to_string(), "t:3: cannot be read: unplugged");
}

#[test]
fn a_raw_reader_leaves_ids_alone() {
    let text = "a 1 0 0 8\nf 2 0\nf 2 1\n";
    let mut reader = RawReader::new("t", text.as_bytes()).expect("readable");
    assert_eq!(reader.by_ref().filter(Result::is_ok).count(), 3);
    assert_eq!(reader.line(), 3);
    let error = RawReader::new("t", "f 2\n".as_bytes())
        .expect("readable")
        .find_map(Result::err)
        .expect("an error");
    assert_eq!(error.line, 1);
}

#[test]
fn a_writer_refuses_bad_operations() {
    let mut header = Header::new();
    assert!(header.push("k", "v"));
    let mut writer = Writer::new("out", Vec::new(), Encoding::Plain, &header).expect("a vector");
    let bad = Op::Alloc { id: 1, device: 0, stream: 0, bytes: 0 };
    let error = writer.write(&bad).expect_err("no bytes");
    assert_eq!(error.line, 2);
    assert!(matches!(error.kind, TraceErrorKind::SizeZero));
    assert_eq!(writer.finish().expect("a vector"), b"# k=v\n");
}

#[test]
fn operations_in_hand_are_checked_too() {
    let ops = [
        Op::Alloc { id: 9, device: 0, stream: 0, bytes: 8 },
        Op::Free { id: 9, stream: 0 },
        Op::Free { id: 9, stream: 0 },
    ];
    let trace = Trace::from_ops("made", Header::new(), ops[..2].to_vec()).expect("valid");
    assert_eq!(trace.ops()[1], Op::Free { id: 0, stream: 0 });
    assert_eq!((trace.line(1), trace.id(0)), (Some(2), Some(9)));
    let error = Trace::from_ops("made", Header::new(), ops).expect_err("a double free");
    assert_eq!(error.line, 3);
    assert!(matches!(error.kind, TraceErrorKind::DoubleFree { .. }));
}
