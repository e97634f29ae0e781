//! One allocation and one free through all layers, as threads without a lease make them.
#![cfg(loom)]

use loom_tests::device::{Held, PAGE, Pond, Stream};
use loom_tests::{Outcomes, explore_within, role};
use millpond::Reuse;
use std::sync::Arc;

/// A pool whose stream `s` has freed a block of one page into its own cache.
fn cached(pages: u64, reuse: Reuse) -> (Arc<Pond>, Stream, Held) {
    let pond = Pond::new(pages, 4, reuse);
    let s = pond.open();
    let block = pond.allocate(s, PAGE).unwrap();
    // Finds no table; the miss that follows makes one.
    pond.free(block);
    let block = pond.allocate(s, PAGE).unwrap();
    pond.free(block);
    (pond, s, block)
}

/// Two threads allocate on one stream whose cache holds one block.
///
/// The bug would be: both get it.
#[test]
fn two_allocations_of_one_cached_block() {
    static SEEN: Outcomes = Outcomes::new();
    explore_within(1, "two_allocations_of_one_cached_block", || {
        let (pond, s, block) = cached(2, Reuse::SameStream);
        let allocations = [(); 2].map(|()| {
            let on = pond.clone();
            role(move || on.allocate(s, PAGE).expect("two pages"))
        });
        let [a, b] = allocations.map(|allocation| allocation.join().unwrap());
        assert_ne!(a.address, b.address, "two users hold one block");
        SEEN.reached(u32::from(a.address == block.address));
        pond.check_invariants();
    });
    SEEN.assert_all(2);
}

/// A block that another stream used is freed, and at the same moment its own stream allocates.
///
/// The bugs would be: the block is had from the shards or from the heap before its free stamped
/// the other stream's fence, or without the wait that the fence asks for.
#[test]
fn free_with_a_use_against_an_allocation() {
    static SEEN: Outcomes = Outcomes::new();
    explore_within(1, "free_with_a_use_against_an_allocation", || {
        let (pond, s, _) = cached(2, Reuse::Wait);
        let u = pond.open();
        let block = pond.allocate(s, PAGE).unwrap();
        pond.record_use(block, u);
        pond.streams.driver.work(u.handle, 9);
        let on = pond.clone();
        let free = role(move || on.free(block));
        let on = pond.clone();
        let allocate = role(move || {
            let held = on.allocate(s, PAGE).expect("two pages");
            let reused = held.address == block.address;
            if reused {
                let ordered = on.streams.driver.ordered(u.handle, 9, s.handle);
                assert!(ordered, "a block is handed out over work that is still to run");
            }
            SEEN.reached(u32::from(reused));
        });
        free.join().unwrap();
        allocate.join().unwrap();
        pond.check_invariants();
    });
    SEEN.assert_all(2);
}
