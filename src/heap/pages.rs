//! Physical pages: where each is mapped, where it is at home, and the driver calls that change it.
//!
//! The reservation is a row of *places*, each the size of a page. A page has one *home*, the place
//! where its bytes are used now, and may be mapped at other places as well: where it was at home
//! before. Such a *dormant* mapping is nobody's memory; it is kept because removing it costs a call
//! and coming back to it costs none, and removed when its place or its page is needed for
//! something else.
//!
//! ```text
//! held = page_bytes * (pages at home + spare pages)
//! home(p) = q   =>  q maps p, with access set;      q is backed  <=>  q maps some p with home(p) = q
//! p is spare    =>  all work that used p's bytes, wherever, is over
//! q is dormant  =>  work that used the mapping at q is over once q's fence has completed
//! the work that used p's bytes, wherever, is over once the fences of the extent at its home are
//! ```
//!
//! The last line holds because a page moves only to streams that run after its earlier work.
//!
//! Every operation is transactional: a driver error part-way leaves all of this true, and each page
//! at its old home.

use super::place::{Place, Places};
use super::supply::Supply;
use crate::block::Fence;
use crate::driver::{Caught, Driver, DriverResult, PageHandle};
use std::ops::Range;

/// A page's number. 0 is no page.
pub(super) type PageId = u32;

#[derive(Clone, Copy)]
struct Page {
    handle: PageHandle,
    /// The place it is at home, plus one; 0 for a spare page.
    home: u32,
    leaving: bool,
}

/// A page and the place that is to be its home.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Move {
    pub place: usize,
    pub page: PageId,
}

pub(super) struct Pages {
    base: u64,
    page_bytes: u64,
    /// By number; the first is no page.
    pages: Vec<Page>,
    /// Numbers of pages that went back to the driver.
    vacant: Vec<PageId>,
    places: Places,
    /// Pages at home nowhere.
    spare: Vec<PageId>,
    pinned: u64,
}

impl Pages {
    pub fn new(base: u64, page_bytes: u64) -> Self {
        let none = Page { handle: PageHandle(0), home: 0, leaving: false };
        Self {
            base,
            page_bytes,
            pages: vec![none],
            vacant: Vec::new(),
            places: Places::default(),
            spare: Vec::new(),
            pinned: 0,
        }
    }

    pub fn page_bytes(&self) -> u64 {
        self.page_bytes
    }

    /// Physical bytes held.
    pub fn held(&self) -> u64 {
        (self.pages.len() - 1 - self.vacant.len()) as u64 * self.page_bytes
    }

    /// Pages that are at home nowhere.
    pub fn spare(&self) -> u64 {
        self.spare.len() as u64
    }

    /// Bytes of pages that are at home nowhere.
    pub fn spare_bytes(&self) -> u64 {
        self.spare() * self.page_bytes
    }

    /// The place that an address lies in.
    pub fn place_of(&self, address: u64) -> usize {
        ((address - self.base) / self.page_bytes) as usize
    }

    pub fn address_of(&self, place: usize) -> u64 {
        self.base + place as u64 * self.page_bytes
    }

    fn at_home(&self, place: usize) -> bool {
        let at = self.places.get(place);
        at.page != 0 && self.pages[at.page as usize].home == place as u32 + 1
    }

    /// Whether there is memory at `address`.
    pub fn is_backed(&self, address: u64) -> bool {
        self.at_home(self.place_of(address))
    }

    /// The page that has a dormant, usable mapping at a place, and its home if it has one: it could
    /// come back without a driver call.
    pub fn dormant(&self, place: usize) -> Option<(PageId, Option<usize>)> {
        let at = self.places.get(place);
        let home = self.pages[at.page as usize].home;
        (at.page != 0 && at.accessible && home != place as u32 + 1)
            .then(|| (at.page, home.checked_sub(1).map(|home| home as usize)))
    }

    /// Whether no page is mapped at a place.
    pub fn is_untouched(&self, place: usize) -> bool {
        self.places.get(place).page == 0
    }

    /// The fence to wait for before another page can be mapped at a place.
    pub fn in_the_way(&self, place: usize) -> Option<Fence> {
        let at = self.places.get(place);
        (at.page != 0 && !at.fence.is_none()).then_some(at.fence)
    }

    /// The places with dormant mappings that work in flight may use, ascending, and their fences.
    pub fn fences_in_the_way(&self) -> impl Iterator<Item = (usize, Fence)> {
        self.places.numbers().filter_map(|place| Some((place, self.in_the_way(place)?)))
    }

