//! The heap: a device's address space as extents, and the memory behind them.
//!
//! What others touch without the arena's lock is small: the descriptors, the page map, and the list
//! of *notes* (blocks freed since the arena last looked). Everything else belongs to the [`Arena`],
//! which one thread enters at a time.
//!
//! A large block that is freed stays where it is, `Cached`: its user's stream finds it again by its
//! hint, and the arena treats it as free from the moment it has read the note. Whoever wins the CAS
//! on the state word has it.

mod apart;
mod arena;
mod buddy;
mod budget;
mod check;
mod chunks;
mod extent;
mod fit;
mod gauge;
mod growth;
mod index;
mod map;
mod pages;
mod place;
mod plain;
mod plan;
mod planned;
mod reclaim;
mod rejoin;
mod relocate;
mod segment_policy;
mod segments;
mod shortage;
mod stitch;
mod supply;
mod waiting;
mod window;

pub use arena::{Addresses, Arena, Denied, Layout, Request};
#[cfg(loom)]
pub use buddy::Tree;
pub use gauge::{Gauge, Rung};
pub use relocate::{Ground, Relocated};
pub use shortage::Held;

use crate::block::{Descriptor, Hint, State, Word};
use crate::config::Buddy;
use crate::sync::{AtomicU32, Ordering};
use crate::table::Table;
use chunks::Chunks;
pub use chunks::Search;
use map::{Far, Near};

/// The part of a heap that any thread may use at any time. Lock-free.
pub struct Blocks {
    table: Table<Descriptor, 10>,
    /// Head of the list of freed blocks that the arena's index does not hold yet. Pushed by the
    /// freeing thread, taken as a whole by the arena: no ABA.
    notes: AtomicU32,
    /// The same for blocks in chunks, which are no extents.
    apart_notes: AtomicU32,
    /// What the buddy system has to give.
    pub chunks: Chunks,
    /// By offset in the device's reservation, if it has one.
    near: Near,
    base: u64,
    bytes: u64,
    /// By address, if the driver chooses the addresses.
    far: Far,
}

/// Addresses that a driver may give: below this one.
pub(crate) const ADDRESSES: u64 = 1 << 57;

impl Blocks {
    /// The blocks of a reservation.
    pub fn new(base: u64, bytes: u64) -> Self {
        Self {
            table: Table::new(1 << Hint::INDEX_BITS),
            notes: AtomicU32::new(0),
            apart_notes: AtomicU32::new(0),
            chunks: Chunks::new(Buddy::Off),
            near: Near::new(bytes),
            base,
            bytes,
            far: Far::new(0),
        }
    }

    /// Blocks at addresses that the driver chooses.
    pub fn anywhere() -> Self {
        Self { far: Far::new(ADDRESSES), ..Self::new(0, 0) }
    }

    /// The same, with a buddy system for some of the blocks.
    pub fn with_buddy(self, buddy: Buddy) -> Self {
        Self { chunks: Chunks::new(buddy), ..self }
    }

    /// The descriptor behind a hint, or of an extent.
    #[inline]
    pub fn at(&self, index: u32) -> &Descriptor {
        // Indexes come from hints and links, which name descriptors that exist.
        self.table.get(index).expect("a descriptor that was never made")
    }

    pub fn create(&self, index: u32) -> Option<&Descriptor> {
        self.table.get_or_create(index)
    }

    pub fn base(&self) -> u64 {
        self.base
    }

    /// Whether an address lies in the reservation. None does where the driver chooses them.
    #[inline]
    pub fn contains(&self, address: u64) -> bool {
        address.wrapping_sub(self.base) < self.bytes
    }

    /// The block that starts at `address`, with its state word.
    pub fn find(&self, address: u64) -> Option<(u32, &Descriptor, Word)> {
        if !self.contains(address) {
            return self.find_far(address);
        }
        self.look_up(address, || self.near.get(address - self.base))
    }

