//! A type-stable table: records are created on demand, found by index without a lock, and never
//! freed or moved while the table lives. Descriptors, streams, events and stream caches sit in one.
//!
//! The table is an array of chunk pointers. A chunk is published once, by a compare-and-swap from
//! null, and then never changes: a reader that sees the pointer sees initialised records.

use crate::sync::{AtomicPtr, Ordering};

/// Chunks of a table under loom and shuttle, however many its limit asks for.
const FEW_CHUNKS: usize = 32;

/// A growing table of `T` with stable addresses, in chunks of `2^BITS` records.
pub struct Table<T, const BITS: u32 = 8> {
    chunks: Box<[AtomicPtr<T>]>,
}

impl<T, const BITS: u32> Table<T, BITS> {
    /// Records a chunk. Few under loom, where every atomic is tracked.
    const CHUNK_BITS: u32 = if cfg!(loom) { 2 } else { BITS };
    const CHUNK: usize = 1 << Self::CHUNK_BITS;
}

impl<T: Default, const BITS: u32> Table<T, BITS> {
    /// A table for indexes below `limit` (rounded up to whole chunks).
    pub fn new(limit: usize) -> Self {
        let chunks = limit.div_ceil(Self::CHUNK);
        let chunks = if cfg!(any(loom, shuttle)) { chunks.min(FEW_CHUNKS) } else { chunks };
        Self { chunks: (0..chunks).map(|_| AtomicPtr::new(std::ptr::null_mut())).collect() }
    }

    /// The record at `index`, if its chunk exists.
    #[inline]
    pub fn get(&self, index: u32) -> Option<&T> {
        let chunk = self.chunks.get(index as usize >> Self::CHUNK_BITS)?;
        // Acquire pairs with the release of the publishing CAS in `get_or_create`.
        let records = chunk.load(Ordering::Acquire);
        if records.is_null() {
            return None;
        }
        // SAFETY: a non-null pointer is a published chunk of CHUNK initialised records, which is
        // freed only by `drop`; the offset is below CHUNK.
        Some(unsafe { &*records.add(index as usize & (Self::CHUNK - 1)) })
    }

    /// The record at `index`, its chunk created when it does not exist yet (allocates host memory).
    /// `None` when `index` is beyond the limit.
    pub fn get_or_create(&self, index: u32) -> Option<&T> {
        let chunk = self.chunks.get(index as usize >> Self::CHUNK_BITS)?;
        if chunk.load(Ordering::Acquire).is_null() {
            let records: Box<[T]> = (0..Self::CHUNK).map(|_| T::default()).collect();
            let fresh = Box::into_raw(records).cast::<T>();
            // Release publishes the initialised records to the acquire loads of `get`.
            let won = chunk.compare_exchange(
                std::ptr::null_mut(),
                fresh,
                Ordering::AcqRel,
                Ordering::Acquire,
            );
            if won.is_err() {
                // SAFETY: the CAS failed, so `fresh` was never shared; it came from a boxed slice
                // of CHUNK records.
                drop(unsafe {
                    Box::from_raw(std::ptr::slice_from_raw_parts_mut(fresh, Self::CHUNK))
                });
            }
        }
        self.get(index)
    }

    /// The records of every chunk that exists.
    pub fn records(&self) -> impl Iterator<Item = &T> {
        self.chunks.iter().flat_map(|chunk| {
            let records = chunk.load(Ordering::Acquire);
            let count = if records.is_null() { 0 } else { Self::CHUNK };
            // SAFETY: as in `get`, for the whole chunk.
            (0..count).map(move |place| unsafe { &*records.add(place) })
        })
    }

    /// Host memory held, in bytes.
    pub fn bytes(&self) -> u64 {
        let used = self.chunks.iter().filter(|c| !c.load(Ordering::Relaxed).is_null()).count();
        (size_of_val(&*self.chunks) + used * Self::CHUNK * size_of::<T>()) as u64
    }
}

impl<T, const BITS: u32> Drop for Table<T, BITS> {
    fn drop(&mut self) {
        for chunk in &self.chunks {
            let records = chunk.load(Ordering::Acquire);
            if !records.is_null() {
                // SAFETY: a published chunk came from a boxed slice of CHUNK records, and `&mut
                // self` says that nobody holds a reference into it.
                drop(unsafe {
                    Box::from_raw(std::ptr::slice_from_raw_parts_mut(records, Self::CHUNK))
                });
            }
        }
    }
}

// SAFETY: the table owns its records and hands out shared references only.
unsafe impl<T: Send, const BITS: u32> Send for Table<T, BITS> {}
// SAFETY: as above; several threads may hold `&T`.
unsafe impl<T: Send + Sync, const BITS: u32> Sync for Table<T, BITS> {}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::sync::AtomicU64;

    #[test]
    fn records_appear_once_and_stay() {
        let table: Table<AtomicU64> = Table::new(1000);
        assert!(table.get(999).is_none());
        let first = table.get_or_create(999).unwrap();
        first.store(7, Ordering::Relaxed);
        assert!(std::ptr::eq(first, table.get(999).unwrap()));
        assert_eq!(table.get_or_create(998).unwrap().load(Ordering::Relaxed), 0);
        assert!(table.get_or_create(1 << 20).is_none());
    }

    #[test]
    fn racing_creators_agree() {
        let table: Table<AtomicU64> = Table::new(64);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| table.get_or_create(3).unwrap().fetch_add(1, Ordering::Relaxed));
            }
        });
        assert_eq!(table.get(3).unwrap().load(Ordering::Relaxed), 4);
    }
}
