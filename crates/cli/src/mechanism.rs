//! The mechanisms of the field by name, as settings of the pool.

use crate::replay::Declared;
use clap::ValueEnum;
use millpond::{
    Buckets, Buddy, Budget, Builder, Caching, Coalescing, Defragmentation, Generations, Growth,
    Planning, Preallocation, Recycling, StepTiming,
};
use std::time::Duration;

/// How long a step of a trace is taken to last, since traces say nothing of time.
pub(crate) const STEP: Duration = Duration::from_millis(200);
/// Bytes that a device is taken to copy within its memory in a second: half of what A100-class devices
/// read and write together.
const COPY_RATE: u64 = 750_000_000_000;

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
    /// What recurs from step to step has its place in a plan, made after two steps
    Planned,
    /// A buddy system for blocks that outlive their step; the rest as it comes
    LongLived,
    /// A buddy system for everything; no stitching
    Buddy,
    /// A buddy system for blocks that outlive their step, delayed recycling for the rest; no stitching
    DelayedBuddy,
    /// Movable blocks are moved together at step gaps; no stitching
    Compaction,
    /// The same with stitching
    CompactionStitched,
    /// Young movable blocks are moved at every gap and old ones at every hundredth, within 5 % of a
    /// step; no stitching
    Generational,
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
            Self::Planned => builder.planned(Planning::default()),
            Self::LongLived => builder.buddy(Buddy::LongLived),
            Self::Buddy => builder.stitching(false).buddy(Buddy::Everything),
            Self::DelayedBuddy => {
                builder.stitching(false).buddy(Buddy::LongLived).recycling(Recycling::default())
            }
            Self::Compaction => moving(
                builder.stitching(false),
                Defragmentation::Compaction { budget: Budget::Unlimited },
            ),
            Self::CompactionStitched => {
                moving(builder, Defragmentation::Compaction { budget: Budget::Unlimited })
            }
            Self::Generational => {
                let generations = Defragmentation::Generational(Generations::default());
                moving(builder.stitching(false), generations)
            }
        }
    }

    /// Whether it asks where steps begin: they are those of one copy of a trace.
    pub(crate) fn counts_steps(self) -> bool {
        matches!(self, Self::Planned) || self.moves()
    }

    /// Whether blocks are movable.
    pub(crate) fn moves(self) -> bool {
        matches!(self, Self::Compaction | Self::CompactionStitched | Self::Generational)
    }

    /// What a replay says of its blocks.
    pub(crate) fn declares(self) -> Declared {
        match self {
            Self::LongLived | Self::Buddy | Self::DelayedBuddy => Declared::Lasting,
            Self::Compaction | Self::CompactionStitched | Self::Generational => Declared::Movable,
            _ => Declared::Nothing,
        }
    }

    /// The capacity that it needs where none is given, as a multiple of the most that is live.
    pub(crate) fn capacity(self) -> Option<f64> {
        (self == Self::Fixed).then_some(1.02)
    }
}

fn moving(builder: Builder, how: Defragmentation) -> Builder {
    let timing = StepTiming::Given { step: STEP, bytes_per_second: COPY_RATE };
    builder.defragmentation(how).step_timing(timing)
}
