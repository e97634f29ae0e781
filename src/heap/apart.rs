//! The arena's side of the buddy system: chunks begin and end, and blocks whose work is over go back into
//! their trees.
//!
//! A block in a chunk that is freed stays its stream's, `Cached`, until the arena looks: the free leaves a
//! note, and when a request finds neither a hint nor room in a tree, all blocks are looked at whose notes
//! came since or whose work was not over then. Those whose work is over by now go back; nothing waits.
//!
//! ```text
//! an apart block with INDEXED is in the list of notes or in `delayed`, or its note is about to come, once;
//!   without, none of it
//! ```
//!
//! Where all idle memory is wanted, notes are not waited for: a free may be between its word and its note.
//! What is taken then keeps the flag, also when it is another block's, or spare, until the note has come.

use super::arena::{Arena, Denied, LARGE, Request};
use super::chunks::{Chunk, Kind, Place, Search};
use super::fit::Effort;
use super::plan::Bound;
use crate::block::{Descriptor, Fence, FenceSet, State, Word};
use crate::config::Reuse;
use crate::fence::Asked;
use crate::stats::BuddyStats;
use crate::sync::Ordering;
use std::collections::BTreeMap;

/// Chunks, as only the arena's holder sees them.
#[derive(Default)]
pub(super) struct Apart {
    /// Those in use, by address.
    chunks: BTreeMap<u64, InUse>,
    /// Records without a chunk.
    unused: Vec<u32>,
    /// Blocks that were freed, and whose work was not over.
    pub delayed: Vec<u32>,
}

struct InUse {
    /// Its record's number.
    slot: u32,
    /// The units that have a descriptor, and those.
    starts: Vec<(u32, u32)>,
}

impl Apart {
    /// Host memory held, in bytes.
    pub fn bytes(&self) -> u64 {
        let starts: usize = self.chunks.values().map(|chunk| chunk.starts.capacity()).sum();
        (starts * size_of::<(u32, u32)>()
            + self.chunks.len() * size_of::<(u64, InUse)>()
            + (self.unused.capacity() + self.delayed.capacity()) * size_of::<u32>()) as u64
    }

    /// Descriptors of blocks in chunks.
    pub fn descriptors(&self) -> usize {
        self.chunks.values().map(|chunk| chunk.starts.len()).sum()
    }
}

impl Arena {
    /// Serves a request that is the buddy system's: from a tree; from one after what is over went back;
    /// from a new chunk within the headroom; from one that the stream is made to wait for; or as any other
    /// request.
    pub fn allocate_apart(&mut self, request: Request) -> Result<(u32, Word), Denied> {
        let outcome = match self.climb_apart(request) {
            Ok(None) => self.climb(request),
            Ok(Some(taken)) => Ok(taken),
            Err(denied) => Err(denied),
        };
        self.relieve();
        outcome
    }

    fn climb_apart(&mut self, request: Request) -> Result<Option<(u32, Word)>, Denied> {
        self.requester = Some(request.stream);
        if let Some(taken) = self.fit_apart(request, Effort::Known, Search::Kind)? {
            return Ok(Some(taken));
        }
        let ask = self.asking();
        self.sweep(ask == Effort::Ask);
        if let Some(taken) = self.fit_apart(request, ask, Search::Kind)? {
            return Ok(Some(taken));
        }
        if self.add_chunk(request)?
            && let Some(taken) = self.fit_apart(request, Effort::Known, Search::Kind)?
        {
            return Ok(Some(taken));
        }
        match self.settings.reuse {
            Reuse::Wait => self.fit_apart(request, Effort::Wait, Search::Kind),
            Reuse::SameStream | Reuse::Completed => Ok(None),
        }
    }

    /// How far the policy goes without a wait.
    fn asking(&self) -> Effort {
        match self.settings.reuse {
            Reuse::SameStream => Effort::Known,
            Reuse::Completed | Reuse::Wait => Effort::Ask,
        }
    }

