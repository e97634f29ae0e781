//! What becomes of a block between its free and its next use.

/// Which requests a freed block may serve while it lies in a cache.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Caching {
    /// A freed block is found by its own stream at once, by its size, and is all the same open to the
    /// heap, which may cut it, merge it, or move its pages. Nothing is held back.
    #[default]
    Open,
    /// Nothing is cached: every freed block goes back to the heap, every request is the heap's.
    Off,
    /// Freed blocks are kept whole and serve requests of exactly their size. The least recently used
    /// gives way first, where others exceed the limit or memory would otherwise be taken beyond the
    /// pool's headroom. Limits are each device's, and looked at when a request misses the caches and when a
    /// step begins: frees alone may exceed them until then.
    Simple {
        /// Most bytes that wait in the cache.
        limit: u64,
    },
    /// As `Simple`, with a limit for each bucket of sizes; and a block serves what is a little
    /// smaller, too.
    Bucketed(Buckets),
}

/// The three buckets of sizes of [`Caching::Bucketed`]. By default 32, 128 and 256 MiB of each device may wait,
/// and blocks from 1 MiB serve requests of up to a 64th less.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Buckets {
    /// Blocks below 1 MiB.
    pub small: BucketLimit,
    /// From 1 to 100 MiB.
    pub medium: BucketLimit,
    /// Above 100 MiB.
    pub large: BucketLimit,
}

/// What one bucket keeps.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BucketLimit {
    /// Most bytes that wait in it; the least recently used block goes first.
    pub bytes: u64,
    /// A block serves a request of at most this share less than itself, from 0 to 1. What it has
    /// beyond the request is wasted until it is freed. Small blocks have size classes, and serve
    /// their own.
    pub slack: f64,
}

impl Default for Buckets {
    fn default() -> Self {
        Self {
            small: BucketLimit { bytes: 32 << 20, slack: 0.0 },
            medium: BucketLimit { bytes: 128 << 20, slack: 1.0 / 64.0 },
            large: BucketLimit { bytes: 256 << 20, slack: 1.0 / 64.0 },
        }
    }
}

/// A bucket of sizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bucket {
    /// Below 1 MiB.
    Small = 0,
    /// From 1 to 100 MiB.
    Medium = 1,
    /// Above 100 MiB.
    Large = 2,
}

/// Buckets of sizes.
pub(crate) const BUCKETS: usize = 3;

impl Bucket {
    /// Every bucket, by size.
    pub const ALL: [Self; BUCKETS] = [Self::Small, Self::Medium, Self::Large];

    /// The bucket of a block or request of `bytes`.
    #[must_use]
    pub const fn of(bytes: u64) -> Self {
        match bytes {
            0..0x10_0000 => Self::Small,
            0x10_0000..=0x640_0000 => Self::Medium,
            _ => Self::Large,
        }
    }
}

/// When a freed block is merged with its free neighbours.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Coalescing {
    /// When the arena next looks with one that is free already; with one that is cached only once a
    /// request fits nowhere else.
    #[default]
    OnDemand,
    /// With all of them when the arena next looks: nothing stays in one piece that could be part of
    /// a larger one.
    Immediate,
    /// All at once, each time that so many blocks were freed, or that so much of what is reserved
    /// lies idle; and before memory is taken beyond the pool's headroom.
    Batched {
        /// Frees of large blocks from one time to the next.
        frees: u32,
        /// Idle share of what is reserved, from 0 to 1.
        fragmentation: f64,
    },
}

impl Coalescing {
    /// In batches of 256 frees, or at 30 % idle.
    #[must_use]
    pub const fn batched() -> Self {
        Self::Batched { frees: 256, fragmentation: 0.3 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_meet_at_a_mebibyte_and_a_hundred() {
        const MIB: u64 = 1 << 20;
        let buckets = [1, MIB - 1, MIB, 100 * MIB, 100 * MIB + 1, u64::MAX].map(Bucket::of);
        let [a, b, c] = Bucket::ALL;
        assert_eq!(buckets, [a, a, b, b, c, c]);
    }
}
