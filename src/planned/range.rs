//! A plan's range of memory: who has used which bytes last.
//!
//! Each request of the plan has a *place*, a descriptor over its bytes. Places overlap; who may use one,
//! and after whom, the *segments* say: for every byte the place that was claimed last over it.
//!
//! ```text
//! segments tile the range;  a segment's place covers it
//! a live place has segments over all of its bytes, and so no two live places share a byte
//! a place that is claimed runs after the fences of all whose segments it takes: of one byte only the last count
//! ```
//!
//! A range ends at any moment: places that somebody holds become blocks like any other, and what lies
//! between them is free.

use crate::block::{Fence, State, StreamId};
use crate::config::Reuse;
use crate::core::{Device, Grant};
use crate::fence::{Asked, Fences};
use crate::heap::{Arena, Request};
use crate::plan::DevicePlan;
use std::collections::{BTreeMap, HashMap};
use std::ops;

/// A plan with memory.
pub(super) struct Range {
    /// The arena's block.
    block: u32,
    /// What came before: the first users of the bytes run after it.
    born: Fence,
    bytes: u64,
    /// Each request's place, by stream and position.
    requests: HashMap<(u32, u32), Place>,
    /// Descriptors of the places, by offset and size.
    places: BTreeMap<(u64, u64), u32>,
    /// From where on a place was the last.
    segments: BTreeMap<u64, Segment>,
}

/// A request's place.
#[derive(Clone, Copy)]
struct Place {
    index: u32,
    offset: u64,
    bytes: u64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
struct Segment {
    end: u64,
    /// The place's descriptor; 0 for nobody's yet.
    place: u32,
}

impl Range {
    /// Memory for a plan, whose first user is `stream`. `None` where there is none to be had.
    pub fn new(
        arena: &mut Arena,
        fences: &Fences,
        plan: &DevicePlan,
        stream: StreamId,
    ) -> Option<Self> {
        let mut all: Vec<(u64, u64)> =
            plan.requests().iter().map(|request| (request.offset, request.bytes)).collect();
        all.sort_unstable();
        all.dedup();
        let bytes = plan.bytes();
        let request = Request { stream, bytes, requested: bytes };
        let (block, places) = arena.lay_out(request, &all).ok()?;
        let places: BTreeMap<_, _> = all.into_iter().zip(places).collect();
        let requests = plan.requests().iter().filter_map(|request| {
            let (offset, bytes) = (request.offset, request.bytes);
            let place = Place { index: *places.get(&(offset, bytes))?, offset, bytes };
            Some(((request.stream, request.position), place))
        });
        let requests = requests.collect();
        let segments = BTreeMap::from([(0, Segment { end: bytes, place: 0 })]);
        Some(Self { block, born: fences.stamp(stream), bytes, requests, places, segments })
    }

