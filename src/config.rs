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

/// The settings that the heap needs.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    pub reuse: Reuse,
    /// How long a miss may wait on the host for fences before it reports out-of-memory.
    pub host_wait: Duration,
}
