//! Extents: the ranges that tile a region of the reservation, and how they split and merge.
//!
//! ```text
//! every byte of a region lies in exactly one extent; links run in address order
//! extent(next) starts where extent ends;  prev(next(i)) = i;  a region's first has no prev
//! resident and hole pieces are separate extents; a border between them is a page border, or a
//!   segment's; no extent lies in two segments
//! Free and Hole extents are in their lists; Cached ones in theirs if INDEXED is set and no note of
//!   theirs is waiting; blocks that are live again may still be there, and leave when found
//! ```
//!
//! Links belong to the arena and lie outside the descriptors: they need its lock and nothing else.

use super::arena::{Arena, Denied};
use super::index::bin_of;
use crate::block::{Descriptor, FenceSet, Hint, State, Word};

/// An extent's neighbours, and its place in the index. Index 0 is no extent.
#[derive(Clone, Copy, Default)]
pub(super) struct Links {
    pub prev: u32,
    pub next: u32,
    pub bin_prev: u32,
    pub bin_next: u32,
    pub bin: u16,
    /// The list of its region that it is in.
    pub list: List,
    pub region: u8,
}

/// The lists of a region, each an index by size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum List {
    /// In none.
    #[default]
    None,
    /// `Free` extents.
    Free,
    /// `Cached` ones whose notes were read; some may be live again.
    Cached,
    /// Holes.
    Holes,
}

impl Arena {
    /// The descriptor of an extent.
    pub(super) fn block(&self, index: u32) -> &Descriptor {
        self.blocks.at(index)
    }

    /// A descriptor for a new extent, claimed and linked nowhere. `None` when all 2^24 are in use.
    pub(super) fn describe(&mut self, region: u8, address: u64, size: u64) -> Option<u32> {
        let index = match self.spares.pop() {
            Some(index) => index,
            None => {
                let index = self.links.len() as u32;
                self.blocks.create(index)?;
                self.links.push(Links::default());
                index
            }
        };
        self.links[index as usize] = Links { region, ..Links::default() };
        let block = self.block(index);
        block.set_extent(address, size);
        block.set_state(State::Claimed);
        Some(index)
    }

    /// Descriptors that can still be had.
    pub(super) fn descriptors_left(&self) -> usize {
        (1 << Hint::INDEX_BITS) - self.links.len() + self.spares.len()
    }

    /// The first extent of a region: all of it, a hole.
    pub(super) fn describe_region(&mut self, region: u8, address: u64, size: u64) -> Option<u32> {
        let index = self.describe(region, address, size)?;
        self.file(index, State::Hole);
        Some(index)
    }

    /// Takes an extent that the arena has claimed out of the index.
    pub(super) fn unfile(&mut self, index: u32) {
        let Links { region, list, .. } = self.links[index as usize];
        if list != List::None {
            self.regions[usize::from(region)].list(list).remove(&mut self.links, index);
            if list == List::Cached {
                self.block(index).set_indexed(false);
            }
        }
    }

    /// Puts a claimed extent into the index as `Free` or `Hole`.
    pub(super) fn file(&mut self, index: u32, state: State) {
        self.enlist(index, if state == State::Hole { List::Holes } else { List::Free });
        self.block(index).set_state(state);
    }

    /// Puts an extent into a list of its region.
    pub(super) fn enlist(&mut self, index: u32, list: List) {
        let bytes = self.block(index).size();
        let region = usize::from(self.links[index as usize].region);
        self.links[index as usize].list = list;
        self.regions[region].list(list).insert(&mut self.links, index, bytes);
    }

    /// Claims an extent in `Free`, `Hole` or `Cached` state and takes it out of the index. False
    /// when its user's side was faster.
    pub(super) fn claim(&mut self, index: u32, seen: Word) -> bool {
        match seen.state() {
            State::Free | State::Hole => {
                self.unfile(index);
                self.block(index).set_state(State::Claimed);
                true
            }
            State::Cached => {
                let won = self.block(index).claim_for_arena(seen);
                if won {
                    self.unfile(index);
                }
                won
            }
            _ => false,
        }
    }

