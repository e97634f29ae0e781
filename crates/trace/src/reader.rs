//! Streaming with every rule checked.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use crate::check::Checker;
use crate::error::{TraceError, TraceErrorKind};
use crate::header::Header;
use crate::op::Record;
use crate::raw::RawReader;
use crate::summary::Summary;

/// Streams the operations of a trace and checks every rule: those of [`RawReader`], that an id is
/// allocated once, freed at most once, on its own stream, used only while it is live, and that
/// there is an operation at all. Ids are yielded as written.
///
/// An iterator that ends after the first error. It remembers every id of the trace.
pub struct Reader<R: Read> {
    raw: RawReader<R>,
    checker: Checker,
    ended: bool,
}

/// What is left of a reader that has come to its end.
pub(crate) struct Finished {
    pub(crate) path: PathBuf,
    pub(crate) header: Header,
    pub(crate) summary: Summary,
    /// The ids as written, by block number.
    pub(crate) ids: Vec<u64>,
}

impl Reader<File> {
    /// Opens a file.
    ///
    /// # Errors
    /// The file cannot be opened, or not even its first bytes be read.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, TraceError> {
        RawReader::open(path).map(Self::over)
    }
}

impl<R: Read> Reader<R> {
    /// Reads from anything; `path` stands in messages only. There is no need to buffer `input`.
    ///
    /// # Errors
    /// The first bytes cannot be read.
    pub fn new(path: impl Into<PathBuf>, input: R) -> Result<Self, TraceError> {
        RawReader::new(path, input).map(Self::over)
    }

    /// The header as far as it has been read: complete once the first operation has been yielded.
    #[must_use]
    pub fn header(&self) -> &Header {
        self.raw.header()
    }

    /// The line read last, from 1; 0 before the first.
    #[must_use]
    pub fn line(&self) -> u64 {
        self.raw.line()
    }

    /// The file, or the name given to the input.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.raw.path()
    }

    /// The summary of what has been read: of the whole trace once the iterator has ended without
    /// an error.
    #[must_use]
    pub fn into_summary(self) -> Summary {
        self.checker.finish().0
    }

    fn over(raw: RawReader<R>) -> Self {
        Self { raw, checker: Checker::default(), ended: false }
    }

    /// The next operation, which names its block by number.
    pub(crate) fn next_numbered(&mut self) -> Option<Result<Record, TraceError>> {
        self.advance(|checker, record| checker.admit_numbered(&mut record.op, record.line))
    }

    pub(crate) fn finish(self) -> Finished {
        let (path, header) = self.raw.into_parts();
        let (summary, ids) = self.checker.finish();
        Finished { path, header, summary, ids }
    }

    /// The next operation that `admit` lets through.
    fn advance(
        &mut self,
        admit: impl FnOnce(&mut Checker, &mut Record) -> Result<(), TraceErrorKind>,
    ) -> Option<Result<Record, TraceError>> {
        if self.ended {
            return None;
        }
        let item = match self.raw.next() {
            Some(Ok(mut record)) => match admit(&mut self.checker, &mut record) {
                Ok(()) => return Some(Ok(record)),
                Err(kind) => Some(Err(self.raw.error(kind))),
            },
            Some(Err(error)) => Some(Err(error)),
            None => self.checker.end().err().map(|kind| Err(self.raw.error(kind))),
        };
        self.ended = true;
        item
    }
}

impl<R: Read> Iterator for Reader<R> {
    type Item = Result<Record, TraceError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.advance(|checker, record| checker.admit(&record.op, record.line).map(drop))
    }
}

impl<R: Read> std::iter::FusedIterator for Reader<R> {}

impl<R: Read> std::fmt::Debug for Reader<R> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reader").field("raw", &self.raw).finish_non_exhaustive()
    }
}
