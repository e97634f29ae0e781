//! Stitching: a request that no extent can serve gets a window of idle extents and holes, and the
//! holes get pages: spare ones, new ones within a bound, and whole pages taken from behind idle
//! extents elsewhere.
//!
//! A page that moves is mapped at its new place at once, while the old mapping stays: work in flight
//! may still use it there. The new user runs after that work, or is made to wait for it on the
//! device; the host never waits. (Two mappings of one page are coherent between operations that are
//! ordered by streams or events; see [`super::pages`] for what becomes of the old one.)
//!
//! Nothing is changed before every extent concerned has been claimed, and the extents change only
//! after the driver has done its part: an error leaves them as they were.

use super::arena::{Arena, Denied, Request};
use super::fit::Effort;
use super::gauge::Rung;
use super::pages::{Move, PageId};
use super::plan::{Aim, Bound, Plan, Survey, Taking};
use super::window::{Kind, Window};
use crate::block::{Fence, FenceSet, State, Word};
use crate::driver::DriverResult;
use crate::fence::Asked;
use std::ops::Range;

/// What came of a plan.
enum Step {
    /// A block, with its word.
    Done(u32, Word),
    /// Something was claimed by others first, or cannot be waited for, or was not there: what is
    /// left has to be looked at again.
    Again,
    /// There is no way.
    Failed,
}

/// What a plan has claimed so far.
#[derive(Default)]
pub(super) struct Claims {
    /// The window's extents, by address, and whether they were holes.
    parts: Vec<(u32, bool)>,
    /// What the window leaves of its first and last piece, and whether that is a hole.
    rests: Vec<(usize, u32, bool)>,
    /// Extents whose pages are taken: together whole pages.
    givers: Vec<u32>,
}

impl Claims {
    /// All extents with memory behind them.
    pub(super) fn resident(&self) -> impl Iterator<Item = u32> {
        let parts = self.parts.iter().filter(|part| !part.1).map(|part| part.0);
        parts.chain(self.givers.iter().copied())
    }
}

impl Arena {
    /// Serves a request from a window, creating pages up to `bound` bytes in all before others are
    /// taken from idle extents. `None` when there is no way.
    pub(super) fn stitch(
        &mut self,
        region: u8,
        request: Request,
        effort: Effort,
        bound: Bound,
    ) -> Result<Option<(u32, Word)>, Denied> {
        let aim = Aim { region, request, effort, bound };
        let mut asked = Asked::default();
        loop {
            let mut survey = self.survey(request, effort, &mut asked);
            let plan = self.plan(&mut survey, aim, &mut asked);
            let step = match &plan {
                Some(plan) => self.carry_out(&survey, plan, aim, &mut asked),
                None => Ok(Step::Failed),
            };
            self.scratch = survey;
            match step? {
                Step::Done(block, word) => return Ok(Some((block, word))),
                Step::Again => {}
                Step::Failed => return Ok(None),
            }
        }
    }

    /// Claims what a plan needs, moves the pages, and makes the block.
    fn carry_out(
        &mut self,
        survey: &Survey,
        plan: &Plan,
        aim: Aim,
        asked: &mut Asked,
    ) -> Result<Step, Denied> {
        let Aim { request, effort, .. } = aim;
        let Some(claims) = self.claim_all(survey, plan, aim, asked)? else {
            return Ok(Step::Again);
        };
        let foreign = claims.resident().any(|index| self.is_foreign(index, request.stream));
        let over = claims.resident().all(|index| self.is_over(index));
        match self.move_pages(plan, over, request) {
            Ok(()) => {
                let rung = match effort {
                    Effort::Wait => Rung::Waited,
                    _ if !plan.takings.is_empty() => Rung::Moved,
                    _ if plan.fresh > 0 => Rung::Created,
                    _ => effort.rung(),
                };
                self.count(rung, foreign);
                let live = survey.live + request.bytes;
                self.peak_live = self.peak_live.max(live);
                self.join(plan, claims, over, request).map(|(block, word)| Step::Done(block, word))
            }
            Err(error) => {
                self.unwind(claims);
                match error.out_of_memory {
                    // There were no more new pages: the next plan asks for none.
                    true if plan.fresh > 0 && self.supply.is_exhausted() => Ok(Step::Again),
                    // No memory for a mapping, which giving some back may cure.
                    true => Ok(Step::Failed),
                    false => Err(Denied::Driver(error)),
                }
            }
        }
    }

