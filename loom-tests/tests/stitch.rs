//! Pages that move, against users who claim blocks and against the work in flight on them.
#![cfg(loom)]

use loom_tests::device::{Held, PAGE, Pond};
use loom_tests::{Outcomes, explore, explore_deep, role};
use millpond::Reuse;
use millpond::driver::PageHandle;

/// The pages behind a block.
fn pages(pond: &Pond, held: Held, count: u64) -> Vec<PageHandle> {
    let page = |i| pond.streams.driver.page_at(held.address + i * PAGE).expect("a mapped page");
    (0..count).map(page).collect()
}

/// A block is freed and at once had again by its hint, while the arena takes pages from behind idle
/// blocks to serve a request that needs two together.
///
/// The bug would be: both get one page, since the arena saw the block idle and did not notice that
/// it lost it.
#[test]
fn page_taken_against_a_claim_by_hint() {
    static SEEN: Outcomes = Outcomes::new();
    explore_deep(3, "page_taken_against_a_claim_by_hint", || {
        let pond = Pond::new(6, 12, Reuse::SameStream);
        let (s, t) = (pond.open(), pond.open());
        let take = |on, bytes| pond.allocate_in_arena(on, bytes).expect("memory for the setup");
        // In this order in memory; those that are held throughout keep the others apart.
        let (a, _held, other) = (take(s, PAGE), take(t, PAGE), take(t, PAGE));
        let (_held, b, _held_too) = (take(t, PAGE), take(s, PAGE), take(t, PAGE));
        [a, other].into_iter().for_each(|held| pond.free(held));
        // Reads the notes: from now on `a` is listed, whoever has it.
        take(t, PAGE);
        let a = pond.claim(a.hint).expect("a cached block");
        pond.free(b);

        let on = pond.clone();
        let one = role(move || {
            on.free(a);
            on.claim(a.hint)
        });
        let on = pond.clone();
        let two = role(move || on.allocate_in_arena(s, 2 * PAGE));
        let (one, two) = (one.join().unwrap(), two.join().unwrap());
        assert!(one.is_none() || two.is_none(), "one page serves two");
        if let Some(two) = two {
            let pages = pages(&pond, two, 2);
            assert_ne!(pages[0], pages[1], "one page twice in a block");
        }
        SEEN.reached(u32::from(two.is_some()));
        pond.check_invariants();
    });
    SEEN.assert_all(2);
}

/// A page has moved while work on it was in flight. Now its old place is wanted for another page,
/// and the device finishes that work at some moment.
///
/// The bug would be: the old mapping is removed before the work is done.
#[test]
fn old_mapping_removed_against_completion() {
    static SEEN: Outcomes = Outcomes::new();
    explore("old_mapping_removed_against_completion", || {
        let pond = Pond::new(5, 4, Reuse::Completed);
        let s = pond.open();
        let take = |bytes| pond.allocate_in_arena(s, bytes);
        // Places 0, 1, 2 of four; the fourth is empty.
        let [a, b, c] = [0; 3].map(|_| take(PAGE).expect("memory for the setup"));
        pond.streams.driver.work(s.handle, 1);
        pond.streams.driver.touch(s.handle, 1, a.address);
        [a, c].into_iter().for_each(|held| pond.free(held));
        // Places 2 and 3, with the page of place 0.
        let moved = take(2 * PAGE).expect("pages of two blocks");
        assert_eq!(moved.address, c.address);
        let page = pond.streams.driver.page_at(a.address);
        assert!(pages(&pond, moved, 2).into_iter().any(|moved| Some(moved) == page));
        pond.free(b);

        let on = pond.clone();
        let device = role(move || on.streams.driver.run(s.handle));
        let on = pond.clone();
        // Places 0 and 1, for which a page is to be had.
        let again = role(move || on.allocate_in_arena(s, 2 * PAGE));
        device.join().unwrap();
        let again = again.join().unwrap();
        assert!(again.is_none_or(|again| again.address == a.address));
        SEEN.reached(u32::from(again.is_some()));
        pond.check_invariants();
    });
    SEEN.assert_all(2);
}