    /// Cuts a claimed extent: it keeps the first `bytes`, a new claimed extent gets the rest and the
    /// same fences. `None` (and nothing changed) when there is no descriptor left.
    pub(super) fn split(&mut self, index: u32, bytes: u64) -> Option<u32> {
        let (address, size) = (self.block(index).address(), self.block(index).size());
        debug_assert!(bytes > 0 && bytes < size);
        let own = self.links[index as usize];
        let rest = self.describe(own.region, address + bytes, size - bytes)?;
        self.block(index).set_extent(address, bytes);
        let pending = |fence| !self.fences.completed(fence);
        self.block(rest).copy_fences(self.block(index), pending);
        self.links[rest as usize].prev = index;
        self.links[rest as usize].next = own.next;
        self.links[index as usize].next = rest;
        if own.next != 0 {
            self.links[own.next as usize].prev = rest;
        }
        Some(rest)
    }

    /// Cuts a claimed hole to its first `bytes`, and files the rest; all of it where descriptors ran out.
    pub(super) fn cut_hole(&mut self, hole: u32, bytes: u64) -> Result<(), Denied> {
        if bytes < self.block(hole).size() {
            match self.split(hole, bytes) {
                Some(rest) => self.file(rest, State::Hole),
                None => {
                    self.settle(hole, State::Hole);
                    return Err(Denied::Descriptors);
                }
            }
        }
        Ok(())
    }

    /// Merges claimed extent `right` into claimed extent `left`, its neighbour below.
    fn absorb(&mut self, left: u32, right: u32, fences: &FenceSet) {
        self.block(left).set_fences(fences);
        self.supply.gauge().count_merge();
        self.absorb_fresh(left, right);
    }

    /// Merges claimed extent `right`, which nothing has touched yet, into claimed extent `left`.
    pub(super) fn absorb_fresh(&mut self, left: u32, right: u32) {
        let next = self.links[right as usize].next;
        let (low, high) = (self.block(left), self.block(right));
        low.set_extent(low.address(), low.size() + high.size());
        self.links[left as usize].next = next;
        if next != 0 {
            self.links[next as usize].prev = left;
        }
        self.drop_descriptor(right);
    }

    /// Retires a merged extent's descriptor. One that still waits in the list of notes is kept until
    /// the list is drained: its link is in use.
    pub(super) fn drop_descriptor(&mut self, index: u32) {
        let block = self.block(index);
        block.set_state(State::Spare);
        if !block.word().has(Word::INDEXED) {
            self.spares.push(index);
        }
    }

    /// What the fences of both extents come to, if they may be one: those of one stream, or of
    /// none. An extent that waits for another stream than the one that asks is not merged with one
    /// that does not, or a stream that hangs would take its neighbours' memory with it; when much
    /// depends on it (`inquiry`) the driver is asked whether that wait is over.
    fn joint_fences(&mut self, a: u32, b: u32) -> Option<FenceSet> {
        if let (Some(a), Some(b)) = (self.block(a).single_fence(), self.block(b).single_fence())
            && a.stream() == b.stream()
        {
            return Some(FenceSet::of(a.later(b)));
        }
        let mut inquiry = std::mem::take(&mut self.inquiry);
        let own = self.requester;
        let mut pending = |index| {
            self.block(index).fences_where(|fence| {
                let done = self.fences.completed(fence)
                    || own != Some(fence.stream())
                        && inquiry.as_mut().is_some_and(|asked| asked.ask(&self.fences, fence));
                !done
            })
        };
        let sets = (pending(a), pending(b));
        self.inquiry = inquiry;
        let (Some(a), Some(b)) = sets else { return None };
        let both = a.union(&b)?;
        let mut streams = both.iter().map(|fence| fence.stream());
        match (streams.next(), streams.next()) {
            (None, _) => Some(both),
            (Some(stream), None) => {
                let shared = a.iter().count() == b.iter().count();
                // What waits for a graph waits as long as there is the graph.
                let soon = own == Some(stream) && !self.fences.stream(stream).is_graph();
                (shared || soon).then_some(both)
            }
            _ => None,
        }
    }

