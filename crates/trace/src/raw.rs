//! Streaming without memory: each line is checked by itself.

use std::fs::File;
use std::io::{BufRead, BufReader, ErrorKind, Read};
use std::path::{Path, PathBuf};

use crate::error::{TraceError, TraceErrorKind, excerpt};
use crate::header::Header;
use crate::input::Input;
use crate::op::Record;
use crate::parse::{self, Line};

/// The most bytes that a line may have. What exceeds it is no trace; the bound keeps a reader from
/// gathering a whole disk image as one line.
pub const MAX_LINE: usize = 1 << 16;

/// Streams the operations of a trace, checking each line by itself: its verb, its fields and their
/// ranges. It keeps nothing of what it has read but the header, so it does not know which ids are
/// live; [`Reader`](crate::Reader) does.
///
/// An iterator that ends after the first error.
pub struct RawReader<R: Read> {
    input: BufReader<Input<R>>,
    path: PathBuf,
    header: Header,
    /// The line in `text`, or the one that is being read.
    line: u64,
    text: Vec<u8>,
    /// Whether the first operation has been read, so that the header is complete.
    in_body: bool,
    ended: bool,
}

impl RawReader<File> {
    /// Opens a file.
    ///
    /// # Errors
    /// The file cannot be opened, or not even its first bytes be read.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, TraceError> {
        let path = path.as_ref();
        let file = File::open(path).map_err(|error| TraceError {
            path: path.to_owned(),
            line: 0,
            kind: TraceErrorKind::Open(error),
        })?;
        Self::new(path, file)
    }
}

impl<R: Read> RawReader<R> {
    /// Reads from anything; `path` stands in messages only. There is no need to buffer `input`.
    ///
    /// # Errors
    /// The first bytes cannot be read.
    pub fn new(path: impl Into<PathBuf>, input: R) -> Result<Self, TraceError> {
        let path = path.into();
        match Input::new(input) {
            Ok(input) => Ok(Self {
                input: BufReader::with_capacity(1 << 17, input),
                path,
                header: Header::new(),
                line: 0,
                text: Vec::new(),
                in_body: false,
                ended: false,
            }),
            Err(error) => Err(TraceError { path, line: 0, kind: TraceErrorKind::Read(error) }),
        }
    }

    /// The header as far as it has been read: complete once the first operation has been yielded.
    #[must_use]
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// The line read last, from 1; 0 before the first.
    #[must_use]
    pub fn line(&self) -> u64 {
        self.line
    }

    /// The file, or the name given to the input.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// An error at this line or, where nothing has been read, at line 1.
    pub(crate) fn error(&self, kind: TraceErrorKind) -> TraceError {
        TraceError { path: self.path.clone(), line: self.line.max(1), kind }
    }

    pub(crate) fn into_parts(self) -> (PathBuf, Header) {
        (self.path, self.header)
    }

    /// The next operation, or `None` at the end.
    fn advance(&mut self) -> Result<Option<Record>, TraceErrorKind> {
        while self.read_line()? {
            let text = self.text.strip_suffix(b"\n").unwrap_or(&self.text);
            match parse::line(text)? {
                Line::Blank => {}
                Line::Comment(_) if self.in_body => {}
                Line::Comment(comment) => read_comment(&mut self.header, comment)?,
                Line::Op(op) => {
                    self.in_body = true;
                    let line = self.line;
                    return Ok(Some(Record { line, op }));
                }
            }
        }
        Ok(None)
    }

    /// Fills `text` with the next line; `false` at the end.
    fn read_line(&mut self) -> Result<bool, TraceErrorKind> {
        self.text.clear();
        let most = MAX_LINE as u64 + 1;
        let read = self.input.by_ref().take(most).read_until(b'\n', &mut self.text);
        // At a failure it is the line behind the last complete one that could not be read.
        if !matches!(read, Ok(0)) {
            self.line += 1;
        }
        match read {
            Ok(0) => Ok(false),
            Ok(_) if self.text.len() > MAX_LINE && self.text.last() != Some(&b'\n') => {
                Err(TraceErrorKind::LineTooLong)
            }
            Ok(_) => Ok(true),
            Err(error) if !self.input.get_ref().is_zstd() => Err(TraceErrorKind::Read(error)),
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => {
                Err(TraceErrorKind::Truncated)
            }
            Err(error) => Err(TraceErrorKind::Damaged(error)),
        }
    }
}

impl<R: Read> Iterator for RawReader<R> {
    type Item = Result<Record, TraceError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.ended {
            return None;
        }
        let item = self.advance().map_err(|kind| self.error(kind)).transpose();
        self.ended = !matches!(item, Some(Ok(_)));
        item
    }
}

impl<R: Read> std::iter::FusedIterator for RawReader<R> {}

impl<R: Read> std::fmt::Debug for RawReader<R> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RawReader")
            .field("path", &self.path)
            .field("line", &self.line)
            .field("header", &self.header)
            .finish_non_exhaustive()
    }
}

/// Takes `key=value` into the header and leaves any other comment alone.
fn read_comment(header: &mut Header, comment: &[u8]) -> Result<(), TraceErrorKind> {
    let Some(equals) = comment.iter().position(|&b| b == b'=') else {
        return Ok(());
    };
    let bad = || TraceErrorKind::BadHeader(excerpt(comment.trim_ascii()));
    let text = std::str::from_utf8(comment).map_err(|_| bad())?;
    let (key, value) = (text[..equals].trim(), &text[equals + 1..]);
    if !Header::is_key(key) || header.push(key, value) {
        Ok(())
    } else if key.len() + value.len() <= Header::MAX_LEN && !header.has_room(key, value.trim()) {
        Err(TraceErrorKind::HeaderTooLong)
    } else {
        Err(bad())
    }
}
