//! Movable blocks change places: the mechanism, of which [`crate::defrag`] is the policy.
//!
//! ```text
//! the place a block comes to  was idle, and what was there is over or before the copy in its stream
//! the block that it was       is idle when the copy is over: its fence is the copy's stamp
//! a move that fails           leaves the block where it was, live as before
//! ```
//!
//! The caller holds the block for itself, and the arena from the look at the ground to the last move.

use super::arena::{Arena, Denied, LARGE, SMALL};
use super::budget::bound;
use super::fit::Effort;
use super::reclaim::FIRST_TURN;
use crate::block::{Descriptor, Fence, FenceSet, Hint, State, StreamId};
use crate::config::{Headroom, Reuse};
use crate::defrag::{Kind, Piece, Stretch};
use crate::driver::DriverResult;
use crate::fence::Asked;
use std::collections::BTreeMap;

/// What lies where, for a plan; and where the idle extents start, kept true while it is carried out.
#[derive(Default)]
pub struct Ground {
    pub stretches: Vec<Stretch>,
    pub pieces: Vec<Piece>,
    idle: BTreeMap<u64, u32>,
    asked: Asked,
}

/// What became of a move.
#[derive(Debug)]
pub enum Relocated {
    /// The block has a new place, ready when the copy is over.
    To(Hint, Fence),
    /// The block stays, since it, or the place, is not what it was.
    Stays,
    /// So it does, and no further move is to be tried.
    Failed(Denied),
}

impl Arena {
    /// What plans need to know: a ground for each region with blocks that may be moved, since blocks
    /// stay in theirs. `candidates` are these blocks, by ascending index, with their numbers. Asks the
    /// driver about each stream in the way of a ground at most once.
    pub fn grounds(&mut self, on: StreamId, candidates: &[(u32, u32)]) -> Vec<Ground> {
        self.requester = Some(on);
        self.inquiry = self.new_inquiry();
        self.read_notes();
        self.inquiry = None;
        let mut grounds = Vec::new();
        for region in [LARGE, SMALL] {
            let here = |&(index, _): &(u32, u32)| {
                self.links.get(index as usize).is_some_and(|links| links.region == region)
            };
            if candidates.iter().any(here) {
                let mut ground = Ground::default();
                self.look_at(usize::from(region), on, candidates, &mut ground);
                grounds.push(ground);
            }
        }
        grounds
    }

    fn look_at(&self, region: usize, on: StreamId, candidates: &[(u32, u32)], to: &mut Ground) {
        let effort = self.effort_of_moves();
        let mut index = self.regions[region].first;
        let mut broken = true;
        while index != 0 {
            let block = self.block(index);
            let (address, bytes, state) = (block.address(), block.size(), block.word().state());
            let here = index;
            index = self.links[index as usize].next;
            if state == State::Hole {
                broken = true;
                continue;
            }
            if std::mem::take(&mut broken) || self.is_border(here) {
                to.stretches.push(self.stretch_at(address));
            }
            let kind = match state {
                State::Free | State::Cached if self.usable(here, on, effort, &mut to.asked) => {
                    to.idle.insert(address, here);
                    Kind::Idle
                }
                State::Live => match candidates.binary_search_by_key(&here, |&(index, _)| index) {
                    Ok(at) if self.may_move(block, &mut to.asked) => Kind::Block(candidates[at].1),
                    _ => Kind::Still,
                },
                _ => Kind::Still,
            };
            let stretch = to.stretches.len() as u32 - 1;
            to.pieces.push(Piece { address, bytes, kind, stretch });
        }
    }

    /// Policy `SameStream` asks the driver nothing.
    fn effort_of_moves(&self) -> Effort {
        if self.settings.reuse == Reuse::SameStream { Effort::Known } else { Effort::Ask }
    }

    /// The unit in which the memory at an address is taken.
    fn stretch_at(&self, address: u64) -> Stretch {
        let segment = self.plain.as_ref().and_then(|plain| plain.segments.at(address));
        match segment {
            Some(segment) => Stretch { origin: segment.address, unit: segment.bytes },
            None => Stretch { origin: self.pages.address_of(0), unit: self.pages.page_bytes() },
        }
    }

    /// Whether all work that uses a live block is over, and its memory not pinned.
    fn may_move(&self, block: &Descriptor, asked: &mut Asked) -> bool {
        let (first, last) = (block.address(), block.end() - 1);
        let pinned = match &self.plain {
            Some(plain) => plain.segments.at(first).is_none_or(|segment| segment.pins > 0),
            None => (self.pages.place_of(first)..=self.pages.place_of(last))
                .any(|place| self.pages.is_pinned(place)),
        };
        let ask = self.settings.reuse != Reuse::SameStream;
        !pinned
            && block.all_fences(|fence| {
                !fence.is_open()
                    && (self.fences.completed(fence) || ask && asked.ask(&self.fences, fence))
            })
    }

    /// Moves a block, which the caller has for itself, to an idle run that starts at `to`: a copy on a
    /// stream.
    pub fn relocate(
        &mut self,
        ground: &mut Ground,
        hint: Hint,
        to: u64,
        on: StreamId,
    ) -> Relocated {
        let index = hint.index();
        let seen = self.block(index).word();
        // Freed by its address it is somebody else's.
        let ours = seen.matches(hint) && seen.state() == State::Live;
        if !ours || self.block(index).exchange(seen, seen.with_state(State::Claimed)).is_err() {
            return Relocated::Stays;
        }
        // Its uses may have become more since the ground was looked at.
        let moved = match self.may_move(self.block(index), &mut ground.asked) {
            true => self.move_claimed(ground, index, to, on),
            false => Relocated::Stays,
        };
        if !matches!(moved, Relocated::To(..)) {
            self.block(index).set_state(State::Live);
        }
        moved
    }

