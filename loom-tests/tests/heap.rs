//! The arena against users who claim, use and free blocks without its lock.
#![cfg(loom)]

use loom::sync::atomic::Ordering;
use loom_tests::device::{Held, PAGE, Pond, Stream};
use loom_tests::{Outcomes, explore, explore_shallow, role};
use millpond::Reuse;
use millpond::internals::{State, Word};
use std::sync::Arc;

/// A heap in which a search for a page on `t` comes across `block`, which a user of `s` holds and
/// the index still lists, and ends at another block.
struct Listed {
    pond: Arc<Pond>,
    s: Stream,
    t: Stream,
    block: Held,
}

impl Listed {
    fn new() -> Self {
        let pond = Pond::new(6, 7, Reuse::SameStream);
        let (s, t) = (pond.open(), pond.open());
        let take = |on, bytes| pond.allocate_in_arena(on, bytes).expect("memory for the setup");
        // In this order in memory; two that are held throughout keep the others apart.
        let block = take(s, PAGE);
        let _held = take(t, PAGE);
        let other = take(t, PAGE);
        let _held = take(t, PAGE);
        let larger = take(s, 2 * PAGE);
        [block, other, larger].into_iter().for_each(|held| pond.free(held));
        // Reads the notes, and finds what it may use.
        let again = take(t, PAGE);
        assert_eq!(again.address, other.address);
        pond.free(again);
        let block = pond.claim(block.hint).expect("a cached block");
        Self { pond, s, t, block }
    }
}

/// A user frees a block that is in the arena's index, while the arena comes across it.
///
/// The bugs would be: the free saw the block indexed and left no note, and the arena forgets it
/// afterwards; or the block is noted although the index holds it.
#[test]
fn free_against_a_search() {
    static SEEN: Outcomes = Outcomes::new();
    explore("free_against_a_search", || {
        let Listed { pond, s, t, block } = Listed::new();
        let on = pond.clone();
        let free = role(move || on.free(block));
        let on = pond.clone();
        let search = role(move || on.allocate_in_arena(t, PAGE).unwrap());
        free.join().unwrap();
        let other = search.join().unwrap();
        assert_ne!(other.address, block.address, "a block of another stream was reused");

        let blocks = pond.blocks();
        assert!(blocks.at(block.hint.index()).word().has(Word::INDEXED));
        let noted = blocks.take_notes() == block.hint.index();
        // If the index lists it, it is the best fit.
        let indexed = pond.allocate_in_arena(s, PAGE).unwrap().address == block.address;
        assert!(noted || indexed, "a freed block is neither noted nor in the index");
        assert!(!noted || !indexed, "a freed block is noted and in the index");
        SEEN.reached(u32::from(noted));
        pond.check_invariants();
    });
    SEEN.assert_all(2);
}

/// A listed block is freed, and at once claimed and freed again, before the arena looks.
///
/// The bug would be: one of the frees leaves a note although the index lists the block.
#[test]
fn free_against_a_claim_of_a_listed_block() {
    static SEEN: Outcomes = Outcomes::new();
    explore("free_against_a_claim_of_a_listed_block", || {
        let Listed { pond, block, .. } = Listed::new();
        let on = pond.clone();
        let free = role(move || on.free(block));
        let on = pond.clone();
        let claim = role(move || {
            let held = on.claim(block.hint);
            held.into_iter().for_each(|held| on.free(held));
            SEEN.reached(u32::from(held.is_some()));
        });
        free.join().unwrap();
        claim.join().unwrap();
        let blocks = pond.blocks();
        // The setup left one note of another block.
        let first = blocks.take_notes();
        let second = blocks.at(first).note.load(Ordering::Relaxed);
        assert!(![first, second].contains(&block.hint.index()), "a listed block was noted");
        assert!(blocks.at(block.hint.index()).word().has(Word::INDEXED));
    });
    SEEN.assert_all(2);
}

/// A user frees a block while the arena merges it into its neighbour below, and cuts the result.
///
/// The bug would be: the descriptor merged away describes another block while its note is still to
/// be pushed, or waits in the list; its next note then goes over a link in use.
#[test]
fn note_against_a_merge() {
    static SEEN: Outcomes = Outcomes::new();
    explore("note_against_a_merge", || {
        // Addresses enough for all memory beside the places that pages have left.
        let pond = Pond::new(4, 8, Reuse::SameStream);
        let s = pond.open();
        let [low, high] = [(); 2].map(|()| pond.allocate_in_arena(s, PAGE).unwrap());
        assert_eq!(low.address + PAGE, high.address);
        pond.free(low);
        let on = pond.clone();
        let free = role(move || on.free(high));
        let on = pond.clone();
        let arena = role(move || {
            let bytes = PAGE + PAGE / 2;
            let block = on.allocate_in_arena(s, bytes).expect("pages are left");
            let descriptor = on.blocks().at(high.hint.index());
            let (word, address) = (descriptor.word(), descriptor.address());
            assert!(
                !word.has(Word::INDEXED) || address == high.address,
                "a descriptor is reused while its note waits"
            );
            SEEN.reached(if block.address == low.address { 0 } else { 1 });
            SEEN.reached_if(2, word.state() == State::Spare && word.has(Word::INDEXED));
            block
        });
        free.join().unwrap();
        pond.free(arena.join().unwrap());
        pond.check_invariants();
        pond.allocate_in_arena(s, 4 * PAGE).expect("all memory is free");
        pond.check_invariants();
    });
    SEEN.assert_all(3);
}

