//! Blocks: descriptors, their state word, and ownership by one compare-and-swap.
//!
//! A *descriptor* is a block's record. It is type-stable: never freed while the pool lives, named by
//! index, reused under a new tag. Whoever moves its state word out of `Cached` (or holds it `Live`)
//! owns the block and may write the other fields; everybody may read them, and a reader that then
//! wins the CAS on the word it read before knows that what it read belongs together.
//!
//! ```text
//! only the owner writes        size, slack, fences, spill
//! the owner or record_use      fences (open entries), USES
//! only the arena               address; Free, Hole, Spare, Chunk; APART; INDEXED cleared
//! who took its units           Free to Live, where APART is set
//! the freeing thread           INDEXED set, together with a push onto the arena's notes
//! ```

mod fences;
mod word;

pub(crate) use fences::FenceSet;
pub use word::{Fence, Hint, State, StreamId, Word};

use crate::size;
use crate::sync::{AtomicPtr, AtomicU32, AtomicU64, Ordering};

/// Fences kept inside the descriptor; a block used on more streams spills into rows of its own.
pub(crate) const INLINE: usize = 3;

/// In the requested bytes: the block is held by its address alone.
const RAW: u32 = 1 << 31;

/// Bits of the size field that hold the class.
const CLASS: u64 = size::QUANTUM - 1;

/// A block's record: one cache line.
#[repr(align(64))]
#[derive(Default)]
pub struct Descriptor {
    state: AtomicU64,
    address: AtomicU64,
    /// Granted bytes, and in the low bits, which a multiple of 512 leaves free, the size class.
    size: AtomicU64,
    /// Requested bytes of a small block; of a large one, what it was granted beyond them. And [`RAW`].
    requested: AtomicU32,
    /// The next descriptor in the arena's list of notes.
    pub note: AtomicU32,
    fences: [AtomicU64; INLINE],
    spill: AtomicPtr<fences::Row>,
}

impl Descriptor {
    /// The state word. Acquire pairs with the release of whoever published it, so the fields of
    /// the block are those of this word or of a later one.
    #[inline]
    pub fn word(&self) -> Word {
        Word(self.state.load(Ordering::Acquire))
    }

    #[inline]
    pub fn address(&self) -> u64 {
        self.address.load(Ordering::Relaxed)
    }

    /// Where the next extent starts.
    pub fn end(&self) -> u64 {
        self.address() + self.size()
    }

    /// Granted bytes.
    #[inline]
    pub fn size(&self) -> u64 {
        self.size.load(Ordering::Relaxed) & !CLASS
    }

    /// The size class of a small block; `None` for a large one.
    #[inline]
    pub fn class(&self) -> Option<usize> {
        let class = (self.size.load(Ordering::Relaxed) & CLASS) as usize;
        (class < size::CLASSES).then_some(class)
    }

    /// Owner only: whether it is a large block that is an extent of its own, neither in a chunk nor in a
    /// plan's range.
    pub fn is_large_extent(&self) -> bool {
        let word = self.word();
        !size::is_small(self.size()) && !word.has(Word::APART) && !word.has(Word::PLANNED)
    }

    /// Bytes the user asked for.
    pub fn requested(&self) -> u64 {
        let stored = u64::from(self.requested.load(Ordering::Relaxed) & !RAW);
        if self.class().is_some() { stored } else { self.size() - stored }
    }

    /// Owner only, for a small block.
    #[inline]
    pub fn set_requested_small(&self, bytes: u64) {
        self.requested.store(bytes as u32, Ordering::Relaxed);
    }

    /// Owner only.
    #[inline]
    pub fn set_requested(&self, bytes: u64) {
        let stored = if self.class().is_some() { bytes } else { self.size() - bytes };
        self.requested.store(stored as u32, Ordering::Relaxed);
    }

    /// Owner: nothing but the address leads to the block from now on.
    #[inline]
    pub fn set_raw(&self) {
        self.requested.store(self.requested.load(Ordering::Relaxed) | RAW, Ordering::Relaxed);
    }

    /// As `set_raw` for a buffer's block, if it still is: whoever moves the word owns it meanwhile.
    pub fn make_raw(&self, hint: Hint) {
        if self.move_state(hint, State::Live, State::Claimed) {
            self.set_raw();
            self.move_state(hint, State::Claimed, State::Live);
        }
    }

    /// Undoes `make_raw`. False where the block is no longer the hint's, or not held by its address alone:
    /// of several that try, one succeeds.
    #[cfg(feature = "cuda")]
    pub fn unmake_raw(&self, hint: Hint) -> bool {
        let owned = self.move_state(hint, State::Live, State::Claimed);
        let raw = owned && self.is_raw();
        if raw {
            let requested = self.requested.load(Ordering::Relaxed);
            self.requested.store(requested & !RAW, Ordering::Relaxed);
        }
        if owned {
            self.move_state(hint, State::Claimed, State::Live);
        }
        raw
    }

    fn move_state(&self, hint: Hint, from: State, to: State) -> bool {
        let mut word = self.word();
        while word.matches(hint) && word.state() == from {
            match self.exchange(word, word.with_state(to)) {
                Ok(()) => return true,
                // Only flags can have moved, each once.
                Err(found) => word = found,
            }
        }
        false
    }

    /// Owner: whether only the address leads to the block. Every allocation says anew.
    #[inline]
    pub fn is_raw(&self) -> bool {
        self.requested.load(Ordering::Relaxed) & RAW != 0
    }

    /// Arena only, while it owns the block.
    pub fn set_extent(&self, address: u64, size: u64) {
        let class = if size::is_small(size) { size::class_of(size) } else { size::CLASSES };
        self.address.store(address, Ordering::Relaxed);
        self.size.store(size | class as u64, Ordering::Relaxed);
    }

