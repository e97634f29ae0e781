//! A non-blocking binary buddy system: which units of a chunk are taken.
//!
//! After Marotta, Ianni, Scarselli, Pellegrini, Quaglia, "A Non-blocking Buddy System for Scalable
//! Memory Allocation on Multi-core Machines" (IEEE CLUSTER 2018). Theirs: a binary tree of status
//! words over the memory; a node is claimed by one compare-and-swap from 0, its ancestors are told,
//! and a claim that meets an occupied ancestor is rolled back; nobody waits for anybody.
//!
//! Two things are other than there. An ancestor's word holds *how many units* are taken below it,
//! where theirs holds a bit for each side and another for "the side is about to be free": such bits do not
//! say whose they are, and a free that is held up between freeing its node and telling its parent may take
//! away the bit of a later claim below the parent, whose memory is then given out twice. Counts are added
//! and subtracted, in whatever order. And the ancestors are told *before* the node is claimed, from the
//! root down, and after it is free, from the node up. So a word that is 0 has nothing but zeros
//! below it, and whoever claims it has all of its subtree to itself.
//!
//! That is why a claim can keep the first n units of its node and give the rest back at once: it writes
//! the subtree as it is to be, with plain stores, then opens the node. Freeing goes over the same
//! pieces, the binary decomposition of n.
//!
//! # Invariants
//!
//! ```text
//! word(n) = FULL + t          n is claimed as a whole;   t: units of claims that are being rolled back
//! word(n) = u                 u units are taken below n, or are about to be, or have just ceased to be
//! word(n) = 0 or FULL  =>  word(m) = 0 for every m below n, unless n's owner is writing there
//! at rest: word(n) = taken(2n) + taken(2n + 1),  taken(n) = size(n) where FULL, else word(n);  t = 0
//! ```

use crate::sync::{AtomicU32, Ordering};

/// In a word: the node is claimed as a whole.
const FULL: u32 = 1 << 31;

/// Nodes that a search looks at for the tightest before it is content with what it has.
const LOOKS: u32 = 256;

/// The tree over a chunk of `2^k` units. Node 1 is the root, `2n` and `2n + 1` are the halves of `n`.
/// Claims and releases are lock-free, and wait for nobody.
pub struct Tree {
    words: Box<[AtomicU32]>,
}

impl Tree {
    /// A tree of so many units, a power of two, that is closed: all of it is claimed.
    pub fn closed(units: u32) -> Self {
        debug_assert!(units.is_power_of_two() && units < FULL);
        let tree = Self { words: (0..units * 2).map(|_| AtomicU32::new(0)).collect() };
        tree.words[1].store(FULL, Ordering::Relaxed);
        tree
    }

    /// Opens a closed tree, of which all is free then.
    pub fn open(&self) {
        // Release: who claims something sees what the opener wrote before.
        self.words[1].fetch_sub(FULL, Ordering::AcqRel);
    }

    /// Claims all of the tree if nothing of it is taken: until `open` nobody gets any.
    pub fn close(&self) -> bool {
        self.seize(1)
    }

    /// Units in all.
    pub fn units(&self) -> u32 {
        self.words.len() as u32 / 2
    }

    /// Units that are taken, or are about to be. All of them where the tree is closed.
    pub fn taken(&self) -> u32 {
        match self.words[1].load(Ordering::Relaxed) {
            word if word & FULL != 0 => self.units(),
            word => word.min(self.units()),
        }
    }

    /// Takes `units` units in a row and returns the first. It is a multiple of the next power of two.
    /// `None` when there are none, as far as could be seen: what others are about to give up may be missed.
    pub fn claim(&self, units: u32) -> Option<u32> {
        if units == 0 || units > self.units() {
            return None;
        }
        let cover = units.next_power_of_two();
        loop {
            // That a node is lost after it was found takes a claim of another's there, below, or above.
            // The last can only be one that succeeded; claims of lower nodes fail for no reason but such;
            // so somebody always gets on.
            let node = self.find(cover)?;
            if self.announce(node, cover) {
                self.keep(node, cover, units);
                let first = self.units() / cover;
                return Some((node - first) * cover);
            }
        }
    }

    /// The first node of the size in the smallest free one that has one.
    fn find(&self, cover: u32) -> Option<u32> {
        let mut best: Option<(u32, u32)> = None;
        let (mut node, mut size, mut looks) = (1, self.units(), 0);
        loop {
            // Relaxed: a hint, which the claim checks.
            let word = self.words[node as usize].load(Ordering::Relaxed);
            looks += 1;
            if word == 0 {
                if size == cover {
                    return Some(node);
                }
                if best.is_none_or(|(smallest, _)| size < smallest) {
                    best = Some((size, node));
                }
            } else if word & FULL == 0 && size > cover && size.saturating_sub(word) >= cover {
                (node, size) = (node * 2, size / 2);
                continue;
            }
            // Past what lies under this node.
            while node % 2 == 1 && node > 1 {
                (node, size) = (node / 2, size * 2);
            }
            if node == 1 || looks > LOOKS && best.is_some() {
                return best.map(|(size, node)| node * (size / cover));
            }
            node += 1;
        }
    }