/// A user claims a listed block by its hint while the arena merges it with its neighbours, of which
/// one is listed like it, to serve a request that needs both.
///
/// The bug would be: both have it.
#[test]
fn claim_against_a_merge() {
    static SEEN: Outcomes = Outcomes::new();
    explore("claim_against_a_merge", || {
        let pond = Pond::new(6, 12, Reuse::SameStream);
        let (s, t) = (pond.open(), pond.open());
        let take = |on| pond.allocate_in_arena(on, PAGE).expect("memory for the setup");
        let [low, high, guard, other] = [s, s, s, t].map(take);
        [high, other].into_iter().for_each(|held| pond.free(held));
        // Reads the notes while there is nothing to merge, and finds what it may use.
        take(t);
        pond.free(low);
        let on = pond.clone();
        let user = role(move || on.claim(high.hint));
        let on = pond.clone();
        let arena = role(move || on.allocate_in_arena(s, 2 * PAGE).expect("pages are left"));
        let (user, merged) = (user.join().unwrap(), arena.join().unwrap());
        let overlaps =
            merged.address < high.address + PAGE && high.address < merged.address + 2 * PAGE;
        assert!(user.is_none() || !overlaps, "a user's block was merged away");
        SEEN.reached_if(0, user.is_some());
        SEEN.reached_if(1, user.is_none() && overlaps);
        pond.free(guard);
        pond.check_invariants();
    });
    SEEN.assert_all(2);
}

/// A block is merged away and its descriptor describes another block, which is freed in its turn,
/// while a thread comes with a hint to the first.
///
/// The bug would be: the hint is good for the second block, of another size.
#[test]
fn old_hint_against_a_reused_descriptor() {
    static SEEN: Outcomes = Outcomes::new();
    explore("old_hint_against_a_reused_descriptor", || {
        let pond = Pond::new(8, 12, Reuse::SameStream);
        let s = pond.open();
        let [low, high] = [1, 3].map(|pages| pond.allocate_in_arena(s, pages * PAGE).unwrap());
        pond.free(low);
        pond.free(high);
        let on = pond.clone();
        let user = role(move || {
            let held = on.claim(high.hint)?;
            let size = on.blocks().at(held.hint.index()).size();
            assert_eq!(size, 3 * PAGE, "an old hint leads to another block");
            Some(held)
        });
        let on = pond.clone();
        let arena = role(move || {
            // Both in one, which is cut into three; whichever has the descriptor is freed.
            let parts = [PAGE + PAGE / 4, PAGE, 2 * PAGE - PAGE / 4]
                .map(|bytes| on.allocate_in_arena(s, bytes).expect("pages are left"));
            let (again, kept): (Vec<Held>, Vec<Held>) =
                parts.into_iter().partition(|part| part.hint.index() == high.hint.index());
            SEEN.reached_if(1, !again.is_empty());
            again.into_iter().for_each(|part| on.free(part));
            kept
        });
        let (user, kept) = (user.join().unwrap(), arena.join().unwrap());
        SEEN.reached(if user.is_some() { 2 } else { 0 });
        let size = |held: &Held| pond.blocks().at(held.hint.index()).size();
        let overlaps = |part: &Held| {
            part.address < high.address + 3 * PAGE && high.address < part.address + size(part)
        };
        assert!(user.is_none() || !kept.iter().any(overlaps), "a user's block was merged away");
        pond.check_invariants();
    });
    SEEN.assert_all(3);
}

/// All memory is in one block, which is freed while a thread that needs it is in the arena, or about
/// to leave it without.
///
/// The bugs would be: the block is in no index, on no list and in no shard afterwards, or it is had
/// twice.
#[test]
fn free_while_the_arena_is_left() {
    static SEEN: Outcomes = Outcomes::new();
    explore_shallow("free_while_the_arena_is_left", || {
        let pond = Pond::new(2, 4, Reuse::SameStream);
        let s = pond.open();
        let block = pond.allocate(s, 2 * PAGE).unwrap();
        let on = pond.clone();
        let free = role(move || on.free(block));
        let on = pond.clone();
        let ask = role(move || on.allocate(s, 2 * PAGE));
        free.join().unwrap();
        let served = ask.join().unwrap().is_some();
        SEEN.reached(u32::from(served));
        let again = pond.allocate(s, 2 * PAGE).is_some();
        assert!(served || again, "a freed block is lost");
        assert!(!served || !again, "one block serves two");
        pond.check_invariants();
    });
    SEEN.assert_all(2);
}

