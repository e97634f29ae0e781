//! The page map: from a device address to the descriptor of the block that starts there.
//!
//! A radix tree over one device's reservation: 2 MiB, 128 KiB, 8 KiB, then 512 B a level. A single
//! start below an entry sits in the entry itself; a second one pushes both a level down. Nodes are
//! never freed, so look-ups need neither locks nor epochs. The arena's holder is the only writer.
//!
//! An entry may be stale (its block was merged away): it then names a descriptor whose address has
//! changed, so the look-up's caller compares addresses, and entries are never removed.

use crate::sync::{AtomicU32, Ordering};
use crate::table::Table;

/// log2 of the bytes under one entry, level by level.
const SPANS: [u32; 4] = [21, 17, 13, 9];

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

/// Maps offsets into one reservation to descriptor indexes.
pub(crate) struct PageMap {
    /// One entry for every 2 MiB of the reservation.
    roots: Table<AtomicU32>,
    nodes: Table<Node>,
    /// Nodes in use; the writer's.
    used: AtomicU32,
}

impl PageMap {
    pub fn new(reservation_bytes: u64) -> Self {
        let roots = reservation_bytes.div_ceil(1 << SPANS[0]) as usize;
        Self { roots: Table::new(roots), nodes: Table::new(1 << 20), used: AtomicU32::new(0) }
    }

    /// The descriptor last published at or near `offset`: the caller checks that it is the block's.
    /// Lock-free; a few loads.
    pub fn get(&self, offset: u64) -> Option<u32> {
        let mut entry = self.roots.get(u32::try_from(offset >> SPANS[0]).ok()?)?;
        for level in 1.. {
            match Entry::load(entry) {
                Entry::Empty => return None,
                Entry::Block(index) => return Some(index),
                Entry::Node(node) => entry = &self.nodes.get(node)?[place(offset, level)],
            }
        }
        None
    }

    /// Publishes that the block at `offset` has descriptor `index`. `offset_of` gives the present
    /// offset of another descriptor. Writer only. False when the map's nodes are used up.
    #[must_use]
    pub fn set(&self, offset: u64, index: u32, offset_of: impl Fn(u32) -> u64) -> bool {
        let Ok(root) = u32::try_from(offset >> SPANS[0]) else { return false };
        let Some(mut entry) = self.roots.get_or_create(root) else { return false };
        for level in 1..=SPANS.len() {
            let span = SPANS[level - 1];
            match Entry::load(entry) {
                Entry::Block(other) if other != index => {
                    let theirs = offset_of(other);
                    let crowded = theirs != offset && theirs >> span == offset >> span;
                    if !crowded {
                        break;
                    }
                    let Some(node) = self.push_down(entry, other, place(theirs, level)) else {
                        return false;
                    };
                    entry = &node[place(offset, level)];
                }
                Entry::Node(node) => match self.nodes.get(node) {
                    Some(node) => entry = &node[place(offset, level)],
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

/// The place of `offset` in a node whose entries have the span of `level`.
fn place(offset: u64, level: usize) -> usize {
    let span = SPANS.get(level).copied().unwrap_or(0);
    (offset >> span) as usize & 15
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    proptest! {
        /// Blocks come and go at random starts; a live one is always found, and what else the map
        /// says is betrayed by its address.
        #[test]
        fn live_blocks_are_found(
            starts in prop::collection::vec((0u64..1 << 13, any::<bool>()), 1..200),
        ) {
            let map = PageMap::new(1 << 22);
            let mut offsets: Vec<u64> = vec![u64::MAX];
            let mut live: HashMap<u64, u32> = HashMap::new();
            for (quantum, reuse) in starts {
                let offset = quantum * 512;
                if let Some(index) = live.remove(&offset) {
                    if !reuse {
                        offsets[index as usize] = u64::MAX - 1;
                        continue;
                    }
                    // The extent at this start gets another descriptor.
                    offsets[index as usize] = u64::MAX - 1;
                }
                let index = offsets.len() as u32;
                offsets.push(offset);
                prop_assert!(map.set(offset, index, |i| offsets[i as usize]));
                live.insert(offset, index);
                for (&offset, &index) in &live {
                    prop_assert_eq!(map.get(offset), Some(index));
                }
            }
            for quantum in 0..1u64 << 13 {
                let offset = quantum * 512;
                let found = map.get(offset).filter(|&i| offsets[i as usize] == offset);
                prop_assert_eq!(found, live.get(&offset).copied());
            }
        }
    }

    #[test]
    fn offsets_outside_the_reservation_are_unknown() {
        let map = PageMap::new(1 << 22);
        assert!(map.get(1 << 50).is_none());
        assert!(map.get(u64::MAX).is_none());
        assert!(!map.set(1 << 50, 1, |_| 0));
    }
}