    fn move_claimed(
        &mut self,
        ground: &mut Ground,
        index: u32,
        to: u64,
        on: StreamId,
    ) -> Relocated {
        let (from, bytes) = (self.block(index).address(), self.block(index).size());
        let target = match self.clear(ground, to, bytes, on) {
            Ok(Some(target)) => target,
            Ok(None) => return Relocated::Stays,
            Err(denied) => return Relocated::Failed(denied),
        };
        let requested = self.block(index).requested();
        let copied = if self.blocks.publish(target) {
            let copied = self.fences.copy(on, to, from, requested);
            copied.map(|copied| copied.map_err(Denied::Driver))
        } else {
            Some(Err(Denied::Descriptors))
        };
        let ready = match copied {
            Some(Ok(ready)) => ready,
            failed => {
                // Nothing has touched it.
                self.file(target, State::Free);
                return match failed {
                    Some(Err(denied)) => Relocated::Failed(denied),
                    _ => Relocated::Stays,
                };
            }
        };
        ground.idle.remove(&to);
        let hint = self.take_over(target, index, ready);
        self.block(index).end_uses();
        self.block(index).set_fences(&FenceSet::of(ready));
        self.unfile(index);
        let merged = self.settle(index, State::Free);
        // What it was merged with has no extents of its own any more.
        let (start, end) = (self.block(merged).address(), self.block(merged).end());
        let gone: Vec<u64> = ground.idle.range(start..end).map(|(&at, _)| at).collect();
        gone.iter().for_each(|at| _ = ground.idle.remove(at));
        ground.idle.insert(start, merged);
        Relocated::To(hint, ready)
    }

    /// Makes the claimed extent `target` what the block `old` was, for its owner.
    fn take_over(&self, target: u32, old: u32, ready: Fence) -> Hint {
        let (block, old) = (self.block(target), self.block(old));
        let home = old.stream();
        block.reset_fences(home);
        // The home's uses are over; it is named all the same.
        old.for_each_fence(|fence| {
            if fence.stream() == home {
                block.record_use(fence);
            }
        });
        block.record_use(ready);
        block.set_requested(old.requested());
        block.hand_out_stamped().hint(target)
    }

    /// Claims the lower end of an idle run: an extent of exactly so many bytes, with the fences that are
    /// not over. None where it is not what it was.
    fn clear(
        &mut self,
        ground: &mut Ground,
        to: u64,
        bytes: u64,
        on: StreamId,
    ) -> Result<Option<u32>, Denied> {
        let effort = self.effort_of_moves();
        let mut parts = Vec::new();
        let (mut at, mut fences) = (to, Some(FenceSet::default()));
        while at < to + bytes {
            let part = ground.idle.get(&at).copied();
            let claimed = part.filter(|&part| {
                // The word before the fences: the claim is for what was looked at, or fails.
                let seen = self.block(part).word();
                let idle = matches!(seen.state(), State::Free | State::Cached);
                idle && (parts.is_empty() || !self.is_border(part))
                    && self.usable(part, on, effort, &mut ground.asked)
                    && self.claim(part, seen)
            });
            let Some(part) = claimed else {
                fences = None;
                break;
            };
            let pending = self.block(part).fences_where(|fence| !self.fences.completed(fence));
            fences = fences.zip(pending).and_then(|(all, more)| all.union(&more));
            at = self.block(part).end();
            parts.push(part);
        }
        let Some(fences) = fences else {
            parts.into_iter().for_each(|part| self.file(part, State::Free));
            return Ok(None);
        };
        let target = parts[0];
        for &part in &parts[1..] {
            ground.idle.remove(&self.block(part).address());
            self.absorb_fresh(target, part);
        }
        self.block(target).set_fences(&fences);
        if self.block(target).size() > bytes {
            let Some(rest) = self.split(target, bytes) else {
                self.file(target, State::Free);
                return Err(Denied::Descriptors);
            };
            self.file(rest, State::Free);
            ground.idle.insert(self.block(rest).address(), rest);
        }
        Ok(Some(target))
    }

    /// Gives idle memory back until `target` bytes are reserved, as far as it is over; none of a fixed
    /// size. Waits for nothing but a device whose segments are to go, and for that a moment. What was
    /// live once goes on counting. Returns the bytes that went.
    pub fn shrink_to(&mut self, target: u64) -> DriverResult<u64> {
        if self.is_fixed() {
            return Ok(0);
        }
        let before = self.supply.reserved();
        let peak = self.peak_live;
        let within = FIRST_TURN.min(self.patience());
        let result = self.trim_within(target, within);
        self.peak_live = peak;
        result.map(|()| before - self.supply.reserved())
    }

    /// What has to be reserved where large blocks take so many bytes at once: with what the pool would take
    /// beyond that again before it moves pages, and small blocks' memory. And how much more is not worth
    /// giving back.
    pub fn needed(&self, large: u64) -> (u64, u64) {
        let headroom = match self.settings.headroom {
            Headroom::Unbounded => Headroom::Automatic,
            bounded => bounded,
        };
        let needed =
            bound(large, 0, headroom).saturating_add(self.regions[usize::from(SMALL)].backed);
        // Segments come in sixteenths of what there is.
        let share = if self.plain.is_some() { 8 } else { 32 };
        (needed, (needed / share).max(self.pages.page_bytes()))
    }
}
