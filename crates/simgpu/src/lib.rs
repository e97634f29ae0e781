//! Simulated GPUs with a race oracle, for testing device-memory code without a GPU.
//!
//! [`Sim`] is a machine with any number of GPUs, seen through the calls of a driver: plain
//! allocation and virtual memory management, streams, events, stream waits, copies and fills. Work
//! on streams declares the ranges it reads and writes ([`Touch`]). There are three reasons to use it
//! rather than a GPU:
//!
//! - It *finds races*. With [`Builder::oracle`] on, two touches of one byte that nothing orders, a
//!   touch of memory that is gone, memory given up while work in flight may touch it, and stale
//!   content are [`Hazard`]s, whatever the timing happened to be. See the [`oracle`] module.
//! - It is *adverse and reproducible*. Completion lags, or streams run in an order that a seed
//!   decides ([`Completion`]); streams [hang](Sim::hang); any call fails on request ([`Fault`]);
//!   a device's context [goes](Sim::destroy_context).
//! - It *counts*. Each call is counted and priced in simulated time ([`Counters`], [`Costs`]), and
//!   what was not given back is known ([`Leaks`]).
//!
//! # Truths about drivers that it keeps
//!
//! - An event that was never recorded is done.
//! - A stream wait keeps the record that was current when it was submitted.
//! - The handle of a destroyed stream goes to the next stream created, and its work still runs.
//! - Addresses are handed out again as soon as they are free.
//! - Unmapping does not wait for work in flight; freeing a plain allocation waits for the device.
//! - Unmapping a part of a mapping, or a range with a hole, is an error; so is granting access to
//!   one. Mapped memory is touched by no device that was not granted access to that very mapping,
//!   peer access or not.
//! - A page's memory is in use until it is released *and* no longer mapped anywhere.
//! - Recording needs an event of the stream's device; waiting does not.
//!
//! # Example
//!
//! ```
//! use millpond_simgpu::{HazardKind, Sim, Touch};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let sim = Sim::builder().oracle(true).build()?;
//! let (producer, consumer) = (sim.stream_create(0)?, sim.stream_create(0)?);
//! let block = sim.malloc(0, 4096)?;
//!
//! // An event orders the read after the write.
//! sim.launch(producer, &[Touch::write(block, 4096)])?;
//! let event = sim.event_create(0)?;
//! sim.event_record(event, producer)?;
//! sim.stream_wait(consumer, event)?;
//! sim.launch(consumer, &[Touch::read(block, 4096)])?;
//! assert_eq!(sim.hazard_count(), 0);
//!
//! // Nothing orders the next write after that read.
//! sim.launch(producer, &[Touch::write(block, 4096)])?;
//! assert_eq!(sim.hazards()[0].kind(), HazardKind::Unordered);
//! # Ok(()) }
//! ```

mod asynchronous;
mod builder;
mod call;
mod cost;
mod error;
mod event;
mod fault;
mod host;
mod lag;
mod meeting;
mod memory;
mod meter;
pub mod oracle;
mod rng;
mod sched;
mod sim;
mod slots;
mod stream;
mod sync;
mod vm;
mod work;

pub use builder::{Builder, Completion};
pub use call::{Call, Counters};
pub use cost::Costs;
pub use error::{BuildError, ErrorCode, Result, SimError};
pub use event::Event;
pub use fault::Fault;
pub use host::HostCall;
pub use meeting::Meeting;
pub use memory::{DeviceBytes, Mismatch};
pub use oracle::{Access, Hazard, HazardKind};
pub use sim::{Leaks, Sim};
pub use stream::Stream;
pub use vm::Page;
pub use work::Touch;
