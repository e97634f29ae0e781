//! Taking memory back: pages from behind idle extents, for other extents or for the driver.
//!
//! A page leaves its place only when every fence of its extent has *completed*: unmapping does not
//! wait for work in flight, so a stream wait is not enough.

use super::arena::{Arena, Denied, LARGE, Request, SMALL};
use super::fit::Effort;
use super::stitch::Bound;
use crate::block::{Fence, FenceSet, State, Word};
use crate::driver::DriverResult;
use crate::fence::Asked;
use std::time::Instant;

impl Arena {
    /// The last resorts of a miss: pages from free extents anywhere, first from those whose work is
    /// over, then waiting on the host for the others, within the configured time.
    pub(super) fn reclaim_for(
        &mut self,
        region: u8,
        request: Request,
    ) -> Result<(u32, Word), Denied> {
        // Each attempt may learn that work is over, which the next one makes use of.
        for last in [false, true] {
            for _ in 0..2 {
                match self.reclaim_once(region, request) {
                    Err(Denied::OutOfMemory { .. }) => {}
                    done => return done,
                }
            }
            if last || !self.wait_on_host() {
                break;
            }
        }
        Err(self.out_of_memory())
    }

    fn reclaim_once(&mut self, region: u8, request: Request) -> Result<(u32, Word), Denied> {
        self.merge_everywhere();
        if let Some(taken) = self.fit(region, request, Effort::Known)? {
            return Ok(taken);
        }
        let taken = self.stitch(region, request, Effort::Ask, Bound::Limit)?;
        taken.map_or_else(|| Err(self.out_of_memory()), Ok)
    }

    fn merge_everywhere(&mut self) {
        self.merge_all(SMALL);
        self.merge_all(LARGE);
    }

    /// Moves up to `bytes` of whole pages from behind free extents into the spare ones, largest
    /// extents first.
    fn strip_idle(&mut self, bytes: u64) {
        let mut idle: Vec<(u64, u32)> = Vec::new();
        self.for_each_extent(|index, block| {
            if block.word().state() == State::Free && block.size() >= self.pages.page_bytes() {
                idle.push((block.size(), index));
            }
        });
        idle.sort_unstable_by(|a, b| b.cmp(a));
        let mut asked = Asked::default();
        let mut moved = 0;
        for (_, index) in idle {
            if moved >= bytes {
                break;
            }
            // Earlier strips may have merged holes, never free extents: `index` is as it was.
            if self.is_done(index, &mut asked) {
                moved += self.strip(index, bytes - moved);
            }
        }
    }

    fn is_done(&self, index: u32, asked: &mut Asked) -> bool {
        self.block(index).all_fences(|fence| asked.ask(&self.fences, fence))
    }

    /// Takes at most `bytes` (rounded up to pages) from behind the whole pages of a free extent,
    /// from its upper end.
    fn strip(&mut self, index: u32, bytes: u64) -> u64 {
        let page = self.pages.page_bytes();
        let (address, size) = (self.block(index).address(), self.block(index).size());
        let top = (address + size) / page * page;
        let bottom =
            address.next_multiple_of(page).max(top.saturating_sub(bytes.next_multiple_of(page)));
        if bottom >= top {
            return 0;
        }
        let seen = self.block(index).word();
        if !self.claim(index, seen) {
            return 0;
        }
        // Up to three pieces: what stays below, the pages, what stays above.
        let mut pages = index;
        if bottom > address {
            let above = self.split(index, bottom - address);
            self.file(index, State::Free);
            let Some(above) = above else { return 0 };
            pages = above;
        }
        if top < address + size {
            match self.split(pages, top - bottom) {
                Some(above) => self.file(above, State::Free),
                None => {
                    self.settle(pages, State::Free);
                    return 0;
                }
            }
        }
        for place in self.pages.place_of(bottom)..self.pages.place_of(top - 1) + 1 {
            let spare = self.pages.lift(place, Fence::NONE);
            self.pages.give_spare([spare]);
        }
        *self.backed(pages) -= top - bottom;
        self.block(pages).set_fences(&FenceSet::default());
        self.settle(pages, State::Hole);
        top - bottom
    }

    /// Waits until the free extents' fences have completed, at most for the configured time. True
    /// when some fence completed that had not before.
    fn wait_on_host(&self) -> bool {
        self.fences.finish_streams();
        let mut fences: Vec<Fence> = Vec::new();
        self.for_each_extent(|_, block| {
            if block.word().state() == State::Free {
                block.all_fences(|fence| {
                    if !self.fences.completed(fence) {
                        fences.push(fence);
                    }
                    true
                });
            }
        });
        // The latest of each stream covers the earlier ones.
        fences.sort_unstable_by_key(|fence| fence.0);
        fences.dedup_by(|later, kept| {
            let same = later.stream() == kept.stream();
            if same {
                *kept = *later;
            }
            same
        });
        let deadline = Instant::now() + self.settings.host_wait;
        let mut progress = false;
        for fence in fences {
            let left = deadline.saturating_duration_since(Instant::now());
            // A driver that fails to answer has not said that it is done.
            progress |= matches!(self.fences.synchronize(fence, left), Ok(true));
        }
        progress
    }

    /// Blocks that users hold, or are about to free.
    pub fn live_blocks(&self) -> u64 {
        let mut live = 0;
        self.for_each_extent(|_, block| {
            live += u64::from(matches!(block.word().state(), State::Live | State::Claimed));
        });
        live
    }

    /// Gives everything back to the driver, waiting for work in flight within the configured time.
    /// True when nothing is left mapped; memory behind a stuck stream stays.
    pub fn empty(&mut self) -> bool {
        self.read_notes();
        self.merge_everywhere();
        self.wait_on_host();
        // An error leaves memory mapped, which the answer says; nobody is left to tell more.
        let _ = self.trim(0);
        self.pages.reserved() == 0
    }

    /// Gives idle memory back to the driver until at most `target` bytes are reserved, as far as
    /// whole pages are idle and their work is over. Does not wait.
    pub fn trim(&mut self, target: u64) -> DriverResult<()> {
        self.fences.finish_streams();
        self.requester = None;
        self.read_notes();
        self.merge_everywhere();
        let page = self.pages.page_bytes();
        let surplus = self.pages.reserved().saturating_sub(target).next_multiple_of(page);
        self.strip_idle(surplus.saturating_sub(self.pages.spare_bytes()));
        self.pages.release_spare(surplus)
    }
}
