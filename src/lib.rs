//! Millpond: a lock-free, multi-stream, multi-GPU device-memory pool.
#![warn(missing_docs)]
// The models see through `internals` what users do not.
#![cfg_attr(loom, allow(missing_docs, private_bounds, private_interfaces))]

mod block;
mod buffer;
mod cache;
mod config;
mod core;
pub mod driver;
mod error;
mod fence;
mod heap;
#[cfg(loom)]
#[doc(hidden)]
pub mod internals;
mod lease;
mod pool;
mod shard;
pub mod size;
mod stats;
mod stream;
mod sync;
mod table;

pub use block::StreamId;
pub use buffer::Buffer;
pub use config::Reuse;
pub use driver::DeviceId;
pub use error::{Error, OutOfMemory, Result};
pub use pool::{Builder, Pool};
pub use stats::{CrossStream, DeviceStats, Hits, Stats};
pub use stream::Stream;
