//! The thread cache: a thread's own bins of small blocks, one set of bins for each of a few streams.
//!
//! Bins are plain memory: only the leasing thread reads or writes them. They hold hints, so a block
//! in a parked thread's bin is no one's property; whoever claims its descriptor has it, and the
//! hint left behind fails its claim and is dropped.
//!
//! The pool owns the caches. A thread leases one at its first call and gives it back at its exit,
//! bins and all; nothing is drained and no driver is called. Where thread-local storage is already
//! gone the stream cache serves.

use crate::block::{Descriptor, Hint, StreamId};
use crate::fence::StreamFence;
use crate::size::CLASSES;
use crate::stats::Counters;
use crate::sync::{AtomicU64, Ordering, UnsafeCell};

/// Streams a thread keeps bins for; a stream's place is its id modulo this.
const SETS: usize = 16;
/// Hints in a bin: with its two counts it fills four cache lines.
const BIN: usize = 15;
/// Misses on a place taken by another stream until that stream's bins are given up.
const STRIKES: u32 = 64;

/// A hint together with its descriptor, which saves the look-up.
#[derive(Clone, Copy)]
pub(crate) struct Entry {
    pub hint: Hint,
    pub block: *const Descriptor,
}

#[repr(align(256))]
#[derive(Clone, Copy)]
struct Bin {
    entries: [Entry; BIN],
    len: u8,
    /// 0 until the thread has once asked for this size on this stream: a thread that only frees
    /// (as autograd's do) passes blocks on to the stream cache instead of hoarding them.
    room: u8,
}

/// A stream's bins in a thread.
pub(crate) struct Set {
    stream: StreamId,
    strikes: u32,
    /// The stream's fence state, kept at hand for the stamp. Type-stable as long as the pool.
    fence: *const StreamFence,
    bins: [Bin; CLASSES],
}

impl Set {
    fn new(stream: StreamId, fence: &StreamFence) -> Box<Self> {
        let none = Entry { hint: Hint(0), block: std::ptr::null() };
        let bin = Bin { entries: [none; BIN], len: 0, room: 0 };
        Box::new(Self { stream, strikes: 0, fence, bins: [bin; CLASSES] })
    }

    /// The youngest hint of a class.
    #[inline]
    pub fn pop(&mut self, class: usize) -> Option<Entry> {
        let bin = &mut self.bins[class];
        let last = bin.len.checked_sub(1)?;
        bin.len = last;
        bin.entries.get(usize::from(last)).copied()
    }

    /// Files a hint; false when the bin is full or the thread never asked for this class.
    #[inline]
    pub fn push(&mut self, class: usize, entry: Entry) -> bool {
        let bin = &mut self.bins[class];
        if bin.len >= bin.room {
            return false;
        }
        let Some(place) = bin.entries.get_mut(usize::from(bin.len)) else { return false };
        *place = entry;
        bin.len += 1;
        true
    }

    /// The thread asked for this class: from now on its frees stay here.
    pub fn want(&mut self, class: usize) {
        self.bins[class].room = BIN as u8;
    }

    /// The stream's fence state.
    #[inline]
    pub fn fence(&self) -> *const StreamFence {
        self.fence
    }

    /// All entries with their class.
    fn entries(&self) -> impl Iterator<Item = (usize, Entry)> + '_ {
        self.bins.iter().enumerate().flat_map(|(class, bin)| {
            bin.entries[..usize::from(bin.len)].iter().map(move |&entry| (class, entry))
        })
    }
}

/// What a thread leases from a pool.
pub(crate) struct ThreadCache {
    sets: UnsafeCell<[Option<Box<Set>>; SETS]>,
    pub counters: Counters,
    /// Sets made so far.
    made: AtomicU64,
}

// SAFETY: `sets` is touched only by the thread that holds the lease (`set`, `adopt`), and a lease
// passes between threads through the lock of the pool's list of leases.
unsafe impl Sync for ThreadCache {}
// SAFETY: the raw pointers in the sets point to type-stable records that any thread may read.
unsafe impl Send for ThreadCache {}

impl ThreadCache {
    pub fn new() -> Self {
        Self {
            sets: UnsafeCell::new(std::array::from_fn(|_| None)),
            counters: Counters::default(),
            made: AtomicU64::new(0),
        }
    }

    /// Host memory held, in bytes.
    pub fn bytes(&self) -> u64 {
        size_of::<Self>() as u64 + self.made.load(Ordering::Relaxed) * size_of::<Set>() as u64
    }

    /// Calls `each` with every hint, its stream, that stream's state, and its class: for tests.
    ///
    /// # Safety
    /// No other thread uses the cache, and no borrow from `set` or `adopt` is alive.
    pub unsafe fn for_each(
        &self,
        mut each: impl FnMut(StreamId, *const StreamFence, usize, Entry),
    ) {
        // SAFETY: by the caller's promise nobody writes meanwhile.
        let sets = self.sets.with_mut(|sets| unsafe { &*sets });
        for set in sets.iter().flatten() {
            for (class, entry) in set.entries() {
                each(set.stream, set.fence, class, entry);
            }
        }
    }

    /// The bins of `stream`, if this thread keeps any.
    ///
    /// # Safety
    /// The caller holds the lease, and no other borrow from `set` or `adopt` is alive.
    #[inline]
    #[expect(clippy::mut_from_ref, reason = "single-threaded by the lease; see Safety")]
    pub unsafe fn set(&self, stream: StreamId) -> Option<&mut Set> {
        // SAFETY: by the caller's promise this is the only live borrow.
        let sets = self.sets.with_mut(|sets| unsafe { &mut *sets });
        sets[usize::from(stream.get()) % SETS].as_deref_mut().filter(|set| set.stream == stream)
    }

    /// The bins of `stream`, made if its place is free or its holder has been missed often enough;
    /// `evicted` then gets the holder's hints. Allocates: for misses only.
    ///
    /// # Safety
    /// As for [`ThreadCache::set`].
    #[expect(clippy::mut_from_ref, reason = "single-threaded by the lease; see Safety")]
    pub unsafe fn adopt(
        &self,
        stream: StreamId,
        fence: &StreamFence,
        mut evicted: impl FnMut(StreamId, usize, Hint),
    ) -> Option<&mut Set> {
        // SAFETY: by the caller's promise this is the only live borrow.
        let sets = self.sets.with_mut(|sets| unsafe { &mut *sets });
        let place = &mut sets[usize::from(stream.get()) % SETS];
        if let Some(other) = place.as_deref_mut().filter(|set| set.stream != stream) {
            other.strikes += 1;
            if other.strikes < STRIKES {
                return None;
            }
            for (class, entry) in other.entries() {
                evicted(other.stream, class, entry.hint);
            }
            *place = None;
            self.made.fetch_sub(1, Ordering::Relaxed);
        }
        Some(place.get_or_insert_with(|| {
            self.made.fetch_add(1, Ordering::Relaxed);
            Set::new(stream, fence)
        }))
    }
}
