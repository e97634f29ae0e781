//! What a request that fits nowhere could be served from: a survey of what is idle, the window chosen
//! in it, and the pages for that window's holes. Changes nothing.

use super::arena::{Arena, LARGE, Request, SMALL};
use super::extent::List;
use super::fit::Effort;
use super::pages::{PageId, Pages};
use super::window::{Kind, Piece, Window, best_window, tightest_window};
use crate::block::State;
use crate::fence::Asked;
use std::ops::Range;

/// What was seen of the extents that are idle.
#[derive(Default)]
pub(super) struct Survey {
    /// Idle extents and holes in address order, the small region's first.
    pub pieces: Vec<Piece>,
    /// Where the large region's begin.
    large: usize,
    /// Bytes that are not idle: live blocks, and small ones in caches.
    pub live: u64,
    /// Idle bytes that wait for other streams.
    pending: u64,
}

impl Survey {
    pub(super) fn of_region(&self, region: u8) -> Range<usize> {
        if region == SMALL { 0..self.large } else { self.large..self.pieces.len() }
    }

    /// Takes the pages at `places`, ascending, out of a region's holes.
    fn close(&mut self, region: u8, places: &[usize], pages: &Pages) {
        let range = self.of_region(region);
        let before = self.pieces.split_off(range.start);
        let (within, after) = before.split_at(range.len());
        let page = pages.page_bytes();
        let mut places = places.iter().map(|&place| pages.address_of(place)).peekable();
        for piece in within {
            let mut rest = *piece;
            while places.next_if(|&address| address < rest.address).is_some() {}
            while let Some(address) = places.next_if(|&address| address < piece.end()) {
                if piece.kind != Kind::Hole {
                    continue;
                }
                let end = address + page;
                let parts = [
                    Piece { bytes: address - rest.address, ..rest },
                    Piece { address, bytes: page, kind: Kind::Pending, ..rest },
                ];
                self.pieces.extend(parts.into_iter().filter(|part| part.bytes > 0));
                rest = Piece { address: end, bytes: piece.end() - end, ..rest };
            }
            if rest.bytes > 0 {
                self.pieces.push(rest);
            }
        }
        if region == SMALL {
            self.large = self.pieces.len();
        }
        self.pieces.extend_from_slice(after);
    }

    /// The addresses of a usable piece that a window, if there is one, leaves alone.
    pub fn outside(&self, window: Option<&Window>, at: usize) -> Range<u64> {
        let piece = &self.pieces[at];
        match window {
            _ if piece.kind != Kind::Usable => 0..0,
            Some(window) if (window.first..=window.last).contains(&at) => match at {
                // A window in one piece needs no pages.
                _ if window.first == window.last => 0..0,
                _ if at == window.first => piece.address..window.start,
                _ if at == window.last => window.end..piece.end(),
                _ => 0..0,
            },
            _ => piece.address..piece.end(),
        }
    }

    /// The addresses of neighbouring usable pieces outside a window, by address.
    pub fn idle_runs(&self, window: Option<&Window>) -> Vec<Range<u64>> {
        let mut runs: Vec<Range<u64>> = Vec::new();
        for at in 0..self.pieces.len() {
            let piece = self.outside(window, at);
            match runs.last_mut() {
                _ if piece.is_empty() => {}
                Some(run) if run.end == piece.start && at != self.large => run.end = piece.end,
                _ => runs.push(piece),
            }
        }
        runs
    }
}

/// A page to be taken from behind idle extents.
#[derive(Clone, Copy)]
pub(super) struct Taking {
    /// Its place.
    pub from: usize,
    /// Where it is mapped already, if that is why it was chosen.
    pub to: Option<usize>,
}

/// How a request is to be served.
pub(super) struct Plan {
    pub window: Window,
    /// Places in the window that need a page, ascending, and the spare page with a mapping there.
    pub places: Vec<(usize, Option<PageId>)>,
    /// Pages to take, by ascending place.
    pub takings: Vec<Taking>,
    /// Further spare pages to use.
    pub spare: u64,
    /// Pages to take from the driver.
    pub fresh: u64,
}

/// How far new pages are preferred to taking others'.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Bound {
    /// As long as little is held beyond the peak of what was live.
    Budget,
    /// Up to the limit.
    Limit,
}

/// What is to be served, and how far to go for it.
#[derive(Clone, Copy)]
pub(super) struct Aim {
    pub region: u8,
    pub request: Request,
    pub effort: Effort,
    pub bound: Bound,
}

