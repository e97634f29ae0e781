//! A hash of exact sizes to hints, the structure of the stream caches and of the shards.
//!
//! A *line* is one size's key and a handful of hints, in 128 bytes. A size starts in the line it
//! hashes to and may spread over the lines that follow; a look-up probes at most [`PROBES`] of
//! them. Hints own nothing, so every operation is a single CAS on one slot: a thread stopped
//! between two of them stops nobody, and a hint that is lost (the table is crowded, or was rebuilt
//! meanwhile) costs a slower look-up in the heap, which finds every cached block by its descriptor.
//! Large blocks are in the arena's index anyway: their size has one line, their hints are written
//! and cleared by plain stores, and an old one makes room for a new one.
//!
//! Invariants: a line's key is written once; a small size's slot goes `0 → hint → 0`, or from a
//! stale hint to another; lines for a key have no free line before them on its probe path.

use crate::block::Hint;
use crate::epoch;
use crate::size::{self, QUANTUM};
use crate::sync::{AtomicU32, AtomicU64, Ordering};
use crossbeam_epoch::{Atomic, Guard, Owned, Shared};

/// Hints of a line. Few under loom, as everything that is searched.
const SLOTS: usize = if cfg!(loom) { 2 } else { 15 };
/// Hints of a full line that are looked at for stale ones.
const SAMPLE: usize = 2;
/// Lines that one size may spread over.
const PROBES: usize = if cfg!(loom) { 2 } else { 8 };

#[repr(align(128))]
struct Line {
    /// The size this line holds, in quanta; 0 while it is free.
    key: AtomicU64,
    hints: [AtomicU64; SLOTS],
}

impl Line {
    fn new() -> Self {
        Self { key: AtomicU64::new(0), hints: std::array::from_fn(|_| AtomicU64::new(0)) }
    }

    /// Whether the line holds `key`, taking it for the key if it is free.
    fn is_for(&self, key: u64) -> bool {
        let held = self.key.load(Ordering::Relaxed);
        // Relaxed: the key guards nothing; a hint is validated by its descriptor's word.
        held == key
            || held == 0
                && match self.key.compare_exchange(0, key, Ordering::Relaxed, Ordering::Relaxed) {
                    Ok(_) => true,
                    Err(found) => found == key,
                }
    }

    /// Puts a hint into an empty slot, or over a stale one.
    fn put(&self, hint: Hint, stale: &impl Fn(Hint) -> bool) -> bool {
        // Release publishes the descriptor's chunk and fields to whoever finds the hint.
        let replace = |slot: &AtomicU64, held: u64| {
            slot.compare_exchange(held, hint.0, Ordering::Release, Ordering::Relaxed).is_ok()
        };
        let empty = |slot: &&AtomicU64| slot.load(Ordering::Relaxed) == 0;
        // Slots fill from the front and empty from the back: with the last one taken there is
        // hardly a free one.
        let full = self.hints[SLOTS - 1].load(Ordering::Relaxed) != 0;
        if !full && self.hints.iter().filter(empty).any(|slot| replace(slot, 0)) {
            return true;
        }
        // Full: blocks merged away leave stale hints. Looking at a few is enough, others go when
        // they are offered.
        let first = hint.index() as usize;
        (first..first + SAMPLE).any(|place| {
            let slot = &self.hints[place % SLOTS];
            let held = slot.load(Ordering::Acquire);
            held != 0 && stale(Hint(held)) && replace(slot, held)
        })
    }
}

/// What a look-up made of a hint.
pub enum Probe<R> {
    /// The block is ours.
    Taken(R),
    /// The hint is stale: drop it.
    Stale,
    /// Not for us, but maybe for another: leave it.
    Keep,
}

/// A fixed table of lines.
struct Bins {
    lines: Box<[Line]>,
}

impl Bins {
    fn new(lines: usize) -> Self {
        debug_assert!(lines.is_power_of_two());
        Self { lines: (0..lines).map(|_| Line::new()).collect() }
    }

