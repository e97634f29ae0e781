//! The end of the ladder, and memory for the driver.
//!
//! A page goes back only when every fence of its extent has *completed*: unmapping does not wait for
//! work in flight, so a stream wait is not enough.

use super::arena::{Arena, Denied, LARGE, Request, SMALL};
use super::chunks::Search;
use super::extent::List;
use super::fit::Effort;
use super::gauge::Rung;
use super::plan::Bound;
use crate::block::{Fence, State, Word};
use crate::config::{Preallocation, Reuse};
use crate::driver::DriverResult;
use crate::fence::Earliest;
use crate::sync::pause;
use std::time::{Duration, Instant};

/// Misses between two attempts to get below the watermarks.
const RELIEF_INTERVAL: u32 = 64;

/// How long the first stream is waited for before the next one's turn.
pub(super) const FIRST_TURN: Duration = Duration::from_micros(200);

/// The longest pause for streams that are just being ended.
const PAUSE: Duration = Duration::from_millis(1);

impl Arena {
    /// The last resorts of a miss: everything idle claimed and merged, pages moved whosever they
    /// were; then the same each time that some work in flight is over, waiting on the host for the
    /// oldest, at most for the configured time.
    pub(super) fn reclaim_for(
        &mut self,
        region: u8,
        request: Request,
    ) -> Result<(u32, Word), Denied> {
        let deadline = Instant::now() + self.settings.host_wait;
        // As it was when the request came: what follows leaves nothing in caches.
        let cached = self.cached_bytes();
        let mut in_time = true;
        let turn = FIRST_TURN.min(self.settings.host_wait);
        loop {
            let pending = self.oldest_fences();
            // The first attempt may learn that work is over, which the second makes use of.
            for _ in 0..2 {
                self.supply.forgive();
                if let Some(taken) = self.reclaim_once(region, request, turn)? {
                    self.supply.gauge().count(Rung::Gathered);
                    return Ok(taken);
                }
            }
            // What the last attempt has learnt came too late for it. Not for ever: what other threads
            // free may go on becoming idle, and never fit.
            if in_time && pending.iter().any(|&fence| self.fences.completed(fence)) {
                in_time = Instant::now() < deadline;
                continue;
            }
            if !self.wait_for_oldest(deadline) {
                // With nothing more to wait for, there is time for segments to go.
                let left = deadline.saturating_duration_since(Instant::now());
                if self.plain.is_some()
                    && let Some(taken) = self.reclaim_once(region, request, left)?
                {
                    self.supply.gauge().count(Rung::Gathered);
                    return Ok(taken);
                }
                // What was taken in vain is not kept from others; what the driver does not take
                // back stays spare.
                if !self.is_fixed() && !self.fences.is_capturing(self.supply.device) {
                    let _ = self.pages.release_spare(&mut self.supply, u64::MAX);
                }
                return Err(self.out_of_memory(request, cached));
            }
            self.supply.gauge().count(Rung::HostWait);
        }
    }

    /// One attempt, in which segments may take a time to go.
    fn reclaim_once(
        &mut self,
        region: u8,
        request: Request,
        within: Duration,
    ) -> Result<Option<(u32, Word)>, Denied> {
        self.gather_chunks();
        self.merge_everywhere();
        if let Some(taken) = self.fit(region, request, Effort::Known)? {
            return Ok(Some(taken));
        }
        // What chunks still have serves whatever it fits.
        let effort = if self.settings.reuse == Reuse::Wait { Effort::Wait } else { Effort::Ask };
        if let Some(taken) = self.fit_apart(request, effort, Search::Any)? {
            return Ok(Some(taken));
        }
        if self.plain.is_some() {
            return self.reclaim_plain(region, request, within);
        }
        if let Some(taken) = self.stitch(region, request, Effort::Ask, Bound::Limit)? {
            return Ok(Some(taken));
        }
        match self.settings.reuse {
            Reuse::Wait => self.stitch(region, request, Effort::Wait, Bound::Limit),
            Reuse::SameStream | Reuse::Completed => Ok(None),
        }
    }

    /// Nothing is kept whole any more.
    fn merge_everywhere(&mut self) {
        self.keeping.pressed = true;
        self.in_a_pass(|arena| {
            arena.merge_all(SMALL);
            arena.merge_all(LARGE);
        });
        self.keeping.pressed = false;
    }

    /// The earliest fence of each stream that idle memory waits for.
    fn oldest_fences(&self) -> Vec<Fence> {
        let mut oldest = Earliest::default();
        let mut consider = |fence| {
            if !self.fences.completed(fence) {
                oldest.add(fence);
            }
        };
        self.for_each_extent(|_, block| {
            if matches!(block.word().state(), State::Free | State::Cached) {
                block.for_each_fence(&mut consider);
            }
        });
        self.for_each_apart(|_, block| {
            if block.word().state() == State::Cached {
                block.for_each_fence(&mut consider);
            }
        });
        self.for_each_chunk(|chunk| {
            Some(chunk.stamp())
                .filter(|stamp| !stamp.is_none())
                .into_iter()
                .for_each(&mut consider);
        });
        // Old mappings keep places from getting pages.
        self.pages.fences_in_the_way().for_each(|(_, fence)| consider(fence));
        oldest.0
    }