    /// Takes a spare page.
    pub fn take_spare(&mut self) -> Option<PageId> {
        self.spare.pop()
    }

    /// Takes this page if it is spare.
    pub fn take_spare_page(&mut self, page: PageId) -> bool {
        let found = self.spare.iter().rposition(|&spare| spare == page);
        found.is_some_and(|at| self.spare.swap_remove(at) == page)
    }

    /// Makes pages spare that are at home nowhere.
    pub fn give_spare(&mut self, pages: impl IntoIterator<Item = PageId>) {
        self.spare.extend(pages);
    }

    /// Takes a page from its home, which stays mapped and is not to be removed before `fence`.
    pub fn lift(&mut self, place: usize, fence: Fence) -> PageId {
        debug_assert!(self.at_home(place));
        let at = self.places.get_mut(place);
        at.fence = fence;
        self.pages[at.page as usize].home = 0;
        at.page
    }

    /// Undoes `lift`.
    pub fn put_back(&mut self, place: usize, page: PageId) {
        debug_assert_eq!(self.places.get(place).page, page);
        self.places.get_mut(place).fence = Fence::NONE;
        self.pages[page as usize].home = place as u32 + 1;
    }

    /// Takes `count` pages from the driver, or none; if it runs out on the way, those that it gave
    /// are spare: they serve together with others.
    pub fn create(&mut self, supply: &mut Supply, count: u64) -> DriverResult<Vec<PageId>> {
        let mut made = Vec::with_capacity(count as usize);
        for _ in 0..count {
            match self.create_one(supply) {
                Ok(page) => made.push(page),
                Err(error) => {
                    supply.refused(&error);
                    let bytes = made.len() as u64 * self.page_bytes;
                    self.spare.extend(made);
                    if !error.out_of_memory {
                        // What the driver does not take back now stays spare.
                        let _ = self.release_spare(supply, bytes);
                    }
                    return Err(error);
                }
            }
        }
        Ok(made)
    }

    fn create_one(&mut self, supply: &mut Supply) -> DriverResult<PageId> {
        let bytes = self.page_bytes;
        let handle = supply.take(bytes, |driver, device| driver.create_page(device, bytes))?;
        let page = Page { handle, home: 0, leaving: false };
        Ok(match self.vacant.pop() {
            Some(number) => {
                self.pages[number as usize] = page;
                number
            }
            None => {
                if self.pages.len() == self.pages.capacity() {
                    // Doubling would cost more memory than it saves time, beside a driver call each.
                    self.pages.reserve_exact(1 + self.pages.len() / 8);
                }
                self.pages.push(page);
                self.pages.len() as PageId - 1
            }
        })
    }

    /// Gives pages that are at home nowhere their new homes, by ascending place: maps them where
    /// they are not mapped already. Dormant mappings in their way are removed; the caller knows
    /// that their fences have completed.
    pub fn settle(&mut self, supply: &Supply, moves: &[Move]) -> DriverResult<()> {
        let fresh = |pages: &Self, to: &Move| {
            let at = pages.places.get(to.place);
            at.page != to.page || !at.accessible
        };
        let mut done = 0;
        let mut result = Ok(());
        while result.is_ok() && done < moves.len() {
            // A run of neighbouring places that need a mapping.
            let run = &moves[done..];
            let mut count = 0;
            while let Some(to) = run.get(count)
                && to.place == run[0].place + count
                && fresh(self, to)
            {
                count += 1;
            }
            if count > 0 {
                result = self.map_run(supply, &run[..count]);
            }
            done += count.max(1);
        }
        if result.is_ok() {
            for to in moves {
                self.places.get_mut(to.place).fence = Fence::NONE;
                self.pages[to.page as usize].home = to.place as u32 + 1;
            }
        }
        // After an error what was mapped stays so: dormant, and never used.
        result
    }

    /// Maps pages at neighbouring places and sets access.
    fn map_run(&mut self, supply: &Supply, run: &[Move]) -> DriverResult<()> {
        let first = run[0].place;
        self.clear(supply, first..first + run.len(), |_| true)?;
        for to in run {
            let address = self.address_of(to.place);
            let handle = self.pages[to.page as usize].handle;
            supply.driver.map(supply.device, address, self.page_bytes, handle)?;
            let at = self.places.get_mut(to.place);
            *at = Place { page: to.page, pins: at.pins, ..Place::EMPTY };
        }
        let bytes = run.len() as u64 * self.page_bytes;
        supply.driver.set_access(supply.device, self.address_of(first), bytes, &supply.access)?;
        for to in run {
            self.places.get_mut(to.place).accessible = true;
        }
        Ok(())
    }

