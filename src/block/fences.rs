//! Fence sets: which streams' work must be over before a block's bytes may be touched again.

use super::{Descriptor, Fence, INLINE, StreamId};
use crate::sync::{AtomicPtr, AtomicU64, Ordering};

/// Further fences of a block that more than [`INLINE`] streams use. A row stays with its
/// descriptor once made, so a claim frees nothing.
#[derive(Default)]
pub(crate) struct Row {
    entries: [AtomicU64; 15],
    next: AtomicPtr<Row>,
}

impl Descriptor {
    /// Calls `each` with every fence entry in use, inline ones first. Entries fill from the front:
    /// the first empty one ends the set.
    fn entries(&self, mut each: impl FnMut(&AtomicU64, Fence)) {
        self.try_entries(|entry, fence| {
            each(entry, fence);
            true
        });
    }

    /// As `entries`, until `each` answers false. Says whether it never did.
    #[inline]
    fn try_entries(&self, mut each: impl FnMut(&AtomicU64, Fence) -> bool) -> bool {
        for entry in &self.fences {
            let fence = Fence(entry.load(Ordering::Relaxed));
            if fence.is_none() {
                return true;
            }
            if !each(entry, fence) {
                return false;
            }
        }
        let mut link = &self.spill;
        // Acquire pairs with the release CAS of `record_use`, which publishes a fresh row.
        // SAFETY: a published row is freed only by the descriptor's drop, which has `&mut self`.
        while let Some(row) = unsafe { link.load(Ordering::Acquire).as_ref() } {
            for entry in &row.entries {
                let fence = Fence(entry.load(Ordering::Relaxed));
                if fence.is_none() {
                    return true;
                }
                if !each(entry, fence) {
                    return false;
                }
            }
            link = &row.next;
        }
        true
    }

    /// Whether `test` holds for every fence, up to the first for which it does not. Safe to call on
    /// a block that one does not own: the answer counts if the claim that follows succeeds on the
    /// word read before.
    #[inline]
    pub fn all_fences(&self, mut test: impl FnMut(Fence) -> bool) -> bool {
        self.try_entries(|_, fence| test(fence))
    }

    /// Calls `each` with every fence.
    pub fn for_each_fence(&self, mut each: impl FnMut(Fence)) {
        self.entries(|_, fence| each(fence));
    }

    /// Owner: the block now belongs to `stream` alone; what it was used on before is settled.
    pub fn reset_fences(&self, stream: StreamId) {
        self.fences[0].store(Fence::open(stream).0, Ordering::Relaxed);
        for entry in &self.fences[1..] {
            entry.store(0, Ordering::Relaxed);
        }
        if !self.spill.load(Ordering::Relaxed).is_null() {
            self.clear_spill();
        }
    }

    /// Owner: replaces the set. Allocates a row when the set does not fit inline.
    #[inline]
    pub fn set_fences(&self, set: &FenceSet) {
        for (entry, fence) in self.fences.iter().zip(&set.fences) {
            entry.store(fence.0, Ordering::Relaxed);
        }
        if !self.spill.load(Ordering::Relaxed).is_null() {
            self.clear_spill();
        }
        for &fence in set.iter().skip(INLINE) {
            self.record_use(fence);
        }
    }

    /// Owner: replaces the set by those of another block's fences for which `keep` holds.
    pub fn copy_fences(&self, other: &Self, keep: impl Fn(Fence) -> bool) {
        self.set_fences(&FenceSet::default());
        other.entries(|_, fence| {
            if keep(fence) {
                self.record_use(fence);
            }
        });
    }

    #[cold]
    fn clear_spill(&self) {
        let mut link = &self.spill;
        // SAFETY: as in `try_entries`.
        while let Some(row) = unsafe { link.load(Ordering::Acquire).as_ref() } {
            row.entries.iter().for_each(|entry| entry.store(0, Ordering::Relaxed));
            link = &row.next;
        }
    }

    /// The only fence of a set of one.
    #[inline]
    pub fn single_fence(&self) -> Option<Fence> {
        let (first, second) = (&self.fences[0], &self.fences[1]);
        let fence = Fence(first.load(Ordering::Relaxed));
        (!fence.is_none() && second.load(Ordering::Relaxed) == 0).then_some(fence)
    }

