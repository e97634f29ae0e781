//! The arena's invariants, checked: for tests.

use super::arena::Arena;
use super::extent::List;
use super::index::bin_of;
use crate::block::{Descriptor, State, Word};
use crate::level::Level;
use crate::size::QUANTUM;
use crate::sync::Ordering;

const LISTS: [List; 3] = [List::Free, List::Cached, List::Holes];

impl Arena {
    /// Every extent, list and page.
    #[cfg(loom)]
    pub fn check_invariants(&self) {
        self.check(Level::Heap);
    }

    /// Checks the invariants on top of [`super::extent`], of the index, and of the pages. Panics with
    /// what is wrong. Up to [`Level::Heap`] blocks may come and go meanwhile; the extents may not.
    pub fn check(&self, level: Level) {
        let segments = self.plain.as_ref().map_or(0, |plain| plain.segments.held());
        self.supply.check(self.pages.held() + segments);
        for region in &self.regions {
            assert_eq!(self.links[region.first as usize].prev, 0, "something before the first");
            LISTS.into_iter().for_each(|list| region.index(list).check_heads(&self.links, list));
        }
        if level >= Level::Heap {
            self.pages.check_invariants();
            self.plain.iter().for_each(|plain| plain.segments.check());
            let extents = (0..self.regions.len()).map(|number| self.check_region(number)).sum();
            self.check_lists();
            self.check_descriptors(extents);
        }
        if level >= Level::Full {
            self.check_notes();
            self.check_apart();
            self.for_each_extent(|index, block| self.check_block(index, block));
            self.for_each_apart(|index, block| self.check_block(index, block));
        }
    }

    /// The extents tile a region, and each has memory or not as its state says. Their number.
    fn check_region(&self, number: usize) -> usize {
        let region = &self.regions[number];
        let (mut index, mut prev, mut end) = (region.first, 0, None);
        let (mut with_memory, mut extents) = (0, 0);
        while index != 0 {
            let (block, links) = (self.block(index), self.links[index as usize]);
            let (address, size, state) = (block.address(), block.size(), block.word().state());
            assert_eq!(usize::from(links.region), number, "extent {index} strayed");
            assert_eq!(links.prev, prev, "extent {index} has another predecessor");
            assert!(end.is_none_or(|end| end == address), "a gap before extent {index}");
            assert!(size > 0 && size % QUANTUM == 0, "extent {index}: {size}");
            assert_ne!(state, State::Spare, "a spare descriptor {index} is linked");
            match state {
                State::Free => assert_eq!(links.list, List::Free, "extent {index} is {state:?}"),
                State::Hole => assert_eq!(links.list, List::Holes, "extent {index} is {state:?}"),
                _ => assert!(matches!(links.list, List::None | List::Cached), "extent {index}"),
            }
            let backed = state != State::Hole;
            with_memory += if backed { size } else { 0 };
            self.check_backing(index, backed);
            (prev, end) = (index, Some(address + size));
            index = links.next;
            extents += 1;
        }
        assert_eq!(with_memory, region.backed, "bytes with memory in region {number}");
        extents
    }

    /// There is memory behind all of an extent, or behind nothing of it.
    fn check_backing(&self, index: u32, backed: bool) {
        let (block, links) = (self.block(index), self.links[index as usize]);
        let (address, size, state) = (block.address(), block.size(), block.word().state());
        if let Some(plain) = &self.plain {
            let agree = plain.segments.agree(links.region, address, size, backed);
            assert!(agree, "{state:?} {index} at {address:#x} with {size} bytes, and the segments");
            return;
        }
        let page = self.pages.page_bytes();
        let mut at = address / page * page;
        while at < address + size {
            assert_eq!(self.pages.is_backed(at), backed, "page {at:#x} of {state:?} {index}");
            // A hole may span terabytes: its ends will do.
            at += if backed { page } else { size.max(page) };
        }
    }

    /// What the lists hold is what says that it is in them, each in the bin of its size.
    fn check_lists(&self) {
        let mut listed = 0;
        for (number, region) in self.regions.iter().enumerate() {
            for list in LISTS {
                region.index(list).for_each(&self.links, |index| {
                    let (links, block) = (self.links[index as usize], self.block(index));
                    assert_eq!(usize::from(links.region), number, "extent {index} in a list");
                    assert_eq!(links.list, list, "extent {index}");
                    assert_eq!(usize::from(links.bin), bin_of(block.size()), "extent {index}");
                    listed += 1;
                });
            }
        }
        let claimed = self.links.iter().filter(|links| links.list != List::None).count();
        assert_eq!(claimed, listed, "extents that say they are in a list");
    }

    /// Each descriptor is an extent's, spare, or spare once its note was read.
    fn check_descriptors(&self, extents: usize) {
        for &index in &self.spares {
            let word = self.block(index).word();
            assert!(word.state() == State::Spare, "spare {index} is {word:?}");
            assert!(!word.has(Word::INDEXED), "spare {index} waits for its note");
        }
        let all = self.links.len() - 1;
        let waiting = (1..=all as u32)
            .map(|index| self.block(index).word())
            .filter(|word| word.state() == State::Spare && word.has(Word::INDEXED))
            .count();
        for &index in &self.planned {
            let word = self.block(index).word();
            let state = matches!(word.state(), State::Live | State::Cached | State::Claimed);
            assert!(state && word.has(Word::PLANNED), "place {index} is {word:?}");
        }
        let elsewhere = self.apart.descriptors() + self.planned.len();
        assert_eq!(extents + self.spares.len() + waiting + elsewhere, all, "descriptors");
    }

    /// A block is marked as indexed if the index lists it, or if its note is waiting.
    fn check_notes(&self) {
        let mut noted = vec![false; self.links.len()];
        for &index in &self.apart.delayed {
            let seen = std::mem::replace(&mut noted[index as usize], true);
            assert!(!seen, "{index} is delayed twice");
        }
        for mut index in self.blocks.first_notes() {
            while index != 0 {
                let seen = std::mem::replace(&mut noted[index as usize], true);
                assert!(!seen, "the notes of {index} form a circle");
                index = self.block(index).note.load(Ordering::Relaxed);
            }
        }
        for (index, &noted) in noted.iter().enumerate().skip(1) {
            let word = self.block(index as u32).word();
            let listed = self.links[index].list == List::Cached;
            assert!(!(listed && noted), "{index} is listed and has a note");
            assert_eq!(word.has(Word::INDEXED), listed || noted, "{index}: {word:?}");
        }
    }

    /// A block in rest: its fences are stamped, a user's is found by its address.
    fn check_block(&self, index: u32, block: &Descriptor) {
        let (word, address) = (block.word(), block.address());
        assert_ne!(word.state(), State::Claimed, "nobody is about to do anything with {index}");
        if word.state() == State::Live {
            let found = self.blocks.find(address).map(|(found, ..)| found);
            assert_eq!(found, Some(index), "the block at {address:#x}");
            let small = crate::size::is_small(block.size());
            assert_eq!(block.class().is_some(), small, "the class of {index}");
            assert!(block.requested() <= block.size(), "{index} holds what was asked for");
        }
        if matches!(word.state(), State::Free | State::Cached) {
            assert!(!word.has(Word::USES), "{index} is idle, and used");
            let mut streams = Vec::new();
            block.for_each_fence(|fence| {
                assert!(!fence.is_open(), "{index} is idle, and {fence:?} not stamped");
                self.fences.check_fence(fence);
                streams.push(fence.stream());
            });
            streams.sort_unstable();
            assert!(streams.is_sorted_by(|a, b| a < b), "{index} has two fences of one stream");
        }
    }
}