    /// Claims what a plan needs, and makes the stream wait for it where the effort says so. `None`, and
    /// nothing is claimed, where something was claimed by others first, or cannot be waited for.
    pub(super) fn claim_all(
        &mut self,
        survey: &Survey,
        plan: &Plan,
        aim: Aim,
        asked: &mut Asked,
    ) -> Result<Option<Claims>, Denied> {
        let Aim { request, effort, .. } = aim;
        let mut claims = Claims::default();
        let places = plan.takings.iter().map(|taking| taking.from);
        let ready = self.claim_window(survey, &plan.window, &mut claims).and_then(|claimed| {
            Ok(claimed
                && self.claim_givers(survey, Some(&plan.window), places, &mut claims)?
                && (effort != Effort::Wait
                    || claims.resident().all(|index| self.wait_for(index, request.stream, asked))))
        });
        match ready {
            Ok(true) => Ok(Some(claims)),
            Ok(false) => {
                self.unwind(claims);
                Ok(None)
            }
            Err(denied) => {
                self.unwind(claims);
                Err(denied)
            }
        }
    }

    /// Claims the window's extents and cuts them to it.
    fn claim_window(
        &mut self,
        survey: &Survey,
        window: &Window,
        claims: &mut Claims,
    ) -> Result<bool, Denied> {
        let page = self.pages.page_bytes();
        for piece in &survey.pieces[window.first..=window.last] {
            if !self.claim(piece.index, piece.seen) {
                return Ok(false);
            }
            claims.parts.push((piece.index, piece.kind == Kind::Hole));
        }
        // Holes are cut at page borders.
        let edge = |address: u64, hole: bool, up: bool| match (hole, up) {
            (false, _) => address,
            (true, false) => address / page * page,
            (true, true) => address.next_multiple_of(page),
        };
        let (last, hole) = claims.parts[claims.parts.len() - 1];
        let end = edge(window.end, hole, true);
        let block = self.block(last);
        if end < block.end() {
            let rest = self.split(last, end - block.address()).ok_or(Denied::Descriptors)?;
            claims.rests.push((window.last, rest, hole));
        }
        let (first, hole) = claims.parts[0];
        let start = edge(window.start, hole, false);
        let address = self.block(first).address();
        if start > address {
            let rest = self.split(first, start - address).ok_or(Denied::Descriptors)?;
            claims.parts[0].0 = rest;
            claims.rests.push((window.first, first, hole));
        }
        Ok(true)
    }

    /// Claims the extents that give the pages at `places`, ascending, and cuts these out.
    fn claim_givers(
        &mut self,
        survey: &Survey,
        window: Option<&Window>,
        places: impl Iterator<Item = usize>,
        claims: &mut Claims,
    ) -> Result<bool, Denied> {
        let runs = self.runs_of(places);
        let mut next = 0;
        for at in 0..survey.pieces.len() {
            let outside = survey.outside(window, at);
            if outside.is_empty() {
                continue;
            }
            while next < runs.len() && runs[next].end <= outside.start {
                next += 1;
            }
            let within = runs[next..].iter().take_while(|run| run.start < outside.end);
            let own: Vec<Range<u64>> =
                within.map(|run| run.start.max(outside.start)..run.end.min(outside.end)).collect();
            if own.is_empty() {
                continue;
            }
            let index = match claims.rests.iter().position(|rest| rest.0 == at) {
                Some(rest) => claims.rests.swap_remove(rest).1,
                None => {
                    let piece = &survey.pieces[at];
                    if !self.claim(piece.index, piece.seen) {
                        return Ok(false);
                    }
                    piece.index
                }
            };
            let (pieces, complete) = self.cut_out(index, &own);
            claims.givers.extend(pieces);
            if !complete {
                return Err(Denied::Descriptors);
            }
        }
        for (_, index, hole) in claims.rests.drain(..) {
            self.file(index, if hole { State::Hole } else { State::Free });
        }
        Ok(true)
    }

