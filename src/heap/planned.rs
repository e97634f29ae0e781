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
use std::ops;

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
            let same = at.checked_sub(1).filter(|&before| places[before].0 == offset);
            let sibling = same.map(|before| indexes[before]);
            let Some(index) = self.add_place(base + offset, bytes, sibling) else {
                let stamp = self.fences.stamp(request.stream);
                self.dissolve(range, &indexes, false, |_| vec![stamp]);
                return Err(Denied::Descriptors);
            };
            indexes.push(index);
        }
        Ok((range, indexes))
    }

    /// A descriptor for one more place in a range; `sibling` is one that starts there, if there is any.
    pub fn add_place(&mut self, address: u64, bytes: u64, sibling: Option<u32>) -> Option<u32> {
        let index = self.describe_place(address, bytes)?;
        match sibling {
            Some(mut last) => {
                // Relaxed: the arena's holder alone links places.
                while let next @ 1.. = self.blocks.at(last).note.load(Ordering::Relaxed) {
                    last = next;
                }
                // Behind the last one, which others may find already: Release pairs with the acquire in
                // `Blocks::look_behind`.
                self.blocks.at(last).note.store(index, Ordering::Release);
            }
            None if !self.blocks.publish(index) => {
                self.drop_place(index);
                self.planned.pop();
                return None;
            }
            None => {}
        }
        Some(index)
    }

    fn drop_place(&mut self, index: u32) {
        let block = self.block(index);
        debug_assert!(block.word().state() == State::Cached);
        block.set_state(State::Spare);
        block.set_planned(false);
        // Release pairs with the acquire in `look_behind`: who gets no further finds the new entry.
        block.note.store(0, Ordering::Release);
        self.spares.push(index);
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

    /// Ends a range: places that are held become extents, and what lies between them is free after the
    /// fences that `before` gives for its bytes. `places` are all of the range's, by their offset. False (and
    /// nothing changed) where there are too few descriptors.
    ///
    /// Meanwhile places may be freed, and looked up by their address; nobody is handed one.
    pub fn dissolve(
        &mut self,
        range: u32,
        places: &[u32],
        counts: bool,
        before: impl Fn(ops::Range<u64>) -> Vec<Fence>,
    ) -> bool {
        let is_held = |&index: &u32| self.block(index).word().state() != State::Cached;
        let held: Vec<u32> = places.iter().copied().filter(is_held).collect();
        // Before each that is held there is a gap at most, and one behind the last.
        if self.descriptors_left() + places.len() < 2 * held.len() {
            return false;
        }
        let stays = |index: &u32| self.become_extent(*index, counts);
        let held: Vec<u32> = held.into_iter().filter(stays).collect();
        let all: HashSet<u32> = places.iter().copied().collect();
        self.planned.retain(|index| !all.contains(index));

        let (base, end) = (self.block(range).address(), self.block(range).end());
        let mut gaps = Vec::with_capacity(held.len() + 1);
        let mut from = base;
        for (start, next) in held
            .iter()
            .map(|&index| (self.block(index).address(), self.block(index).end()))
            .chain([(end, end)])
        {
            if from < start {
                gaps.push((from..start, before(from - base..start - base)));
            }
            from = next;
        }
        let stay: HashSet<u32> = held.iter().copied().collect();
        let gone = places.iter().filter(|index| !stay.contains(index));
        gone.for_each(|&index| self.drop_place(index));
        self.tile(range, &held, gaps);
        true
    }

    /// Takes the mark of a place from a block that is held. False if it was freed meanwhile.
    fn become_extent(&self, index: u32, counts: bool) -> bool {
        let block = self.block(index);
        // Its address leads to itself from now on, before what led there ends. There was an entry.
        let published = self.blocks.publish(index);
        debug_assert!(published);
        // Its free may need the link. Release as in `drop_place`.
        block.note.store(0, Ordering::Release);
        let gauge = self.supply.gauge();
        let counted = if counts && block.class().is_none() { block.size() } else { 0 };
        gauge.large_taken(counted);
        let stays = block.set_aside();
        if !stays {
            gauge.large_freed(counted);
        }
        stays
    }

    /// Puts extents where a range was: blocks that are held, and free memory in all gaps.
    fn tile(&mut self, range: u32, held: &[u32], gaps: Vec<(ops::Range<u64>, Vec<Fence>)>) {
        let Links { prev, next, region, .. } = self.links[range as usize];
        self.block(range).set_state(State::Claimed);
        self.block(range).set_planned(false);
        let mut spare = Some(range);
        let mut pieces = held.to_vec();
        let mut free = Vec::with_capacity(gaps.len());
        for (gap, fences) in gaps {
            let bytes = gap.end - gap.start;
            let index = match spare.take() {
                Some(index) => {
                    self.block(index).set_extent(gap.start, bytes);
                    index
                }
                None => self.describe(region, gap.start, bytes).expect("descriptors were counted"),
            };
            let block = self.block(index);
            block.set_fences(&FenceSet::default());
            fences.iter().for_each(|&fence| block.record_use(fence));
            pieces.push(index);
            free.push(index);
        }
        pieces.sort_unstable_by_key(|&index| self.block(index).address());
        let mut last = prev;
        for &index in &pieces {
            self.links[index as usize] = Links { prev: last, region, ..Links::default() };
            self.follow(region, last, index);
            last = index;
        }
        self.follow(region, last, next);
        if let Some(range) = spare {
            self.drop_descriptor(range);
        }
        free.into_iter().for_each(|index| _ = self.settle(index, State::Free));
    }

    /// Links two extents; 0 is none.
    fn follow(&mut self, region: u8, lower: u32, upper: u32) {
        match lower {
            0 => self.regions[usize::from(region)].first = upper,
            lower => self.links[lower as usize].next = upper,
        }
        if upper != 0 {
            self.links[upper as usize].prev = lower;
        }
    }

    /// Bytes of large extents that nobody uses.
    pub fn idle_large_bytes(&self) -> u64 {
        let mut idle = 0;
        self.for_each_extent(|index, block| {
            let is_idle = matches!(block.word().state(), State::Free | State::Cached);
            if is_idle && self.links[index as usize].region == LARGE {
                idle += block.size();
            }
        });
        idle
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
