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

use super::arena::{Arena, Denied, LARGE, Request, SMALL};
use super::fit::Effort;
use super::gauge::Rung;
use super::pages::{Move, PageId};
use super::window::{Kind, Piece, Window, best_window};
use crate::block::{Fence, FenceSet, State, StreamId, Word};
use crate::driver::DriverResult;
use crate::fence::Asked;
use std::ops::Range;

/// What a walk over all extents saw.
#[derive(Default)]
pub(super) struct Survey {
    /// Idle extents and holes in address order, the small region's first.
    pieces: Vec<Piece>,
    /// Where the large region's begin.
    large: usize,
    /// Granted bytes of live blocks.
    live: u64,
    /// Idle bytes that wait for other streams.
    pending: u64,
}

impl Survey {
    fn of_region(&self, region: u8) -> Range<usize> {
        if region == SMALL { 0..self.large } else { self.large..self.pieces.len() }
    }

    /// Takes the page at `address` out of a hole. Returns how many pieces there are more.
    fn close(&mut self, at: usize, address: u64, page: u64) -> usize {
        let hole = self.pieces[at];
        let end = address + page;
        let parts = [
            Piece { bytes: address - hole.address, ..hole },
            Piece { address, bytes: page, kind: Kind::Pending, ..hole },
            Piece { address: end, bytes: hole.end() - end, ..hole },
        ];
        let before = self.pieces.len();
        self.pieces.splice(at..=at, parts.into_iter().filter(|part| part.bytes > 0));
        self.pieces.len() - before
    }

    /// The piece that an address lies in.
    fn at(&self, address: u64) -> Option<usize> {
        let next = self.pieces.partition_point(|piece| piece.address <= address);
        let at = next.checked_sub(1)?;
        (address < self.pieces[at].end()).then_some(at)
    }
}

/// A page to be taken from behind an idle extent.
#[derive(Clone, Copy)]
struct Taking {
    /// Its place.
    from: usize,
    /// Where it is mapped already, if that is why it was chosen.
    to: Option<usize>,
}

/// How a request is to be served.
struct Plan {
    window: Window,
    /// Places in the window that need a page, ascending, and the spare page with a mapping there.
    places: Vec<(usize, Option<PageId>)>,
    /// Pages to take, by piece.
    takings: Vec<(usize, Taking)>,
    /// Further spare pages to use.
    spare: u64,
    /// Pages to take from the driver.
    fresh: u64,
}

/// What a plan has claimed so far.
#[derive(Default)]
struct Claims {
    /// The window's extents, by address, and whether they were holes.
    parts: Vec<(u32, bool)>,
    /// What the window leaves of its first and last piece, and whether that is a hole.
    rests: Vec<(usize, u32, bool)>,
    /// Extents that are to become holes: whole pages.
    givers: Vec<u32>,
}

impl Arena {
    /// Looks at every extent: what is idle and usable for `stream` with this effort.
    fn survey(&mut self, request: Request, effort: Effort, asked: &mut Asked) -> Survey {
        let mut survey = std::mem::take(&mut self.scratch);
        survey.pieces.clear();
        survey.live = 0;
        survey.pending = 0;
        for region in [SMALL, LARGE] {
            if region == LARGE {
                survey.large = survey.pieces.len();
            }
            let mut index = self.regions[usize::from(region)].first;
            while index != 0 {
                let block = self.block(index);
                // The word before the fences: the claim is for what was looked at, or fails.
                let seen = block.word();
                let (address, bytes) = (block.address(), block.size());
                let kind = match seen.state() {
                    State::Hole => Some(Kind::Hole),
                    State::Cached if effort == Effort::Uncached => Some(Kind::Pending),
                    State::Free | State::Cached => {
                        let usable = self.usable(index, request.stream, effort, asked);
                        survey.pending += if usable { 0 } else { bytes };
                        Some(if usable { Kind::Usable } else { Kind::Pending })
                    }
                    State::Live | State::Claimed => {
                        survey.live += bytes;
                        None
                    }
                    State::Spare => None,
                };
                if let Some(kind) = kind {
                    survey.pieces.push(Piece { index, seen, address, bytes, kind });
                }
                index = self.links[index as usize].next;
            }
        }
        survey
    }

