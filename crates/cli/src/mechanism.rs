//! The mechanisms of the field by name, as settings of the pool.

use clap::ValueEnum;
use millpond::{Buckets, Builder, Caching, Coalescing, Growth, Preallocation, Recycling};

/// How memory is managed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Mechanism {
    /// Millpond as it comes: hints in caches, best fit over all that is idle, stitching
    Pool,
    /// The same heap without stitching: pages stay where they were mapped
    Unstitched,
    /// No cache: every free goes back to the heap, which merges it at once; no stitching
    NoReuse,
    /// Freed blocks are kept for requests of exactly their size; no stitching
    Simple,
    /// Freed blocks are kept in buckets of sizes with limits; no stitching
    Bucketed,
    /// Bucketed, with stitching
    BucketedStitched,
    /// All memory is taken at the start: the capacity, or 1.02 times what the trace needs
    Fixed,
    /// Memory is taken ahead of need, by a factor and a headroom; no stitching
    Growing,
    /// Freed blocks wait, by watermarks, age and number, before they are merged; no stitching
    Delayed,
    /// Freed blocks are merged with their neighbours at once; no stitching
    Immediate,
    /// Freed blocks are merged in batches; no stitching
    Batched,
}

impl Mechanism {
    pub(crate) fn name(self) -> String {
        self.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
    }

    /// The pool's settings.
    pub(crate) fn apply(self, builder: Builder) -> Builder {
        match self {
            Self::Pool => builder,
            Self::Unstitched => builder.stitching(false),
            Self::NoReuse => builder.stitching(false).caching(Caching::Off),
            Self::Simple => builder.stitching(false).caching(Caching::Simple { limit: u64::MAX }),
            Self::Bucketed => {
                builder.stitching(false).caching(Caching::Bucketed(Buckets::default()))
            }
            Self::BucketedStitched => builder.caching(Caching::Bucketed(Buckets::default())),
            Self::Fixed => builder.preallocation(Preallocation::Fixed { bytes: u64::MAX }),
            Self::Growing => {
                builder.stitching(false).preallocation(Preallocation::Growing(Growth::default()))
            }
            Self::Delayed => builder.stitching(false).recycling(Recycling::default()),
            Self::Immediate => builder.stitching(false).coalescing(Coalescing::Immediate),
            Self::Batched => builder.stitching(false).coalescing(Coalescing::batched()),
        }
    }

    /// The capacity that it needs where none is given, as a multiple of the most that is live.
    pub(crate) fn capacity(self) -> Option<f64> {
        (self == Self::Fixed).then_some(1.02)
    }
}