    /// The hot free: the block was touched by its own stream only, up to `fence`.
    #[inline]
    pub fn stamp_own(&self, fence: Fence) {
        self.fences[0].store(fence.0, Ordering::Relaxed);
    }

    /// Opens the own stream's entry: it is stamped at the free.
    pub(super) fn open_own(&self) {
        self.fences[0].store(Fence::open(self.stream()).0, Ordering::Relaxed);
    }

    /// The stream the block was allocated on (owner, while live).
    pub fn stream(&self) -> StreamId {
        Fence(self.fences[0].load(Ordering::Relaxed)).stream()
    }

    /// The free of a block with uses: stamps what is still open.
    pub fn stamp_open(&self, mut stamp: impl FnMut(StreamId) -> Fence) {
        self.entries(|entry, fence| {
            if fence.is_open() {
                entry.store(stamp(fence.stream()).0, Ordering::Relaxed);
            }
        });
    }

    /// Records a use of a live block: open (to be stamped at the free), or stamped now. A later
    /// record of the same stream replaces an earlier one, since the latest says when it ends; of two
    /// stamps the larger stays, whichever thread is the slower to write.
    /// Several threads may record uses of one block at once.
    pub fn record_use(&self, fence: Fence) {
        if self.place(&self.fences, fence) {
            return;
        }
        let mut link = &self.spill;
        loop {
            let mut row = link.load(Ordering::Acquire);
            if row.is_null() {
                let fresh = Box::into_raw(Box::<Row>::default());
                let null = std::ptr::null_mut();
                // Release publishes the fresh row to the acquire loads here and in `entries`.
                match link.compare_exchange(null, fresh, Ordering::AcqRel, Ordering::Acquire) {
                    Ok(_) => row = fresh,
                    Err(theirs) => {
                        // SAFETY: the CAS failed, so `fresh` was never shared.
                        drop(unsafe { Box::from_raw(fresh) });
                        row = theirs;
                    }
                }
            }
            // SAFETY: published rows live as long as the descriptor.
            let row = unsafe { &*row };
            if self.place(&row.entries, fence) {
                return;
            }
            link = &row.next;
        }
    }

    /// Puts `fence` into the first entry of its stream or the first empty one.
    fn place(&self, entries: &[AtomicU64], fence: Fence) -> bool {
        for entry in entries {
            let mut seen = entry.load(Ordering::Relaxed);
            while seen == 0 || Fence(seen).stream() == fence.stream() {
                // A stream's numbers only grow, so the larger stamp covers both uses.
                if !fence.is_open() && Fence(seen).q() >= fence.q() {
                    return true;
                }
                match entry.compare_exchange(seen, fence.0, Ordering::Relaxed, Ordering::Relaxed) {
                    Ok(_) => return true,
                    Err(found) => seen = found,
                }
            }
        }
        false
    }

    /// The fences for which `keep` holds, if a set holds them.
    pub fn fences_where(&self, mut keep: impl FnMut(Fence) -> bool) -> Option<FenceSet> {
        let mut set = FenceSet::default();
        let mut fits = true;
        self.entries(|_, fence| fits &= !keep(fence) || set.insert(fence));
        fits.then_some(set)
    }
}

impl Drop for Descriptor {
    fn drop(&mut self) {
        let mut row = self.spill.load(Ordering::Acquire);
        while !row.is_null() {
            // SAFETY: rows come from `Box::into_raw` in `record_use`; `&mut self` says nobody reads.
            let boxed = unsafe { Box::from_raw(row) };
            row = boxed.next.load(Ordering::Acquire);
        }
    }
}

/// A fence set by value: at most [`FenceSet::MOST`] streams, one fence each.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FenceSet {
    fences: [Fence; Self::MOST],
    len: usize,
}

impl Default for FenceSet {
    fn default() -> Self {
        Self { fences: [Fence::NONE; Self::MOST], len: 0 }
    }
}

impl FenceSet {
    /// Extents whose merged sets would be larger stay apart until some fence has completed.
    pub const MOST: usize = 8;