    #[inline]
    fn path(&self, key: u64) -> impl Iterator<Item = &Line> {
        let mask = self.lines.len() - 1;
        // Fibonacci hashing: the high bits of the product are the well-mixed ones.
        let start = (key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as usize;
        (0..PROBES.min(self.lines.len())).map(move |step| &self.lines[(start + step) & mask])
    }

    fn put(&self, key: u64, hint: Hint, stale: &impl Fn(Hint) -> bool) -> bool {
        self.path(key).any(|line| line.is_for(key) && line.put(hint, stale))
    }

    /// Whether a key's blocks are in the arena's index anyway: then one line will do, and a hint may
    /// be overwritten.
    fn is_indexed(key: u64) -> bool {
        !size::is_small(key * QUANTUM)
    }

    fn put_over(&self, key: u64, hint: Hint) -> bool {
        let Some(line) = self.path(key).find(|line| line.is_for(key)) else { return false };
        // A plain store: of two hints written to one slot at once the later stays.
        let slot = line
            .hints
            .iter()
            .find(|slot| slot.load(Ordering::Relaxed) == 0)
            .unwrap_or(&line.hints[hint.index() as usize % SLOTS]);
        slot.store(hint.0, Ordering::Release);
        true
    }

    fn take<R>(&self, key: u64, mut probe: impl FnMut(Hint) -> Probe<R>) -> Option<R> {
        for line in self.path(key) {
            match line.key.load(Ordering::Relaxed) {
                held if held == key => {}
                0 => return None,
                _ => continue,
            }
            // Youngest first. With the first slot empty there is hardly a hint further back; the last
            // one is looked at too, since `put` takes it for the sign of a full line.
            let ends = [&line.hints[0], &line.hints[SLOTS - 1]];
            if ends.iter().all(|slot| slot.load(Ordering::Relaxed) == 0) {
                continue;
            }
            for slot in line.hints.iter().rev() {
                // Acquire pairs with the release of `put`, so the descriptor behind it is there.
                let hint = slot.load(Ordering::Acquire);
                if hint == 0 {
                    continue;
                }
                let found = match probe(Hint(hint)) {
                    Probe::Taken(block) => Some(block),
                    Probe::Stale => None,
                    Probe::Keep => continue,
                };
                // Somebody may have emptied and refilled the slot meanwhile. That hint must stay,
                // unless the arena knows its block anyway.
                if Self::is_indexed(key) {
                    slot.store(0, Ordering::Relaxed);
                } else {
                    let _ = slot.compare_exchange(hint, 0, Ordering::Relaxed, Ordering::Relaxed);
                }
                if found.is_some() {
                    return found;
                }
            }
            if Self::is_indexed(key) {
                return None;
            }
        }
        None
    }

    fn hints(&self) -> impl Iterator<Item = (u64, Hint)> {
        self.lines.iter().flat_map(|line| {
            let key = line.key.load(Ordering::Relaxed);
            line.hints
                .iter()
                .map(|slot| slot.load(Ordering::Acquire))
                .filter(|&hint| hint != 0)
                .map(move |hint| (key, Hint(hint)))
        })
    }
}

/// A table of hints that grows, guarded by host epochs: a reader pins, so a replaced table is freed
/// only when nobody can be reading it. Nothing but host memory depends on the epoch.
pub struct HintCache {
    bins: Atomic<Bins>,
    /// Hints that found no room since the last rebuild.
    lost: AtomicU32,
}

impl Default for HintCache {
    fn default() -> Self {
        Self { bins: Atomic::null(), lost: AtomicU32::new(0) }
    }
}

impl HintCache {
    const FIRST: usize = if cfg!(loom) { 1 } else { 8 };
    const MOST: usize = 4096;

