//! Tables of streams and events: looked up by index without a common lock.
//!
//! A table is a list of chunks, each twice as large as the one before and never moved, so that a
//! look-up takes no lock but that of the slot itself. Indexes of removed entries are handed out
//! again, the lowest first: a driver's handles are reused in just that way, and code that tells
//! streams apart by their handles should meet it.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::{Mutex, OnceLock};

use crate::sync::lock;

/// Entries of the first chunk.
const FIRST: usize = 64;
/// Chunks: room for `FIRST * (2^CHUNKS - 1)` entries.
const CHUNKS: usize = 26;

type Chunk<T> = Box<[Mutex<Option<T>>]>;

/// Indexes that are free.
#[derive(Debug, Default)]
struct Free {
    /// Indexes from here on were never used.
    next: usize,
    returned: BinaryHeap<Reverse<usize>>,
}

/// A table of `T` by index.
#[derive(Debug)]
pub(crate) struct Slots<T> {
    chunks: [OnceLock<Chunk<T>>; CHUNKS],
    free: Mutex<Free>,
}

impl<T> Slots<T> {
    pub(crate) fn new() -> Self {
        Self { chunks: std::array::from_fn(|_| OnceLock::new()), free: Mutex::default() }
    }

    /// Stores `value` at the lowest free index; `None` where the table is full.
    pub(crate) fn insert(&self, value: T) -> Option<usize> {
        let mut free = lock(&self.free);
        let index = match free.returned.pop() {
            Some(Reverse(index)) => index,
            None => {
                let index = free.next;
                let (chunk, _) = place(index);
                let room = self.chunks.get(chunk)?;
                room.get_or_init(|| (0..FIRST << chunk).map(|_| Mutex::new(None)).collect());
                free.next += 1;
                index
            }
        };
        *lock(self.slot(index)?) = Some(value);
        Some(index)
    }

    /// Takes the entry out and frees its index.
    pub(crate) fn remove(&self, index: usize) -> Option<T> {
        let value = lock(self.slot(index)?).take()?;
        lock(&self.free).returned.push(Reverse(index));
        Some(value)
    }

    /// Calls `f` with the entry, locked.
    pub(crate) fn with<R>(&self, index: usize, f: impl FnOnce(&mut T) -> R) -> Option<R> {
        lock(self.slot(index)?).as_mut().map(f)
    }

    /// Calls `f` with every entry in turn, locked.
    pub(crate) fn for_each(&self, mut f: impl FnMut(usize, &mut T)) {
        let used = lock(&self.free).next;
        for index in 0..used {
            self.with(index, |value| f(index, value));
        }
    }

    /// Number of entries for which `test` holds.
    pub(crate) fn count(&self, test: impl Fn(&T) -> bool) -> usize {
        let mut count = 0;
        self.for_each(|_, value| count += usize::from(test(value)));
        count
    }

    fn slot(&self, index: usize) -> Option<&Mutex<Option<T>>> {
        let (chunk, offset) = place(index);
        self.chunks.get(chunk)?.get()?.get(offset)
    }
}

/// Chunk and offset of an index: chunk `k` starts at `FIRST * (2^k - 1)`.
fn place(index: usize) -> (usize, usize) {
    let chunk = (index / FIRST).saturating_add(1).ilog2() as usize;
    (chunk, index - FIRST * ((1 << chunk) - 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_dense() {
        let mut expected = (0, 0);
        for index in 0..FIRST * 31 {
            assert_eq!(place(index), expected, "index {index}");
            expected.1 += 1;
            if expected.1 == FIRST << expected.0 {
                expected = (expected.0 + 1, 0);
            }
        }
    }

    #[test]
    fn the_lowest_free_index_is_reused() {
        let slots = Slots::new();
        for value in 0..200 {
            assert_eq!(slots.insert(value), Some(value));
        }
        assert_eq!(slots.remove(150), Some(150));
        assert_eq!(slots.remove(7), Some(7));
        assert_eq!(slots.remove(7), None);
        assert_eq!(slots.count(|_| true), 198);
        assert_eq!(slots.insert(1_000), Some(7));
        assert_eq!(slots.insert(1_001), Some(150));
        assert_eq!(slots.insert(1_002), Some(200));
        assert_eq!(slots.with(7, |value| *value), Some(1_000));
        assert_eq!(slots.with(usize::MAX, |value| *value), None);
    }
}
