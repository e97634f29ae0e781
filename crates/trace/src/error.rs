//! What can be wrong with a trace, and where.

use std::io;
use std::path::PathBuf;

use crate::header::Header;
use crate::op::{MAX_DEVICE, MAX_SIZE};
use crate::phase::PhaseName;
use crate::raw::MAX_LINE;

/// A trace that cannot be read or written: which file, which line, and what is wrong with it.
///
/// It displays as `FILE:LINE: what is wrong (what was expected)`, and without `:LINE` where no
/// line was reached.
#[derive(Debug, thiserror::Error)]
#[error("{}{}: {kind}", path.display(), LineSuffix(*line))]
pub struct TraceError {
    /// The file, or the name given to an input that is none.
    pub path: PathBuf,
    /// The line at fault, from 1; 0 where the file could not even be opened.
    pub line: u64,
    /// What is wrong.
    pub kind: TraceErrorKind,
}

/// What is wrong with a trace.
///
/// Texts taken from a file are cut to a few dozen characters, with control characters escaped.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TraceErrorKind {
    /// The file cannot be opened, or created.
    #[error("cannot be opened: {0}")]
    Open(io::Error),
    /// Reading failed.
    #[error("cannot be read: {0}")]
    Read(io::Error),
    /// Writing failed.
    #[error("cannot be written: {0}")]
    Write(io::Error),
    /// The compressed data ends in the middle.
    #[error("the zstd data ends here, in mid-frame (expected more: is the file cut short?)")]
    Truncated,
    /// The compressed data is not what zstd writes.
    #[error("the zstd data cannot be decompressed beyond this line: {0}")]
    Damaged(io::Error),
    /// There is nothing to replay: no line is an operation, marks aside.
    #[error("the trace holds no operations (expected at least one a, f, u, w or x line)")]
    Empty,
    /// A line has no end in sight.
    #[error("the line is too long (expected at most {MAX_LINE} bytes: is this a trace?)")]
    LineTooLong,
    /// A line begins with a word that is no operation.
    #[error("unknown operation `{0}` (expected a, f, u, w, x, m or a # line)")]
    UnknownVerb(String),
    /// An `m` line marks neither a step nor a phase.
    #[error("unknown mark `{0}` (expected `m step <n>` or `m phase <name>`)")]
    UnknownMark(String),
    /// A line ends before its last field.
    #[error("{field} is missing (expected `{shape}`)")]
    MissingField {
        /// The first field missing.
        field: &'static str,
        /// What the whole line should look like.
        shape: &'static str,
    },
    /// A line goes on after its last field.
    #[error("surplus field `{text}` (expected `{shape}`)")]
    SurplusField {
        /// The first field too many.
        text: String,
        /// What the whole line should look like.
        shape: &'static str,
    },
    /// A field is not an unsigned decimal integer in range.
    #[error("`{text}` is not a valid {field} (expected an integer from 0 to {max})")]
    BadNumber {
        /// The field.
        field: &'static str,
        /// What stands there.
        text: String,
        /// The largest number that may stand there.
        max: u64,
    },
    /// A phase has a name that is no word.
    #[error(
        "`{0}` is not a valid phase name (expected one printable UTF-8 word of at most {most} bytes)",
        most = PhaseName::MAX_LEN
    )]
    BadPhase(String),
    /// A header entry is not text, or too long.
    #[error(
        "bad header entry `{0}` (expected `# key=value` in printable UTF-8, at most {most} bytes)",
        most = Header::MAX_LEN
    )]
    BadHeader(String),
    /// The header has no end in sight.
    #[error("the header is too long (expected at most {most} bytes of entries)", most = Header::MAX_TOTAL)]
    HeaderTooLong,
    /// An allocation of no bytes.
    #[error("size 0 (expected 1 to {MAX_SIZE} bytes)")]
    SizeZero,
    /// An allocation of more than [`MAX_SIZE`] bytes.
    #[error("size {0} is too large (expected 1 to {MAX_SIZE} bytes)")]
    SizeTooLarge(String),
    /// A device above [`MAX_DEVICE`].
    #[error("device {0} is out of range (expected 0 to {MAX_DEVICE})")]
    DeviceTooLarge(String),
    /// A stream waits for itself.
    #[error("stream {stream} of device {device} waits for itself (expected two streams)")]
    SelfWait {
        /// The device.
        device: u16,
        /// The stream.
        stream: u32,
    },
    /// An `x` line names one device twice.
    #[error("x between device {0} and itself (expected two devices, or a w line)")]
    AcrossOneDevice(
        /// The device.
        u16,
    ),
    /// An id is allocated a second time.
    #[error("id {id} was allocated before, on line {first_line} (expected an id not used yet)")]
    DuplicateId {
        /// The id.
        id: u64,
        /// Where it was allocated first.
        first_line: u64,
    },
    /// A free of an id that no line before has allocated.
    #[error("free of id {0}, which was never allocated (expected the id of a live block)")]
    FreeOfUnknownId(
        /// The id.
        u64,
    ),
    /// A use of an id that no line before has allocated.
    #[error("use of id {0}, which was never allocated (expected the id of a live block)")]
    UseOfUnknownId(
        /// The id.
        u64,
    ),
    /// A second free of one block.
    #[error(
        "double free of id {id}, freed before on line {freed_line} (expected a live block's id)"
    )]
    DoubleFree {
        /// The id.
        id: u64,
        /// Where it was freed first.
        freed_line: u64,
    },
    /// A use of a block after its free.
    #[error("use of id {id} after its free on line {freed_line} (expected a live block's id)")]
    UseAfterFree {
        /// The id.
        id: u64,
        /// Where it was freed.
        freed_line: u64,
    },
    /// A free on another stream than the block was allocated on.
    #[error(
        "free of id {id} on stream {stream} (expected stream {allocated_on}, where it was allocated)"
    )]
    WrongStream {
        /// The id.
        id: u64,
        /// The stream of the free.
        stream: u32,
        /// The stream of the allocation.
        allocated_on: u32,
    },
    /// More bytes live at once than 64 bits can count.
    #[error("more than 2^64 - 1 bytes are live (expected fewer over all devices together)")]
    TooManyBytes,
    /// More blocks than 32 bits can number.
    #[error("more than 2^32 - 1 blocks are allocated (expected fewer in one trace)")]
    TooManyBlocks,
}

