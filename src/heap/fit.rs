//! Best fit: the smallest extent that serves a request and whose fences allow it.

use super::arena::{Arena, Denied, Request};
use super::extent::List;
use super::gauge::Rung;
use super::index::bin_of;
use crate::block::{State, StreamId, Word};
use crate::fence::Asked;
use crate::size;

/// How far a search goes to make an extent usable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Effort {
    /// Known orderings only, and nothing that a cache may still find.
    Uncached,
    /// Known orderings only.
    Known,
    /// Asks the driver about fences, sealing streams that need it.
    Ask,
    /// Makes the stream wait.
    Wait,
}

impl Effort {
    /// What it means to have been served by this effort.
    pub fn rung(self) -> Rung {
        match self {
            Self::Uncached | Self::Known => Rung::Fitted,
            Self::Ask => Rung::Completed,
            Self::Wait => Rung::Waited,
        }
    }
}

/// An extent that would do, as it was when its fences were looked at.
#[derive(Clone, Copy)]
struct Candidate {
    index: u32,
    size: u64,
    seen: Word,
}

/// Whether an extent of `size` is cut to serve `bytes`. A small block has the exact size of its class;
/// from a large one no sliver is cut that could serve nothing before it is merged again.
fn worth_cutting(size: u64, bytes: u64) -> bool {
    let rest = size - bytes;
    if size::is_small(bytes) { rest > 0 } else { rest > (bytes / SLIVER).min(size::SMALL_MAX) }
}

/// Up to this share of a large block goes with it rather than being cut off.
const SLIVER: u64 = 64;

impl Arena {
    /// Finds, takes and cuts the best fitting extent.
    pub(super) fn fit(
        &mut self,
        region: u8,
        request: Request,
        effort: Effort,
    ) -> Result<Option<(u32, Word)>, Denied> {
        let mut asked = Asked::default();
        loop {
            // A claim may be lost to the block's own stream: then look again at what is left.
            let cached = self.best(region, List::Cached, request, effort, &mut asked);
            let free = match cached {
                Some(best) if best.size == request.bytes => None,
                _ => self.best(region, List::Free, request, effort, &mut asked),
            };
            let best = match (cached, free) {
                (Some(cached), Some(free)) if free.size < cached.size => free,
                (Some(best), _) | (None, Some(best)) => best,
                (None, None) => return Ok(None),
            };
            let Candidate { index, size, seen } = best;
            let foreign = self.is_foreign(index, request.stream);
            if effort != Effort::Wait
                && seen.state() == State::Free
                && worth_cutting(size, request.bytes)
            {
                let Some(block) = self.carve(index, request.bytes) else {
                    return Err(Denied::Descriptors);
                };
                self.count(effort.rung(), foreign);
                return self.hand_out(block, request, Some(index)).map(Some);
            }
            // What was kept whole stays so.
            let whole = seen.state() == State::Cached && (size == request.bytes || self.keeps());
            if !self.claim(index, seen) {
                continue;
            }
            if effort == Effort::Wait && !self.wait_for(index, request.stream, &mut asked) {
                self.file(index, State::Free);
                continue;
            }
            self.count(effort.rung(), foreign);
            if whole {
                self.supply.gauge().count_reused(request.bytes);
                return self.hand_out(index, request, None).map(Some);
            }
            return self.cut(index, request).map(Some);
        }
    }