    /// Takes a block from a chunk that has room and that the stream may have with this effort.
    pub(super) fn fit_apart(
        &mut self,
        request: Request,
        effort: Effort,
        search: Search,
    ) -> Result<Option<(u32, Word)>, Denied> {
        let stream = request.stream;
        // A graph's memory is its own: a chunk is many streams'.
        if self.apart.chunks.is_empty() || self.fences.stream(stream).is_graph() {
            return Ok(None);
        }
        let mut asked = Asked::default();
        let fences = &self.fences;
        let usable = |stamp: Fence| {
            fences.ordered(stream, stamp)
                || match effort {
                    Effort::Uncached | Effort::Known => false,
                    Effort::Ask => asked.ask(fences, stamp),
                    Effort::Wait => matches!(fences.wait(stream, stamp), Ok(true)),
                }
        };
        let blocks = std::sync::Arc::clone(&self.blocks);
        let Some(place) = blocks.chunks.claim(request.bytes, search, usable) else {
            return Ok(None);
        };
        let index = match place.start() {
            Some(index) => index,
            None => match self.make_start(place) {
                Some(index) => index,
                None => {
                    place.release();
                    return Err(Denied::Descriptors);
                }
            },
        };
        self.count(effort.rung(), false);
        let (_, word) = blocks.hand_out_apart(place, index, request);
        Ok(Some((index, word)))
    }

    /// A descriptor for blocks that start at a place, published. `None` when there is none left.
    fn make_start(&mut self, place: Place<'_>) -> Option<u32> {
        let index = self.describe(LARGE, place.address(), place.bytes())?;
        if !self.blocks.publish(index) {
            self.block(index).set_state(State::Spare);
            self.spares.push(index);
            return None;
        }
        self.block(index).set_apart(true);
        self.block(index).set_state(State::Free);
        let chunk = self.apart.chunks.get_mut(&place.chunk.address());
        chunk.expect("a chunk that something was taken of").starts.push((place.first, index));
        place.chunk.set_start(place.first, index);
        Some(index)
    }

    /// Begins a chunk that has room for a request, if there is memory for one without a wait.
    fn add_chunk(&mut self, request: Request) -> Result<bool, Denied> {
        let kind = Kind::of(request.bytes);
        let least = request.bytes.next_power_of_two() * 2;
        let bytes = kind.chunk_bytes(self.supply.reserved()).max(least);
        if self.fences.stream(request.stream).is_graph() || bytes > self.supply.limit() {
            return Ok(false);
        }
        self.retire_idle();
        let chunk = Request { bytes, requested: bytes, ..request };
        let Some(extent) = self.fit_chunk(chunk)? else { return Ok(false) };
        let address = self.block(extent).address();
        // Before its beginning others may have used the memory, in an order that is the stream's.
        let stamp = if self.pending { self.fences.stamp(request.stream) } else { Fence::NONE };
        let same = |&slot: &u32| {
            let record = self.blocks.chunks.at(slot);
            record.is_some_and(|record| record.kind == kind && record.bytes() == bytes)
        };
        let slot = match self.apart.unused.iter().position(same) {
            Some(at) => self.apart.unused.swap_remove(at),
            None => match self.blocks.chunks.add(Chunk::new(kind, bytes)) {
                Some(slot) => slot,
                None => {
                    self.end_chunk(extent, stamp);
                    return Ok(false);
                }
            },
        };
        // What fit leaves on a large block rather than cut a sliver.
        if self.block(extent).size() > bytes {
            self.block(extent).set_state(State::Claimed);
            self.block(extent).set_fences(&FenceSet::of(self.fences.stamp(request.stream)));
            if let Some(rest) = self.split(extent, bytes) {
                self.settle(rest, State::Free);
            }
        }
        self.block(extent).set_state(State::Chunk);
        let blocks = std::sync::Arc::clone(&self.blocks);
        let record = blocks.chunks.at(slot).expect("a record of its number");
        self.apart.chunks.insert(address, InUse { slot, starts: Vec::new() });
        blocks.chunks.count(record, true);
        record.begin(extent, address, stamp);
        Ok(true)
    }

    /// The ladder for a chunk: what is idle and known, or done; pages within the headroom. Its extent.
    fn fit_chunk(&mut self, chunk: Request) -> Result<Option<u32>, Denied> {
        let ask = self.asking();
        self.supply.forgive();
        self.read_notes();
        for effort in [Effort::Known, ask] {
            if let Some((extent, _)) = self.fit(LARGE, chunk, effort)? {
                return Ok(Some(extent));
            }
            self.merge_listed(LARGE);
        }
        let grown = self.grow(LARGE, chunk, ask, Bound::Budget)?;
        Ok(grown.map(|(extent, _)| extent))
    }

