//! The buddy tree: which units of a chunk are taken, by several threads at once.
//!
//! Every unit is a cell that whoever holds it touches, before the claim's end and at the release's
//! start: loom sees two holders of a unit, and one who does not come after the one before.
#![cfg(loom)]

use loom::cell::UnsafeCell;
use loom_tests::{Outcomes, explore, role};
use millpond::internals::Tree;
use std::sync::Arc;

struct Chunk {
    tree: Tree,
    units: Vec<UnsafeCell<u32>>,
}

// SAFETY: loom checks that the cells are touched by one thread at a time, which is what the models are for.
unsafe impl Send for Chunk {}
// SAFETY: as above.
unsafe impl Sync for Chunk {}

/// Units that a role holds.
#[derive(Clone, Copy, Debug)]
struct Held {
    first: u32,
    units: u32,
}

impl Chunk {
    /// A chunk, and what is taken of it: so many units by each claim.
    fn new<const N: usize>(units: u32, taken: [u32; N]) -> (Arc<Self>, [Held; N]) {
        let tree = Tree::closed(units);
        tree.open();
        let chunk = Self { tree, units: (0..units).map(|_| UnsafeCell::new(0)).collect() };
        let taken = taken.map(|units| chunk.claim(units).expect("a fresh tree"));
        (Arc::new(chunk), taken)
    }

    fn touch(&self, held: Held) {
        for unit in &self.units[held.first as usize..(held.first + held.units) as usize] {
            // SAFETY: loom checks it.
            unit.with_mut(|value| unsafe { *value += 1 });
        }
    }

    fn claim(&self, units: u32) -> Option<Held> {
        let first = self.tree.claim(units)?;
        let held = Held { first, units };
        self.touch(held);
        Some(held)
    }

    fn release(&self, held: Held) {
        self.touch(held);
        self.tree.release(held.first, held.units);
    }

    /// With these the only ones held: nothing is lost, and nothing held twice.
    fn settle(&self, held: impl IntoIterator<Item = Held>) {
        self.tree.check();
        let held: Vec<Held> = held.into_iter().collect();
        let units: u32 = held.iter().map(|held| held.units).sum();
        assert_eq!(self.tree.taken(), units, "units are lost, or held twice");
        held.into_iter().for_each(|held| self.release(held));
        self.tree.check();
        assert!(self.tree.close(), "the tree of an idle chunk is not free");
    }
}

/// Two threads claim the last unit.
///
/// The bugs would be: both have it, or neither.
#[test]
fn two_claims_of_one_unit() {
    static SEEN: Outcomes = Outcomes::new();
    explore("two_claims_of_one_unit", || {
        let (chunk, taken) = Chunk::new(4, [2, 1]);
        let claims = [(); 2].map(|()| {
            let on = chunk.clone();
            role(move || on.claim(1))
        });
        let won = claims.map(|claim| claim.join().unwrap());
        assert_eq!(won.iter().flatten().count(), 1, "one unit for two");
        SEEN.reached(u32::from(won[1].is_some()));
        chunk.settle(won.into_iter().flatten().chain(taken));
    });
    SEEN.assert_all(2);
}

/// A thread claims all of a tree while two claim parts of it.
///
/// The bugs would be: the whole and a part are held at once; everybody gives way.
#[test]
fn the_whole_against_parts() {
    static SEEN: Outcomes = Outcomes::new();
    explore("the_whole_against_parts", || {
        let (chunk, []) = Chunk::new(2, []);
        let claims = [2, 1, 1].map(|units| {
            let on = chunk.clone();
            role(move || on.claim(units))
        });
        let won = claims.map(|claim| claim.join().unwrap());
        let parts = won[1..].iter().flatten().count();
        match won[0] {
            Some(_) => assert_eq!(parts, 0, "a part of what another holds"),
            None => assert_ne!(parts, 0, "everybody gave way"),
        }
        SEEN.reached_if(0, parts == 0);
        SEEN.reached_if(1, parts == 2);
        chunk.settle(won.into_iter().flatten());
    });
    SEEN.assert_all(2);
}