    /// Waits on the host until some idle memory's oldest work is over. False at the deadline, or
    /// when there is nothing to wait for. Streams take turns, so that one that hangs does not keep
    /// the others' memory away.
    fn wait_for_oldest(&self, deadline: Instant) -> bool {
        self.fences.finish_streams();
        let mut oldest = self.oldest_fences();
        let mut turn = FIRST_TURN.min(self.settings.host_wait);
        loop {
            let mut done = false;
            oldest.retain(|&fence| {
                let left = deadline.saturating_duration_since(Instant::now());
                match self.fences.synchronize(fence, turn.min(left)) {
                    Ok(over) => {
                        done |= over;
                        !over
                    }
                    // A driver that fails to answer has not said that it is done.
                    Err(_) => false,
                }
            });
            if done {
                return true;
            }
            if oldest.is_empty() || turn >= self.settings.host_wait || Instant::now() >= deadline {
                return false;
            }
            // A stream that another thread is just ending says at once that it is not done.
            if oldest.iter().any(|fence| self.fences.stream(fence.stream()).is_unfinished()) {
                pause(turn.min(PAUSE));
            }
            turn = (turn * 2).min(self.settings.host_wait);
        }
    }

    /// Gives idle memory back when more is held than the high watermark. A walk over everything, so
    /// not at each call.
    pub(super) fn relieve(&mut self) {
        let Some(marks) = self.settings.watermarks.filter(|_| !self.is_fixed()) else { return };
        if self.supply.reserved() <= marks.high {
            self.until_relief = 0;
        } else if self.until_relief > 0 {
            self.until_relief -= 1;
        } else {
            self.until_relief = RELIEF_INTERVAL;
            // Where all large memory is in use there is little to give, and asking would cost what
            // the caches hold.
            let page = self.pages.page_bytes();
            let large = &self.regions[usize::from(LARGE)];
            let mut idle = [List::Free, List::Cached].into_iter();
            let has_idle = idle.any(|list| large.index(list).first_bin(page).is_some());
            if has_idle || self.has_idle_chunk() {
                // A driver that takes nothing back leaves things as they are.
                let _ = self.trim_within(marks.low, self.patience());
            }
        }
    }

    /// Keeps the memory behind a block where it is, or no longer.
    pub fn pin(&mut self, address: u64, bytes: u64, on: bool) {
        if let Some(plain) = &mut self.plain {
            return plain.segments.pin(address, on);
        }
        let first = self.pages.place_of(address);
        let count = self.pages.place_of(address + bytes - 1) + 1 - first;
        self.pages.pin(first, count, on);
    }

    /// Blocks that users hold, or are about to free.
    pub fn live_blocks(&self) -> u64 {
        let mut live = 0;
        self.for_each_block(|_, block| {
            live += u64::from(matches!(block.word().state(), State::Live | State::Claimed));
        });
        live
    }

    /// Gives everything back to the driver, waiting for work in flight within the configured time.
    /// True when nothing is left mapped; memory behind a stuck stream stays.
    pub fn empty(&mut self) -> bool {
        self.read_notes();
        self.gather_chunks();
        self.merge_everywhere();
        let deadline = Instant::now() + self.settings.host_wait;
        while self.wait_for_oldest(deadline) {}
        // Twice, for a driver that fails once. Nobody is left to be told of a second failure.
        let within = self.settings.host_wait;
        let _ = self.trim_within(0, within).or_else(|_| self.trim_within(0, within));
        self.pages.nothing_is_mapped()
    }

    /// Whether all memory was taken at the start: what goes back could never be taken again.
    pub(super) fn is_fixed(&self) -> bool {
        matches!(self.settings.preallocation, Preallocation::Fixed { .. })
    }

    /// Gives idle memory back to the driver until at most `target` bytes are reserved, as far as
    /// whole pages are idle and their work is over. Does not wait, except for a device whose segments
    /// are to go.
    pub fn trim(&mut self, target: u64) -> DriverResult<()> {
        if self.is_fixed() {
            return Ok(());
        }
        self.trim_within(target, self.settings.host_wait)
    }

    /// As `trim`, where such a device is waited for as long as `within`.
    pub(super) fn trim_within(&mut self, target: u64, within: Duration) -> DriverResult<()> {
        self.fences.finish_streams();
        if self.fences.is_capturing(self.supply.device) {
            // Memory goes back when no capture can be disturbed by it.
            return Ok(());
        }
        self.requester = None;
        self.read_notes();
        self.gather_chunks();
        self.merge_everywhere();
        let page = self.pages.page_bytes();
        let surplus = self.supply.reserved().saturating_sub(target).next_multiple_of(page);
        // What was live once does not count any more.
        self.peak_live = 0;
        if self.plain.is_some() {
            return self.trim_plain(target, within);
        }
        self.strip_idle((surplus / page).saturating_sub(self.pages.spare()));
        self.pages.release_spare(&mut self.supply, surplus)
    }
}