    fn load<'g>(&self, guard: &'g Guard) -> Option<&'g Bins> {
        // Acquire pairs with the release of `install`.
        // SAFETY: a table is retired through `defer_destroy` after it was unlinked, so it outlives
        // every guard that could load it.
        unsafe { self.bins.load(Ordering::Acquire, guard).as_ref() }
    }

    /// Files a hint under `key` (a size in quanta). False when there is no room, or no table yet.
    /// Lock-free; allocates nothing.
    pub fn put(&self, key: u64, hint: Hint, stale: impl Fn(Hint) -> bool, guard: &Guard) -> bool {
        match self.load(guard) {
            Some(bins) if bins.put(key, hint, &stale) => true,
            _ => {
                self.lost.fetch_add(1, Ordering::Relaxed);
                false
            }
        }
    }

    /// As [`HintCache::put`], for blocks that the arena's index holds anyway: where the size's line
    /// is full, an older hint makes room. Blocks of large sizes are merged and cut all the time, so
    /// most old hints are stale.
    pub fn put_over(&self, key: u64, hint: Hint, guard: &Guard) -> bool {
        match self.load(guard) {
            Some(bins) if bins.put_over(key, hint) => true,
            _ => {
                self.lost.fetch_add(1, Ordering::Relaxed);
                false
            }
        }
    }

    /// Offers the hints of `key` to `probe` until it takes one. Lock-free.
    #[inline]
    pub fn take<R>(
        &self,
        key: u64,
        probe: impl FnMut(Hint) -> Probe<R>,
        guard: &Guard,
    ) -> Option<R> {
        self.load(guard)?.take(key, probe)
    }

    /// Rebuilds a table that has lost several hints for each of its lines: sizes no longer cached lose their lines, and if the rest still
    /// fills half of it the table grows. Hints filed meanwhile may be lost. Called on misses only,
    /// since it allocates.
    pub fn make_room(&self, stale: impl Fn(Hint) -> bool, guard: &Guard) {
        let lost = self.lost.load(Ordering::Relaxed) as usize;
        if lost == 0 || self.load(guard).is_some_and(|bins| lost < 4 * bins.lines.len()) {
            return;
        }
        self.lost.store(0, Ordering::Relaxed);
        let old = self.bins.load(Ordering::Acquire, guard);
        // SAFETY: as in `load`.
        let fresh = match unsafe { old.as_ref() } {
            None => Bins::new(Self::FIRST),
            Some(bins) => {
                let kept: Vec<_> = bins.hints().filter(|&(_, hint)| !stale(hint)).collect();
                let mut keys: Vec<u64> = kept.iter().map(|&(key, _)| key).collect();
                keys.sort_unstable();
                // A size takes a line for every SLOTS hints.
                let lines: usize =
                    keys.chunk_by(|a, b| a == b).map(|hints| hints.len().div_ceil(SLOTS)).sum();
                let room = (lines * 4).next_power_of_two().clamp(bins.lines.len(), Self::MOST);
                let fresh = Bins::new(room);
                for (key, hint) in kept {
                    fresh.put(key, hint, &|_| false);
                }
                fresh
            }
        };
        self.install(old, fresh, guard);
    }

    /// Makes the first table, that no hint is lost for want of one. Allocates: for misses only.
    pub fn prepare(&self, guard: &Guard) {
        let none = self.bins.load(Ordering::Acquire, guard);
        if none.is_null() {
            self.install(none, Bins::new(Self::FIRST), guard);
        }
    }

    fn install(&self, old: Shared<'_, Bins>, fresh: Bins, guard: &Guard) {
        let swapped = self.bins.compare_exchange(
            old,
            Owned::new(fresh),
            Ordering::AcqRel,
            Ordering::Relaxed,
            guard,
        );
        if swapped.is_ok() && !old.is_null() {
            // SAFETY: `old` was unlinked by the CAS just won, by this thread alone.
            unsafe { guard.defer_destroy(old) };
        }
    }

    /// Drops the table: its stream has ended. Blocks stay where they are.
    pub fn clear(&self) {
        let guard = epoch::pin();
        let old = self.bins.swap(Shared::null(), Ordering::AcqRel, &guard);
        if !old.is_null() {
            // SAFETY: unlinked by the swap, by this thread alone.
            unsafe { guard.defer_destroy(old) };
        }
    }

    /// Calls `each` with every key and hint: for tests.
    pub fn for_each(&self, mut each: impl FnMut(u64, Hint)) {
        let guard = epoch::pin();
        let hints = self.load(&guard).into_iter().flat_map(Bins::hints);
        hints.for_each(|(key, hint)| each(key, hint));
    }

    /// Host memory held by the table, in bytes.
    pub fn bytes(&self) -> u64 {
        let guard = epoch::pin();
        self.load(&guard).map_or(0, |bins| size_of_val(&*bins.lines) as u64)
    }
}

impl Drop for HintCache {
    fn drop(&mut self) {
        // SAFETY: `&mut self` says that nobody can load the table any more.
        drop(unsafe { std::mem::replace(&mut self.bins, Atomic::null()).try_into_owned() });
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::block::{State, Word};

    fn hint(tag: u64, index: u32) -> Hint {
        Word(tag << Hint::INDEX_BITS).with_state(State::Cached).hint(index)
    }

    fn any(hint: Hint) -> Probe<u32> {
        Probe::Taken(hint.index())
    }

    fn room(cache: &HintCache) {
        cache.lost.store(u32::MAX, Ordering::Relaxed);
        cache.make_room(|_| false, &epoch::pin());
    }

    #[test]
    fn hints_come_back_under_their_own_size_only() {
        let cache = HintCache::default();
        assert!(!cache.put(4, hint(1, 7), |_| false, &epoch::pin()), "no table yet");
        room(&cache);
        assert!(cache.put(4, hint(1, 7), |_| false, &epoch::pin()));
        assert!(cache.take(5, any, &epoch::pin()).is_none());
        assert_eq!(cache.take(4, any, &epoch::pin()), Some(7));
        assert!(cache.take(4, any, &epoch::pin()).is_none());
    }

    #[test]
    fn a_popular_size_spreads_and_a_crowded_table_grows() {
        let cache = HintCache::default();
        room(&cache);
        let mut lost = 0;
        for index in 1..=2000 {
            if !cache.put(u64::from(index % 97), hint(1, index), |_| false, &epoch::pin()) {
                lost += 1;
                room(&cache);
            }
        }
        assert!(lost < 100, "{lost} hints lost while growing");
        let mut found = 0;
        for key in 0..97 {
            while cache.take(key, any, &epoch::pin()).is_some() {
                found += 1;
            }
        }
        assert_eq!(found + lost, 2000);
    }

    #[test]
    fn a_full_line_replaces_stale_hints_and_keeps_refused_ones() {
        let cache = HintCache::default();
        room(&cache);
        let mut index = 0;
        while cache.put(9, hint(1, index + 1), |_| false, &epoch::pin()) {
            index += 1;
        }
        assert!(cache.put(9, hint(2, 5000), |_| true, &epoch::pin()));
        let mut offered = 0;
        let refused = cache.take(
            9,
            |_| -> Probe<()> {
                offered += 1;
                Probe::Keep
            },
            &epoch::pin(),
        );
        assert!(refused.is_none());
        assert_eq!(offered, index);
    }
}