    /// Serves a request from a window, creating pages up to `bound` bytes in all before others are
    /// taken from idle extents. `None` when there is no way.
    pub(super) fn stitch(
        &mut self,
        region: u8,
        request: Request,
        effort: Effort,
        bound: Bound,
    ) -> Result<Option<(u32, Word)>, Denied> {
        let mut asked = Asked::default();
        loop {
            let mut survey = self.survey(request, effort, &mut asked);
            let plan = self.plan(&mut survey, region, request, effort, bound, &mut asked);
            let taken = match &plan {
                Some(plan) => self.carry_out(&survey, plan, request, effort, &mut asked),
                None => Ok(None),
            };
            self.scratch = survey;
            // A claim lost to a block's own stream, or a wait refused: look again at what is left.
            match taken {
                Ok(None) if plan.is_some() => {}
                done => return done,
            }
        }
    }

    /// Chooses the window and where its pages come from.
    fn plan(
        &mut self,
        survey: &mut Survey,
        region: u8,
        request: Request,
        effort: Effort,
        bound: Bound,
        asked: &mut Asked,
    ) -> Option<Plan> {
        let page = self.pages.page_bytes();
        let mut range = survey.of_region(region);
        let (window, places) = loop {
            let mut window = best_window(&survey.pieces[range.clone()], request.bytes, page)?;
            window.first += range.start;
            window.last += range.start;
            match self.places_of(survey, &window, effort, asked) {
                Ok(places) => break (window, places),
                Err((piece, place)) => {
                    let added = survey.close(piece, self.pages.address_of(place), page);
                    range.end += added;
                    if region == SMALL {
                        survey.large += added;
                    }
                }
            }
        };

        let mut plan = Plan { window, places: Vec::new(), takings: Vec::new(), spare: 0, fresh: 0 };
        let mut open = 0;
        // A page may have mappings at several of these places: it serves the first.
        let mut used: Vec<PageId> = Vec::new();
        for to in places {
            let mut known = None;
            let dormant = self.pages.dormant(to).filter(|(page, _)| !used.contains(page));
            used.extend(dormant.map(|(page, _)| page));
            match dormant {
                Some((page, None)) => known = Some(page),
                Some((_, Some(from))) => match self.giver(survey, &window, from) {
                    Some(piece) => plan.takings.push((piece, Taking { from, to: Some(to) })),
                    None => open += 1,
                },
                None => open += 1,
            }
            plan.places.push((to, known));
        }
        let known = plan.places.iter().filter(|place| place.1.is_some()).count() as u64;
        plan.spare = open.min(self.pages.spare() - known);
        open -= plan.spare;
        let peak = self.peak_live.max(survey.live + request.bytes);
        plan.fresh = open.min(self.pages.room(self.budget(region, peak, survey.pending)));
        open -= plan.fresh;
        if open > 0 {
            open = self.choose_givers(survey, &mut plan, open);
        }
        if open > 0 {
            plan.fresh += open;
            if bound == Bound::Budget || plan.fresh > self.pages.room(self.pages.limit()) {
                return None;
            }
        }
        plan.takings.sort_unstable_by_key(|&(piece, taking)| (piece, taking.from));
        Some(plan)
    }

    /// The places in a window that need a page; or a place that cannot get one yet, since work in
    /// flight may use an old mapping there, and its piece.
    fn places_of(
        &self,
        survey: &Survey,
        window: &Window,
        effort: Effort,
        asked: &mut Asked,
    ) -> Result<Vec<usize>, (usize, usize)> {
        let page = self.pages.page_bytes();
        let mut places = Vec::with_capacity(window.missing as usize);
        for at in window.first..=window.last {
            let piece = &survey.pieces[at];
            if piece.kind != Kind::Hole {
                continue;
            }
            let start = piece.address.max(window.start / page * page);
            let end = piece.end().min(window.end.next_multiple_of(page));
            for place in self.pages.place_of(start)..self.pages.place_of(end - 1) + 1 {
                if let Some(fence) = self.pages.in_the_way(place)
                    && !self.fences.completed(fence)
                    && (effort < Effort::Ask || !asked.ask(&self.fences, fence))
                {
                    return Err((at, place));
                }
                places.push(place);
            }
        }
        Ok(places)
    }

    /// The addresses of a usable piece that a window leaves alone.
    fn outside(survey: &Survey, window: &Window, at: usize) -> Range<u64> {
        let piece = &survey.pieces[at];
        match () {
            () if piece.kind != Kind::Usable => 0..0,
            () if !(window.first..=window.last).contains(&at) => piece.address..piece.end(),
            // A window in one piece needs no pages.
            () if window.first == window.last => 0..0,
            () if at == window.first => piece.address..window.start,
            () if at == window.last => window.end..piece.end(),
            () => 0..0,
        }
    }

    /// The piece from behind which the page at home at `place` can be taken, outside the window.
    fn giver(&self, survey: &Survey, window: &Window, place: usize) -> Option<usize> {
        let address = self.pages.address_of(place);
        let at = survey.at(address)?;
        let outside = Self::outside(survey, window, at);
        (outside.start <= address
            && address + self.pages.page_bytes() <= outside.end
            && !self.pages.is_pinned(place))
        .then_some(at)
    }

