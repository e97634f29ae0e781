//! How thoroughly a pool's invariants are checked.

/// How much [`crate::Pool::check_invariants_at`] looks at. Each level looks at what the ones before
/// do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Counters, and the ends of lists: the same time however much there is. Other threads may use
    /// the pool meanwhile.
    Cheap,
    /// Every extent, list and page. Other threads may use the pool meanwhile.
    Heap,
    /// Also what others than the arena write: hints, notes, fences, seals, events. No other thread
    /// may use the pool meanwhile.
    Full,
}