    /// Tells the ancestors, the root first, and claims the node. False, with nothing changed, when an
    /// ancestor is claimed as a whole, or something of the node is.
    fn announce(&self, node: u32, size: u32) -> bool {
        let depth = node.ilog2();
        for up in (1..=depth).rev() {
            // Acquire: below a node that its owner has just opened we see what it wrote there. Release:
            // the releases before, of which this goes on, count for who finds the word 0.
            let seen = self.words[(node >> up) as usize].fetch_add(size, Ordering::AcqRel);
            if seen & FULL != 0 {
                self.withdraw(node, up, size);
                return false;
            }
        }
        let claimed = self.seize(node);
        if !claimed {
            self.withdraw(node, 1, size);
        }
        claimed
    }

    /// Claims a node of which nothing is taken.
    fn seize(&self, node: u32) -> bool {
        // Acquire pairs with the release of those who made it 0: what they did with the memory, and to the
        // words below, comes before. Release, as the store that `keep` and `release` add to.
        self.words[node as usize]
            .compare_exchange(0, FULL, Ordering::AcqRel, Ordering::Relaxed)
            .is_ok()
    }

    /// Takes units off the ancestors of a node from the `up`-th on, the root last.
    fn withdraw(&self, node: u32, up: u32, units: u32) {
        for up in up..=node.ilog2() {
            // Release pairs with the acquire in `seize`: who finds 0 here finds zeros below.
            self.words[(node >> up) as usize].fetch_sub(units, Ordering::AcqRel);
        }
    }

    /// Keeps the first `units` units of a node that was just claimed, and gives up the others.
    fn keep(&self, node: u32, size: u32, units: u32) {
        if units == size {
            return;
        }
        let (mut at, mut half, mut rest) = (node, size, units);
        while rest < half {
            if at != node {
                // Relaxed, here and below: all of it is ours, and published by the release at the end.
                self.words[at as usize].store(rest, Ordering::Relaxed);
            }
            (at, half) = (at * 2, half / 2);
            if rest > half {
                self.words[at as usize].store(FULL, Ordering::Relaxed);
                (at, rest) = (at + 1, rest - half);
            }
        }
        self.words[at as usize].store(FULL, Ordering::Relaxed);
        // Release pairs with the acquire in `announce`: from now on others come by.
        self.words[node as usize].fetch_sub(FULL - units, Ordering::AcqRel);
        self.withdraw(node, 1, size - units);
    }

    /// Gives back what `claim` gave for `units` units.
    pub fn release(&self, first: u32, units: u32) {
        let cover = units.next_power_of_two();
        let node = self.units() / cover + first / cover;
        // The last piece of the decomposition.
        let (mut at, mut size, mut rest) = (node, cover, units);
        while rest < size {
            (at, size) = (at * 2, size / 2);
            if rest > size {
                (at, rest) = (at + 1, rest - size);
            }
        }
        // From there up, each piece before the ancestor that counts it. Release pairs with the acquire in
        // `seize`: what was done with the memory comes before.
        self.vacate(at);
        let mut freed = size;
        while at != node {
            if at % 2 == 1 {
                self.vacate(at - 1);
                freed += size;
            }
            (at, size) = (at / 2, size * 2);
            self.words[at as usize].fetch_sub(freed, Ordering::AcqRel);
        }
        self.withdraw(node, 1, units);
    }

    /// Gives up a node that is claimed as a whole.
    fn vacate(&self, node: u32) {
        let seen = self.words[node as usize].fetch_sub(FULL, Ordering::AcqRel);
        debug_assert!(seen & FULL != 0, "node {node} was not taken");
    }

    /// Checks the invariants at rest; panics with what is wrong. For tests.
    pub fn check(&self) {
        let word = |node: u32| self.words[node as usize].load(Ordering::Relaxed);
        let taken = |node: u32| match word(node) & FULL {
            0 => word(node),
            _ => self.units() >> node.ilog2(),
        };
        for node in 1..self.units() {
            let (above, below) = (word(node), taken(node * 2) + taken(node * 2 + 1));
            let sum = if above & FULL != 0 { FULL + below } else { below };
            assert_eq!(above, sum, "node {node} of the tree, and its halves");
        }
        for leaf in self.units()..self.units() * 2 {
            assert!(matches!(word(leaf), 0 | FULL), "unit {leaf} is {:x}", word(leaf));
        }
        for node in (1..self.units()).filter(|&node| word(node) & FULL != 0) {
            assert_eq!(word(node), FULL, "node {node} is taken, and something below it");
        }
    }

