//! What the loom models in `loom-tests` look at: the shipped structures themselves.

pub use crate::block::{Descriptor, Fence, Hint, State, Word};
pub use crate::cache::{HintCache, Probe};
pub use crate::config::Settings;
pub use crate::core::{Core, Device, Enter, Grant, Handle};
pub use crate::defrag::Movables;
pub use crate::fence::{Events, Fences, Owner};
pub use crate::heap::{Addresses, Arena, Blocks, Denied, Gauge, Layout, Request, Tree};
pub use crate::lease::{end_leases, stray};
pub use crate::shard::Shards;
pub use crate::slot::{Place, Slot};
pub use crate::stats::Counters;
pub use crate::table::Table;

/// Streams are known by what `Fences::register` gives out; models of single structures make up
/// their own.
pub const fn stream(number: u16) -> crate::StreamId {
    crate::block::StreamId(number)
}
