//! In which order a pipeline's stages run their forward and backward passes. Pure.
//!
//! A *stage* is a part of the model on one device; a device has one, or several with the interleaved
//! schedule. A step sends a number of microbatches forward through all stages and back again. Every
//! order made here is legal:
//!
//! ```text
//! forward(stage, m)   comes after forward(stage - 1, m)
//! backward(stage, m)  comes after forward(stage, m) and backward(stage + 1, m)
//! every stage runs both passes of every microbatch once
//! ```
//!
//! The order is one list over all stages. A thread that drives some of them runs their part of the
//! list from the front: whatever it waits for comes earlier in the list, so no set of threads can
//! wait in a circle.

use super::rng::Rng;
use serde::Serialize;
use std::collections::VecDeque;

/// How the passes of a step are ordered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(super) enum Schedule {
    /// One forward, one backward: after a warm-up each stage alternates
    #[serde(rename = "1f1b")]
    OneForwardOneBackward,
    /// The same with two stages on each device, device 0 following the last one
    #[serde(rename = "interleaved")]
    Interleaved,
    /// Any legal order, drawn from the seed
    #[serde(rename = "random")]
    Random,
}

impl Schedule {
    pub const ALL: [Self; 3] = [Self::OneForwardOneBackward, Self::Interleaved, Self::Random];

    /// As it is called on the command line and in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::OneForwardOneBackward => "1f1b",
            Self::Interleaved => "interleaved",
            Self::Random => "random",
        }
    }
}

/// Which way a microbatch goes through a stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pass {
    Forward,
    Backward,
}

/// One pass of one microbatch through one stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Op {
    /// Counted over all pipelines.
    pub stage: usize,
    pub microbatch: usize,
    pub pass: Pass,
}

/// The pipelines: how many, of how many stages, over how many devices.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    pub schedule: Schedule,
    pub devices: usize,
    /// Pipelines side by side on the same devices.
    pub pipelines: usize,
    /// Microbatches of a pipeline and step; a multiple of `devices`.
    pub microbatches: usize,
}

impl Shape {
    /// Pipelines enough that each of `threads` has a stage to drive.
    pub fn new(schedule: Schedule, devices: usize, threads: usize) -> Self {
        // Twice the depth, so that the steady state lasts as long as the warm-up; not below 4.
        let microbatches = (2 * devices).max(4);
        let shape = Self { schedule, devices, pipelines: 1, microbatches };
        Self { pipelines: threads.div_ceil(shape.depth()), ..shape }
    }

    /// Stages of one device in one pipeline.
    fn chunks(&self) -> usize {
        if self.schedule == Schedule::Interleaved { 2 } else { 1 }
    }

    /// Stages of one pipeline.
    pub fn depth(&self) -> usize {
        self.devices * self.chunks()
    }

    /// Stages of all pipelines.
    pub fn stages(&self) -> usize {
        self.pipelines * self.depth()
    }

    pub fn pipeline_of(&self, stage: usize) -> usize {
        stage / self.depth()
    }

    pub fn device_of(&self, stage: usize) -> usize {
        stage % self.depth() % self.devices
    }

    /// Whether a microbatch enters its pipeline here.
    pub fn is_first(&self, stage: usize) -> bool {
        stage.is_multiple_of(self.depth())
    }

    /// Whether a microbatch turns round here.
    pub fn is_last(&self, stage: usize) -> bool {
        (stage + 1).is_multiple_of(self.depth())
    }

    /// The passes of one step, in a legal order.
    pub fn order(&self, rng: &mut Rng) -> Vec<Op> {
        match self.schedule {
            Schedule::OneForwardOneBackward | Schedule::Interleaved => self.in_lockstep(),
            Schedule::Random => self.shuffled(rng),
        }
    }

    /// Every device runs a list of its own; all advance together, one pass at a time, each unless
    /// it has to wait.
    fn in_lockstep(&self) -> Vec<Op> {
        let mut lists: Vec<VecDeque<Op>> = (0..self.pipelines)
            .flat_map(|pipeline| (0..self.devices).map(move |device| (pipeline, device)))
            .map(|(pipeline, device)| self.device_list(pipeline, device))
            .collect();
        let mut done = Done::new(self);
        let mut order = Vec::with_capacity(2 * self.stages() * self.microbatches);
        loop {
            let heads = lists.iter().enumerate();
            let ready: Vec<usize> = heads
                .filter(|(_, list)| list.front().is_some_and(|&op| done.allows(self, op)))
                .map(|(at, _)| at)
                .collect();
            if ready.is_empty() {
                debug_assert!(lists.iter().all(VecDeque::is_empty), "a schedule got stuck");
                return order;
            }
            let batch: Vec<Op> = ready.iter().filter_map(|&at| lists[at].pop_front()).collect();
            batch.iter().for_each(|&op| done.add(op));
            order.extend(batch);
        }
    }

