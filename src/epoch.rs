//! Host epochs: when no thread can still be reading a replaced hint table.
//!
//! The pools have a collector of their own. Whoever enters an epoch may have to run what others left
//! for its end; of the process-wide collector's users that could be anything, in the middle of a free:
//! code that blocks, or that comes back to the pool.

use crossbeam_epoch::{Collector, Guard};

#[cfg(not(loom))]
pub(crate) fn collector() -> &'static Collector {
    static COLLECTOR: std::sync::LazyLock<Collector> = std::sync::LazyLock::new(Collector::new);
    &COLLECTOR
}

/// Each execution of a model has its own.
#[cfg(loom)]
pub(crate) fn collector() -> &'static Collector {
    crossbeam_epoch::default_collector()
}

/// Enters a host epoch where there is no lease to do so with: allocates.
#[cfg(not(loom))]
pub(crate) fn pin() -> Guard {
    collector().register().pin()
}

/// A model's thread has one handle for all its visits.
#[cfg(loom)]
pub(crate) fn pin() -> Guard {
    crossbeam_epoch::pin()
}
