//! The page map: from a device address to the descriptor of the block that starts there.
//!
//! A radix tree: over one device's reservation 2 MiB, 128 KiB, 8 KiB, then 512 B a level; over all
//! addresses that a driver may give, 128 GiB and seven more. A single start below an entry sits in
//! the entry itself; a second one pushes both a level down. Nodes are never freed, so look-ups need
//! neither locks nor epochs. The arena's holder is the only writer.
//!
//! An entry may be stale (its block was merged away): it then names a descriptor whose address has
//! changed, so the look-up's caller compares addresses, and entries are never removed.

use crate::size;
use crate::sync::{AtomicU32, Ordering};
use crate::table::Table;

/// log2 of the bytes under one entry of the lowest level, and by how much a level has more than the
/// next.
const LOWEST: u32 = size::QUANTUM.ilog2();
const STEP: u32 = 4;

type Node = [AtomicU32; 16];

/// What an entry says.
#[derive(Clone, Copy)]
enum Entry {
    Empty,
    Block(u32),
    Node(u32),
}

impl Entry {
    fn load(entry: &AtomicU32) -> Self {
        // Acquire pairs with the release in `store`: the node or the descriptor is there.
        match entry.load(Ordering::Acquire) {
            0 => Self::Empty,
            word if word & 1 == 0 => Self::Block(word >> 1),
            word => Self::Node(word >> 1),
        }
    }

    fn store(self, entry: &AtomicU32) {
        let word = match self {
            Self::Empty => 0,
            Self::Block(index) => index << 1,
            Self::Node(node) => node << 1 | 1,
        };
        entry.store(word, Ordering::Release);
    }
}

/// The map of a reservation.
pub(crate) type Near = PageMap<21>;
/// The map of addresses that the driver chooses.
pub(crate) type Far = PageMap<37>;

/// Maps offsets from the start of a range to descriptor indexes.
pub(crate) struct PageMap<const TOP: u32> {
    /// One entry for every `2^TOP` bytes of the range.
    roots: Table<AtomicU32>,
    nodes: Table<Node>,
    /// Nodes in use; the writer's.
    used: AtomicU32,
}

impl<const TOP: u32> PageMap<TOP> {
    /// Levels of nodes below the roots.
    const LEVELS: u32 = (TOP - LOWEST) / STEP;

    /// A map of a range of so many bytes.
    pub fn new(bytes: u64) -> Self {
        let roots = bytes.div_ceil(1 << TOP) as usize;
        let nodes = if roots > 0 { 1 << 20 } else { 0 };
        Self { roots: Table::new(roots), nodes: Table::new(nodes), used: AtomicU32::new(0) }
    }

    /// The place of `offset` in a node, `level` levels below the roots.
    fn place(offset: u64, level: u32) -> usize {
        let span = TOP.saturating_sub(STEP * level);
        (offset >> span) as usize & ((1 << STEP) - 1)
    }

    /// The descriptor last published at or near `offset`: the caller checks that it is the block's.
    /// Lock-free; a few loads.
    pub fn get(&self, offset: u64) -> Option<u32> {
        let mut entry = self.roots.get(u32::try_from(offset >> TOP).ok()?)?;
        for level in 1.. {
            match Entry::load(entry) {
                Entry::Empty => return None,
                Entry::Block(index) => return Some(index),
                Entry::Node(node) => entry = &self.nodes.get(node)?[Self::place(offset, level)],
            }
        }
        None
    }

    /// Publishes that the block at `offset` has descriptor `index`. `offset_of` gives the present
    /// offset of another descriptor. Writer only. False when the map's nodes are used up.
    #[must_use]
    pub fn set(&self, offset: u64, index: u32, offset_of: impl Fn(u32) -> u64) -> bool {
        let Ok(root) = u32::try_from(offset >> TOP) else { return false };
        let Some(mut entry) = self.roots.get_or_create(root) else { return false };
        for level in 1..=Self::LEVELS + 1 {
            let span = TOP - STEP * (level - 1);
            match Entry::load(entry) {
                Entry::Block(other) if other != index => {
                    let theirs = offset_of(other);
                    let crowded = theirs != offset && theirs >> span == offset >> span;
                    if !crowded {
                        break;
                    }
                    let Some(node) = self.push_down(entry, other, Self::place(theirs, level))
                    else {
                        return false;
                    };
                    entry = &node[Self::place(offset, level)];
                }
                Entry::Node(node) => match self.nodes.get(node) {
                    Some(node) => entry = &node[Self::place(offset, level)],
                    None => return false,
                },
                Entry::Empty | Entry::Block(_) => break,
            }
        }
        Entry::Block(index).store(entry);
        true
    }