    /// The list of one device: some forward passes, then both in turn, then what is left. Virtual
    /// microbatches go through the device's stages in groups of as many as there are devices.
    fn device_list(&self, pipeline: usize, device: usize) -> VecDeque<Op> {
        let chunks = self.chunks();
        let total = self.microbatches * chunks;
        let behind = self.devices - 1 - device;
        let warm_up = match self.schedule {
            Schedule::Interleaved => 2 * behind + (chunks - 1) * self.devices,
            _ => behind,
        };
        let op = |nth: usize, pass: Pass| {
            let (group, within) = (nth / (self.devices * chunks), nth % (self.devices * chunks));
            let chunk = match pass {
                Pass::Forward => within / self.devices,
                Pass::Backward => chunks - 1 - within / self.devices,
            };
            Op {
                stage: pipeline * self.depth() + chunk * self.devices + device,
                microbatch: group * self.devices + within % self.devices,
                pass,
            }
        };
        let warm_up = warm_up.min(total);
        let mut list: VecDeque<Op> = (0..warm_up).map(|nth| op(nth, Pass::Forward)).collect();
        for nth in 0..total {
            if warm_up + nth < total {
                list.push_back(op(warm_up + nth, Pass::Forward));
            }
            list.push_back(op(nth, Pass::Backward));
        }
        list
    }

    /// Draws the next pass among all that may come next, while at most twice as many microbatches as
    /// stages are under way in a pipeline.
    fn shuffled(&self, rng: &mut Rng) -> Vec<Op> {
        let mut done = Done::new(self);
        let mut left: Vec<Op> = Vec::new();
        for stage in 0..self.stages() {
            for microbatch in 0..self.microbatches {
                left.push(Op { stage, microbatch, pass: Pass::Forward });
                left.push(Op { stage, microbatch, pass: Pass::Backward });
            }
        }
        let mut under_way = vec![0; self.pipelines];
        let mut order = Vec::with_capacity(left.len());
        while !left.is_empty() {
            let enters = |op: Op| op.pass == Pass::Forward && self.is_first(op.stage);
            let may = |op: Op| {
                let crowded = under_way[self.pipeline_of(op.stage)] >= 2 * self.depth();
                done.allows(self, op) && !(enters(op) && crowded)
            };
            let ready: Vec<usize> = (0..left.len()).filter(|&at| may(left[at])).collect();
            if ready.is_empty() {
                debug_assert!(false, "a schedule got stuck");
                return order;
            }
            let op = left.swap_remove(ready[rng.below(ready.len() as u64) as usize]);
            let count = &mut under_way[self.pipeline_of(op.stage)];
            if enters(op) {
                *count += 1;
            } else if op.pass == Pass::Backward && self.is_first(op.stage) {
                *count -= 1;
            }
            done.add(op);
            order.push(op);
        }
        order
    }
}

/// Which passes have been run.
struct Done {
    microbatches: usize,
    forward: Vec<bool>,
    backward: Vec<bool>,
}

impl Done {
    fn new(shape: &Shape) -> Self {
        let none = vec![false; shape.stages() * shape.microbatches];
        Self { microbatches: shape.microbatches, forward: none.clone(), backward: none }
    }

    fn at(&self, stage: usize, microbatch: usize) -> usize {
        stage * self.microbatches + microbatch
    }

    fn add(&mut self, op: Op) {
        let at = self.at(op.stage, op.microbatch);
        match op.pass {
            Pass::Forward => self.forward[at] = true,
            Pass::Backward => self.backward[at] = true,
        }
    }

    fn allows(&self, shape: &Shape, op: Op) -> bool {
        let at = |stage| self.at(stage, op.microbatch);
        match op.pass {
            Pass::Forward => shape.is_first(op.stage) || self.forward[at(op.stage - 1)],
            Pass::Backward => {
                self.forward[at(op.stage)]
                    && (shape.is_last(op.stage) || self.backward[at(op.stage + 1)])
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_order_is_complete_and_legal() {
        for schedule in Schedule::ALL {
            for devices in 1..=6 {
                for threads in [1, 3, 13] {
                    let shape = Shape::new(schedule, devices, threads);
                    let order = shape.order(&mut Rng::of(&[devices as u64, threads as u64]));
                    assert_eq!(order.len(), 2 * shape.stages() * shape.microbatches, "{shape:?}");
                    let mut done = Done::new(&shape);
                    for op in order {
                        assert!(done.allows(&shape, op), "{shape:?}: {op:?} too early");
                        done.add(op);
                    }
                    assert!(done.forward.iter().chain(&done.backward).all(|&done| done));
                }
            }
        }
    }

    #[test]
    fn one_forward_one_backward_keeps_few_microbatches() {
        let shape = Shape::new(Schedule::OneForwardOneBackward, 4, 4);
        let mut held = [0usize; 4];
        let mut most = [0usize; 4];
        for op in shape.order(&mut Rng::of(&[])) {
            match op.pass {
                Pass::Forward => held[op.stage] += 1,
                Pass::Backward => held[op.stage] -= 1,
            }
            most[op.stage] = most[op.stage].max(held[op.stage]);
        }
        assert_eq!(most, [4, 3, 2, 1], "a stage keeps as many as there are stages from it on");
    }

    #[test]
    fn random_orders_follow_the_seed() {
        let shape = Shape::new(Schedule::Random, 3, 3);
        let order = |seed| shape.order(&mut Rng::of(&[seed]));
        assert_eq!(order(1), order(1));
        assert_ne!(order(1), order(2));
    }

    #[test]
    fn every_thread_finds_a_stage() {
        for schedule in Schedule::ALL {
            for (devices, threads) in [(1, 8), (4, 1), (4, 9), (2, 5)] {
                assert!(Shape::new(schedule, devices, threads).stages() >= threads);
            }
        }
    }
}