    /// Makes up to `count` pages spare that lie behind free extents whose work is over, from the
    /// largest runs first.
    pub(super) fn strip_idle(&mut self, count: u64) {
        let mut asked = Asked::default();
        let survey = self.survey_with(|arena, index, state| {
            // Asks about each stream, so that the next attempt may find them all done.
            let mut done = true;
            arena.block(index).for_each_fence(|fence| done &= asked.ask(&arena.fences, fence));
            state == State::Free && done
        });
        let mut givers = self.whole_pages(survey.idle_runs(None));
        givers.sort_unstable_by_key(|giver| std::cmp::Reverse(giver.len()));
        let movable = givers.into_iter().flat_map(Iterator::rev);
        let movable = movable.filter(|&place| !self.pages.is_pinned(place));
        let mut places: Vec<usize> = movable.take(count as usize).collect();
        places.sort_unstable();
        let mut claims = Claims::default();
        match self.claim_givers(&survey, None, places.iter().copied(), &mut claims) {
            Ok(true) => {
                for place in places {
                    let spare = self.pages.lift(place, Fence::NONE);
                    self.pages.give_spare([spare]);
                }
                self.leave_holes(claims.givers);
            }
            // Free extents are the arena's own; only descriptors can be missing.
            Ok(false) | Err(_) => self.unwind(claims),
        }
        self.scratch = survey;
    }

    /// The addresses of pages at ascending places, neighbours together.
    fn runs_of(&self, places: impl Iterator<Item = usize>) -> Vec<Range<u64>> {
        let mut runs: Vec<Range<u64>> = Vec::new();
        for place in places {
            let (start, end) = (self.pages.address_of(place), self.pages.address_of(place + 1));
            match runs.last_mut() {
                Some(run) if run.end == start => run.end = end,
                _ => runs.push(start..end),
            }
        }
        runs
    }

    /// Cuts these ranges, ascending, out of a claimed extent that holds them, and files what is left.
    /// Returns the pieces cut out, claimed; false with them when descriptors ran out.
    fn cut_out(&mut self, index: u32, ranges: &[Range<u64>]) -> (Vec<u32>, bool) {
        let mut pieces = Vec::new();
        let address = self.block(index).address();
        // The uppermost first: `index` stays what lies below.
        for range in ranges.iter().rev() {
            if range.end < self.block(index).end() {
                let Some(above) = self.split(index, range.end - address) else {
                    self.file(index, State::Free);
                    return (pieces, false);
                };
                self.file(above, State::Free);
            }
            if range.start == address {
                pieces.push(index);
                return (pieces, true);
            }
            let Some(piece) = self.split(index, range.start - address) else {
                self.file(index, State::Free);
                return (pieces, false);
            };
            pieces.push(piece);
        }
        self.file(index, State::Free);
        (pieces, true)
    }

    /// Gives claimed extents back as they were.
    pub(super) fn unwind(&mut self, claims: Claims) {
        let rests = claims.rests.into_iter().map(|(_, index, hole)| (index, hole));
        for (index, hole) in claims.parts.into_iter().chain(rests) {
            self.settle(index, if hole { State::Hole } else { State::Free });
        }
        for index in claims.givers {
            self.settle(index, State::Free);
        }
    }

