//! A non-blocking binary buddy system: which units of a chunk are taken.
//!
//! After Marotta, Ianni, Scarselli, Pellegrini, Quaglia, "A Non-blocking Buddy System for Scalable
//! Memory Allocation on Multi-core Machines" (IEEE CLUSTER 2018). Theirs: a binary tree of status
//! words over the memory; a node is claimed by one compare-and-swap from 0, its ancestors are told,
//! and a claim that meets an occupied ancestor is rolled back; nobody waits for anybody.
//!
//! Three things are other than there.
//!
//! *Counts.* A word says how many units are taken below its node, where theirs has a bit for each side and
//! another for "the side is about to be free". Such bits do not say whose they are: a free that is held up
//! between freeing its node and telling the ancestors may take away the bit of a later claim below them, and
//! that claim's memory is given out a second time (a model of the published algorithm finds it with three
//! threads). Counts are added and subtracted, in whatever order.
//!
//! *From above.* The ancestors are told before the node is claimed, from the root down, and after it is free,
//! from the node up. So a word that is 0 has nothing but zeros below it.
//!
//! *Runs.* What is given out is a run of units: the nodes of its binary decomposition, claimed from left to
//! right, all or none. A buddy system that gives one node loses up to half of it, and one that gives back
//! the node's tail leaves tails that nothing of the size fits in.
//!
//! # Invariants
//!
//! ```text
//! word(n) = FULL + t    n is claimed as a whole;   t: units of claims that find that out
//! word(n) = u           u units are taken below n, or are about to be, or have just ceased to be
//! word(n) = 0  =>  word(m) = 0 for every m below n;   of FULL likewise
//! at rest: word(n) = taken(2n) + taken(2n + 1),  taken(n) = size(n) where FULL, else word(n);  t = 0
//! ```
//!
//! # Why somebody always gets on
//!
//! A claim goes over nodes from the root down and from left to right, and fails at a node that is FULL. If
//! that is another claim's which fails in its turn, it does so further on in this order, which ends: some
//! claim fails for none but those that succeeded, or not at all.

use crate::sync::{AtomicU32, Ordering};
use std::ops::Range;

/// In a word: the node is claimed as a whole.
const FULL: u32 = 1 << 31;

/// The tree over a chunk of `2^k` units. Node 1 is the root, `2n` and `2n + 1` are the halves of `n`.
/// Claims and releases are lock-free.
pub struct Tree {
    words: Box<[AtomicU32]>,
}

/// A node, and the units that it stands for.
#[derive(Clone, Copy)]
struct Node {
    index: u32,
    first: u32,
    size: u32,
}

impl Node {
    fn halves(self) -> [Self; 2] {
        let (index, size) = (self.index * 2, self.size / 2);
        [
            Self { index, first: self.first, size },
            Self { index: index + 1, first: self.first + size, size },
        ]
    }

    fn is_unit(self) -> bool {
        self.size == 1
    }

    /// What of a run lies in it.
    fn part(self, run: &Range<u32>) -> Range<u32> {
        run.start.max(self.first)..run.end.min(self.first + self.size)
    }
}

/// The free runs of a search, from left to right.
struct Runs {
    wanted: u32,
    /// The one that goes on where the search is.
    run: Range<u32>,
    /// The shortest so far that is long enough.
    best: Option<Range<u32>>,
}

