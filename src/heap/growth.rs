//! Memory taken before anybody asks for it: a pool's fixed or initial size, and growth by a factor.

use super::arena::{Arena, Denied, LARGE};
use super::extent::List;
use super::pages::Move;
use crate::block::{FenceSet, State};
use crate::config::{Growth, Preallocation};

/// How much to take on top of what a request took: `before` and `reserved` are the bytes held without
/// and with that.
fn surplus(growth: Growth, before: u64, reserved: u64, peak_live: u64) -> u64 {
    // Saturates; what is not a number asks for nothing.
    let by_factor = (before as f64 * growth.factor) as u64;
    let by_headroom = (peak_live as f64 * (1.0 + growth.headroom)) as u64;
    by_factor.max(by_headroom).saturating_sub(reserved)
}

impl Arena {
    /// Takes a fixed or initial size.
    pub fn preallocate(&mut self) -> Result<(), Denied> {
        let bytes = match self.settings.preallocation {
            Preallocation::OnDemand => 0,
            Preallocation::Fixed { .. } => self.supply.limit(),
            Preallocation::Growing(growth) => growth.initial.min(self.supply.limit()),
        };
        let bytes = bytes.next_multiple_of(self.pages.page_bytes()).min(self.supply.limit());
        match (self.lay_in(bytes), self.settings.preallocation) {
            // It grows from what there is.
            (Err(Denied::Driver(error)), Preallocation::Growing(_)) if error.out_of_memory => {
                Ok(())
            }
            (outcome, _) => outcome,
        }
    }

    /// A request took memory where `before` bytes were held: a growing pool takes more at once. What
    /// the driver refuses is done without.
    pub(super) fn grow_beyond(&mut self, before: u64) {
        let reserved = self.supply.reserved();
        let Preallocation::Growing(growth) = self.settings.preallocation else { return };
        if reserved <= before {
            return;
        }
        let page = self.pages.page_bytes();
        let room = self.supply.room(self.supply.limit()) / page * page;
        let more = surplus(growth, before, reserved, self.peak_live);
        let more = more.min(room).next_multiple_of(page).min(room);
        let _ = self.lay_in(more);
    }

    /// Takes `bytes`, whole pages, as a free extent of the large region. Where that fails nothing is
    /// changed.
    fn lay_in(&mut self, bytes: u64) -> Result<(), Denied> {
        if bytes == 0 {
            return Ok(());
        }
        if self.plain.is_some() {
            let extent = self.add_segment(LARGE, bytes)?;
            self.settle(extent, State::Free);
            return Ok(());
        }
        let Some(hole) = self.hole_for(bytes) else { return Ok(()) };
        let seen = self.block(hole).word();
        let claimed = self.claim(hole, seen);
        debug_assert!(claimed, "holes are the arena's own");
        self.cut_hole(hole, bytes)?;
        if let Err(denied) = self.back(hole, bytes) {
            self.settle(hole, State::Hole);
            return Err(denied);
        }
        *self.backed(hole) += bytes;
        self.block(hole).set_fences(&FenceSet::default());
        self.settle(hole, State::Free);
        Ok(())
    }

    /// The lowest hole of the large region with room for `bytes` in places where no page ever was.
    fn hole_for(&self, bytes: u64) -> Option<u32> {
        let mut lowest: Option<(u64, u32)> = None;
        self.regions[usize::from(LARGE)].index(List::Holes).for_each(&self.links, |index| {
            let hole = self.block(index);
            let address = hole.address();
            if hole.size() < bytes || lowest.is_some_and(|found| found.0 < address) {
                return;
            }
            let first = self.pages.place_of(address);
            let end = self.pages.place_of(address + bytes - 1) + 1;
            if (first..end).all(|place| self.pages.is_untouched(place)) {
                lowest = Some((address, index));
            }
        });
        lowest.map(|found| found.1)
    }

    /// Puts new pages behind a claimed hole.
    fn back(&mut self, hole: u32, bytes: u64) -> Result<(), Denied> {
        let count = bytes / self.pages.page_bytes();
        let first = self.pages.place_of(self.block(hole).address());
        let pages = self.pages.create(&mut self.supply, count).map_err(Denied::Driver)?;
        let moves: Vec<Move> =
            (first..).zip(&pages).map(|(place, &page)| Move { place, page }).collect();
        self.pages.settle(&self.supply, &moves).map_err(|error| {
            self.pages.give_spare(pages);
            // What the driver does not take stays spare.
            let _ = self.pages.release_spare(&mut self.supply, bytes);
            Denied::Driver(error)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn growth_is_by_factor_and_headroom() {
        let growth = Growth { initial: 0, factor: 1.5, headroom: 0.1 };
        assert_eq!(surplus(growth, 100, 110, 90), 40, "to 150");
        assert_eq!(surplus(growth, 100, 200, 190), 9, "to 209");
        assert_eq!(surplus(growth, 100, 300, 190), 0);
        let none = Growth { initial: 0, factor: f64::NAN, headroom: -5.0 };
        assert_eq!(surplus(none, 100, 110, 90), 0);
    }
}
