//! What can be set when a pool is built.

use std::time::Duration;

/// When memory that one stream freed may serve another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reuse {
    /// Never before somebody knows the order already. No event is recorded or asked about, except as
    /// the last resort before out-of-memory.
    SameStream,
    /// Once the freeing streams' work has completed. Asks the driver; inserts no waits.
    Completed,
    /// Also earlier, the new stream waiting for the old one.
    #[default]
    Wait,
}

/// How much more than the most that was ever live a device may hold while idle pages could be moved
/// instead.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Headroom {
    /// A little: under one per cent, a few megabytes where the peak is small.
    #[default]
    Automatic,
    /// This share of the peak.
    Share(f64),
    /// Whatever the device's capacity allows.
    Unbounded,
}

/// The settings that the heap needs.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    pub reuse: Reuse,
    pub headroom: Headroom,
    /// How long a miss may wait on the host for fences before it reports out-of-memory.
    pub host_wait: Duration,
}
