//! Idle pages come together at a step gap: without copies, since nothing lies in them.
//!
//! A request that is stitched leaves holes where its pages were, and an island of pages that later requests
//! have to fit into. From step to step the large runs of idle memory would shrink. At a step gap most memory is
//! idle: the largest run grows over the holes and the idle memory beside it, by whole pages from the smallest
//! idle runs elsewhere.

use super::arena::{Arena, Denied, LARGE, Request};
use super::fit::Effort;
use super::plan::{Aim, Bound, Plan, Survey};
use super::window::widest_window;
use crate::block::{State, StreamId};
use crate::fence::Asked;

impl Arena {
    /// Brings idle pages together, at most `most` of them, where pages can be mapped anywhere: for work that
    /// `on` is given from now on. Asks nothing, and waits for nothing. Returns the bytes that moved.
    pub fn rejoin(&mut self, on: StreamId, most: u64) -> Result<u64, Denied> {
        if !self.settings.stitching || self.plain.is_some() {
            return Ok(0);
        }
        self.requester = Some(on);
        self.read_notes();
        let request = Request { stream: on, bytes: 0, requested: 0 };
        let mut survey = self.survey(request, Effort::Known, &mut Asked::default());
        let moved = match self.plan_rejoin(&mut survey, most) {
            Some(plan) => self.carry_out_rejoin(&survey, &plan, on),
            None => Ok(0),
        };
        self.scratch = survey;
        moved
    }

    fn plan_rejoin(&self, survey: &mut Survey, most: u64) -> Option<Plan> {
        let large = survey.of_region(LARGE);
        let page = self.pages.page_bytes();
        let mut window = widest_window(&survey.pieces[large.clone()], page, most)?;
        window.first += large.start;
        window.last += large.start;
        let runs = survey.idle_runs(Some(&window));
        // Where old mappings are in the way they are gone by another gap.
        let assigned = self.assign(survey, window, &runs, Effort::Known, &mut Asked::default());
        let (mut plan, open) = assigned.ok()?;
        let missing = self.choose_givers(runs, &mut plan, open);
        plan.takings.sort_unstable_by_key(|taking| taking.from);
        (missing == 0).then_some(plan)
    }

    fn carry_out_rejoin(
        &mut self,
        survey: &Survey,
        plan: &Plan,
        on: StreamId,
    ) -> Result<u64, Denied> {
        let bytes = plan.window.end - plan.window.start;
        let request = Request { stream: on, bytes, requested: bytes };
        let aim = Aim { region: LARGE, request, effort: Effort::Known, bound: Bound::Budget };
        let Some(claims) = self.claim_all(survey, plan, aim, &mut Asked::default())? else {
            return Ok(0);
        };
        let over = claims.resident().all(|index| self.is_over(index));
        match self.move_pages(plan, over, request) {
            Ok(()) => {
                let joined = self.unite(plan, claims, over, request);
                self.settle(joined, State::Free);
                Ok(plan.places.len() as u64 * self.pages.page_bytes())
            }
            Err(error) => {
                self.unwind(claims);
                // No memory for mappings: nothing has moved.
                if error.out_of_memory { Ok(0) } else { Err(Denied::Driver(error)) }
            }
        }
    }
}