impl Runs {
    /// The run ends here. Says whether it is just right.
    fn end(&mut self, at: u32) -> bool {
        let run = std::mem::replace(&mut self.run, at..at);
        let fits = run.len() as u32 >= self.wanted;
        if fits && self.best.as_ref().is_none_or(|best| run.len() < best.len()) {
            self.best = Some(run.clone());
        }
        run.len() as u32 == self.wanted
    }
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
        self.vacate(self.root());
    }

    /// Claims all of the tree if nothing of it is taken: until `open` nobody gets any.
    pub fn close(&self) -> bool {
        self.seize(self.root())
    }

    fn root(&self) -> Node {
        Node { index: 1, first: 0, size: self.units() }
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

    /// Takes `units` units in a row, of the shortest free run that has so many, and returns the first.
    /// `None` when there are none, as far as could be seen: what others are about to give up may be missed.
    pub fn claim(&self, units: u32) -> Option<u32> {
        if units == 0 {
            return None;
        }
        loop {
            let mut runs = Runs { wanted: units, run: 0..0, best: None };
            if !self.find(self.root(), &mut runs) {
                runs.end(self.units());
            }
            let first = runs.best?.start;
            if self.take(self.root(), first..first + units) {
                return Some(first);
            }
        }
    }

    /// Looks through a node from left to right. True, and the rest not looked at, once a run is just right.
    fn find(&self, node: Node, runs: &mut Runs) -> bool {
        // Relaxed: a hint, which the claim checks.
        let word = self.words[node.index as usize].load(Ordering::Relaxed);
        if word == 0 {
            runs.run.end = node.first + node.size;
            false
        } else if word >= node.size || node.is_unit() {
            let right = runs.end(node.first);
            runs.run = node.first + node.size..node.first + node.size;
            right
        } else {
            node.halves().into_iter().any(|half| self.find(half, runs))
        }
    }

    /// Claims what of a run lies in a node, which is something. False, with nothing changed, when some of it
    /// is taken.
    fn take(&self, node: Node, run: Range<u32>) -> bool {
        let run = node.part(&run);
        if run.len() as u32 == node.size {
            if self.seize(node) {
                return true;
            }
            if node.is_unit() {
                return false;
            }
            // Somebody has only told it of a claim below; he may never come to an end.
        }
        // Acquire: what has been given up below comes before, where we find it. Release: the releases
        // before, of which this goes on, count for who finds the word 0.
        let word = &self.words[node.index as usize];
        let seen = word.fetch_add(run.len() as u32, Ordering::AcqRel);
        let [left, right] = node.halves();
        let taken = seen & FULL == 0 && {
            let (below, above) = (left.part(&run), right.part(&run));
            let has_left = !below.is_empty();
            let left_taken = !has_left || self.take(left, below.clone());
            let taken = left_taken && (above.is_empty() || self.take(right, above));
            if left_taken && has_left && !taken {
                self.give(left, below);
            }
            taken
        };
        if !taken {
            // Release pairs with the acquire in `seize`: who finds 0 here finds zeros below.
            word.fetch_sub(run.len() as u32, Ordering::AcqRel);
        }
        taken
    }

    /// Gives back what `claim` gave.
    pub fn release(&self, first: u32, units: u32) {
        self.give(self.root(), first..first + units);
    }

    /// Gives up what of a run lies in a node, which is something, from below.
    fn give(&self, node: Node, run: Range<u32>) {
        let run = node.part(&run);
        let word = &self.words[node.index as usize];
        // Relaxed: that it is claimed as a whole is our own doing.
        if run.len() as u32 == node.size && word.load(Ordering::Relaxed) & FULL != 0 {
            return self.vacate(node);
        }
        for half in node.halves() {
            let part = half.part(&run);
            if !part.is_empty() {
                self.give(half, part);
            }
        }
        // Release, as in `take`: after what is below.
        let seen = word.fetch_sub(run.len() as u32, Ordering::AcqRel);
        debug_assert!(seen & !FULL >= run.len() as u32, "{run:?} was not taken");
    }

    /// Claims a node of which nothing is taken.
    fn seize(&self, node: Node) -> bool {
        // Acquire pairs with the release of those who made it 0: what they did with the memory, and to the
        // words below, comes before. Release, as the start of what others add to.
        self.words[node.index as usize]
            .compare_exchange(0, FULL, Ordering::AcqRel, Ordering::Relaxed)
            .is_ok()
    }

    /// Gives up a node that is claimed as a whole.
    fn vacate(&self, node: Node) {
        // Release pairs with the acquire in `seize`: what was done with the memory comes before.
        let seen = self.words[node.index as usize].fetch_sub(FULL, Ordering::AcqRel);
        debug_assert!(seen & FULL != 0, "node {} was not taken", node.index);
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

    /// Where the shortest free run of a model, a flag for each unit, starts that is long enough.
    fn tightest(taken: &[bool], units: u32) -> Option<u32> {
        let runs = taken.chunk_by(|a, b| a == b).scan(0, |at, run| {
            *at += run.len();
            Some((run.len(), *at - run.len(), run[0]))
        });
        let free = runs.filter(|&(length, _, taken)| !taken && length >= units as usize);
        free.min().map(|(_, start, _)| start as u32)
    }

    proptest! {
        /// Against a plain model: a claim takes the first units of the tightest run, and exactly so many;
        /// nothing overlaps, and all comes back.
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
                    prop_assert_eq!(claimed, tightest(&taken, units), "{} units", units);
                    if let Some(first) = claimed {
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
    fn blocks_of_one_size_lie_side_by_side() {
        let tree = tree(4096);
        let firsts: Vec<u32> = std::iter::from_fn(|| tree.claim(608)).collect();
        assert_eq!(firsts, (0..6).map(|block| block * 608).collect::<Vec<_>>());
        tree.release(608, 608);
        tree.release(2 * 608, 608);
        // Neighbours are one run, however the tree cuts it; the end of the chunk is tighter for less.
        assert_eq!((tree.claim(400), tree.claim(1000)), (Some(6 * 608), Some(608)));
        tree.check();
        assert_eq!((tree.claim(0), tree.claim(4097)), (None, None));
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