    /// The smallest usable extent of a list that is large enough, with its size. Blocks that turn
    /// out to be live leave the list.
    fn best(
        &mut self,
        region: u8,
        list: List,
        request: Request,
        effort: Effort,
        asked: &mut Asked,
    ) -> Option<Candidate> {
        let most = if list == List::Cached { self.most_waiting(request.bytes) } else { u64::MAX };
        let mut bin = self.regions[usize::from(region)].index(list).first_bin(request.bytes);
        bin = bin.filter(|_| most >= request.bytes);
        while let Some(current) = bin {
            let mut best: Option<Candidate> = None;
            let mut index = self.regions[usize::from(region)].index(list).head(current);
            while index != 0 {
                let next = self.links[index as usize].bin_next;
                // The word before the fences: the claim is for what was looked at, or fails.
                let seen = self.block(index).word();
                let size = self.block(index).size();
                if matches!(seen.state(), State::Free | State::Cached) {
                    let better = |best: Candidate| {
                        let (ours, theirs) = (self.block(index), self.block(best.index));
                        (size, ours.address()) < (best.size, theirs.address())
                    };
                    if (request.bytes..=most).contains(&size)
                        && best.is_none_or(better)
                        && self.usable(index, request.stream, effort, asked)
                    {
                        best = Some(Candidate { index, size, seen });
                    }
                } else {
                    self.forget(index);
                }
                index = next;
            }
            if best.is_some() {
                return best;
            }
            bin = self.regions[usize::from(region)].index(list).bin_after(current);
            bin = bin.filter(|&next| next <= bin_of(most));
        }
        None
    }

    pub(super) fn usable(
        &self,
        index: u32,
        stream: StreamId,
        effort: Effort,
        asked: &mut Asked,
    ) -> bool {
        let block = self.block(index);
        block.all_fences(|fence| self.fences.ordered(stream, fence))
            || effort >= Effort::Ask
                && block.all_fences(|fence| {
                    self.fences.ordered(stream, fence)
                        || match effort {
                            Effort::Ask => asked.ask(&self.fences, fence),
                            _ => !asked.has_failed(fence),
                        }
                })
    }

    /// Counts a request as served; `foreign` where another stream used the memory last.
    pub(super) fn count(&self, rung: Rung, foreign: bool) {
        self.supply.gauge().count(rung);
        if foreign {
            self.supply.gauge().count_cross_hit();
        }
    }

    /// Whether another stream has used an extent since it was fresh.
    pub(super) fn is_foreign(&self, index: u32, stream: StreamId) -> bool {
        !self.block(index).all_fences(|fence| fence.stream() == stream)
    }

    /// Makes `stream` wait for what a claimed extent's other streams still do. False where some stream
    /// cannot be waited for now: then the extent is not usable, and its fences count as refused.
    pub(super) fn wait_for(&self, index: u32, stream: StreamId, asked: &mut Asked) -> bool {
        let block = self.block(index);
        let waits = block.all_fences(|fence| matches!(self.fences.wait(stream, fence), Ok(true)));
        if !waits {
            block.for_each_fence(|fence| asked.refuse(fence));
        }
        waits
    }

    /// Cuts a claimed extent to the request's size, files the rest, and makes it live.
    pub(super) fn cut(&mut self, index: u32, request: Request) -> Result<(u32, Word), Denied> {
        if worth_cutting(self.block(index).size(), request.bytes) {
            match self.split(index, request.bytes) {
                Some(rest) => {
                    self.settle(rest, State::Free);
                }
                None => {
                    self.file(index, State::Free);
                    return Err(Denied::Descriptors);
                }
            }
        }
        self.hand_out(index, request, None)
    }

    /// Makes a claimed extent of the right size live; `origin` is the extent it was carved from.
    pub(super) fn hand_out(
        &mut self,
        index: u32,
        request: Request,
        origin: Option<u32>,
    ) -> Result<(u32, Word), Denied> {
        if !self.blocks.publish(index) {
            if let Some(origin) = origin {
                self.block(index).copy_fences(self.block(origin), |_| true);
            }
            self.settle(index, State::Free);
            return Err(Denied::Descriptors);
        }
        let before = self.block(origin.unwrap_or(index));
        self.pending = !before.all_fences(|fence| self.fences.completed(fence));
        let block = self.block(index);
        block.reset_fences(request.stream);
        block.set_requested(request.requested);
        Ok((index, block.hand_out()))
    }
}
