//! Writing traces, plain or compressed.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use crate::error::{TraceError, TraceErrorKind};
use crate::header::Header;
use crate::op::Op;

/// How a trace is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Encoding {
    /// As text.
    Plain,
    /// Compressed with zstd.
    Zstd {
        /// zstd's level: 1 (fast) to 22 (small), 0 for its default.
        level: i32,
    },
}

/// Writes a trace: the header at once, then operation by operation.
///
/// Each operation is checked by itself, so that every line written is a valid one. That ids are
/// live when they should be is the caller's part; it may be checked by reading the trace back.
///
/// The trace is complete only after [`Writer::finish`]: a writer dropped before leaves out what it
/// has buffered, and a compressed file then reads as [`Truncated`](TraceErrorKind::Truncated).
pub struct Writer<W: Write> {
    sink: Sink<W>,
    path: PathBuf,
    /// The lines written.
    line: u64,
}

enum Sink<W: Write> {
    Plain(BufWriter<W>),
    Zstd(BufWriter<zstd::stream::write::Encoder<'static, W>>),
}

impl Writer<File> {
    /// Creates a file, in place of one that exists, and writes the header.
    ///
    /// # Errors
    /// The file cannot be created or written.
    pub fn create(
        path: impl AsRef<Path>,
        encoding: Encoding,
        header: &Header,
    ) -> Result<Self, TraceError> {
        let path = path.as_ref();
        let file = File::create(path).map_err(|error| TraceError {
            path: path.to_owned(),
            line: 0,
            kind: TraceErrorKind::Open(error),
        })?;
        Self::new(path, file, encoding, header)
    }
}

impl<W: Write> Writer<W> {
    /// Writes to anything, beginning with the header; `path` stands in messages only. There is no
    /// need to buffer `output`.
    ///
    /// # Errors
    /// The output cannot be written.
    pub fn new(
        path: impl Into<PathBuf>,
        output: W,
        encoding: Encoding,
        header: &Header,
    ) -> Result<Self, TraceError> {
        let path = path.into();
        let sink = match Sink::new(output, encoding) {
            Ok(sink) => sink,
            Err(error) => {
                return Err(TraceError { path, line: 0, kind: TraceErrorKind::Write(error) });
            }
        };
        let mut writer = Self { sink, path, line: 0 };
        for (key, value) in header.iter() {
            writer.put(format_args!("# {key}={value}"))?;
        }
        Ok(writer)
    }

    /// Appends an operation.
    ///
    /// # Errors
    /// The operation breaks a rule of the format, and nothing is written; or writing fails.
    pub fn write(&mut self, op: &Op) -> Result<(), TraceError> {
        match op.check() {
            Ok(()) => self.put(format_args!("{op}")),
            Err(kind) => Err(TraceError { path: self.path.clone(), line: self.line + 1, kind }),
        }
    }

    /// Completes the trace and returns the output.
    ///
    /// # Errors
    /// Writing fails.
    pub fn finish(self) -> Result<W, TraceError> {
        let Self { sink, path, line } = self;
        sink.finish().map_err(|error| TraceError { path, line, kind: TraceErrorKind::Write(error) })
    }

    fn put(&mut self, text: std::fmt::Arguments<'_>) -> Result<(), TraceError> {
        self.line += 1;
        let written = match &mut self.sink {
            Sink::Plain(out) => writeln!(out, "{text}"),
            Sink::Zstd(out) => writeln!(out, "{text}"),
        };
        written.map_err(|error| TraceError {
            path: self.path.clone(),
            line: self.line,
            kind: TraceErrorKind::Write(error),
        })
    }
}

impl<W: Write> Sink<W> {
    fn new(output: W, encoding: Encoding) -> io::Result<Self> {
        Ok(match encoding {
            Encoding::Plain => Sink::Plain(BufWriter::new(output)),
            Encoding::Zstd { level } => {
                let mut encoder = zstd::stream::write::Encoder::new(output, level)?;
                // Without it a flipped bit is often a valid frame of another trace.
                encoder.include_checksum(true)?;
                Sink::Zstd(BufWriter::new(encoder))
            }
        })
    }

    fn finish(self) -> io::Result<W> {
        let mut output = match self {
            Sink::Plain(out) => out.into_inner().map_err(io::IntoInnerError::into_error)?,
            Sink::Zstd(out) => {
                out.into_inner().map_err(io::IntoInnerError::into_error)?.finish()?
            }
        };
        output.flush()?;
        Ok(output)
    }
}

impl<W: Write> std::fmt::Debug for Writer<W> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Writer")
            .field("path", &self.path)
            .field("line", &self.line)
            .finish_non_exhaustive()
    }
}
