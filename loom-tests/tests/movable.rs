//! Models of a movable block's place: pins, moves, and the owner's end.
#![cfg(loom)]

use loom::sync::atomic::{AtomicU64, Ordering};
use loom_tests::device::{Stream, Streams};
use loom_tests::{Outcomes, explore, explore_shallow, role};
use millpond::internals::{Descriptor, Fence, Hint, Place, Slot, stream};
use std::sync::Arc;

/// A block in one of two places, and what a device would know of it.
struct Yard {
    slot: Slot,
    streams: Arc<Streams>,
    s: Stream,
    /// The block's uses.
    block: Descriptor,
    /// Where its bytes are.
    at: AtomicU64,
    /// Work that was submitted.
    works: AtomicU64,
    /// Pins that there are.
    inside: AtomicU64,
    /// How often the block was freed, and where it was then.
    freed: AtomicU64,
    freed_at: AtomicU64,
}

const OLD: u64 = 1;
const NEW: u64 = 2;

fn place(at: u64) -> Place {
    Place { hint: Hint(at), ready: Fence::new(stream(1), at) }
}

impl Yard {
    fn new() -> Arc<Self> {
        let streams = Streams::new();
        let s = streams.open();
        let block = Descriptor::default();
        block.reset_fences(s.id);
        block.record_use(streams.fences.stamp(s.id));
        let slot = Slot::new(place(OLD));
        // There is something in it.
        slot.pin();
        slot.unpin();
        let zero = || AtomicU64::new(0);
        let (works, inside, freed, freed_at) = (zero(), zero(), zero(), zero());
        Arc::new(Self {
            slot,
            streams,
            s,
            block,
            at: AtomicU64::new(OLD),
            works,
            inside,
            freed,
            freed_at,
        })
    }

    /// Pins, gives the stream work, and ends the pin. Returns where the block was.
    fn pin(&self, on: Stream, work: u32) -> u64 {
        let Place { hint: Hint(at), ready } = self.slot.pin();
        assert_eq!(ready, place(at).ready, "half of a place");
        self.inside.fetch_add(1, Ordering::Relaxed);
        assert_eq!(self.at.load(Ordering::Relaxed), at, "a pin at a place that the block has left");
        self.works.fetch_add(1, Ordering::Relaxed);
        let use_of = self.streams.work(on, work);
        self.block.record_use(use_of);
        assert_eq!(self.at.load(Ordering::Relaxed), at, "a pinned block moves");
        self.inside.fetch_sub(1, Ordering::Relaxed);
        self.slot.unpin();
        at
    }

    /// A pin without work.
    fn hold(&self) -> u64 {
        let Place { hint: Hint(at), .. } = self.slot.pin();
        self.inside.fetch_add(1, Ordering::Relaxed);
        assert_eq!(self.at.load(Ordering::Relaxed), at, "a pinned block moves");
        self.inside.fetch_sub(1, Ordering::Relaxed);
        self.slot.unpin();
        at
    }

    /// Moves the block, if it may be moved.
    fn relocate(&self) -> bool {
        let Some(from) = self.slot.begin_move() else { return false };
        assert_eq!(from.hint, Hint(OLD), "it is moved once");
        assert_eq!(self.inside.load(Ordering::Relaxed), 0, "a move while there are pins");
        // All that was submitted is among the uses: the first entry is the block's own.
        let mut uses = 0;
        self.block.for_each_fence(|_| uses += 1);
        assert_eq!(uses, 1 + self.works.load(Ordering::Relaxed), "a move that does not see a use");
        self.at.store(NEW, Ordering::Relaxed);
        if self.slot.end_move(Some(place(NEW))) {
            self.free(place(NEW));
        }
        true
    }

    fn free(&self, place: Place) {
        self.freed.fetch_add(1, Ordering::Relaxed);
        self.freed_at.store(place.hint.0, Ordering::Relaxed);
    }
}

/// A block is pinned, used and unpinned while another thread moves it.
///
/// The bug would be: the pin gets an address that the block has left, or the move takes the block from
/// under work that it does not know of.
#[test]
fn pin_against_a_move() {
    static SEEN: Outcomes = Outcomes::new();
    explore("pin_against_a_move", || {
        let yard = Yard::new();
        let t = yard.streams.open();
        let on = yard.clone();
        let pin = role(move || {
            let at = on.pin(t, 7);
            SEEN.reached(if at == OLD { 0 } else { 1 });
        });
        let on = yard.clone();
        let mover = role(move || SEEN.reached(if on.relocate() { 2 } else { 3 }));
        [pin, mover].into_iter().for_each(|role| role.join().unwrap());
        assert!(yard.slot.is_idle());
    });
    SEEN.assert_all(4);
}

/// The owner lets go while the block is being moved.
///
/// The bug would be: nobody frees it, or both do, or it is freed where it no longer is.
#[test]
fn drop_against_a_move() {
    static SEEN: Outcomes = Outcomes::new();
    explore("drop_against_a_move", || {
        let yard = Yard::new();
        let on = yard.clone();
        let owner = role(move || {
            let place = on.slot.let_go();
            SEEN.reached(if place.is_none() { 0 } else { 1 });
            place.into_iter().for_each(|place| on.free(place));
        });
        let on = yard.clone();
        let mover = role(move || SEEN.reached(if on.relocate() { 2 } else { 3 }));
        [owner, mover].into_iter().for_each(|role| role.join().unwrap());
        assert_eq!(yard.freed.load(Ordering::Relaxed), 1, "the block is freed once");
        let (freed, at) = (&yard.freed_at, &yard.at);
        assert_eq!(freed.load(Ordering::Relaxed), at.load(Ordering::Relaxed), "freed elsewhere");
        SEEN.reached_if(4, at.load(Ordering::Relaxed) == NEW);
        assert!(yard.slot.is_gone() && yard.slot.begin_move().is_none());
    });
    SEEN.assert_all(5);
}

/// Two threads pin a block while a third moves it.
///
/// The bug would be: the end of one pin lets the block move under the other.
#[test]
fn two_pins_and_a_move() {
    static SEEN: Outcomes = Outcomes::new();
    explore_shallow("two_pins_and_a_move", || {
        let yard = Yard::new();
        let pins = [0; 2].map(|_| {
            let on = yard.clone();
            role(move || SEEN.reached_if(0, on.hold() == NEW))
        });
        let on = yard.clone();
        let mover = role(move || SEEN.reached(if on.relocate() { 1 } else { 2 }));
        pins.into_iter().chain([mover]).for_each(|role| role.join().unwrap());
        assert!(yard.slot.is_idle());
    });
    SEEN.assert_all(3);
}
