//! Chunks: memory that the buddy system cuts up, and the blocks in it that any thread may take.
//!
//! A chunk is a block of the arena's, in state `Chunk`. A block within it is *apart*: it has a descriptor
//! of its own, marked [`Word::APART`], and is no extent. The descriptor of a start is made, and published
//! in the page map, by the arena's holder when a block first starts there; it stays as long as the
//! chunk, so that a later block at that start takes no lock.
//!
//! ```text
//! a unit is taken  <=>  it lies in an apart block that is Live, Claimed or Cached, or is just being
//!                       taken or given back
//! what is not taken waits for no work but that before the chunk's stamp
//! chunk in use  <=>  its tree is open;   only the arena's holder opens and closes
//! ```
//!
//! Chunks' records are kept for the next chunk of the size: whoever still looks at one finds its tree
//! closed, or that of the next.

use super::buddy::Tree;
use super::{Blocks, Request};
use crate::block::{Descriptor, Fence, Word};
use crate::config::{Buddy, Lifetime};
use crate::size;
use crate::sync::{AtomicPtr, AtomicU32, AtomicU64, Ordering};
use crate::table::Table;

/// Most chunks of a device.
const CHUNKS: usize = 1 << 14;

/// A chunk takes at most this share of what is reserved, where its least size allows it: half a chunk that
/// nobody uses is then 0.2 %.
const SHARE: u64 = 256;

/// Whose blocks a chunk holds, by their size. They share none: small ones would scatter, and units that
/// are right for them would be many in a large chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Small,
    Medium,
    Large,
}

/// A kind's figures, in bytes.
struct Figures {
    /// What sizes are a multiple of. Few to a chunk in models and compositions.
    unit: u64,
    /// The chunk, a power of two from here to there.
    least: u64,
    most: u64,
}

impl Kind {
    const SMALL_MAX: u64 = 64 << 10;

    /// The kind of chunk for blocks of so many bytes.
    pub const fn of(bytes: u64) -> Self {
        if bytes <= Self::SMALL_MAX {
            Self::Small
        } else if size::is_small(bytes) {
            Self::Medium
        } else {
            Self::Large
        }
    }

    const fn figures(self) -> Figures {
        let few = cfg!(any(loom, shuttle));
        let (unit, least, most) = match self {
            Self::Small => (if few { 32 << 10 } else { size::QUANTUM }, 2 << 20, 2 << 20),
            // What the classes of these sizes are multiples of.
            Self::Medium => (if few { 32 << 10 } else { 4 << 10 }, 2 << 20, 16 << 20),
            // At most 1.6 % of a block is lost to it, half of that on average.
            Self::Large => (if few { 256 << 10 } else { 16 << 10 }, 4 << 20, 64 << 20),
        };
        Figures { unit, least, most }
    }

    /// What a block's size is a multiple of.
    pub const fn unit(self) -> u64 {
        self.figures().unit
    }

    /// Bytes of the next chunk, while so many are reserved.
    pub fn chunk_bytes(self, reserved: u64) -> u64 {
        let Figures { least, most, .. } = self.figures();
        1 << (reserved / SHARE).clamp(least, most).ilog2()
    }

    /// The size of the block for a request.
    pub fn granted(self, bytes: u64) -> u64 {
        size::granted(bytes).next_multiple_of(self.unit())
    }
}

/// A chunk's record.
pub struct Chunk {
    pub kind: Kind,
    pub tree: Tree,
    /// The descriptor of each unit that a block has started at.
    starts: Box<[AtomicU32]>,
    address: AtomicU64,
    /// The extent that it is.
    extent: AtomicU32,
    /// All work before its beginning: a [`Fence`], or 0 once that is over.
    stamp: AtomicU64,
    /// The shortest run that was looked for in vain since something was given back.
    refused: AtomicU32,
}

// Relaxed where nothing else is said: set while the tree is closed, and published by its opening.
impl Chunk {
    /// A record for chunks of so many bytes, without one.
    pub fn new(kind: Kind, bytes: u64) -> Self {
        let units = (bytes / kind.unit()) as u32;
        Self {
            kind,
            tree: Tree::closed(units),
            starts: (0..units).map(|_| AtomicU32::new(0)).collect(),
            address: AtomicU64::new(0),
            extent: AtomicU32::new(0),
            stamp: AtomicU64::new(0),
            refused: AtomicU32::new(u32::MAX),
        }
    }

