//! The caches: where a freed block waits for its own stream.
//!
//! Both hold hints. The thread cache is plain memory of one thread; the stream cache is shared by
//! the threads that use the stream. Only blocks whose fence set is exactly their stream get in, so
//! whatever comes out may be used at once.

mod bins;
pub(crate) mod thread;

pub use bins::{HintCache, Probe};
