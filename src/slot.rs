//! Where a movable block is: one atomic word that says who may look and who may change it.
//!
//! ```text
//! word = gone:1 | moving:1 | used:1 | pins:61
//! pins > 0   =>  the block stays: nobody begins a move
//! moving     =>  one thread has the place for itself; pins wait for its end, drops do not
//! not used   =>  nobody has pinned it yet, nothing is in it, and no move begins
//! gone       =>  the owner has let go: no pin, and no move begins; whoever moves the block then frees it
//! ```
//!
//! A pin is a compare-and-swap, lock-free unless a move of this very block is just being submitted.

use crate::block::{Fence, Hint};
use crate::sync::{AtomicU64, Ordering, UnsafeCell, yield_now};

/// A movable block's place.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    /// The block, under the tag by which it is the owner's.
    pub hint: Hint,
    /// The copy that brought it there: work that uses the block runs after it.
    pub ready: Fence,
}

pub struct Slot {
    word: AtomicU64,
    place: UnsafeCell<Place>,
}

/// More than can be begun, also where none is ever ended.
const PINS: u64 = USED - 1;
const USED: u64 = 1 << 61;
const MOVING: u64 = 1 << 62;
const GONE: u64 = 1 << 63;

impl Slot {
    pub fn new(place: Place) -> Self {
        Self { word: AtomicU64::new(0), place: UnsafeCell::new(place) }
    }

    /// Keeps the block where it is until [`Slot::unpin`]. The caller is not after the owner's end.
    pub fn pin(&self) -> Place {
        let mut word = self.word.load(Ordering::Relaxed);
        loop {
            if word & MOVING != 0 {
                yield_now();
                word = self.word.load(Ordering::Relaxed);
                continue;
            }
            // Acquire pairs with the release of `end_move`: the place is the one that it wrote.
            let pinned = (word + 1) | USED;
            match self.word.compare_exchange(word, pinned, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => break,
                Err(found) => word = found,
            }
        }
        self.read()
    }

    /// Ends a pin. The use was written down before.
    pub fn unpin(&self) {
        // Release pairs with the acquire of `begin_move` and `let_go`: they see the use.
        self.word.fetch_sub(1, Ordering::Release);
    }

    /// Takes the place for a move, unless the block is pinned, moving, gone, or not used yet.
    /// [`Slot::end_move`] follows.
    pub fn begin_move(&self) -> Option<Place> {
        // Acquire pairs with the release of `unpin`: the uses so far are those that the block says.
        let moving = USED | MOVING;
        let begun = self.word.compare_exchange(USED, moving, Ordering::Acquire, Ordering::Relaxed);
        begun.is_ok().then(|| self.read())
    }

    /// Ends a move, with the new place if there is one. True where the owner has let go meanwhile: the
    /// caller frees the block that is in the place now.
    #[must_use]
    pub fn end_move(&self, place: Option<Place>) -> bool {
        if let Some(place) = place {
            // SAFETY: between `begin_move` and here nobody else touches the place.
            self.place.with_mut(|held| unsafe { *held = place });
        }
        // Release publishes the place to later pins and moves; acquire pairs with the release of
        // `let_go`, whose owner leaves the block to us.
        self.word.fetch_and(!MOVING, Ordering::AcqRel) & GONE != 0
    }

    /// The owner's end. The place where the caller frees the block; none where it is being moved, and
    /// freed by the mover, or where a pin was never ended: then the block stays for good.
    #[must_use]
    pub fn let_go(&self) -> Option<Place> {
        // Acquire pairs with the releases of `unpin` and `end_move`; release with the acquire of
        // `end_move`.
        let word = self.word.fetch_or(GONE, Ordering::AcqRel);
        (word & (MOVING | PINS) == 0).then(|| self.read())
    }

    /// Whether the owner has let go.
    pub fn is_gone(&self) -> bool {
        // Relaxed: a slot that is taken for one in use for a while is only not moved.
        self.word.load(Ordering::Relaxed) & GONE != 0
    }

    /// Whether a move could begin now.
    pub fn is_idle(&self) -> bool {
        // Relaxed: `begin_move` decides.
        self.word.load(Ordering::Relaxed) == USED
    }

    /// The caller has a pin, moves the block, or is the last to look.
    fn read(&self) -> Place {
        // SAFETY: the place is written between `begin_move` and `end_move` only, when nobody else has
        // the right to read it.
        self.place.with(|held| unsafe { *held })
    }
}

// SAFETY: the word says who may touch the place.
unsafe impl Send for Slot {}
// SAFETY: as above.
unsafe impl Sync for Slot {}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::block::StreamId;

    fn place(n: u64) -> Place {
        Place { hint: Hint(n), ready: Fence::new(StreamId(1), n) }
    }

    #[test]
    fn pins_keep_a_block_and_owners_let_go_once() {
        let slot = Slot::new(place(1));
        assert!(!slot.is_idle() && slot.begin_move().is_none(), "there is nothing to move");
        assert_eq!((slot.pin().hint, slot.pin().hint), (Hint(1), Hint(1)));
        assert!(slot.begin_move().is_none() && !slot.is_idle());
        slot.unpin();
        assert!(slot.begin_move().is_none(), "one pin is left");
        slot.unpin();
        assert!(slot.is_idle());
        assert_eq!(slot.begin_move().map(|place| place.hint), Some(Hint(1)));
        assert!(slot.begin_move().is_none(), "it is being moved");
        assert!(!slot.end_move(Some(place(2))));
        assert_eq!(slot.pin().hint, Hint(2));
        slot.unpin();
        assert!(slot.begin_move().is_some());
        assert!(slot.let_go().is_none(), "the mover frees it");
        assert!(slot.end_move(None) && slot.is_gone());
        assert!(slot.begin_move().is_none());
        let other = Slot::new(place(3));
        assert_eq!(other.let_go().map(|place| place.hint), Some(Hint(3)));
        let leaked = Slot::new(place(4));
        leaked.pin();
        assert!(leaked.let_go().is_none(), "a pin that was never ended");
        // As many as can be forgotten in a minute.
        let many = Slot { word: AtomicU64::new(USED | u64::from(u32::MAX)), ..Slot::new(place(5)) };
        many.pin();
        assert!(many.begin_move().is_none());
        assert!(many.let_go().is_none(), "pins that were never ended");
    }
}