    /// Puts a node with `other` in it where `other` stood.
    fn push_down(&self, entry: &AtomicU32, other: u32, at: usize) -> Option<&Node> {
        let index = self.used.load(Ordering::Relaxed);
        let node = self.nodes.get_or_create(index)?;
        self.used.store(index + 1, Ordering::Relaxed);
        Entry::Block(other).store(&node[at]);
        Entry::Node(index).store(entry);
        Some(node)
    }

    /// Host memory held, in bytes.
    pub fn bytes(&self) -> u64 {
        self.roots.bytes() + self.nodes.bytes()
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    /// What is looked up after each step is live, and what else the map says is betrayed by its address.
    fn check<const TOP: u32>(
        map: &PageMap<TOP>,
        all: &[u64],
        steps: Vec<(usize, bool)>,
    ) -> Result<(), TestCaseError> {
        let mut offsets: Vec<u64> = vec![u64::MAX];
        let mut live: HashMap<u64, u32> = HashMap::new();
        for (step, reuse) in steps {
            let offset = all[step % all.len()];
            if let Some(index) = live.remove(&offset) {
                offsets[index as usize] = u64::MAX - 1;
                if !reuse {
                    continue;
                }
                // The extent at this start gets another descriptor.
            }
            let index = offsets.len() as u32;
            offsets.push(offset);
            prop_assert!(map.set(offset, index, |i| offsets[i as usize]));
            live.insert(offset, index);
            for (&offset, &index) in &live {
                prop_assert_eq!(map.get(offset), Some(index));
            }
        }
        for &offset in all {
            let found = map.get(offset).filter(|&i| offsets[i as usize] == offset);
            prop_assert_eq!(found, live.get(&offset).copied());
        }
        Ok(())
    }

    fn steps() -> impl Strategy<Value = Vec<(usize, bool)>> {
        prop::collection::vec((any::<usize>(), any::<bool>()), 1..200)
    }

    proptest! {
        /// Blocks come and go at random starts of a reservation.
        #[test]
        fn live_blocks_are_found(steps in steps()) {
            let all: Vec<u64> = (0..1 << 13).map(|quantum| quantum * 512).collect();
            check(&Near::new(1 << 22), &all, steps)?;
        }

        /// The same where the driver's addresses are close together, and far apart.
        #[test]
        fn live_blocks_are_found_wherever_they_are(
            spreads in prop::collection::vec(9u32..57, 1..4),
            steps in steps(),
        ) {
            let step = |from: u64, spread: u32| {
                (0..64).map(move |i| from.wrapping_add(i << spread) % (1 << 57))
            };
            let mut all: Vec<u64> =
                spreads.iter().flat_map(|&spread| step(0x7f12_3450_0000, spread)).collect();
            all.sort_unstable();
            all.dedup();
            check(&Far::new(1 << 57), &all, steps)?;
        }
    }

    #[test]
    fn offsets_outside_the_range_are_unknown() {
        let map = Near::new(1 << 22);
        assert!(map.get(1 << 50).is_none());
        assert!(map.get(u64::MAX).is_none());
        assert!(!map.set(1 << 50, 1, |_| 0));
        let map = Far::new(1 << 57);
        assert!(map.get(u64::MAX).is_none());
        assert!(!map.set(1 << 57, 1, |_| 0));
        // A map of nothing costs nothing.
        let map = Far::new(0);
        assert!(map.get(0).is_none() && !map.set(0, 1, |_| 0) && map.bytes() == 0);
    }

    #[test]
    fn a_map_of_all_addresses_is_small() {
        let map = Far::new(1 << 57);
        (0..100).for_each(|i| assert!(map.set(0x7f12_3450_0000 + i * 512, i as u32 + 1, |_| 0)));
        assert!(map.bytes() < 128 << 10, "{} bytes", map.bytes());
    }
}
