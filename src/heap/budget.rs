//! How much a device holds before idle pages are moved rather than new ones taken.

use super::arena::{Arena, LARGE, SMALL};
use crate::config::Headroom;

/// Where the user sets no bound: the share of the peak that may be held beyond it before pages are
/// moved rather than created. Without any, each step would move as many pages as it finds free.
const HEADROOM: f64 = 1.0 / 200.0;
/// Small pools may hold this much more, but at most so large a share of their peak.
const FLOOR: f64 = (12 << 20) as f64;
const FLOOR_SHARE: f64 = 1.0 / 32.0;

/// Memory that waits for other streams may be replaced rather than waited for, up to this share.
const PENDING_SHARE: u64 = 128;

/// Most bytes to hold as long as moving pages does, by the most bytes that were ever live, and the
/// idle ones that wait for other streams.
pub(super) fn bound(peak_live: u64, pending: u64, headroom: Headroom) -> u64 {
    let peak = peak_live as f64;
    let more = match headroom {
        Headroom::Automatic => (peak * HEADROOM).max(FLOOR.min(peak * FLOOR_SHARE)),
        Headroom::Share(share) => peak * share,
        Headroom::Unbounded => return u64::MAX,
    };
    let pending = pending.min(peak_live / PENDING_SHARE);
    peak_live.saturating_add(more as u64).saturating_add(pending)
}

/// What small blocks may spread over rather than that cached ones are broken up: a few of each size
/// for a few threads, where large blocks take hardly as much; otherwise less, or this share of what
/// is reserved.
const SPREAD_FLOOR: u64 = 32 << 20;
const SPREAD_TINY: u64 = 192 << 20;
const TINY: u64 = 128 << 20;
const SPREAD_SHARE: u64 = 256;

impl Arena {
    /// Whether small blocks may still take fresh pages instead of breaking up cached ones: while
    /// their region is a small part of the whole, keeping one block of each size at hand is worth
    /// more than the memory.
    pub(super) fn may_spread(&self) -> bool {
        self.regions[usize::from(SMALL)].backed
            < self.spread_floor().max(self.supply.reserved() / SPREAD_SHARE)
            && self.supply.room(self.budget(SMALL, self.peak_live, 0)) >= self.pages.page_bytes()
    }

    fn spread_floor(&self) -> u64 {
        let large = self.regions[usize::from(LARGE)].backed;
        if large < TINY { SPREAD_TINY } else { SPREAD_FLOOR }
    }

    /// Most bytes to hold as long as moving pages does, by the most bytes that were ever live: the
    /// first few megabytes of small blocks are not counted.
    pub(super) fn budget(&self, region: u8, peak_live: u64, pending: u64) -> u64 {
        let small = match region {
            // Where there are step gaps they may be given idle pages of large blocks', and give theirs back.
            SMALL if !self.settings.gaps => {
                self.regions[usize::from(SMALL)].backed + self.pages.page_bytes()
            }
            // What small blocks spread over counts as live.
            _ => 0,
        };
        bound(peak_live, pending, self.settings.headroom)
            .saturating_add(small.min(self.spread_floor()))
    }
}