    /// The set of one fence.
    #[inline]
    pub const fn of(fence: Fence) -> Self {
        let mut fences = [Fence::NONE; Self::MOST];
        fences[0] = fence;
        Self { fences, len: 1 }
    }

    /// Adds a fence, keeping the later one of a stream. False when the set is full.
    pub fn insert(&mut self, fence: Fence) -> bool {
        for held in &mut self.fences[..self.len] {
            if held.stream() == fence.stream() {
                // An open entry has yet to be stamped: it outlasts any stamp.
                if fence.is_open() || (!held.is_open() && fence.q() > held.q()) {
                    *held = fence;
                }
                return true;
            }
        }
        let Some(empty) = self.fences.get_mut(self.len) else { return false };
        *empty = fence;
        self.len += 1;
        true
    }

    /// Both sets together, if they fit.
    pub fn union(&self, other: &Self) -> Option<Self> {
        let mut both = *self;
        other.iter().all(|&fence| both.insert(fence)).then_some(both)
    }

    pub fn iter(&self) -> std::slice::Iter<'_, Fence> {
        self.fences[..self.len].iter()
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    fn fence(stream: u16, q: u64) -> Fence {
        Fence::new(StreamId(stream), q)
    }

    #[test]
    fn uses_beyond_the_inline_entries_spill_and_come_back() {
        let block = Descriptor::default();
        block.reset_fences(StreamId(1));
        for stream in 2..60 {
            block.record_use(Fence::open(StreamId(stream)));
            block.record_use(Fence::open(StreamId(stream)));
        }
        block.record_use(fence(7, 33));
        block.stamp_open(|stream| fence(stream.0, 100 + u64::from(stream.0)));
        let mut seen = Vec::new();
        assert!(block.all_fences(|fence| {
            seen.push((fence.stream().0, fence.q()));
            true
        }));
        seen.sort_unstable();
        let want: Vec<_> =
            (1..60).map(|s| (s, if s == 7 { 33 } else { 100 + u64::from(s) })).collect();
        assert_eq!(seen, want);
        assert!(block.fences_where(|_| true).is_none());

        block.reset_fences(StreamId(5));
        let set = block.fences_where(|_| true).unwrap();
        assert_eq!(set.iter().map(|f| f.stream()).collect::<Vec<_>>(), [StreamId(5)]);
    }

    /// A thread that stamped first may write last.
    #[test]
    fn a_smaller_stamp_does_not_replace_a_larger_one() {
        let block = Descriptor::default();
        block.reset_fences(StreamId(1));
        for q in [6, 5] {
            block.record_use(fence(1, q));
            block.record_use(fence(2, q));
        }
        assert!(block.all_fences(|held| held.q() == 6), "a use that is stamped is forgotten");
        block.record_use(Fence::open(StreamId(2)));
        block.record_use(fence(2, 5));
        assert!(block.all_fences(|held| held.stream().0 == 1 || held.q() == 5));
    }

    #[test]
    fn a_set_keeps_the_later_fence_of_a_stream_and_says_when_it_is_full() {
        let mut set = FenceSet::default();
        assert!(set.insert(fence(1, 5)) && set.insert(fence(1, 3)) && set.insert(fence(1, 9)));
        assert_eq!(set.iter().map(|f| f.q()).collect::<Vec<_>>(), [9], "not the later one");
        assert!((2..=FenceSet::MOST as u16).all(|stream| set.insert(fence(stream, 1))));
        assert!(!set.insert(fence(99, 1)));

        let block = Descriptor::default();
        block.set_fences(&set);
        let read = block.fences_where(|_| true).unwrap();
        let (read, set_to): (Vec<_>, Vec<_>) = (read.iter().collect(), set.iter().collect());
        assert_eq!(read, set_to, "fences are lost");
        block.set_fences(&FenceSet::of(fence(1, 2)));
        assert_eq!(block.single_fence(), Some(fence(1, 2)));
        assert_eq!(block.fences_where(|_| true).unwrap().iter().count(), 1);
        assert!(set.union(&set).is_some());
    }
}
