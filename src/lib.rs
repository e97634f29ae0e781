//! Millpond: a lock-free, multi-stream, multi-GPU device-memory pool.
//!
//! A [`Pool`] takes physical memory from a [driver](driver::Driver) and serves blocks of it to
//! [`Stream`]s, as [`Buffer`]s that may be dropped from any thread, or by raw address.
//!
//! # Ordering
//!
//! Memory follows *stream order*. A buffer may be used by work submitted to its stream after the
//! allocation. Its drop ends that: whatever was submitted before is over before another stream gets
//! the memory, and the same stream may get it at once, since its later work comes after. Uses on
//! other streams are the caller's to order ([`Stream::wait`]) and to declare ([`Buffer::record_use`],
//! [`Buffer::last_use`]).
//!
//! # Memory
//!
//! Address space is reserved when the pool is built, pages are mapped as they are needed, and
//! [`Pool::trim`] gives idle ones back. A device without virtual memory management gives plain
//! allocations instead, of which nothing can move. [`Pool::stats`] says what is live, what is reserved, and
//! which layer served.
//!
//! # Trouble
//!
//! A driver call that fails is an [`Error::Driver`] with the driver's own code, and leaves the pool as
//! it was: what needs no such call goes on. Memory of a stream about which the driver gives no answer
//! serves that stream alone. A device whose context was destroyed, by somebody else in the process,
//! answers with the driver's errors, and the others go on. Frees and drops never fail: what the
//! driver does not take back is leaked quietly, as it is when the driver has shut down before them.
//!
//! A pool does not follow into a forked child: there its calls are refused ([`Error::Forked`]), and
//! its drops and frees do nothing. The child may build a pool of its own, over a driver of its own.
//!
//! `ARCHITECTURE.md` in the repository follows one allocation and one free through the layers, and
//! lists what is lock-free.
#![deny(unsafe_op_in_unsafe_fn, missing_docs)]
// The models see through `internals` what users do not.
#![cfg_attr(loom, allow(missing_docs, private_bounds, private_interfaces))]

mod block;
mod buffer;
mod builder;
mod cache;
mod config;
mod core;
mod defrag;
pub mod driver;
mod epoch;
mod error;
mod fence;
mod fork;
mod graph;
mod heap;
#[cfg(loom)]
#[doc(hidden)]
pub mod internals;
#[cfg(feature = "cuda")]
pub mod interop;
mod lease;
mod level;
mod movable;
mod pin;
pub mod plan;
mod planned;
mod pool;
mod recorder;
mod recycle;
mod shard;
pub mod size;
mod slot;
mod stats;
mod stream;
mod sync;
mod table;

pub use block::StreamId;
pub use buffer::Buffer;
pub use builder::Builder;
pub use config::{
    Bucket, BucketLimit, Buckets, Buddy, Caching, Coalescing, Growth, Headroom, Lifetime,
    Preallocation, Recycling, Reuse,
};
pub use defrag::{Budget, Defragmentation, Generations, Moved, StepTiming};
pub use driver::DeviceId;
pub use error::{Error, LimitedBy, OutOfMemory, Result, StreamBytes};
pub use graph::{Capture, GraphMemory};
#[doc(hidden)]
pub use level::Level;
pub use movable::{Movable, Pinned};
pub use pin::Pin;
pub use planned::Planning;
pub use pool::Pool;
pub use recorder::Profiling;
pub use stats::{
    BucketStats, BuddyStats, CrossStream, DeviceStats, Hits, Ladder, Merging, Moves, Stats,
};
pub use stream::Stream;

/// The README's program, compiled and run.
#[cfg(all(doctest, feature = "sim"))]
#[doc = include_str!("../README.md")]
struct Readme;