    /// Whether a claimed extent may become one with a neighbour in the state `seen`; `upper` is the
    /// upper one of the two.
    fn mergeable(&self, hole: bool, seen: State, upper: u32) -> bool {
        match seen {
            State::Hole => hole,
            State::Free => !hole && !self.is_border(upper),
            State::Cached => !hole && self.merges_cached() && !self.is_border(upper),
            _ => false,
        }
    }

    /// Merges a claimed extent with the neighbours above it that can be had.
    fn merge_up(&mut self, index: u32, hole: bool) {
        loop {
            let next = self.links[index as usize].next;
            if next == 0 {
                return;
            }
            let seen = self.block(next).word();
            if !self.mergeable(hole, seen.state(), next) {
                return;
            }
            // Read before the claim, counted only if the claim on the same word succeeds.
            let Some(fences) = self.joint_fences(index, next) else { return };
            if !self.claim(next, seen) {
                return;
            }
            self.absorb(index, next, &fences);
        }
    }

    /// Merges a claimed extent with its neighbours and files the result as `Free` or `Hole`.
    /// Returns the result.
    pub(super) fn settle(&mut self, mut index: u32, state: State) -> u32 {
        let hole = state == State::Hole;
        self.merge_up(index, hole);
        loop {
            let prev = self.links[index as usize].prev;
            if prev == 0 {
                break;
            }
            let seen = self.block(prev).word();
            if !self.mergeable(hole, seen.state(), index) {
                break;
            }
            let Some(fences) = self.joint_fences(prev, index) else { break };
            if seen.state() == state {
                // The arena's own, and filed already: it grows where it stands.
                self.absorb(prev, index, &fences);
                self.refile(prev);
                return prev;
            }
            if !self.claim(prev, seen) {
                break;
            }
            self.absorb(prev, index, &fences);
            index = prev;
        }
        self.file(index, state);
        index
    }

    /// Files a filed extent anew after its size changed.
    fn refile(&mut self, index: u32) {
        let (bytes, links) = (self.block(index).size(), self.links[index as usize]);
        if usize::from(links.bin) != bin_of(bytes) {
            let (region, list) = (usize::from(links.region), links.list);
            self.regions[region].list(list).remove(&mut self.links, index);
            self.enlist(index, list);
        }
    }

    /// Cuts `bytes` off the lower end of a `Free` extent that is larger: a new claimed extent, whose
    /// fences are still to be set. The rest stays filed. `None` (and nothing changed) when there is no descriptor left.
    pub(super) fn carve(&mut self, index: u32, bytes: u64) -> Option<u32> {
        let (address, size) = (self.block(index).address(), self.block(index).size());
        debug_assert!(bytes > 0 && bytes < size);
        let Links { prev, region, .. } = self.links[index as usize];
        let low = self.describe(region, address, bytes)?;
        self.block(index).set_extent(address + bytes, size - bytes);
        self.links[low as usize].prev = prev;
        self.links[low as usize].next = index;
        self.links[index as usize].prev = low;
        match prev {
            0 => self.regions[usize::from(region)].first = low,
            prev => self.links[prev as usize].next = low,
        }
        self.refile(index);
        Some(low)
    }

    /// Whether a neighbour of a cached extent could be merged with it.
    pub(super) fn has_mergeable_neighbour(&self, index: u32) -> bool {
        let Links { prev, next, .. } = self.links[index as usize];
        [(prev, index), (next, next)]
            .into_iter()
            .any(|(i, upper)| i != 0 && self.mergeable(false, self.block(i).word().state(), upper))
    }
}