    /// Arena only: makes it a chunk, of which all is free for who comes after `stamp`.
    pub fn begin(&self, extent: u32, address: u64, stamp: Fence) {
        self.address.store(address, Ordering::Relaxed);
        self.extent.store(extent, Ordering::Relaxed);
        self.stamp.store(stamp.0, Ordering::Relaxed);
        self.refused.store(u32::MAX, Ordering::Relaxed);
        self.tree.open();
    }

    pub fn address(&self) -> u64 {
        self.address.load(Ordering::Relaxed)
    }

    pub fn extent(&self) -> u32 {
        self.extent.load(Ordering::Relaxed)
    }

    /// What its free memory waits for.
    pub fn stamp(&self) -> Fence {
        Fence(self.stamp.load(Ordering::Relaxed))
    }

    /// Work before `stamp` is over.
    pub fn forget_stamp(&self, stamp: Fence) {
        // By its value: the record may be another chunk's by now.
        let _ = self.stamp.compare_exchange(stamp.0, 0, Ordering::Relaxed, Ordering::Relaxed);
    }

    pub fn bytes(&self) -> u64 {
        u64::from(self.tree.units()) * self.kind.unit()
    }

    /// Bytes that no block has.
    pub fn free_bytes(&self) -> u64 {
        u64::from(self.tree.units() - self.tree.taken()) * self.kind.unit()
    }

    /// Arena only: the descriptor of a start from now on, or none.
    pub fn set_start(&self, unit: u32, index: u32) {
        // Release pairs with the acquire in `Place::start`.
        self.starts[unit as usize].store(index, Ordering::Release);
    }

    /// Gives back the memory of a block that waits for no work.
    pub fn release(&self, address: u64, bytes: u64) {
        let unit = self.kind.unit();
        self.tree.release(((address - self.address()) / unit) as u32, (bytes / unit) as u32);
        self.refused.store(u32::MAX, Ordering::Relaxed);
    }
}

/// How far a search in the chunks goes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Search {
    /// Where the same was not looked for in vain since something was given back.
    Hinted,
    /// All chunks of the kind.
    Kind,
    /// All there are.
    Any,
}

/// Units that a thread has taken, and that are no block yet.
#[derive(Clone, Copy)]
pub struct Place<'c> {
    pub chunk: &'c Chunk,
    pub first: u32,
    units: u32,
}

impl Place<'_> {
    pub fn address(&self) -> u64 {
        self.chunk.address() + u64::from(self.first) * self.chunk.kind.unit()
    }

    pub fn bytes(&self) -> u64 {
        u64::from(self.units) * self.chunk.kind.unit()
    }

    /// The descriptor of the start, where there is one.
    pub fn start(&self) -> Option<u32> {
        // Acquire pairs with the release in `set_start`.
        let index = self.chunk.starts[self.first as usize].load(Ordering::Acquire);
        (index != 0).then_some(index)
    }

    /// Gives it up.
    pub fn release(self) {
        self.chunk.tree.release(self.first, self.units);
        // Others may have looked in vain meanwhile.
        self.chunk.refused.store(u32::MAX, Ordering::Relaxed);
    }
}

#[derive(Default)]
struct Slot(AtomicPtr<Chunk>);

impl Drop for Slot {
    fn drop(&mut self) {
        let chunk = self.0.load(Ordering::Acquire);
        if !chunk.is_null() {
            // SAFETY: it came from `Box::into_raw` in `add`; `&mut self` says that nobody reads it.
            drop(unsafe { Box::from_raw(chunk) });
        }
    }
}

/// A device's chunks. What is here is lock-free, but for what says that it is the arena's.
pub struct Chunks {
    slots: Table<Slot, 6>,
    count: AtomicU32,
    /// Of those in use.
    bytes: AtomicU64,
    number: AtomicU32,
    takes: Buddy,
}

impl Chunks {
    /// No chunk yet, for blocks as `takes` says.
    pub fn new(takes: Buddy) -> Self {
        let limit = if takes == Buddy::Off { 0 } else { CHUNKS };
        Self {
            slots: Table::new(limit),
            count: AtomicU32::new(0),
            bytes: AtomicU64::new(0),
            number: AtomicU32::new(0),
            takes,
        }
    }