    /// Removes the mappings at these places, ascending, for whose pages `which` holds.
    fn clear(
        &mut self,
        supply: &Supply,
        places: impl Iterator<Item = usize>,
        which: impl Fn(&Page) -> bool,
    ) -> DriverResult<()> {
        let mut runs: Vec<Range<usize>> = Vec::new();
        for place in places {
            let page = self.places.get(place).page;
            if page != 0 && which(&self.pages[page as usize]) {
                match runs.last_mut() {
                    Some(run) if run.end == place => run.end += 1,
                    _ => runs.push(place..place + 1),
                }
            }
        }
        let mut result = Ok(());
        for run in runs {
            let bytes = run.len() as u64 * self.page_bytes;
            let unmapped = supply.driver.unmap(supply.device, self.address_of(run.start), bytes);
            for place in run {
                let at = self.places.get_mut(place);
                match &unmapped {
                    Ok(()) => *at = Place { pins: at.pins, ..Place::EMPTY },
                    Err(_) => self.pages[at.page as usize].leaving = false,
                }
            }
            result = result.and(unmapped);
        }
        result
    }

    /// Gives at most `bytes` of spare pages back to the driver, after removing every mapping of
    /// theirs. The first error is returned; what it concerns stays spare.
    pub fn release_spare(&mut self, supply: &mut Supply, bytes: u64) -> DriverResult<()> {
        let count = (bytes / self.page_bytes).min(self.spare());
        if count == 0 {
            return Ok(());
        }
        let leaving = self.spare.split_off(self.spare.len() - count as usize);
        for &page in &leaving {
            self.pages[page as usize].leaving = true;
        }
        let used: Vec<usize> = self.places.numbers().collect();
        let mut result = self.clear(supply, used.into_iter(), |page| page.leaving);
        for number in leaving {
            let page = &mut self.pages[number as usize];
            let handle = page.handle;
            let release = |driver: &Caught, device| driver.release_page(device, handle);
            if !std::mem::take(&mut page.leaving) {
                self.spare.push(number);
            } else if let Err(error) = supply.give(self.page_bytes, release) {
                self.spare.push(number);
                result = result.and(Err(error));
            } else {
                self.vacant.push(number);
            }
        }
        result
    }

    /// Keeps the pages at these places where they are, or no longer.
    pub fn pin(&mut self, first: usize, count: usize, on: bool) {
        for number in first..first + count {
            let place = self.places.get_mut(number);
            let before = place.pins;
            // So many that they cannot be counted stay for good.
            place.pins = match (on, before) {
                (_, u16::MAX) => u16::MAX,
                (true, _) => before + 1,
                (false, _) => before.saturating_sub(1),
            };
            self.pinned += u64::from(before == 0);
            self.pinned -= u64::from(place.pins == 0);
        }
    }

    /// How many of the pages of a range of addresses have to stay where they are.
    pub fn pinned_in(&self, range: Range<u64>) -> u64 {
        if self.pinned == 0 {
            return 0;
        }
        let (first, end) = (self.place_of(range.start), self.place_of(range.end));
        (first..end).filter(|&place| self.places.get(place).pins > 0).count() as u64
    }

    /// Whether a page has to stay where it is.
    pub fn is_pinned(&self, place: usize) -> bool {
        self.pinned > 0 && self.places.get(place).pins > 0
    }

    /// Whether no place has a mapping: the reservation can go.
    pub fn nothing_is_mapped(&self) -> bool {
        self.places.numbers().all(|place| self.places.get(place).page == 0)
    }

    /// Host memory held, in bytes.
    pub fn bytes(&self) -> u64 {
        (self.places.bytes()
            + self.pages.capacity() * size_of::<Page>()
            + (self.spare.capacity() + self.vacant.capacity()) * size_of::<PageId>()) as u64
    }

    /// Checks the invariants on top of this file; panics with what is wrong.
    pub fn check_invariants(&self) {
        let mut at_home = 0;
        for place in self.places.numbers() {
            let at = self.places.get(place);
            assert!((at.page as usize) < self.pages.len(), "place {place} maps page {}", at.page);
            if self.at_home(place) {
                at_home += 1;
                assert!(at.accessible && at.fence.is_none(), "place {place} is used");
            }
        }
        for &page in &self.spare {
            assert_eq!(self.pages[page as usize].home, 0, "page {page} is spare and at home");
        }
        let held = at_home + self.spare.len() as u64;
        assert_eq!(self.held(), held * self.page_bytes, "reserved pages are at home or spare");
    }
}