    /// Claims the place of a request for `stream`, if nobody holds a byte of it and `reuse` allows what it
    /// takes to come after its last users.
    pub fn claim<'c>(
        &mut self,
        device: &'c Device,
        fences: &Fences,
        reuse: Reuse,
        request: (u32, u32),
        stream: StreamId,
    ) -> Option<Grant<'c>> {
        let place = *self.requests.get(&request)?;
        self.comes_after(device, fences, reuse, place.offset..place.offset + place.bytes, stream)
            .then(|| self.hand_out(device, place, stream))
    }

    /// Whether a stream's next work comes after all that was done with these bytes, or is made to, as
    /// `reuse` allows; and nobody holds one of them.
    fn comes_after(
        &self,
        device: &Device,
        fences: &Fences,
        reuse: Reuse,
        bytes: ops::Range<u64>,
        stream: StreamId,
    ) -> bool {
        let mut before: Vec<Fence> = Vec::new();
        let mut last = None;
        for segment in self.over(bytes.start, bytes.end) {
            if last == Some(segment.place) {
                continue;
            }
            last = Some(segment.place);
            if segment.place == 0 {
                before.push(self.born);
                continue;
            }
            let user = device.blocks.at(segment.place);
            // Acquire, in `word`, pairs with the release of the free: its fences are stamped. Who claims
            // places holds the plan's lock, as we do.
            if user.word().state() != State::Cached {
                return false;
            }
            user.for_each_fence(|fence| before.push(fence));
        }
        before.retain(|&fence| !fences.ordered(stream, fence));
        if reuse != Reuse::SameStream {
            let mut asked = Asked::default();
            before.retain(|&fence| !asked.ask(fences, fence));
        }
        let waits = reuse == Reuse::Wait;
        before.iter().all(|&fence| waits && matches!(fences.wait(stream, fence), Ok(true)))
    }

    fn hand_out<'c>(&mut self, device: &'c Device, place: Place, stream: StreamId) -> Grant<'c> {
        self.take(place);
        let block = device.blocks.at(place.index);
        block.reset_fences(stream);
        let hint = block.hand_out().hint(place.index);
        Grant { block, hint }
    }

    /// The segments that have a byte from `offset` to `end`.
    fn over(&self, offset: u64, end: u64) -> impl Iterator<Item = Segment> {
        let first = self.segments.range(..=offset).next_back();
        let from = first.map_or(0, |(&at, _)| at);
        self.segments.range(from..end).map(|(_, &segment)| segment)
    }

    /// A place becomes the last over its bytes.
    fn take(&mut self, Place { index, offset, bytes }: Place) {
        let end = offset + bytes;
        let from = self.segments.range(..=offset).next_back().map_or(0, |(&at, _)| at);
        let cut: Vec<(u64, Segment)> =
            self.segments.range(from..end).map(|(&at, &segment)| (at, segment)).collect();
        for (at, segment) in cut {
            self.segments.remove(&at);
            if at < offset {
                self.segments.insert(at, Segment { end: offset, ..segment });
            }
            if segment.end > end {
                self.segments.insert(end, segment);
            }
        }
        self.segments.insert(offset, Segment { end, place: index });
    }

    /// Whether anybody holds a place.
    pub fn is_held(&self, device: &Device) -> bool {
        self.places.values().any(|&index| device.blocks.at(index).word().state() != State::Cached)
    }

    /// Ends the range. Only where there are no more descriptors it stays as it was: false.
    pub fn dissolve(&self, device: &Device, arena: &mut Arena) -> bool {
        let places: Vec<u32> = self.places.values().copied().collect();
        let counts = device.movables.are_on();
        arena.dissolve(self.block, &places, counts, |gap| self.last_uses(device, gap))
    }

    /// The fences of the last uses of these bytes, in nobody's hands: of each stream the last.
    fn last_uses(&self, device: &Device, bytes: ops::Range<u64>) -> Vec<Fence> {
        let mut last = Vec::new();
        for segment in self.over(bytes.start, bytes.end) {
            match segment.place {
                0 => last.push(parts(self.born)),
                place => device.blocks.at(place).for_each_fence(|fence| last.push(parts(fence))),
            }
        }
        last.sort_unstable();
        let mut kept: Vec<Fence> = Vec::new();
        for (stream, q) in last {
            match kept.last_mut().filter(|fence| fence.stream() == stream) {
                Some(fence) => *fence = fence.later(Fence::new(stream, q)),
                None => kept.push(Fence::new(stream, q)),
            }
        }
        kept
    }

    /// Host memory held beside the descriptors, in bytes.
    pub fn bookkeeping(&self) -> usize {
        self.requests.len() * size_of::<((u32, u32), Place)>()
            + self.places.len() * size_of::<((u64, u64), u32)>()
            + self.segments.len() * size_of::<(u64, Segment)>()
    }

    /// Checks the invariants; panics with what is wrong.
    pub fn check(&self, device: &Device) {
        let mut at = 0;
        for (&offset, segment) in &self.segments {
            assert_eq!(offset, at, "segments leave a gap, or overlap");
            assert!(segment.end > offset && segment.end <= self.bytes, "a segment ends before");
            at = segment.end;
        }
        assert_eq!(at, self.bytes, "segments end before the range");
        let base = device.blocks.at(self.block).address();
        for &index in self.places.values() {
            let place = device.blocks.at(index);
            if place.word().state() != State::Live {
                continue;
            }
            let offset = place.address() - base;
            let mut over = self.over(offset, offset + place.size());
            assert!(over.all(|segment| segment.place == index), "a live place shares bytes");
            let found = device.blocks.find(place.address()).map(|(found, ..)| found);
            assert_eq!(found, Some(index), "a live place is not found by its address");
        }
    }
}

fn parts(fence: Fence) -> (StreamId, u64) {
    (fence.stream(), fence.q())
}
