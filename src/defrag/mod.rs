//! Moving live blocks, where their owners hold them by [`crate::Movable`]: when, which, and how many.
//!
//! Blocks move at one place only, a *step gap*, which the program says it has come to. [`compact`] says
//! which of them move where, [`generation`] which may at this gap, and for how many bytes, [`rate`] how
//! long that takes; the heap carries it out, under the arena's lock, by copies on the program's stream.
//!
//! Where pages can be mapped, idle ones go where they are needed without a copy (stitching), and what is
//! left to do is to join what lies within pages; elsewhere blocks move so that whole segments become idle.

mod compact;
mod gap;
mod generation;
mod rate;
mod trim;

pub(crate) use compact::{Kind, Piece, Stretch};
pub use gap::Movables;
pub use generation::{Budget, Generations};

use std::time::Duration;

/// Whether and how movable blocks move: see [`crate::Pool::step_gap`].
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[non_exhaustive]
pub enum Defragmentation {
    /// They stay where they are.
    #[default]
    Off,
    /// At every gap, whichever are worth it.
    Compaction {
        /// Most bytes to copy.
        budget: Budget,
    },
    /// Young ones at every gap, old ones now and then.
    Generational(Generations),
}

/// How long a step of the program takes, and how fast a device copies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum StepTiming {
    /// The host's time from the first gap of a step to that of the next, where
    /// [`crate::Pool::begin_step`] says where steps begin, or else from gap to gap; and a rate of copies
    /// that starts at 500 GB/s, and is corrected where the pool can see that copies took less or more.
    #[default]
    Measured,
    /// So long, and so fast.
    Given {
        /// The time of a step.
        step: Duration,
        /// Bytes that a device copies within its memory in a second.
        bytes_per_second: u64,
    },
}

/// What a step gap did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Moved {
    /// Blocks moved.
    pub blocks: u64,
    /// Their bytes.
    pub bytes: u64,
    /// How long the copies take, by the rate that is assumed: they run after the call, on its stream.
    pub time: Duration,
    /// Blocks that were worth moving when the budget was used up.
    pub left_blocks: u64,
    /// Their bytes.
    pub left_bytes: u64,
    /// Bytes of idle pages that were brought together, without copies.
    pub joined_bytes: u64,
    /// Bytes that went back to the driver.
    pub returned_bytes: u64,
}