    /// Chooses `count` pages to take: from the smallest idle extents first, so that fragments
    /// come together, and from their upper ends. Returns how many there are too few.
    fn choose_givers(&self, survey: &Survey, plan: &mut Plan, count: u64) -> u64 {
        let page = self.pages.page_bytes();
        let whole = |at: usize| {
            let Range { start, end } = Self::outside(survey, &plan.window, at);
            start.next_multiple_of(page)..end / page * page
        };
        let mut givers: Vec<(u64, usize)> = (0..survey.pieces.len())
            .map(|at| (whole(at), at))
            .filter(|(whole, _)| whole.start < whole.end)
            .map(|(whole, at)| (whole.end - whole.start, at))
            .collect();
        givers.sort_unstable();
        // Some may have been chosen for the places where they are mapped.
        let mut chosen: Vec<usize> = plan.takings.iter().map(|(_, taking)| taking.from).collect();
        chosen.sort_unstable();
        let mut left = count;
        for (_, at) in givers {
            let whole = whole(at);
            let (first, end) = (self.pages.place_of(whole.start), self.pages.place_of(whole.end));
            for from in (first..end).rev() {
                if left == 0 {
                    break;
                }
                if chosen.binary_search(&from).is_err() && !self.pages.is_pinned(from) {
                    plan.takings.push((at, Taking { from, to: None }));
                    left -= 1;
                }
            }
        }
        left
    }