impl Arena {
    /// Looks at what is idle, and usable for a request with this effort.
    pub(super) fn survey(&mut self, request: Request, effort: Effort, asked: &mut Asked) -> Survey {
        self.survey_with(|arena, index, state| {
            (effort > Effort::Uncached && !arena.keeps() || state == State::Free)
                && arena.usable(index, request.stream, effort, asked)
        })
    }

    /// Looks at every extent that is in the index: what is idle, and usable as `usable` says. Live
    /// blocks are not passed by.
    pub(super) fn survey_with(
        &mut self,
        mut usable: impl FnMut(&Self, u32, State) -> bool,
    ) -> Survey {
        let mut survey = std::mem::take(&mut self.scratch);
        let Survey { pieces, large, live, pending } = &mut survey;
        pieces.clear();
        (*live, *pending) = (0, 0);
        for region in [SMALL, LARGE] {
            let first = pieces.len();
            let from = &self.regions[usize::from(region)];
            let mut idle = 0;
            for list in [List::Free, List::Cached, List::Holes] {
                from.index(list).for_each(&self.links, |index| {
                    let block = self.block(index);
                    // The word before the fences: the claim is for what was looked at, or fails.
                    let seen = block.word();
                    let (address, bytes) = (block.address(), block.size());
                    let kind = match seen.state() {
                        State::Hole => Kind::Hole,
                        state @ (State::Free | State::Cached) => {
                            idle += bytes;
                            let usable = usable(self, index, state);
                            *pending += if usable { 0 } else { bytes };
                            if usable { Kind::Usable } else { Kind::Pending }
                        }
                        // Listed still, and live again.
                        State::Live | State::Claimed | State::Spare | State::Chunk => return,
                    };
                    pieces.push(Piece { index, seen, address, bytes, kind });
                });
            }
            pieces[first..].sort_unstable_by_key(|piece| piece.address);
            *live += from.backed.saturating_sub(idle);
            if region == SMALL {
                *large = pieces.len();
            }
        }
        survey
    }

    /// Chooses the window and where its pages come from.
    pub(super) fn plan(&self, survey: &mut Survey, aim: Aim, asked: &mut Asked) -> Option<Plan> {
        let plan = self.plan_with(best_window, survey, aim, asked);
        match aim.bound {
            Bound::Limit if plan.is_none() => {
                let tightest = |pieces: &[Piece], bytes, page| {
                    tightest_window(pieces, bytes, page, |range| self.pages.pinned_in(range))
                };
                self.plan_with(tightest, survey, aim, asked)
            }
            _ => plan,
        }
    }

    fn plan_with(
        &self,
        choose: impl Fn(&[Piece], u64, u64) -> Option<Window>,
        survey: &mut Survey,
        aim: Aim,
        asked: &mut Asked,
    ) -> Option<Plan> {
        let Aim { region, request, effort, bound } = aim;
        let page = self.pages.page_bytes();
        let mut swept = false;
        let (mut plan, runs, mut open) = loop {
            let range = survey.of_region(region);
            let mut window = choose(&survey.pieces[range.clone()], request.bytes, page)?;
            window.first += range.start;
            window.last += range.start;
            let runs = survey.idle_runs(Some(&window));
            match self.assign(survey, window, &runs, effort, asked) {
                Ok((plan, open)) => break (plan, runs, open),
                // All such places at once, the first time: there may be many.
                Err(_) if !swept => {
                    swept = true;
                    let closed = self.closed_places(survey, effort, asked);
                    survey.close(region, &closed, &self.pages);
                }
                Err(closed) => survey.close(region, &closed, &self.pages),
            }
        };
        let known = plan.places.iter().filter(|place| place.1.is_some()).count() as u64;
        plan.spare = open.min(self.pages.spare() - known);
        open -= plan.spare;
        let peak = self.peak_live.max(survey.live + request.bytes);
        plan.fresh = open.min(self.supply.room(self.budget(region, peak, survey.pending)) / page);
        open -= plan.fresh;
        let room = self.supply.room(self.supply.limit()) / page;
        // Without stitching only where there is nothing else.
        if open > 0 && (self.settings.stitching || plan.fresh + open > room) {
            open = self.choose_givers(runs, &mut plan, open);
        }
        if open > 0 {
            plan.fresh += open;
            if bound == Bound::Budget || plan.fresh > room {
                return None;
            }
        }
        plan.takings.sort_unstable_by_key(|taking| taking.from);
        Some(plan)
    }

