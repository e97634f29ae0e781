//! The heap where memory cannot be mapped: the driver gives *segments* at addresses of its choice.
//!
//! A region is then the whole address space, a hole at first. A segment turns a part of the hole into
//! a free extent, which is cut and merged like any other, but not beyond the segment; given back, it
//! is a hole again. Nothing moves, so a request is served where an idle extent is large enough, or by
//! another segment.
//!
//! The driver may wait for the device when a segment goes back, for as long as that takes. So it is
//! asked to on request, above a watermark, where memory is out, and at the end; and only once the device
//! is known to have done what it was given, which the host waits for, though not for ever.

use super::arena::{Arena, Denied, LARGE, Request, SMALL};
use super::extent::List;
use super::fit::Effort;
use super::gauge::Rung;
use super::plan::Bound;
use super::segment_policy as policy;
use super::segments::{Segment, Segments};
use crate::block::{Fence, FenceSet, State, Word};
use crate::config::Reuse;
use crate::driver::{Driver, DriverError, DriverResult};
use crate::fence::Asked;
use crate::size::QUANTUM;
use std::time::Duration;

/// What an arena over segments has beside its extents.
#[derive(Default)]
pub(super) struct Plain {
    pub segments: Segments,
    /// Work that the host waited for in vain.
    stuck: Option<Fence>,
}

/// A segment that nobody uses.
struct Idle {
    /// Its first extent.
    first: u32,
    bytes: u64,
}

impl Arena {
    /// Memory for a request that no extent serves: pages moved together, or a new segment.
    pub(super) fn grow(
        &mut self,
        region: u8,
        request: Request,
        effort: Effort,
        bound: Bound,
    ) -> Result<Option<(u32, Word)>, Denied> {
        match (&self.plain, effort) {
            (None, _) => self.stitch(region, request, effort, bound),
            // New memory waits for nobody.
            (Some(_), Effort::Wait) => Ok(None),
            (Some(_), _) => self.take_segment(region, request),
        }
    }

    /// Serves a request from a new segment, if there is room for one.
    fn take_segment(
        &mut self,
        region: u8,
        request: Request,
    ) -> Result<Option<(u32, Word)>, Denied> {
        let (page, reserved) = (self.pages.page_bytes(), self.supply.reserved());
        let room = self.supply.room(self.supply.limit());
        for bytes in policy::sizes(request.bytes, page, reserved, room) {
            match self.add_segment(region, bytes) {
                Ok(extent) => {
                    self.count(Rung::Created, false);
                    return self.cut(extent, request).map(Some);
                }
                // The next size is the least.
                Err(Denied::Driver(error)) if error.out_of_memory => self.supply.refused(&error),
                Err(denied) => return Err(denied),
            }
        }
        Ok(None)
    }

    /// Takes a segment: a claimed extent.
    pub(super) fn add_segment(&mut self, region: u8, bytes: u64) -> Result<u32, Denied> {
        let taken = self.supply.take(bytes, |driver, device| driver.allocate(device, bytes));
        let address = taken.map_err(Denied::Driver)?;
        match self.fill_hole(region, address, bytes) {
            Ok(extent) => {
                self.regions[usize::from(region)].backed += bytes;
                let segment = Segment { address, bytes, region, pins: 0 };
                self.plain().segments.insert(segment);
                Ok(extent)
            }
            Err(denied) => {
                // What the driver does not take back is lost, and not counted any more. An address that it
                // gave before is that of a segment, and not given back in its place.
                let ours = !self.plain().segments.are_clear_of(address, bytes);
                let _ = self.supply.give(bytes, |driver, device| {
                    if !ours {
                        let _ = driver.free(device, address);
                    }
                    Ok(())
                });
                Err(denied)
            }
        }
    }

    /// Cuts a range of addresses out of the hole around it.
    fn fill_hole(&mut self, region: u8, address: u64, bytes: u64) -> Result<u32, Denied> {
        let mut around = None;
        let holes = self.regions[usize::from(region)].index(List::Holes);
        holes.for_each(&self.links, |index| {
            let hole = self.block(index);
            if hole.address() <= address && address < hole.end() {
                around = Some(index);
            }
        });
        let fits = |index: &u32| bytes <= self.block(*index).end() - address;
        let sound = address.is_multiple_of(QUANTUM)
            && self.plain.as_ref().is_some_and(|plain| plain.segments.are_clear_of(address, bytes));
        let Some(mut hole) = around.filter(fits).filter(|_| sound) else {
            return Err(Denied::Driver(DriverError {
                call: "plain allocation",
                code: -1,
                message: format!(
                    "{address:#x} with {bytes} bytes is misaligned, or was given before"
                ),
                out_of_memory: false,
            }));
        };
        let seen = self.block(hole).word();
        let claimed = self.claim(hole, seen);
        debug_assert!(claimed, "holes are the arena's own");
        let below = address - self.block(hole).address();
        if below > 0 {
            let upper = self.split(hole, below);
            self.file(hole, State::Hole);
            hole = upper.ok_or(Denied::Descriptors)?;
        }
        self.cut_hole(hole, bytes)?;
        Ok(hole)
    }

    /// The last resorts of a miss, everything idle having been merged: what has become usable, or is
    /// after a wait; idle memory of the other region; and room made by giving idle segments back,
    /// where the device is done with them `within` a time.
    pub(super) fn reclaim_plain(
        &mut self,
        region: u8,
        request: Request,
        within: Duration,
    ) -> Result<Option<(u32, Word)>, Denied> {
        let efforts: &[Effort] = match self.settings.reuse {
            Reuse::Wait => &[Effort::Ask, Effort::Wait],
            Reuse::SameStream | Reuse::Completed => &[Effort::Ask],
        };
        let other = if region == SMALL { LARGE } else { SMALL };
        for region in [region, other] {
            for &effort in efforts {
                if let Some(taken) = self.fit(region, request, effort)? {
                    return Ok(Some(taken));
                }
            }
        }
        loop {
            if let Some(taken) = self.take_segment(region, request)? {
                return Ok(Some(taken));
            }
            if !self.make_room(request, within) {
                return Ok(None);
            }
        }
    }