    /// Makes an extent that was handed out one of the arena's again.
    fn end_chunk(&mut self, extent: u32, stamp: Fence) {
        let over = stamp.is_none() || self.fences.completed(stamp);
        let fences = if over { FenceSet::default() } else { FenceSet::of(stamp) };
        self.block(extent).set_state(State::Claimed);
        self.block(extent).set_fences(&fences);
        self.settle(extent, State::Free);
    }

    /// Puts the blocks back into their trees whose work is over, as far as is known or, with `ask`, as the
    /// driver says.
    pub(super) fn sweep(&mut self, ask: bool) {
        let mut asked = Asked::default();
        let mut delayed = std::mem::take(&mut self.apart.delayed);
        let mut index = self.blocks.take_apart_notes();
        while index != 0 {
            delayed.push(index);
            index = self.block(index).note.load(Ordering::Relaxed);
        }
        let mut spare = Vec::new();
        delayed.retain(|&index| {
            let block = self.block(index);
            match block.word().state() {
                State::Cached => {}
                // Its chunk has ended while its note was to come.
                State::Spare => {
                    block.set_indexed(false);
                    spare.push(index);
                    return false;
                }
                // Live again, or taken before its note came: its next free leaves a note, unless it came
                // just now.
                _ => return !block.forget_if_taken(),
            }
            if self.take_back(index, ask, &mut asked) {
                // Not by a plain store: it may be another's already.
                return !block.forget_if_taken();
            }
            true
        });
        self.spares.append(&mut spare);
        self.apart.delayed = delayed;
        for chunk in self.blocks.chunks.iter() {
            let stamp = chunk.stamp();
            let mut over =
                |stamp| self.fences.completed(stamp) || ask && asked.ask(&self.fences, stamp);
            if !stamp.is_none() && over(stamp) {
                chunk.forget_stamp(stamp);
            }
        }
    }

    /// Puts a block that was freed back into its tree, if its work is over.
    fn take_back(&self, index: u32, ask: bool, asked: &mut Asked) -> bool {
        let block = self.block(index);
        // The word before the fences: the claim is for what was looked at, or fails.
        let seen = block.word();
        let over = seen.state() == State::Cached
            && block.all_fences(|fence| {
                self.fences.completed(fence) || ask && asked.ask(&self.fences, fence)
            });
        if !over || !block.claim_for_arena(seen) {
            return false;
        }
        self.return_apart(index);
        true
    }

    /// Puts a block into its tree that is the arena's, or was handed out just now and not used yet.
    pub(super) fn return_apart(&self, index: u32) {
        let block = self.block(index);
        let (address, bytes) = (block.address(), block.size());
        // First this: the next block at this start may be another thread's the moment it is free.
        block.set_state(State::Free);
        let (_, chunk) = self.chunk_of(address);
        chunk.release(address, bytes);
    }

    /// The chunk in use around an address.
    fn chunk_of(&self, address: u64) -> (&InUse, &Chunk) {
        let (_, chunk) =
            self.apart.chunks.range(..=address).next_back().expect("an apart block's chunk");
        (chunk, self.blocks.chunks.at(chunk.slot).expect("a chunk in use has a record"))
    }

    /// Ends the chunks of which nothing is taken: they are extents like others again. Says whether there
    /// were any.
    pub(super) fn retire_idle(&mut self) -> bool {
        let closes = |chunk: &InUse| {
            self.blocks.chunks.at(chunk.slot).is_some_and(|chunk| chunk.tree.close())
        };
        let idle: Vec<u64> = self
            .apart
            .chunks
            .iter()
            .filter(|(_, chunk)| closes(chunk))
            .map(|(&at, _)| at)
            .collect();
        for &address in &idle {
            let Some(InUse { slot, starts }) = self.apart.chunks.remove(&address) else { continue };
            let blocks = std::sync::Arc::clone(&self.blocks);
            let chunk = blocks.chunks.at(slot).expect("a chunk in use has a record");
            for (unit, index) in starts {
                chunk.set_start(unit, 0);
                let block = self.block(index);
                debug_assert_eq!(
                    block.word().state(),
                    State::Free,
                    "nothing of the chunk is taken"
                );
                block.set_apart(false);
                block.set_state(State::Spare);
                if !block.word().has(Word::INDEXED) {
                    self.spares.push(index);
                }
            }
            blocks.chunks.count(chunk, false);
            self.apart.unused.push(slot);
            self.end_chunk(chunk.extent(), chunk.stamp());
        }
        !idle.is_empty()
    }