/// `:LINE`, or nothing for line 0.
struct LineSuffix(u64);

impl std::fmt::Display for LineSuffix {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            0 => Ok(()),
            line => write!(f, ":{line}"),
        }
    }
}

/// Text from a file made fit for a one-line message.
pub(crate) fn excerpt(bytes: &[u8]) -> String {
    const MOST: usize = 40;
    // A character has four bytes at most, so this prefix holds all the characters to be shown.
    let head = &bytes[..bytes.len().min(4 * MOST + 4)];
    let text = String::from_utf8_lossy(head);
    let mut shown: String = text.chars().take(MOST).flat_map(char::escape_debug).collect();
    if text.chars().nth(MOST).is_some() {
        shown.push('…');
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn excerpts_are_short_and_printable() {
        assert_eq!(excerpt(b"abc"), "abc");
        assert_eq!(excerpt(b"\x1b[1m\xff"), "\\u{1b}[1m\u{fffd}");
        let long = excerpt("é".repeat(10_000).as_bytes());
        assert_eq!(long.chars().count(), 41);
        assert!(long.ends_with('…'));
    }

    #[test]
    fn displays_file_and_line() {
        let at =
            |line| TraceError { path: "dir/a.trace".into(), line, kind: TraceErrorKind::SizeZero };
        let what = "size 0 (expected 1 to 9223372036854775807 bytes)";
        assert_eq!(at(12).to_string(), format!("dir/a.trace:12: {what}"));
        assert_eq!(at(0).to_string(), format!("dir/a.trace: {what}"));
    }
}
