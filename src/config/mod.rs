//! What can be set when a pool is built.

mod caching;
mod lifetime;
mod preallocation;
mod recycling;

pub(crate) use caching::BUCKETS;
pub use caching::{Bucket, BucketLimit, Buckets, Caching, Coalescing};
pub use lifetime::{Buddy, Lifetime};
pub use preallocation::{Growth, Preallocation};
pub use recycling::Recycling;

use crate::error::{LimitedBy, OutOfMemory};
use crate::sync::Arc;
use std::fmt;
use std::time::Duration;

/// When memory that one stream freed may serve another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reuse {
    /// Never before somebody knows the order already. No event is recorded or asked about, except as
    /// the last resort before out-of-memory.
    SameStream,
    /// Once the freeing streams' work has completed. Asks the driver; inserts no waits.
    Completed,
    /// Also earlier, the new stream waiting for the old one, where no other memory is to be had
    /// within the [`Headroom`]. A stream that hangs then holds up those that were made to wait for
    /// it; with [`Headroom::Unbounded`] that comes only once the capacity is reached.
    #[default]
    Wait,
}

/// How much more than the most that was ever live a device may hold while idle pages could be moved
/// instead.
///
/// Not counted are the first 32 MiB of small blocks' memory (192 MiB where large blocks take less
/// than 128), and memory that waits for other streams, up to 1/128 of the peak: it is replaced
/// rather than waited for. When moving does not serve a request, pages are created up to the
/// device's limit all the same.
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

/// Bytes of a device: above `high`, idle memory goes back to the driver until `low` is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Watermarks {
    pub low: u64,
    pub high: u64,
}

/// The user's last resort.
#[derive(Clone)]
pub struct Rescue(pub Arc<dyn Fn(&OutOfMemory) -> bool + Send + Sync>);

impl fmt::Debug for Rescue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Rescue")
    }
}

/// What holds for every device, and the rest of what its heap needs.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    pub reuse: Reuse,
    pub headroom: Headroom,
    /// Whether pages are moved before new ones are taken.
    pub stitching: bool,
    pub caching: Caching,
    pub coalescing: Coalescing,
    pub recycling: Option<Recycling>,
    pub preallocation: Preallocation,
    pub limited_by: LimitedBy,
    pub watermarks: Option<Watermarks>,
    /// Whether there are step gaps, at which blocks may move and idle memory comes together.
    pub gaps: bool,
    /// How long a miss may wait on the host for fences before it reports out-of-memory.
    pub host_wait: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            reuse: Reuse::default(),
            headroom: Headroom::default(),
            stitching: true,
            caching: Caching::default(),
            coalescing: Coalescing::default(),
            recycling: None,
            preallocation: Preallocation::default(),
            limited_by: LimitedBy::Device,
            watermarks: None,
            gaps: false,
            host_wait: Duration::from_secs(1),
        }
    }
}

/// What the caches keep of a freed block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kept {
    /// Its hint, as close to its thread as can be.
    Hints,
    /// Its hint; and the arena is told of each.
    Noted,
    /// Nothing; and the arena is told of each.
    Nothing,
}

impl Settings {
    /// What the caches keep.
    pub fn kept(&self) -> Kept {
        match (self.caching, self.coalescing) {
            (Caching::Off, _) => Kept::Nothing,
            (Caching::Open, Coalescing::OnDemand | Coalescing::Batched { .. })
                if self.recycling.is_none() =>
            {
                Kept::Hints
            }
            _ => Kept::Noted,
        }
    }
}
