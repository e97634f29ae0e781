//! When a record is done, with [`Completion::Lag`](crate::Completion::Lag).
//!
//! ```text
//! done  <=>  clock >= at  and, for every hang before the record, clock >= its end + lag
//! ```
//!
//! A hang is an object of its own because it spreads: what waits for a record behind a hang is
//! behind it too, and so is a rendezvous with such a stream. All of them go on when it ends.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The time from which a stream hangs to the time at which it goes on.
#[derive(Debug)]
pub(crate) struct Hang {
    /// When it ended; `u64::MAX` as long as it lasts.
    ended: AtomicU64,
}

impl Hang {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self { ended: AtomicU64::new(u64::MAX) })
    }

    pub(crate) fn end(&self, now: u64) {
        self.ended.fetch_min(now, Relaxed);
    }

    /// When it ended, if it did.
    pub(crate) fn ended(&self) -> Option<u64> {
        let ended = self.ended.load(Relaxed);
        (ended != u64::MAX).then_some(ended)
    }
}

/// The hangs that something is behind.
pub(crate) type Behind = Vec<Arc<Hang>>;

/// Whether any of them lasts.
pub(crate) fn stuck(behind: &Behind) -> bool {
    behind.iter().any(|hang| hang.ended().is_none())
}

/// Adds hangs that are not there yet.
pub(crate) fn follow(behind: &mut Behind, others: &Behind) {
    for hang in others {
        if !behind.iter().any(|there| Arc::ptr_eq(there, hang)) {
            behind.push(Arc::clone(hang));
        }
    }
}

/// When something is done that would be done at `at` without the hangs; never, as long as one lasts.
pub(crate) fn done_at(at: u64, behind: &Behind, lag: u64) -> Option<u64> {
    behind.iter().try_fold(at, |at, hang| {
        let end = hang.ended()?;
        Some(at.max(end.saturating_add(lag)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hang_delays_until_its_end() {
        let (a, b) = (Hang::new(), Hang::new());
        let mut behind = vec![Arc::clone(&a)];
        follow(&mut behind, &vec![Arc::clone(&a), Arc::clone(&b)]);
        assert_eq!(behind.len(), 2);
        assert_eq!(done_at(10, &behind, 3), None);
        a.end(2);
        assert!(stuck(&behind));
        b.end(20);
        b.end(30);
        assert_eq!(done_at(10, &behind, 3), Some(23));
        assert!(!stuck(&behind));
    }
}
