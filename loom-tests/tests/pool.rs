//! One allocation and one free through all layers, as threads without a lease make them.
#![cfg(loom)]

use loom_tests::device::{Held, PAGE, Pond, Stream};
use loom_tests::{Outcomes, explore_shallow, role};
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
    explore_shallow("two_allocations_of_one_cached_block", || {
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
    explore_shallow("free_with_a_use_against_an_allocation", || {
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

/// A block with the uses of two streams is freed while a third, which runs after one of them, asks
/// for its size: in the shards, then in the heap.
///
/// The bug would be: the block is had by an order that holds for a part of its fence set.
#[test]
fn shard_claim_against_a_free_with_a_fence_set() {
    static SEEN: Outcomes = Outcomes::new();
    explore_shallow("shard_claim_against_a_free_with_a_fence_set", || {
        let (pond, s, _) = cached(2, Reuse::Wait);
        let (t, u) = (pond.open(), pond.open());
        // A miss on `t` makes the tables that it and the shards file in.
        let other = pond.allocate(t, PAGE).unwrap();
        let block = pond.allocate(s, PAGE).unwrap();
        pond.record_use(block, u);
        pond.streams.driver.work(s.handle, 8);
        pond.streams.driver.work(u.handle, 9);
        pond.last_use(block, s);
        let before = pond.streams.fences.stamp(s.id);
        assert!(pond.streams.wait(t, before), "t runs after s");
        let on = pond.clone();
        let free = role(move || on.free(block));
        let on = pond.clone();
        let claim = role(move || {
            let Some(held) = on.allocate(t, PAGE) else { return };
            assert_eq!(held.address, block.address, "there is no other");
            for (stream, work) in [(s, 8), (u, 9)] {
                let ordered = on.streams.driver.ordered(stream.handle, work, t.handle);
                assert!(ordered, "a block is handed out over work that is still to run");
            }
            SEEN.reached(0);
        });
        [free, claim].into_iter().for_each(|role| role.join().unwrap());
        SEEN.reached_if(1, pond.claim(block.hint).is_some());
        pond.free(other);
        pond.check_invariants();
    });
    SEEN.assert_all(2);
}