    /// Gives idle segments back so that one for the request can be had. False when none went.
    fn make_room(&mut self, request: Request, within: Duration) -> bool {
        let bytes = policy::least(request.bytes, self.pages.page_bytes());
        let beyond = (self.supply.reserved() + bytes).saturating_sub(self.supply.limit());
        // How much a driver lacks that has nothing left, nobody knows: anything may help it.
        let (wanted, enough) = match self.supply.is_exhausted() {
            true => (bytes.max(beyond), beyond),
            false => (beyond, beyond),
        };
        let idle = self.idle_segments();
        let all: u64 = idle.iter().map(|segment| segment.bytes).sum();
        if all < enough {
            return false;
        }
        self.supply.forgive();
        self.give_back(&idle, wanted, within).0 > 0
    }

    /// Gives idle segments back until at most `target` bytes are reserved, as far as their work is over;
    /// waits for other work of the device `within` a time. The first error is returned.
    pub(super) fn trim_plain(&mut self, target: u64, within: Duration) -> DriverResult<()> {
        let surplus = self.supply.reserved().saturating_sub(target);
        let idle = self.idle_segments();
        self.give_back(&idle, surplus, within).1
    }

    /// The segments that hold nothing but free extents whose work is over, and are not pinned.
    fn idle_segments(&self) -> Vec<Idle> {
        let Some(plain) = &self.plain else { return Vec::new() };
        let all = plain.segments.all();
        let mut firsts: Vec<Option<u32>> = vec![None; all.len()];
        let mut used: Vec<bool> = all.iter().map(|segment| segment.pins > 0).collect();
        let mut asked = Asked::default();
        self.for_each_extent(|index, block| {
            let state = block.word().state();
            if state == State::Hole {
                return;
            }
            let Some(place) = plain.segments.place_of(block.address()) else { return };
            firsts[place].get_or_insert(index);
            used[place] |= state != State::Free;
            // Asks about each stream, so that the next attempt may find them all done.
            block.for_each_fence(|fence| used[place] |= !asked.ask(&self.fences, fence));
        });
        let each = all.iter().zip(firsts).zip(used);
        each.filter(|(_, used)| !used)
            .filter_map(|((segment, first), _)| Some(Idle { first: first?, bytes: segment.bytes }))
            .collect()
    }

    /// Gives some of these segments back, for at least `bytes`. Says how many bytes went, and the first
    /// error.
    fn give_back(
        &mut self,
        idle: &[Idle],
        bytes: u64,
        within: Duration,
    ) -> (u64, DriverResult<()>) {
        let sizes: Vec<u64> = idle.iter().map(|segment| segment.bytes).collect();
        let chosen = policy::choose(&sizes, bytes);
        // Memory goes back when no capture can be disturbed by it: none that there is, nor one that has
        // begun while the device was waited for.
        let disturbs = |arena: &Self| arena.fences.is_capturing(arena.supply.device);
        if chosen.is_empty() || disturbs(self) || !self.drain(within) || disturbs(self) {
            return (0, Ok(()));
        }
        let (mut given, mut result) = (0, Ok(()));
        for at in chosen {
            match self.give_segment(&idle[at]) {
                Ok(()) => given += idle[at].bytes,
                Err(error) => result = result.and(Err(error)),
            }
        }
        (given, result)
    }

    /// Whether the device, and those that may touch its memory, have done all they were given.
    fn drain(&mut self, within: Duration) -> bool {
        let drained = self.fences.drain(&self.supply.access, within);
        self.plain().stuck = drained.err();
        drained.is_ok()
    }

    /// Gives a segment back whose extents are free and over. An error leaves it as it is, but whole.
    fn give_segment(&mut self, &Idle { first, bytes }: &Idle) -> DriverResult<()> {
        let address = self.block(first).address();
        let seen = self.block(first).word();
        self.claim(first, seen);
        while self.block(first).size() < bytes {
            let next = self.links[first as usize].next;
            let seen = self.block(next).word();
            let claimed = self.claim(next, seen);
            debug_assert!(claimed, "free extents are the arena's own");
            self.absorb_fresh(first, next);
        }
        self.block(first).set_fences(&FenceSet::default());
        let given = self.supply.give(bytes, |driver, device| driver.free(device, address));
        let state = match given {
            Ok(()) => {
                self.plain().segments.remove(address);
                let region = self.links[first as usize].region;
                self.regions[usize::from(region)].backed -= bytes;
                State::Hole
            }
            Err(_) => State::Free,
        };
        self.settle(first, state);
        given
    }

    /// How long to wait for a device, unasked, so that segments can go: not again for what was waited
    /// for in vain before.
    pub(super) fn patience(&self) -> Duration {
        let stuck = self.plain.as_ref().and_then(|plain| plain.stuck);
        match stuck.map(|fence| self.fences.poll(fence)) {
            Some(Ok(false)) => Duration::ZERO,
            _ => self.settings.host_wait,
        }
    }

    fn plain(&mut self) -> &mut Plain {
        self.plain.get_or_insert_default()
    }

    /// Whether a segment starts where an extent does, which then stays apart from the one below.
    pub(super) fn is_border(&self, index: u32) -> bool {
        let starts = |plain: &Plain| plain.segments.start_at(self.block(index).address());
        self.plain.as_ref().is_some_and(starts)
    }
}
