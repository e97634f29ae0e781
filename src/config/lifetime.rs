//! How long a block is to live, and which blocks the buddy system serves.

/// How long a block is expected to live. A wish about where it is put, not a promise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Lifetime {
    /// Comes and goes within a step of the program, or from one to the next.
    #[default]
    Transient,
    /// Lives for long: parameters, optimizer states, caches. Such blocks are kept together, away from
    /// those that come and go, where [`Buddy`] says so.
    Persistent,
}

/// Which blocks come from the buddy system: chunks of device memory that are halved again and again, and
/// whose halves find each other when both are free.
///
/// A chunk is about 1/256 of what is reserved, from 2 to 64 MiB; a request beyond half of one is served as it
/// would be without. So in a training program it is the smaller blocks that come from here. Blocks of less than a
/// mebibyte have chunks of their own. The first block at each place in a chunk is made under the heap's lock and
/// counts as the heap's in [`crate::Hits`]; later ones there are lock-free, and count as the buddy's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Buddy {
    /// None.
    Off,
    /// Those that are said to be [`Lifetime::Persistent`].
    #[default]
    LongLived,
    /// All.
    Everything,
}

impl Buddy {
    /// Whether blocks of this lifetime are the buddy system's.
    pub(crate) fn takes(self, lifetime: Lifetime) -> bool {
        match self {
            Self::Off => false,
            Self::LongLived => lifetime == Lifetime::Persistent,
            Self::Everything => true,
        }
    }
}