/// A thread frees half of a tree while others claim more than a half, and a unit.
///
/// The bugs would be: a node is had while its half is held; a claim that finds a node free does not come
/// after its earlier use; what a claim in vain told the ancestors is lost.
#[test]
fn a_free_against_a_claim_of_more() {
    static SEEN: Outcomes = Outcomes::new();
    explore("a_free_against_a_claim_of_more", || {
        let (chunk, [half]) = Chunk::new(4, [2]);
        let on = chunk.clone();
        let free = role(move || on.release(half));
        let claims = [3, 1].map(|units| {
            let on = chunk.clone();
            role(move || on.claim(units))
        });
        free.join().unwrap();
        let [more, unit] = claims.map(|claim| claim.join().unwrap());
        assert!(more.is_some() || unit.is_some(), "both gave way to nobody");
        SEEN.reached_if(0, more.is_some() && unit.is_some());
        SEEN.reached_if(1, more.is_some() && unit.is_none());
        SEEN.reached_if(2, more.is_none());
        chunk.settle(more.into_iter().chain(unit));
    });
    SEEN.assert_all(3);
}

/// Two threads claim runs over the border of the halves, from the same unit on.
///
/// The bugs would be: both have what lies in one half; who has lost in the other half keeps what it had
/// taken in the first, or its counts.
#[test]
fn two_runs_over_a_border() {
    static SEEN: Outcomes = Outcomes::new();
    explore("two_runs_over_a_border", || {
        let (chunk, [first]) = Chunk::new(4, [1]);
        let claims = [2, 3].map(|units| {
            let on = chunk.clone();
            role(move || on.claim(units))
        });
        let on = chunk.clone();
        let free = role(move || on.release(first));
        let won = claims.map(|claim| claim.join().unwrap());
        free.join().unwrap();
        let units: u32 = won.iter().flatten().map(|held| held.units).sum();
        SEEN.reached_if(0, units == 2);
        SEEN.reached_if(1, units == 3);
        assert!((1..=4).contains(&units), "everybody gave way, or nobody");
        chunk.settle(won.into_iter().flatten());
    });
    SEEN.assert_all(2);
}

/// Runs on both sides of a border are freed at once, while a third thread claims all of it.
///
/// The bugs would be: both frees leave it to the other to free what is above; the whole is had between.
#[test]
fn frees_on_both_sides_of_a_border() {
    static SEEN: Outcomes = Outcomes::new();
    explore("frees_on_both_sides_of_a_border", || {
        let (chunk, taken) = Chunk::new(4, [3, 1]);
        let frees = taken.map(|held| {
            let on = chunk.clone();
            role(move || on.release(held))
        });
        let on = chunk.clone();
        let claim = role(move || on.claim(4));
        frees.into_iter().for_each(|free| free.join().unwrap());
        let won = claim.join().unwrap();
        SEEN.reached(u32::from(won.is_some()));
        chunk.settle(won);
    });
    SEEN.assert_all(2);
}

/// A free is held up anywhere, while a second thread takes and frees the same unit, and a third takes its
/// neighbour, then all there is.
///
/// The bug would be: the first free takes off the ancestors what a later claim has put there, and the whole
/// is had although a unit is held. (With bits for the sides in place of counts it is.)
#[test]
fn a_late_free_against_later_claims() {
    static SEEN: Outcomes = Outcomes::new();
    explore("a_late_free_against_later_claims", || {
        let (chunk, [half]) = Chunk::new(2, [1]);
        let on = chunk.clone();
        let late = role(move || on.release(half));
        let on = chunk.clone();
        let passing = role(move || {
            let held = on.claim(1);
            let same = held.is_some_and(|held| held.first == half.first);
            held.into_iter().for_each(|held| on.release(held));
            same
        });
        let on = chunk.clone();
        let next = role(move || (on.claim(1), on.claim(2)));
        late.join().unwrap();
        let same = passing.join().unwrap();
        let (unit, whole) = next.join().unwrap();
        assert!(unit.is_none() || whole.is_none(), "the whole is had, and a unit");
        SEEN.reached_if(0, same);
        SEEN.reached_if(1, unit.is_some());
        SEEN.reached_if(2, whole.is_some());
        chunk.settle(unit.into_iter().chain(whole));
    });
    SEEN.assert_all(3);
}