    /// Claims what a plan needs, moves the pages, and makes the block. `None` when something was
    /// claimed by others first, or cannot be waited for.
    fn carry_out(
        &mut self,
        survey: &Survey,
        plan: &Plan,
        request: Request,
        effort: Effort,
        asked: &mut Asked,
    ) -> Result<Option<(u32, Word)>, Denied> {
        let mut claims = Claims::default();
        let ready = self.claim_window(survey, &plan.window, &mut claims).and_then(|claimed| {
            Ok(claimed
                && self.claim_givers(survey, &plan.takings, &mut claims)?
                && (effort != Effort::Wait || self.wait_for_claims(&claims, request.stream, asked)))
        });
        match ready {
            Ok(true) => {}
            Ok(false) => {
                self.unwind(claims);
                return Ok(None);
            }
            Err(denied) => {
                self.unwind(claims);
                return Err(denied);
            }
        }
        let foreign = claims
            .parts
            .iter()
            .filter(|part| !part.1)
            .map(|part| part.0)
            .chain(claims.givers.iter().copied())
            .any(|index| self.is_foreign(index, request.stream));
        match self.move_pages(plan, &claims, request) {
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
                self.join(plan, claims, request).map(Some)
            }
            Err(error) => {
                self.unwind(claims);
                // Without new pages there may still be a way.
                if error.out_of_memory { Ok(None) } else { Err(Denied::Driver(error)) }
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
        if end < block.address() + block.size() {
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

    /// Claims the extents that give pages, and cuts these out.
    fn claim_givers(
        &mut self,
        survey: &Survey,
        mut takings: &[(usize, Taking)],
        claims: &mut Claims,
    ) -> Result<bool, Denied> {
        while let Some(&(at, _)) = takings.first() {
            let count = takings.iter().take_while(|taking| taking.0 == at).count();
            let (own, rest) = takings.split_at(count);
            takings = rest;
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
            let places: Vec<usize> = own.iter().map(|(_, taking)| taking.from).collect();
            let (pieces, complete) = self.cut_out(index, &places);
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

    /// Cuts the pages at `places`, ascending, out of a claimed extent, and files what is left.
    /// Returns the pieces cut out, claimed; false with them when descriptors ran out.
    pub(super) fn cut_out(&mut self, index: u32, mut places: &[usize]) -> (Vec<u32>, bool) {
        let mut pieces = Vec::new();
        let address = self.block(index).address();
        while let Some(&last) = places.last() {
            // The uppermost run of neighbouring pages.
            let mut count = 1;
            while count < places.len() && places[places.len() - 1 - count] + count == last {
                count += 1;
            }
            places = &places[..places.len() - count];
            let (start, end) =
                (self.pages.address_of(last + 1 - count), self.pages.address_of(last + 1));
            if end < address + self.block(index).size() {
                let Some(above) = self.split(index, end - address) else {
                    self.file(index, State::Free);
                    return (pieces, false);
                };
                self.file(above, State::Free);
            }
            if start == address {
                pieces.push(index);
                return (pieces, true);
            }
            let Some(run) = self.split(index, start - address) else {
                self.file(index, State::Free);
                return (pieces, false);
            };
            pieces.push(run);
        }
        self.file(index, State::Free);
        (pieces, true)
    }

    /// Makes `stream` wait for what is still done with claimed memory.
    fn wait_for_claims(&mut self, claims: &Claims, stream: StreamId, asked: &mut Asked) -> bool {
        let resident = claims.parts.iter().filter(|part| !part.1).map(|part| part.0);
        for index in resident.chain(claims.givers.iter().copied()) {
            if !self.wait_for(index, stream) {
                self.block(index).all_fences(|fence| {
                    asked.refuse(fence);
                    true
                });
                return false;
            }
        }
        true
    }

    /// Gives claimed extents back as they were.
    fn unwind(&mut self, claims: Claims) {
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
    fn move_pages(&mut self, plan: &Plan, claims: &Claims, request: Request) -> DriverResult<()> {
        // Pages at home nowhere: new ones, and spare ones.
        let mut loose = self.pages.create(plan.fresh)?;
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

        // Those of the givers, each lifted with a fence that covers its giver's.
        let stamp = self.fences.stamp(request.stream);
        let mut lifted: Vec<(usize, PageId)> = Vec::with_capacity(plan.takings.len());
        for &index in &claims.givers {
            let block = self.block(index);
            let (address, bytes) = (block.address(), block.size());
            let fence = if self.is_over(index) { Fence::NONE } else { stamp };
            let first = self.pages.place_of(address);
            for place in first..first + (bytes / self.pages.page_bytes()) as usize {
                lifted.push((place, self.pages.lift(place, fence)));
            }
        }
        let mut destined: Vec<(usize, usize)> =
            plan.takings.iter().filter_map(|(_, t)| t.to.map(|to| (t.from, to))).collect();
        destined.sort_unstable();
        for &(from, page) in &lifted {
            match destined.binary_search_by_key(&from, |pair| pair.0) {
                Ok(at) => moves.push(Move { place: destined[at].1, page }),
                Err(_) => loose.push(page),
            }
        }
        let mut served: Vec<usize> = moves.iter().map(|to| to.place).collect();
        served.sort_unstable();
        let open = plan.places.iter().map(|to| to.0);
        let open = open.filter(|place| served.binary_search(place).is_err());
        moves.extend(open.zip(loose).map(|(place, page)| Move { place, page }));
        moves.sort_unstable_by_key(|to| to.place);
        debug_assert_eq!(moves.len(), plan.places.len());

        self.pages.settle(&moves).inspect_err(|_| {
            for &(place, page) in &lifted {
                self.pages.put_back(place, page);
            }
            self.pages.give_spare(ours);
            // As many as were new go back; what the driver does not take stays spare.
            let _ = self.pages.release_spare(plan.fresh * self.pages.page_bytes());
        })
    }

    /// Whether all work that an extent waits for is known to be over.
    fn is_over(&self, index: u32) -> bool {
        self.block(index).all_fences(|fence| self.fences.completed(fence))
    }

    /// Makes one live block of the window, now that there is memory behind all of it.
    fn join(
        &mut self,
        plan: &Plan,
        claims: Claims,
        request: Request,
    ) -> Result<(u32, Word), Denied> {
        // Whatever is still in flight on this memory, the stream runs after it.
        let extents = claims.parts.iter().map(|part| part.0).chain(claims.givers.iter().copied());
        let over = extents.into_iter().all(|index| self.is_over(index));
        let fences = if over {
            FenceSet::default()
        } else {
            FenceSet::of(self.fences.stamp(request.stream))
        };
        for index in claims.givers {
            self.leave_hole(index);
        }
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
        let (address, size) = (self.block(base).address(), self.block(base).size());
        if window.end < address + size
            && let Some(rest) = self.split(base, window.end - address)
        {
            self.settle(rest, State::Free);
        }
        self.hand_out(base, request, None)
    }

    /// Files a claimed extent of whole pages as the hole that it has become.
    pub(super) fn leave_hole(&mut self, index: u32) {
        let bytes = self.block(index).size();
        *self.backed(index) -= bytes;
        self.block(index).set_fences(&FenceSet::default());
        self.settle(index, State::Hole);
    }

    /// The bytes with memory behind them in an extent's region.
    fn backed(&mut self, index: u32) -> &mut u64 {
        &mut self.regions[usize::from(self.links[index as usize].region)].backed
    }
}

/// How far new pages are preferred to taking others'.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Bound {
    /// As long as little is held beyond the peak of what was live.
    Budget,
    /// Up to the limit.
    Limit,
}