    /// The places in a window that need a page, those that have one of their own to come back, and how
    /// many do not. An error are the places that cannot get a page yet.
    pub(super) fn assign(
        &self,
        survey: &Survey,
        window: Window,
        runs: &[Range<u64>],
        effort: Effort,
        asked: &mut Asked,
    ) -> Result<(Plan, u64), Vec<usize>> {
        let page = self.pages.page_bytes();
        let mut plan = Plan { window, places: Vec::new(), takings: Vec::new(), spare: 0, fresh: 0 };
        let mut open = 0;
        // A page may have mappings at several of these places: it serves the first.
        let mut used: Vec<PageId> = Vec::new();
        let mut closed: Vec<usize> = Vec::new();
        for piece in &survey.pieces[window.first..=window.last] {
            if piece.kind != Kind::Hole {
                continue;
            }
            let start = piece.address.max(window.start / page * page);
            let end = piece.end().min(window.end.next_multiple_of(page));
            for to in self.pages.place_of(start)..self.pages.place_of(end - 1) + 1 {
                let dormant = self.pages.dormant(to).filter(|(page, _)| !used.contains(page));
                let mut known = None;
                match dormant {
                    Some((page, None)) => known = Some(page),
                    Some((_, Some(from))) if self.can_be_taken(runs, from) => {
                        plan.takings.push(Taking { from, to: Some(to) });
                    }
                    _ if self.is_closed(to, effort, asked) => closed.push(to),
                    _ => open += 1,
                }
                used.extend(dormant.map(|(page, _)| page));
                plan.places.push((to, known));
            }
        }
        if closed.is_empty() { Ok((plan, open)) } else { Err(closed) }
    }

    /// Whether work in flight may use an old mapping at a place, so that it cannot get another page.
    fn is_closed(&self, place: usize, effort: Effort, asked: &mut Asked) -> bool {
        self.pages.in_the_way(place).is_some_and(|fence| {
            !self.fences.completed(fence)
                && (effort < Effort::Ask || !asked.ask(&self.fences, fence))
        })
    }

    /// All places in holes that cannot get a page, except those whose own page may come back.
    fn closed_places(&self, survey: &Survey, effort: Effort, asked: &mut Asked) -> Vec<usize> {
        let runs = survey.idle_runs(None);
        let comes_back = |place| match self.pages.dormant(place) {
            Some((_, Some(home))) => self.can_be_taken(&runs, home),
            Some((_, None)) => true,
            None => false,
        };
        let in_the_way = self.pages.fences_in_the_way().map(|(place, _)| place);
        in_the_way
            .filter(|&place| !comes_back(place) && self.is_closed(place, effort, asked))
            .collect()
    }

    /// Whether the page at home at `place` lies behind one of these idle runs, and may move.
    fn can_be_taken(&self, runs: &[Range<u64>], place: usize) -> bool {
        let address = self.pages.address_of(place);
        let next = runs.partition_point(|run| run.start <= address);
        next.checked_sub(1).is_some_and(|at| address + self.pages.page_bytes() <= runs[at].end)
            && !self.pages.is_pinned(place)
    }

    /// The places of the whole pages in these runs.
    pub(super) fn whole_pages(&self, runs: Vec<Range<u64>>) -> Vec<Range<usize>> {
        let page = self.pages.page_bytes();
        runs.into_iter()
            .map(|run| run.start.next_multiple_of(page)..run.end / page * page)
            .filter(|whole| whole.start < whole.end)
            .map(|whole| self.pages.place_of(whole.start)..self.pages.place_of(whole.end))
            .collect()
    }

    /// Chooses `count` pages to take: from the smallest idle runs first, so that fragments come
    /// together, and from their upper ends. Returns how many there are too few.
    pub(super) fn choose_givers(&self, runs: Vec<Range<u64>>, plan: &mut Plan, count: u64) -> u64 {
        let mut givers = self.whole_pages(runs);
        givers.sort_unstable_by_key(|giver| (giver.len(), giver.start));
        // Some may have been chosen for the places where they are mapped.
        let mut chosen: Vec<usize> = plan.takings.iter().map(|taking| taking.from).collect();
        chosen.sort_unstable();
        let free = givers.into_iter().flat_map(Iterator::rev);
        let free = free.filter(|from| chosen.binary_search(from).is_err());
        let before = plan.takings.len();
        plan.takings.extend(
            free.filter(|&from| !self.pages.is_pinned(from))
                .take(count as usize)
                .map(|from| Taking { from, to: None }),
        );
        count - (plan.takings.len() - before) as u64
    }
}
