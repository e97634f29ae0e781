//! A plan's range that ends while a user holds a place of it.
#![cfg(loom)]

use loom_tests::device::{Held, PAGE, Pond, Stream};
use loom_tests::{Outcomes, explore, role};
use millpond::Reuse;
use millpond::internals::{State, Word};
use std::sync::Arc;

/// A range of three pages, with two places at its start, the first of one page and idle, the second of two
/// and held: its address leads to the first, and from there on.
struct Planned {
    pond: Arc<Pond>,
    s: Stream,
    range: u32,
    places: Vec<u32>,
    held: Held,
}

impl Planned {
    fn new() -> Self {
        let pond = Pond::new(3, 3, Reuse::SameStream);
        let s = pond.open();
        let (range, places) = pond.lay_out(s, 3 * PAGE, &[(0, PAGE), (0, 2 * PAGE)]);
        let held = pond.claim_place(places[1], s);
        Self { pond, s, range, places, held }
    }

    /// Whether the freed block was an extent by then, of which the arena has been told.
    fn noted(pond: &Pond, held: Held) -> bool {
        let word = pond.blocks().at(held.hint.index()).word();
        let rests = word.matches(held.hint) && word.state() == State::Cached;
        // Or it is merged already, and its note still waits.
        assert!(!rests || word.has(Word::INDEXED), "nobody was told of a freed block");
        word.has(Word::INDEXED)
    }

    /// All memory is idle, and known to be.
    fn assert_whole(pond: &Pond, s: Stream) {
        pond.check_invariants();
        assert!(pond.allocate_in_arena(s, 3 * PAGE).is_some(), "memory was lost");
        pond.check_invariants();
    }
}

/// The holder of a place frees it, in a way of his, while its range ends.
fn race(name: &str, seen: &'static Outcomes, free: fn(&Pond, Held)) {
    explore(name, move || {
        let Planned { pond, s, range, places, held } = Planned::new();
        pond.blocks().at(held.hint.index()).set_raw();
        let on = pond.clone();
        let free = role(move || free(&on, held));
        let on = pond.clone();
        let end = role(move || on.dissolve(range, &places, s));
        free.join().unwrap();
        end.join().unwrap();
        assert!(!pond.free_address(held.address), "freed twice");
        seen.reached(u32::from(Planned::noted(&pond, held)));
        Planned::assert_whole(&pond, s);
    });
    seen.assert_all(2);
}

/// The bugs would be: the block is an extent that nobody was told of; or the place is freed twice, by its
/// user and by the range.
#[test]
fn free_against_the_end_of_a_range() {
    static SEEN: Outcomes = Outcomes::new();
    race("free_against_the_end_of_a_range", &SEEN, |pond, held| pond.free(held));
}

/// By its address, which is looked up meanwhile.
///
/// The bug would be: the address is said not to be allocated.
#[test]
fn look_up_against_the_end_of_a_range() {
    static SEEN: Outcomes = Outcomes::new();
    race("look_up_against_the_end_of_a_range", &SEEN, |pond, held| {
        assert!(pond.free_address(held.address), "a block that is held is not found");
    });
}

/// A range ends, and what was free in it is handed out at once, while the holder frees his place.
///
/// The bug would be: another's memory covers the place.
#[test]
fn free_against_new_blocks_where_a_range_was() {
    static SEEN: Outcomes = Outcomes::new();
    explore("free_against_new_blocks_where_a_range_was", || {
        let Planned { pond, s, range, places, held } = Planned::new();
        let on = pond.clone();
        let free = role(move || on.free(held));
        let on = pond.clone();
        let end = role(move || {
            on.dissolve(range, &places, s);
            on.allocate_in_arena(s, PAGE).expect("a page is idle")
        });
        let other = end.join().unwrap();
        free.join().unwrap();
        let apart = other.address >= held.address + 2 * PAGE;
        SEEN.reached(u32::from(apart));
        pond.free(other);
        Planned::assert_whole(&pond, s);
    });
    SEEN.assert_all(2);
}