/// While the arena looks at a cached block's fences, the block's own stream takes it, hands it to
/// another stream, and frees it.
///
/// The bug would be: the arena claims the block by a word read after the second free, with the
/// fences of the first, and hands it out over work that is still to run.
#[test]
fn block_used_between_look_and_claim() {
    static SEEN: Outcomes = Outcomes::new();
    explore("block_used_between_look_and_claim", || {
        let pond = Pond::new(2, 2, Reuse::SameStream);
        let (s, u) = (pond.open(), pond.open());
        let block = pond.allocate_in_arena(s, PAGE).unwrap();
        pond.free(block);
        let on = pond.clone();
        let user = role(move || {
            let Some(held) = on.claim(block.hint) else { return false };
            on.record_use(held, u);
            on.streams.driver.work(u.handle, 9);
            on.free(held);
            true
        });
        let on = pond.clone();
        let arena = role(move || on.allocate_in_arena(s, PAGE).expect("a page is left besides"));
        let (used, held) = (user.join().unwrap(), arena.join().unwrap());
        let reused = held.address == block.address;
        if used && reused {
            let ordered = pond.streams.driver.ordered(u.handle, 9, s.handle);
            assert!(ordered, "a block is handed out over work that is still to run");
        }
        SEEN.reached_if(0, used && !reused);
        SEEN.reached_if(1, !used && reused);
    });
    SEEN.assert_all(2);
}

/// A block is freed just below an extent that the arena is about to grow.
///
/// The bug would be: the grown extent swallows the block after its fences were looked at, and is
/// handed out over work of another stream that is still to run.
#[test]
fn free_below_a_growing_extent() {
    static SEEN: Outcomes = Outcomes::new();
    explore("free_below_a_growing_extent", || {
        let pond = Pond::new(4, 4, Reuse::SameStream);
        let (t, u) = (pond.open(), pond.open());
        let bytes = PAGE + PAGE / 2;
        // The rest of its second page is free, and was never used.
        let block = pond.allocate_in_arena(u, bytes).unwrap();
        pond.streams.driver.work(u.handle, 9);
        let on = pond.clone();
        let free = role(move || on.free(block));
        let on = pond.clone();
        let grow = role(move || on.allocate_in_arena(t, bytes).expect("pages are left"));
        free.join().unwrap();
        let grown = grow.join().unwrap();
        assert!(
            grown.address >= block.address + bytes,
            "a grown extent is handed out over work that is still to run"
        );
        SEEN.reached_if(0, grown.address == block.address + bytes);
        SEEN.reached(1);
        pond.check_invariants();
    });
    SEEN.assert_all(2);
}

/// Two threads free one address.
///
/// The bug would be: both are told that it was theirs to free.
#[test]
fn two_frees_of_one_address() {
    explore("two_frees_of_one_address", || {
        let pond = Pond::new(2, 2, Reuse::SameStream);
        let s = pond.open();
        let block = pond.allocate_in_arena(s, PAGE).unwrap();
        pond.blocks().at(block.hint.index()).set_raw();
        let frees = [(); 2].map(|()| {
            let on = pond.clone();
            role(move || on.free_address(block.address))
        });
        let freed = frees.into_iter().filter_map(|free| free.join().unwrap().then_some(()));
        assert_eq!(freed.count(), 1, "one address was freed twice, or not at all");
        assert!(pond.claim(block.hint).is_some());
    });
}

/// A thread looks an address up while the arena publishes blocks around it.
///
/// The bug would be: a live block is not found, or another is found in its place.
#[test]
fn address_look_up_against_publish() {
    static SEEN: Outcomes = Outcomes::new();
    explore("address_look_up_against_publish", || {
        let pond = Pond::new(2, 2, Reuse::SameStream);
        let s = pond.open();
        let first = pond.allocate_in_arena(s, PAGE + 512).unwrap();
        let next = first.address + PAGE + 512;
        let on = pond.clone();
        let arena = role(move || on.allocate_in_arena(s, PAGE - 512).unwrap());
        let on = pond.clone();
        let look = role(move || {
            let (index, ..) = on.blocks().find(first.address).expect("a live block is not found");
            assert_eq!(index, first.hint.index(), "another block is found in its place");
            let found = on.blocks().find(next);
            SEEN.reached(u32::from(found.is_some()));
            found.map(|(index, ..)| index)
        });
        let block = arena.join().unwrap();
        assert_eq!(block.address, next);
        if let Some(index) = look.join().unwrap() {
            assert_eq!(index, block.hint.index(), "another block is found in its place");
        }
        let (index, ..) = pond.blocks().find(next).expect("a live block is not found");
        assert_eq!(index, block.hint.index());
    });
    SEEN.assert_all(2);
}