    /// Moves the word if it is still `from`.
    /// Success: acquire pairs with the release of the previous owner, whose writes to the block's
    /// fields (and to its stream, through the fences) come before ours; release publishes ours.
    #[inline]
    pub fn exchange(&self, from: Word, to: Word) -> Result<(), Word> {
        match self.state.compare_exchange(from.0, to.0, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => Ok(()),
            Err(found) => Err(Word(found)),
        }
    }

    /// Frees a block that the caller owns exclusively, whose word is `owned`, without flags: a
    /// plain store, since nobody else moves such a word. Release publishes the fences.
    #[inline]
    pub fn release(&self, owned: Word) {
        self.state.store(owned.with_state(State::Cached).0, Ordering::Release);
    }

    /// Takes a cached block for a user: `Cached → Live` under a new tag. `Some` is the hint to it
    /// from now on; `None` when somebody else was faster or the hint is stale.
    #[inline(always)]
    pub fn claim(&self, hint: Hint) -> Option<Hint> {
        // Nearly always there are no flags: no need to look first.
        let next = hint.next();
        match self.exchange(Word::cached(hint), Word::live(next)) {
            Ok(()) => Some(next),
            Err(found) => self.claim_flagged(hint, found).then_some(next),
        }
    }

    #[cold]
    fn claim_flagged(&self, hint: Hint, mut word: Word) -> bool {
        loop {
            if !word.matches(hint) || word.state() != State::Cached {
                return false;
            }
            let live = word.with_state(State::Live).without(Word::USES).next_tag();
            match self.exchange(word, live) {
                Ok(()) => return true,
                // Same tag, still cached: only the arena's INDEXED flag moved, and it moves at
                // most twice while a block stays cached, so this does not loop for others' sake.
                Err(found) => word = found,
            }
        }
    }

    /// Takes a cached block for the arena: `Cached → Claimed` under a new tag.
    pub fn claim_for_arena(&self, seen: Word) -> bool {
        seen.state() == State::Cached
            && self.exchange(seen, seen.with_state(State::Claimed).next_tag()).is_ok()
    }

    /// Arena: sets the state of an extent that it owns (`Spare`, `Free`, `Hole` or `Claimed`); flags
    /// are kept. A plain store: nobody else moves such a word. Release publishes the extent's
    /// fields together with its state.
    pub fn set_state(&self, state: State) {
        self.store(self.word().with_state(state));
    }

    /// Arena: sets or clears the flag of an extent that it owns.
    pub fn set_indexed(&self, indexed: bool) {
        let word = self.word();
        self.store(if indexed { word.with(Word::INDEXED) } else { word.without(Word::INDEXED) });
    }

    /// Arena: whether a block that it owns lies in a chunk.
    pub fn set_apart(&self, apart: bool) {
        self.set_flag(Word::APART, apart);
    }

    /// Arena: whether a block that it owns is a plan's range, or a place in one.
    pub fn set_planned(&self, planned: bool) {
        self.set_flag(Word::PLANNED, planned);
    }

    /// Arena: takes the mark of a place from a block that a user holds. False if it was freed first.
    pub fn set_aside(&self) -> bool {
        let mut word = self.word();
        // Each turn a user has moved the word, which happens a few times before it is free.
        while word.state() != State::Cached {
            match self.exchange(word, word.without(Word::PLANNED)) {
                Ok(()) => return true,
                Err(found) => word = found,
            }
        }
        false
    }

    fn set_flag(&self, flag: u64, on: bool) {
        let word = self.word();
        self.store(if on { word.with(flag) } else { word.without(flag) });
    }

    /// Arena: makes an extent that it owns live under a new tag, and returns its word.
    pub fn hand_out(&self) -> Word {
        let live = self.word().with_state(State::Live).without(Word::USES).next_tag();
        self.store(live);
        live
    }

    /// As `hand_out` for a block whose uses are stamped already: its free stamps nothing but what is
    /// open.
    pub fn hand_out_stamped(&self) -> Word {
        let live = self.word().with_state(State::Live).with(Word::USES).next_tag();
        self.store(live);
        live
    }

    /// Owner: forgets that uses were recorded. The free stamps the own stream's entry, the only one.
    pub fn end_uses(&self) {
        // AcqRel: other flags may move meanwhile.
        self.state.fetch_and(!Word::USES, Ordering::AcqRel);
    }

    /// As `hand_out`, for a block in a chunk, whose units the caller has taken: the arena may be taking
    /// the flag off it, whose note came late.
    pub fn hand_out_apart(&self) -> Word {
        let mut word = self.word();
        loop {
            let live = word.with_state(State::Live).without(Word::USES).next_tag();
            match self.exchange(word, live) {
                Ok(()) => return live,
                Err(found) => word = found,
            }
        }
    }

    fn store(&self, word: Word) {
        self.state.store(word.0, Ordering::Release);
    }

    /// Marks a live block as one whose uses are recorded. A block that came from its own stream's
    /// cache still carries the stamp of its last free: it is opened again, to be stamped anew.
    pub fn begin_uses(&self) {
        if !self.word().has(Word::USES) {
            self.open_own();
            // The free that follows happens after this call, by the user's own synchronisation.
            self.state.fetch_or(Word::USES, Ordering::AcqRel);
        }
    }

    /// Arena: forgets a block that turned out to be live. Refused (false) when the block has been
    /// freed meanwhile: it must then stay indexed, since its free saw the flag and left no note.
    pub fn forget_if_taken(&self) -> bool {
        let mut word = self.word();
        loop {
            if word.state() == State::Cached {
                return false;
            }
            match self.exchange(word, word.without(Word::INDEXED)) {
                Ok(()) => return true,
                Err(found) => word = found,
            }
        }
    }
}