    /// Puts back what is over and ends idle chunks, where there are chunks at all. Says whether any ended.
    pub(super) fn tidy_chunks(&mut self, ask: bool) -> bool {
        if self.apart.chunks.is_empty() {
            return false;
        }
        self.sweep(ask);
        self.retire_idle()
    }

    /// As `tidy_chunks`, where all idle memory is wanted: also what was freed without a note yet.
    pub(super) fn gather_chunks(&mut self) {
        if self.apart.chunks.is_empty() {
            return;
        }
        self.sweep(true);
        let mut asked = Asked::default();
        self.for_each_apart(|index, _| {
            self.take_back(index, true, &mut asked);
        });
        self.retire_idle();
    }

    /// Whether a chunk could end: nothing of it is taken.
    pub(super) fn has_idle_chunk(&self) -> bool {
        let idle = |chunk: &InUse| {
            self.blocks.chunks.at(chunk.slot).is_some_and(|chunk| chunk.tree.taken() == 0)
        };
        self.apart.chunks.values().any(idle)
    }

    /// Calls `each` with the descriptor of every start in a chunk.
    pub(super) fn for_each_apart(&self, mut each: impl FnMut(u32, &Descriptor)) {
        for chunk in self.apart.chunks.values() {
            chunk.starts.iter().for_each(|&(_, index)| each(index, self.block(index)));
        }
    }

    /// Calls `each` with every chunk in use.
    pub(super) fn for_each_chunk(&self, mut each: impl FnMut(&Chunk)) {
        for chunk in self.apart.chunks.values() {
            each(self.blocks.chunks.at(chunk.slot).expect("a chunk in use has a record"));
        }
    }

    /// What the buddy system holds, and users of it.
    pub fn buddy_stats(&self) -> BuddyStats {
        let (chunks, chunk_bytes) = self.blocks.chunks.held();
        let mut stats = BuddyStats { chunks, chunk_bytes, ..BuddyStats::default() };
        self.for_each_apart(|_, block| {
            let (state, bytes) = (block.word().state(), block.size());
            match state {
                State::Live => {
                    stats.live_bytes += block.requested();
                    stats.granted_bytes += bytes;
                }
                State::Cached => stats.cached_bytes += bytes,
                _ => {}
            }
        });
        stats
    }

    /// At rest: every start is what its chunk's tree says it is, and its descriptor is right.
    pub(super) fn check_apart(&self) {
        let mut bytes = 0;
        for (&address, InUse { slot, starts }) in &self.apart.chunks {
            let chunk = self.blocks.chunks.at(*slot).expect("a chunk in use has a record");
            let extent = self.block(chunk.extent());
            assert_eq!(extent.word().state(), State::Chunk, "the extent of the chunk {address:#x}");
            assert_eq!(extent.address(), address, "where the chunk starts");
            assert!(extent.size() >= chunk.bytes(), "the chunk {address:#x} and its extent");
            assert_eq!(chunk.address(), address, "a chunk's address");
            chunk.tree.check();
            bytes += chunk.bytes();
            let mut taken = 0;
            for &(unit, index) in starts {
                let (block, unit_bytes) = (self.block(index), chunk.kind.unit());
                let word = block.word();
                assert!(word.has(Word::APART), "{index} starts in a chunk: {word:?}");
                assert_eq!(block.address(), address + u64::from(unit) * unit_bytes, "{index}");
                let found = self.blocks.find(block.address()).map(|(found, ..)| found);
                assert_eq!(found, Some(index), "the start at {:#x}", block.address());
                match word.state() {
                    State::Free => {}
                    State::Live | State::Cached => taken += block.size() / unit_bytes,
                    state => panic!("{index} in a chunk is {state:?}"),
                }
            }
            assert_eq!(u64::from(chunk.tree.taken()), taken, "units of the chunk {address:#x}");
        }
        assert_eq!(self.blocks.chunks.held(), (self.apart.chunks.len() as u32, bytes), "chunks");
    }
}