    #[cold]
    #[inline(never)]
    fn find_far(&self, address: u64) -> Option<(u32, &Descriptor, Word)> {
        self.look_up(address, || self.far.get(address))
    }

    #[inline]
    fn look_up(
        &self,
        address: u64,
        entry: impl Fn() -> Option<u32>,
    ) -> Option<(u32, &Descriptor, Word)> {
        let mut index = entry()?;
        loop {
            let block = self.table.get(index)?;
            let word = block.word();
            let here = block.address() == address;
            if here && word.state() == State::Live {
                return Some((index, block, word));
            }
            if let Some(found) = self.look_behind(block, word, address) {
                return Some(found);
            }
            // A block that is held is led to by another entry once its plan has ended.
            let now = entry()?;
            if now == index {
                return here.then_some((index, block, word));
            }
            index = now;
        }
    }

    /// Of the places of a plan that start where this one does, the one behind it that is live.
    #[cold]
    fn look_behind<'b>(
        &'b self,
        mut block: &'b Descriptor,
        word: Word,
        address: u64,
    ) -> Option<(u32, &'b Descriptor, Word)> {
        if !word.has(Word::PLANNED) {
            return None;
        }
        // Bounded: what a link leads to may be something else's by now, but places are few.
        for _ in 0..1 << Hint::INDEX_BITS {
            // Acquire pairs with the release of whoever linked it.
            let next = block.note.load(Ordering::Acquire);
            let Some(behind) = self.table.get(next).filter(|_| next != 0) else { break };
            let word = behind.word();
            if behind.address() != address || !word.has(Word::PLANNED) {
                break;
            }
            if word.state() == State::Live {
                return Some((next, behind, word));
            }
            block = behind;
        }
        None
    }

    /// Publishes the start of a block. Arena only.
    fn publish(&self, index: u32) -> bool {
        let offset_of = |i: u32| self.at(i).address().wrapping_sub(self.base);
        match self.bytes {
            0 => self.far.set(offset_of(index), index, offset_of),
            _ => self.near.set(offset_of(index), index, offset_of),
        }
    }

    /// Tells the arena of a freed block. The caller set INDEXED on its word, so nobody else pushes
    /// it and the arena keeps the descriptor until it has taken the note. Lock-free.
    pub fn note(&self, index: u32) {
        self.push(&self.notes, index);
    }

    /// The same for a block in a chunk.
    pub fn note_apart(&self, index: u32) {
        self.push(&self.apart_notes, index);
    }

    fn push(&self, notes: &AtomicU32, index: u32) {
        let block = self.at(index);
        let mut head = notes.load(Ordering::Relaxed);
        loop {
            block.note.store(head, Ordering::Relaxed);
            // Release publishes the link to the acquire swap in `take`.
            match notes.compare_exchange(head, index, Ordering::Release, Ordering::Relaxed) {
                Ok(_) => return,
                Err(found) => head = found,
            }
        }
    }

    /// Takes the whole list of notes. Arena only.
    pub fn take_notes(&self) -> u32 {
        Self::take(&self.notes)
    }

    /// The same of blocks in chunks.
    fn take_apart_notes(&self) -> u32 {
        Self::take(&self.apart_notes)
    }

    fn take(notes: &AtomicU32) -> u32 {
        if notes.load(Ordering::Relaxed) == 0 {
            return 0;
        }
        notes.swap(0, Ordering::Acquire)
    }

    /// The first descriptor in each list of notes, which stay: for tests.
    fn first_notes(&self) -> [u32; 2] {
        [&self.notes, &self.apart_notes].map(|notes| notes.load(Ordering::Acquire))
    }

    /// Whether a hint no longer leads to a cached block.
    pub fn is_stale(&self, hint: Hint) -> bool {
        let word = self.at(hint.index()).word();
        !word.matches(hint) || word.state() != State::Cached
    }

    /// Host memory held, in bytes.
    pub fn bookkeeping(&self) -> u64 {
        self.table.bytes() + self.near.bytes() + self.far.bytes() + self.chunks.bookkeeping()
    }
}
