//! A whole trace in memory, ready to be replayed.

use std::io::Read;
use std::path::{Path, PathBuf};

use crate::check::Checker;
use crate::error::{TraceError, TraceErrorKind};
use crate::header::Header;
use crate::linemap::LineMap;
use crate::op::{Op, Record};
use crate::reader::Reader;
use crate::summary::Summary;

/// A trace in memory, with every rule of the format checked.
///
/// Its operations name blocks not by the ids of the file but by dense indices: the `n`-th block
/// allocated is block `n`, from 0. So a replay keeps its blocks in a `Vec` of
/// [`Trace::blocks`] slots and looks nothing up.
#[derive(Debug, Clone)]
pub struct Trace {
    path: PathBuf,
    name: String,
    header: Header,
    ops: Vec<Op>,
    lines: LineMap,
    /// The ids as written, by index.
    ids: Vec<u64>,
    summary: Summary,
}

impl Trace {
    /// Loads a file, compressed or not.
    ///
    /// # Errors
    /// The file cannot be read, or is no valid trace.
    pub fn load(path: impl AsRef<Path>) -> Result<Self, TraceError> {
        Reader::open(path).and_then(Self::collect)
    }

    /// Reads a trace from anything; `path` gives its name and stands in messages. There is no
    /// need to buffer `input`.
    ///
    /// # Errors
    /// The input cannot be read, or is no valid trace.
    pub fn read(path: impl Into<PathBuf>, input: impl Read) -> Result<Self, TraceError> {
        Reader::new(path, input).and_then(Self::collect)
    }

    /// Makes a trace of operations in hand, whose ids may be any. The `n`-th operation, from 1,
    /// counts as line `n`.
    ///
    /// # Errors
    /// The operations break a rule of the format.
    pub fn from_ops(
        path: impl Into<PathBuf>,
        header: Header,
        ops: impl IntoIterator<Item = Op>,
    ) -> Result<Self, TraceError> {
        let path = path.into();
        let mut checker = Checker::default();
        let mut admitted = Vec::new();
        let mut lines = LineMap::default();
        let mut line = 0;
        let admit_all = || -> Result<(), TraceErrorKind> {
            for mut op in ops {
                line += 1;
                op.check()?;
                checker.admit_numbered(&mut op, line)?;
                admitted.push(op);
                lines.push(line);
            }
            checker.end()
        };
        if let Err(kind) = admit_all() {
            let line = line.max(1);
            return Err(TraceError { path, line, kind });
        }
        let (summary, ids) = checker.finish();
        Ok(Self { name: name_of(&path), path, header, ops: admitted, lines, ids, summary })
    }

    /// The file, or the name given to the input.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The file's name without `.trace`, `.zst` or both.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The header.
    #[must_use]
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// The operations in order, blocks named by their index.
    #[must_use]
    pub fn ops(&self) -> &[Op] {
        &self.ops
    }

    /// How many blocks are allocated: their indices are `0..blocks()`.
    #[must_use]
    pub fn blocks(&self) -> usize {
        self.ids.len()
    }

    /// Counts, devices with their streams, and peaks.
    #[must_use]
    pub fn summary(&self) -> &Summary {
        &self.summary
    }

    /// The line on which `ops()[index]` stands, for messages.
    #[must_use]
    pub fn line(&self, index: usize) -> Option<u64> {
        self.lines.line(index)
    }

    /// The id that a block has in the file, for messages.
    #[must_use]
    pub fn id(&self, block: usize) -> Option<u64> {
        self.ids.get(block).copied()
    }

    fn collect<R: Read>(mut reader: Reader<R>) -> Result<Self, TraceError> {
        let mut ops = Vec::new();
        let mut lines = LineMap::default();
        while let Some(item) = reader.next_numbered() {
            let Record { line, op } = item?;
            ops.push(op);
            lines.push(line);
        }
        ops.shrink_to_fit();
        let end = reader.finish();
        Ok(Self {
            name: name_of(&end.path),
            path: end.path,
            header: end.header,
            ops,
            lines,
            ids: end.ids,
            summary: end.summary,
        })
    }
}

fn name_of(path: &Path) -> String {
    let file = path.file_name().unwrap_or(path.as_os_str());
    let file = file.to_string_lossy();
    let stem = file.strip_suffix(".zst").unwrap_or(&file);
    let stem = stem.strip_suffix(".trace").unwrap_or(stem);
    if stem.is_empty() { &file } else { stem }.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_stems() {
        for (path, name) in [
            ("dir/a.trace.zst", "a"),
            ("a.trace", "a"),
            ("a.zst", "a"),
            ("a.b", "a.b"),
            (".trace", ".trace"),
            ("", ""),
            ("/", "/"),
        ] {
            assert_eq!(name_of(Path::new(path)), name, "{path:?}");
        }
    }
}