    /// Host memory held, in bytes.
    pub fn bytes(&self) -> u64 {
        size_of_val(&*self.words) as u64
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;
    use std::sync::atomic::AtomicU8;

    fn tree(units: u32) -> Tree {
        let tree = Tree::closed(units);
        assert_eq!((tree.claim(1), tree.taken()), (None, units), "a closed tree gives something");
        tree.open();
        tree
    }

    /// Whether a model, a flag for each unit, has an aligned free run for so many units.
    fn has_room(taken: &[bool], units: u32) -> bool {
        let cover = units.next_power_of_two() as usize;
        taken.chunks(cover).any(|run| run.len() == cover && !run.contains(&true))
    }

    proptest! {
        /// Against a plain model: a claim succeeds where an aligned run is free, takes the first units
        /// of one, and exactly so many; nothing overlaps, and all comes back.
        #[test]
        fn as_a_plain_model(
            levels in 0u32..8,
            steps in prop::collection::vec((any::<u32>(), any::<bool>()), 1..200),
        ) {
            let tree = tree(1 << levels);
            let mut taken = vec![false; 1 << levels];
            let mut held: Vec<(u32, u32)> = Vec::new();
            for (number, free) in steps {
                if free && !held.is_empty() {
                    let (first, units) = held.swap_remove(number as usize % held.len());
                    tree.release(first, units);
                    taken[first as usize..][..units as usize].fill(false);
                } else {
                    let units = number % tree.units() + 1;
                    let claimed = tree.claim(units);
                    prop_assert_eq!(claimed.is_some(), has_room(&taken, units), "{} units", units);
                    if let Some(first) = claimed {
                        prop_assert_eq!(first % units.next_power_of_two(), 0);
                        let run = &mut taken[first as usize..][..units as usize];
                        prop_assert!(!run.contains(&true), "{} units at {} overlap", units, first);
                        run.fill(true);
                        held.push((first, units));
                    }
                }
                tree.check();
                prop_assert_eq!(tree.taken() as usize, taken.iter().filter(|&&unit| unit).count());
                prop_assert!(!(tree.taken() > 0 && tree.close()), "closed while something is taken");
            }
            held.into_iter().for_each(|(first, units)| tree.release(first, units));
            tree.check();
            prop_assert!(tree.close());
            prop_assert_eq!(tree.claim(1), None);
        }
    }

    #[test]
    fn the_smallest_free_node_is_taken() {
        let tree = tree(16);
        // 4 | 1 _ 2 | 8 free: what is asked for next fits the hole of one, then what is left of 8.
        assert_eq!((tree.claim(4), tree.claim(1), tree.claim(2)), (Some(0), Some(4), Some(6)));
        assert_eq!((tree.claim(1), tree.claim(5), tree.claim(3)), (Some(5), Some(8), None));
        // Of 8 units that 5 took the tail is 1 and 2.
        assert_eq!((tree.claim(2), tree.claim(1), tree.claim(1)), (Some(14), Some(13), None));
        assert_eq!(tree.taken(), 16);
        tree.check();
        assert_eq!((tree.claim(0), tree.claim(17)), (None, None));
    }

    /// Threads claim and release at random, and mark what they hold: nobody marks what another did.
    #[test]
    fn threads_never_share_a_unit() {
        const UNITS: u32 = 256;
        let tree = tree(UNITS);
        let marks: Vec<AtomicU8> = (0..UNITS).map(|_| AtomicU8::new(0)).collect();
        let mark = |first: u32, units: u32, from: u8, to: u8| {
            for unit in &marks[first as usize..(first + units) as usize] {
                let seen = unit.swap(to, std::sync::atomic::Ordering::Relaxed);
                assert_eq!(seen, from, "a unit is held twice");
            }
        };
        std::thread::scope(|scope| {
            for thread in 1..=4u8 {
                let (tree, mark) = (&tree, &mark);
                scope.spawn(move || {
                    let mut random = u64::from(thread) << 32 | 0x9e37_79b9;
                    let mut held = HashMap::new();
                    for round in 0..100_000u32 {
                        random ^= random << 13;
                        random ^= random >> 7;
                        random ^= random << 17;
                        let units = 1 + (random >> 20) as u32 % 40;
                        if random.is_multiple_of(2)
                            && let Some(first) = tree.claim(units)
                        {
                            mark(first, units, 0, thread);
                            held.insert(round, (first, units));
                        } else if let Some(&key) = held.keys().next() {
                            let (first, units) = held.remove(&key).unwrap();
                            mark(first, units, thread, 0);
                            tree.release(first, units);
                        }
                        if random.is_multiple_of(1024) && tree.close() {
                            mark(0, UNITS, 0, thread);
                            mark(0, UNITS, thread, 0);
                            tree.open();
                        }
                    }
                    held.values().for_each(|&(first, units)| {
                        mark(first, units, thread, 0);
                        tree.release(first, units);
                    });
                });
            }
        });
        tree.check();
        assert_eq!(tree.taken(), 0, "something is lost");
    }
}
