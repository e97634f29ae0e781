//! Allocation traces: what a program asked of its device-memory pool, one operation a line.
//!
//! # The format
//!
//! Plain text, optionally compressed with zstd; which of the two is told by the file's first
//! bytes, never by its name. Operations stand in program order.
//!
//! ```text
//! # key=value                          header: model, batch, steps, ...
//! a <id> <device> <stream> <size>      allocate `size` bytes (as asked for, not rounded)
//! f <id> <stream>                      free, on the stream the block was allocated on
//! u <id> <stream>                      the block is also used on that stream, until its free
//! w <device> <waiter> <signaller>      a stream waits for the work so far on another
//! x <dev> <waiter> <dev2> <signaller>  the same, between two devices
//! m step <n>                           a step begins
//! m phase <name>                       a phase begins: forward, backward, optimizer, ...
//! ```
//!
//! An id is used once in a trace. Streams are numbered per device and 0 is the default one. What
//! is live at the end is simply not freed. Beyond that the readers forgive what editors do to
//! text: runs of blanks between fields, `\r\n`, blank lines, and `#` lines that are no
//! `key=value`, or that stand below the first operation, as comments.
//!
//! # Three ways in, one way out
//!
//! - [`Trace::load`] reads a whole trace into memory, renumbers its blocks densely and sums it up:
//!   what a replay wants.
//! - [`Reader`] streams the operations, checking every rule above as it goes.
//! - [`RawReader`] streams them checking each line by itself only.
//! - [`Writer`] writes the format, plain or compressed.
//!
//! Every failure is a [`TraceError`] that names file and line. No input makes this crate panic, and
//! no line makes it hold more than [`MAX_LINE`] bytes.
//!
//! ```
//! use millpond_trace::{Op, Trace};
//!
//! let text = "# model=toy\na 7 0 0 4096\nu 7 1\nw 0 1 0\nf 7 0\n";
//! let trace = Trace::read("toy.trace", text.as_bytes())?;
//! assert_eq!(trace.name(), "toy");
//! assert_eq!(trace.header().get("model"), Some("toy"));
//! assert_eq!(trace.ops()[0], Op::Alloc { id: 0, device: 0, stream: 0, bytes: 4096 });
//! assert_eq!(trace.summary().devices[0].peak_live_bytes, 4096);
//!
//! let error = Trace::read("toy.trace", "a 7 0 0 4096\nf 8 0\n".as_bytes()).unwrap_err();
//! assert_eq!(
//!     error.to_string(),
//!     "toy.trace:2: free of id 8, which was never allocated (expected the id of a live block)",
//! );
//! # Ok::<(), millpond_trace::TraceError>(())
//! ```
#![forbid(unsafe_code)]

mod blocks;
mod check;
mod error;
mod header;
mod input;
mod linemap;
mod op;
mod parse;
mod phase;
mod raw;
mod reader;
mod summary;
mod trace;
mod writer;

pub use error::{TraceError, TraceErrorKind};
pub use header::Header;
pub use op::{MAX_DEVICE, MAX_SIZE, Op, Record};
pub use phase::{Phase, PhaseName};
pub use raw::{MAX_LINE, RawReader};
pub use reader::Reader;
pub use summary::{Counts, DeviceSummary, Summary};
pub use trace::Trace;
pub use writer::{Encoding, Writer};