    /// Brings the pages of a plan together behind the window. On an error every page is back at its
    /// home, or spare.
    pub(super) fn move_pages(
        &mut self,
        plan: &Plan,
        over: bool,
        request: Request,
    ) -> DriverResult<()> {
        // Pages at home nowhere: new ones, and spare ones.
        let mut loose = self.pages.create(&mut self.supply, plan.fresh)?;
        let mut moves: Vec<Move> = Vec::with_capacity(plan.places.len());
        for &(place, known) in &plan.places {
            if let Some(page) = known
                && self.pages.take_spare_page(page)
            {
                moves.push(Move { place, page });
            }
        }
        loose.extend((0..plan.spare).map_while(|_| self.pages.take_spare()));
        let ours: Vec<PageId> = moves.iter().map(|to| to.page).chain(loose.clone()).collect();

        // Those of the givers, lifted with a fence that covers theirs.
        let fence = if over { Fence::NONE } else { self.fences.stamp(request.stream) };
        let mut lifted: Vec<(usize, PageId)> = Vec::with_capacity(plan.takings.len());
        for &Taking { from, to } in &plan.takings {
            let page = self.pages.lift(from, fence);
            lifted.push((from, page));
            match to {
                Some(place) => moves.push(Move { place, page }),
                None => loose.push(page),
            }
        }
        let mut served: Vec<usize> = moves.iter().map(|to| to.place).collect();
        served.sort_unstable();
        let open = plan.places.iter().map(|to| to.0);
        let open = open.filter(|place| served.binary_search(place).is_err());
        moves.extend(open.zip(loose).map(|(place, page)| Move { place, page }));
        moves.sort_unstable_by_key(|to| to.place);
        debug_assert_eq!(moves.len(), plan.places.len());

        self.pages.settle(&self.supply, &moves).inspect_err(|_| {
            for &(place, page) in &lifted {
                self.pages.put_back(place, page);
            }
            self.pages.give_spare(ours);
            // As many as were new go back; what the driver does not take stays spare.
            let bytes = plan.fresh * self.pages.page_bytes();
            let _ = self.pages.release_spare(&mut self.supply, bytes);
        })
    }

    /// Whether all work that an extent waits for is known to be over.
    pub(super) fn is_over(&self, index: u32) -> bool {
        self.block(index).all_fences(|fence| self.fences.completed(fence))
    }

    /// Makes one live block of the window, now that there is memory behind all of it.
    fn join(
        &mut self,
        plan: &Plan,
        claims: Claims,
        over: bool,
        request: Request,
    ) -> Result<(u32, Word), Denied> {
        let joined = self.unite(plan, claims, over, request);
        self.hand_out(joined, request, None)
    }

    /// Makes one claimed extent of the window.
    pub(super) fn unite(
        &mut self,
        plan: &Plan,
        claims: Claims,
        over: bool,
        request: Request,
    ) -> u32 {
        // Whatever is still in flight on this memory, the stream runs after it.
        let fences = if over {
            FenceSet::default()
        } else {
            FenceSet::of(self.fences.stamp(request.stream))
        };
        self.leave_holes(claims.givers);
        let mut base = claims.parts[0].0;
        let bytes = plan.places.len() as u64 * self.pages.page_bytes();
        *self.backed(base) += bytes;
        for (part, _) in &claims.parts[1..] {
            self.absorb_fresh(base, *part);
        }
        self.block(base).set_fences(&fences);
        // The rest of the first and of the last page, if those were holes.
        let window = &plan.window;
        let address = self.block(base).address();
        if address < window.start
            && let Some(upper) = self.split(base, window.start - address)
        {
            self.settle(base, State::Free);
            base = upper;
        }
        if window.end < self.block(base).end()
            && let Some(rest) = self.split(base, window.end - self.block(base).address())
        {
            self.settle(rest, State::Free);
        }
        base
    }

    /// Files claimed extents, which together were whole pages, as the holes that they have become.
    fn leave_holes(&mut self, mut pieces: Vec<u32>) {
        pieces.sort_unstable_by_key(|&index| self.block(index).address());
        let mut pieces = pieces.into_iter().peekable();
        while let Some(hole) = pieces.next() {
            while let Some(next) = pieces.next_if(|&next| self.links[hole as usize].next == next) {
                self.absorb_fresh(hole, next);
            }
            let bytes = self.block(hole).size();
            *self.backed(hole) -= bytes;
            self.block(hole).set_fences(&FenceSet::default());
            self.settle(hole, State::Hole);
        }
    }

    /// The bytes with memory behind them in an extent's region.
    pub(super) fn backed(&mut self, index: u32) -> &mut u64 {
        &mut self.regions[usize::from(self.links[index as usize].region)].backed
    }
}
