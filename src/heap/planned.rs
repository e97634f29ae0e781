//! A plan's range, as the arena sees it: one extent, the *range*, over which further descriptors lie.
//!
//! ```text
//! PLANNED on an extent's word      a range: in state Chunk, since it is in nobody's hands, nor idle
//! PLANNED on another's             a place in a range: Live or Cached; no extent, in no list, no cache, no note
//! one place for each offset and size;  places of one offset are linked by `note`, the map has the first
//! ```
//!
//! Who may use a place, and when, is the plan's matter; a place is claimed by the holder of its plan's
//! lock alone. Its free is as any other, but that nobody is told of it.

use super::arena::{Arena, Denied, LARGE, Request};
use super::extent::Links;
use crate::block::{Descriptor, Fence, FenceSet, State, Word};
use crate::sync::Ordering;
use std::collections::HashSet;

impl Arena {
    /// A range of so many bytes, for work that `stream` is given from now on, with a descriptor for each of
    /// the places (offset, bytes), which ascend and are distinct. The range's descriptor, and theirs.
    pub fn lay_out(
        &mut self,
        request: Request,
        places: &[(u64, u64)],
    ) -> Result<(u32, Vec<u32>), Denied> {
        let (range, word) = self.allocate(request)?;
        if word.has(Word::APART) {
            // Memory is so short that this is a part of a chunk, and no extent.
            self.return_apart(range);
            return Err(self.out_of_memory(request, self.cached_bytes()));
        }
        self.block(range).set_state(State::Chunk);
        self.block(range).set_planned(true);
        let base = self.block(range).address();
        let mut indexes: Vec<u32> = Vec::with_capacity(places.len());
        for (at, &(offset, bytes)) in places.iter().enumerate() {
            let Some(index) = self.describe_place(base + offset, bytes) else {
                self.take_up(range, &indexes, &[self.fences.stamp(request.stream)]);
                return Err(Denied::Descriptors);
            };
            indexes.push(index);
            let same = at.checked_sub(1).filter(|&before| places[before].0 == offset);
            match same {
                // Behind the one before, which others may find already: Release pairs with the acquire
                // in `Blocks::look_at`.
                Some(before) => {
                    self.blocks.at(indexes[before]).note.store(index, Ordering::Release);
                }
                None if !self.blocks.publish(index) => {
                    self.take_up(range, &indexes, &[self.fences.stamp(request.stream)]);
                    return Err(Denied::Descriptors);
                }
                None => {}
            }
        }
        Ok((range, indexes))
    }

    fn describe_place(&mut self, address: u64, bytes: u64) -> Option<u32> {
        let index = self.describe(LARGE, address, bytes)?;
        self.links[index as usize] = Links::default();
        let block = self.block(index);
        block.set_fences(&FenceSet::default());
        block.note.store(0, Ordering::Relaxed);
        block.set_state(State::Cached);
        block.set_planned(true);
        self.planned.push(index);
        Some(index)
    }

    /// Takes a range back, of which nobody holds a place, as free memory that waits for these fences.
    pub fn take_up(&mut self, range: u32, places: &[u32], fences: &[Fence]) {
        for &index in places {
            let block = self.block(index);
            debug_assert!(block.word().state() == State::Cached);
            block.set_state(State::Spare);
            block.set_planned(false);
            block.note.store(0, Ordering::Relaxed);
        }
        let gone: HashSet<u32> = places.iter().copied().collect();
        self.planned.retain(|index| !gone.contains(index));
        self.spares.extend(places);
        let block = self.block(range);
        block.set_state(State::Claimed);
        block.set_planned(false);
        block.set_fences(&FenceSet::default());
        fences.iter().for_each(|&fence| block.record_use(fence));
        // Its start leads to it again, not to a place's descriptor. (It has led to it before, so that there
        // is room for it in the map.)
        let _ = self.blocks.publish(range);
        self.settle(range, State::Free);
    }

    /// Calls `each` with every block in a user's hands.
    pub(super) fn for_each_held(&self, mut each: impl FnMut(&Descriptor)) {
        self.for_each_block(|_, block| {
            if block.word().state() == State::Live {
                each(block);
            }
        });
    }

    /// Calls `each` with every extent, every block in a chunk, and every place of a plan.
    pub(super) fn for_each_block(&self, mut each: impl FnMut(u32, &Descriptor)) {
        self.for_each_extent(&mut each);
        self.for_each_apart(&mut each);
        self.planned.iter().for_each(|&index| each(index, self.block(index)));
    }
}
