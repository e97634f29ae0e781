//! Delayed recycling: how long freed blocks wait in one piece before the heap has them.

use std::time::Duration;

/// Freed blocks wait, whole, for a request of their own size, and go back to the heap in batches:
/// the longest waiting first, whenever one of these bounds is exceeded. Bounds are looked at when a
/// request misses the caches and when a step begins; a block that was used again in the meantime
/// starts anew. Nothing blocks: a block that the device is not done with is merged only with what
/// waits for the same work. By default blocks above 256 MiB go at once, waiting bytes go down to 5 % of what is
/// reserved when they exceed 15 %, no block waits for more than 10 s or 4 steps, at most 65,536 wait, those past
/// their age go 64 at a time, and all of them when 30 % of what is reserved is idle.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Recycling {
    /// Blocks of more bytes go back at once.
    pub threshold: u64,
    /// Share of what is reserved, from 0 to 1, down to which waiting bytes go when they exceed `high`.
    pub low: f64,
    /// Share of what is reserved that may wait.
    pub high: f64,
    /// How long a block may wait.
    pub age: Duration,
    /// How many steps ([`crate::Pool::begin_step`]) a block may wait.
    pub steps: u64,
    /// Most blocks that wait.
    pub blocks: usize,
    /// Blocks that are past their age go back once so many are.
    pub batch: usize,
    /// Idle share of what is reserved, from 0 to 1, above which all that waits goes back.
    pub fragmentation: f64,
}

impl Default for Recycling {
    fn default() -> Self {
        Self {
            threshold: 256 << 20,
            low: 0.05,
            high: 0.15,
            age: Duration::from_secs(10),
            steps: 4,
            blocks: 65_536,
            batch: 64,
            fragmentation: 0.3,
        }
    }
}