    /// The size of the block that is to come from a chunk, while so many bytes are reserved; `None` where
    /// a request is not the buddy system's.
    pub fn wants(&self, bytes: u64, lifetime: Lifetime, reserved: u64) -> Option<u64> {
        if !self.takes.takes(lifetime) {
            return None;
        }
        let kind = Kind::of(bytes);
        Some(kind.granted(bytes)).filter(|&granted| granted <= kind.chunk_bytes(reserved) / 2)
    }

    /// The records of chunks, also of those that ended.
    pub fn iter(&self) -> impl Iterator<Item = &Chunk> {
        // Acquire pairs with the release in `add`.
        (0..self.count.load(Ordering::Acquire)).filter_map(|slot| self.at(slot))
    }

    /// A chunk by its record's number.
    pub fn at(&self, slot: u32) -> Option<&Chunk> {
        // Acquire pairs with the release in `add`.
        // SAFETY: a pointer that is not null is a record, freed with the table only.
        unsafe { self.slots.get(slot)?.0.load(Ordering::Acquire).as_ref() }
    }

    /// Arena only: keeps a record, and returns its number. `None` when there are too many.
    pub fn add(&self, chunk: Chunk) -> Option<u32> {
        let number = self.count.load(Ordering::Relaxed);
        let slot = self.slots.get_or_create(number)?;
        // Release publishes the record to the acquire loads in `at`.
        slot.0.store(Box::into_raw(Box::new(chunk)), Ordering::Release);
        self.count.store(number + 1, Ordering::Release);
        Some(number)
    }

    /// Arena only: counts a chunk as begun, or as ended.
    pub fn count(&self, chunk: &Chunk, begun: bool) {
        // Relaxed: figures.
        let (bytes, one) = (chunk.bytes(), 1u32);
        if begun {
            self.bytes.fetch_add(bytes, Ordering::Relaxed);
            self.number.fetch_add(one, Ordering::Relaxed);
        } else {
            self.bytes.fetch_sub(bytes, Ordering::Relaxed);
            self.number.fetch_sub(one, Ordering::Relaxed);
        }
    }

    /// Chunks in use, and their bytes.
    pub fn held(&self) -> (u32, u64) {
        (self.number.load(Ordering::Relaxed), self.bytes.load(Ordering::Relaxed))
    }

    /// Takes memory for `bytes` from the first chunk that has some and that `usable` says yes to, by its
    /// stamp.
    pub fn claim(
        &self,
        bytes: u64,
        search: Search,
        mut usable: impl FnMut(Fence) -> bool,
    ) -> Option<Place<'_>> {
        let kind = Kind::of(bytes);
        let mut usable = |stamp: Fence| stamp.is_none() || usable(stamp);
        let of_kind = |chunk: &&Chunk| chunk.kind == kind || search == Search::Any;
        for chunk in self.iter().filter(of_kind) {
            let (tree, units) = (&chunk.tree, bytes.div_ceil(chunk.kind.unit()));
            let free = tree.units() - tree.taken();
            let Ok(units) = u32::try_from(units) else { continue };
            let room = free >= units
                && (search > Search::Hinted || chunk.refused.load(Ordering::Relaxed) > units);
            let stamp = chunk.stamp();
            if !room || !usable(stamp) {
                continue;
            }
            let Some(first) = tree.claim(units) else {
                // A hint that may come late: it keeps this chunk from being looked at until the next
                // release, and the arena's holder looks all the same.
                chunk.refused.fetch_min(units, Ordering::Relaxed);
                continue;
            };
            let place = Place { chunk, first, units };
            // The record may have become another chunk's before the claim; now it stays what it is.
            let now = chunk.stamp();
            if now.is_none() || now == stamp || usable(now) {
                return Some(place);
            }
            place.release();
        }
        None
    }

    /// Host memory held, in bytes.
    pub fn bookkeeping(&self) -> u64 {
        let records: u64 = self
            .iter()
            .map(|chunk| {
                size_of::<Chunk>() as u64 + chunk.tree.bytes() + size_of_val(&*chunk.starts) as u64
            })
            .sum();
        self.slots.bytes() + records
    }
}

impl Blocks {
    /// Makes a place whose start has a descriptor a live block: its descriptor, and word.
    pub fn hand_out_apart(
        &self,
        place: Place<'_>,
        index: u32,
        request: Request,
    ) -> (&Descriptor, Word) {
        let block = self.at(index);
        block.set_extent(place.address(), place.bytes());
        block.reset_fences(request.stream);
        block.set_requested(request.requested);
        (block, block.hand_out_apart())
    }
}
