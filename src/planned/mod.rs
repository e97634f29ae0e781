//! A plan at work: requests that recur have their places in advance.
//!
//! Each device goes from recording to planning and back:
//!
//! ```text
//!               steps recorded, and they recur                 a request came
//! Recording ─────────────────────────────────► Planned, bare ──────────────► Planned, with a range
//!     ▲                                              ▲                               │
//!     │ after a while   they do not recur            │ a plan in hand                │ too few were served
//!     └───────────────── Resting ◄───── Recording    │                               ▼
//!                                                  start     Recording, where shapes are others; else Resting
//! ```
//!
//! What recurs is known by its place in the step: the stream, and how many requests above 128 KiB of that stream
//! came before in the step. A request is served from the plan only if it has the planned size, and the
//! plan's bytes for it are nobody's (`range.rs`). So a program that does something else, or in another
//! order, gets memory as always. Small requests are counted by nobody, and go the pool's short ways.
//!
//! A planned allocation takes the plan's lock; its free is lock-free. Lock order: a pool's anchor, a plan,
//! the arena.

mod range;

use crate::block::{Descriptor, Hint, StreamId};
use crate::config::Reuse;
use crate::core::{Device, Enter, Grant};
use crate::driver::DeviceId;
use crate::fence::Fences;
use crate::heap::Arena;
use crate::plan::{self, DevicePlan, Plan, Terms};
use crate::recorder::{Profiling, Recorder};
use crate::sync::{AtomicBool, AtomicU64, Mutex, Ordering, lock};
use crate::table::Table;
use range::Range;
use std::collections::HashMap;

/// Comparisons that a search for places may take: some tens of milliseconds.
const BUDGET: u64 = 10_000_000;
/// A search that came so close to the least is over.
const SLACK: f64 = 0.002;
/// The share of a step's bytes above 128 KiB that must recur for it to be planned: at first, since a program's
/// first step makes what later ones keep, and once patience is over.
const RECURS: [f64; 2] = [1.0, 0.9];
/// The share of a plan's requests that must be served from it for it to stay.
const SERVED: f64 = 0.9;
/// As many requests that are not as planned as this share of the plan's end it within a step.
const STRANGE: f64 = 0.25;
/// So many requests that are not as planned say nothing.
const FEW: usize = 4;
/// Steps, the present one among them, that a range is away for, having made room for something else.
const AWAY: u64 = 2;
/// Further steps that are recorded in the hope that they recur; and steps that a plan in hand may serve badly
/// before one that it serves well, since a program's first are others.
const PATIENCE: u64 = 4;
/// Steps without recording after steps that did not recur.
const REST: u64 = 16;

/// How a pool plans: see [`crate::Builder::planned`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Planning {
    /// Steps of which a plan is made: at least 2 (fewer count as 2), since it takes two to see what recurs.
    /// Where they do not recur, further ones are awaited.
    pub steps: u64,
    /// The plan to begin with, of this pool or of a program like it ([`crate::plan::Plan::load`]); without one
    /// the pool records what it is asked for. It may serve the first few steps badly, which set a program up,
    /// before it is given up. Devices that the pool does not have are passed over.
    pub plan: Option<Plan>,
}

impl Default for Planning {
    /// Two steps are recorded.
    fn default() -> Self {
        Self { steps: 2, plan: None }
    }
}

/// One device's planning.
pub struct Planner {
    device: DeviceId,
    /// Steps that a plan is made of.
    steps: u64,
    /// Large requests and their frees, while there is no plan.
    recorder: Recorder,
    /// Whether there is a plan.
    active: AtomicBool,
    /// By stream: the step in the upper half, and in the lower how many requests above 128 KiB it has made in it.
    positions: Table<AtomicU64>,
    state: Mutex<State>,
}

struct State {
    phase: Phase,
    /// Each stream's number among the device's.
    ranks: HashMap<StreamId, u32>,
    /// Ranges of plans that are over, and could not end: there were no descriptors.
    old: Vec<Range>,
    /// Requests above 128 KiB of this step that were not as planned.
    strange: usize,
}

enum Phase {
    /// Steps that have begun since recording began.
    Recording(u64),
    /// Steps to come until it is tried again.
    Resting(u64),
    Planned(Box<Active>),
    /// The pool has ended, or there was no memory for the plan.
    Over,
}

struct Active {
    plan: DevicePlan,
    /// The size of the block of each request, by stream and position.
    sizes: HashMap<(u32, u32), u64>,
    range: Option<Range>,
    /// Steps, the present one among them, in which there is to be no range.
    away: u64,
    /// Steps that may still go badly before the first that goes well.
    trial: u64,
    /// Whether a range has made room before, and whether a step was served since.
    left: bool,
    good: bool,
    /// Of the present step; nothing in the one in which the plan came.
    step: Option<Tally>,
    /// Whether what it has made idle has gone back.
    settled: bool,
}

/// How a step went.
#[derive(Clone, Copy, Default)]
struct Tally {
    /// Requests that were as planned.
    expected: usize,
    /// Those of them that were served from the plan.
    served: usize,
}

impl Active {
    fn new(plan: DevicePlan, trial: u64) -> Box<Self> {
        let requests = plan.requests().iter();
        let sizes = requests.map(|request| ((request.stream, request.position), request.bytes));
        Box::new(Self {
            sizes: sizes.collect(),
            plan,
            range: None,
            away: 0,
            trial,
            left: false,
            good: false,
            step: None,
            settled: false,
        })
    }

    /// Whether the present step looks like one of other shapes: twice as many requests were not as
    /// planned as were.
    fn is_strange(&self, strange: usize) -> bool {
        self.step.is_some_and(|tally| strange > 2 * tally.expected)
    }

    /// Whether the plan has a request of about this size at that place in the step.
    fn expects(&self, key: (u32, u32), bytes: u64) -> bool {
        self.sizes.get(&key) == Some(&crate::size::granted(bytes))
    }
}

impl Planner {
    pub fn new(device: DeviceId, planning: &Planning) -> Self {
        let plan = planning.plan.as_ref().and_then(|plan| plan.device(device));
        let recorder = Recorder::new(Profiling::default());
        let phase = match plan {
            Some(plan) => {
                recorder.stop();
                Phase::Planned(Active::new(plan.clone(), PATIENCE))
            }
            None => Phase::Recording(0),
        };
        Self {
            device,
            steps: planning.steps.max(2),
            recorder,
            active: AtomicBool::new(false),
            positions: Table::new(1 << 16),
            state: Mutex::new(State { phase, ranks: HashMap::new(), old: Vec::new(), strange: 0 }),
        }
    }

    /// A block was allocated.
    pub fn allocated(&self, hint: Hint, stream: StreamId, bytes: u64) {
        if self.recorder.is_on() && plan::counts(bytes) {
            self.recorder.allocated(hint, stream, bytes);
        }
    }

    /// A block is about to be free.
    pub fn freeing(&self, block: &Descriptor, hint: Hint) {
        if self.recorder.is_on() && plan::counts(block.size()) {
            self.recorder.freeing(hint);
        }
    }

    /// A block has another hint from now on.
    pub fn moved(&self, block: &Descriptor, from: Hint, to: Hint) {
        if plan::counts(block.size()) {
            self.recorder.moved(from, to);
        }
    }

    /// The plan, if there is one.
    pub fn plan(&self) -> Option<DevicePlan> {
        match &lock(&self.state).phase {
            Phase::Planned(active) => Some(active.plan.clone()),
            _ => None,
        }
    }

    /// The number of a stream's request in the step. Lock-free.
    fn position(&self, stream: StreamId, step: u64) -> Option<u32> {
        let place = self.positions.get_or_create(u32::from(stream.get()))?;
        // Relaxed, as all of it: requests of one stream come one after the other, by the caller's own order.
        let mut seen = place.load(Ordering::Relaxed);
        loop {
            let position = if seen >> 32 == step & u64::from(u32::MAX) { seen as u32 } else { 0 };
            let next = step << 32 | u64::from(position.wrapping_add(1));
            match place.compare_exchange(seen, next, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return Some(position),
                Err(found) => seen = found,
            }
        }
    }

    /// Serves a request from the plan. `None`: it is to be served as always.
    pub fn find<'c>(
        &self,
        device: &'c Device,
        fences: &Fences,
        reuse: Reuse,
        enter: Enter,
        request: Asked,
    ) -> Option<Grant<'c>> {
        // Relaxed: counting a step late is as bad as beginning late.
        if !plan::counts(request.bytes) || !self.active.load(Ordering::Relaxed) {
            return None;
        }
        let position = self.position(request.stream, request.step)?;
        let mut state = enter.lock(&self.state)?;
        let State { phase, ranks, old, strange } = &mut *state;
        let Phase::Planned(active) = phase else { return None };
        let rank = match ranks.get(&request.stream) {
            Some(&rank) => rank,
            None => {
                let rank = rank(fences, self.device, request.stream);
                *ranks.entry(request.stream).or_insert(rank)
            }
        };
        let key = (rank, position);
        if !active.expects(key, request.bytes) {
            *strange += 1;
            let most = active.plan.requests().len() as f64 * STRANGE;
            let over = *strange as f64 > most && active.is_strange(*strange);
            if over && (active.trial == 0 || active.away == 0) {
                // A step of other shapes: the range is memory like any other from now on.
                let mut arena = enter.lock(&device.arena)?;
                retire(&mut active.range, old, device, &mut arena);
                if active.trial > 0 {
                    active.away = 1;
                    return None;
                }
                *phase = Phase::Resting(1);
                self.active.store(false, Ordering::Relaxed);
            }
            return None;
        }
        if let Some(step) = &mut active.step {
            step.expected += 1;
        }
        if active.away > 0 {
            return None;
        }
        if active.range.is_none() {
            if *strange > FEW && active.is_strange(*strange) {
                // Perhaps a step of other shapes: no memory is taken for it.
                return None;
            }
            let mut arena = enter.lock(&device.arena)?;
            active.range = Range::new(&mut arena, fences, &active.plan, request.stream);
            drop(arena);
            if active.range.is_none() {
                self.active.store(false, Ordering::Relaxed);
                *phase = Phase::Over;
                return None;
            }
        }
        let range = active.range.as_mut()?;
        let grant = range.claim(device, fences, reuse, key, request.stream)?;
        if let Some(step) = &mut active.step {
            step.served += 1;
        }
        Some(grant)
    }

    /// Makes room for a request that the plan does not serve: the range is memory like any other, until
    /// some steps later, if what else is idle would not do. Says whether it is.
    pub fn make_room(&self, device: &Device, enter: Enter, bytes: u64) -> bool {
        // Relaxed: a range that comes now is of no use to a request that came before.
        if !self.active.load(Ordering::Relaxed) {
            return false;
        }
        let Some(mut state) = enter.lock(&self.state) else { return false };
        let Phase::Planned(active) = &mut state.phase else { return false };
        let (Some(range), Some(mut arena)) = (&active.range, enter.lock(&device.arena)) else {
            return false;
        };
        if arena.idle_large_bytes() >= bytes || !range.dissolve(device, &mut arena) {
            return false;
        }
        drop(arena);
        active.range = None;
        active.settled = false;
        if std::mem::take(&mut active.good) || !std::mem::replace(&mut active.left, true) {
            active.away = AWAY;
        } else {
            // Again, and no step was served since: this is no plan for this program.
            state.phase = Phase::Resting(1);
        }
        true
    }

    /// A step begins: plans what was recorded, or gives up a plan that serves too little.
    pub fn step(&self, device: &Device, fences: &Fences, step: u64) {
        let mut state = lock(&self.state);
        let State { phase, old, strange, .. } = &mut *state;
        *strange = 0;
        old.retain(|range| !range.dissolve(device, &mut lock(&device.arena)));
        match phase {
            Phase::Recording(begun) => {
                self.recorder.step(step);
                *begun += 1;
                // One more has begun than have ended.
                if *begun > self.steps {
                    let tired = *begun > self.steps + PATIENCE;
                    if let Some(plan) = self.make(fences, RECURS[usize::from(tired)]) {
                        self.recorder.stop();
                        *phase = Phase::Planned(Active::new(plan, 0));
                    } else if tired {
                        self.recorder.stop();
                        *phase = Phase::Resting(REST);
                    }
                }
            }
            Phase::Resting(left) => {
                *left -= 1;
                if *left == 0 {
                    *phase = self.record(step);
                }
            }
            Phase::Planned(active) => {
                let least = active.plan.requests().len() as f64 * SERVED;
                let enough = |count: usize| count as f64 >= least;
                let Tally { expected, served } = active.step.unwrap_or_default();
                if active.step.is_some() && enough(served) {
                    (active.good, active.trial) = (true, 0);
                }
                let away = active.away > 0;
                if active.step.is_some() && !enough(if away { expected } else { served }) {
                    retire(&mut active.range, old, device, &mut lock(&device.arena));
                    // Of other shapes there is another plan; of the same there is the same.
                    match (active.trial.checked_sub(1), enough(expected)) {
                        (Some(left), _) => active.trial = left,
                        (None, true) => *phase = Phase::Resting(REST),
                        (None, false) => *phase = self.record(step),
                    }
                } else if active.range.is_some() && !active.settled {
                    active.settled = true;
                    // What the plan has made idle goes back; what is still needed is taken again. A driver
                    // that takes nothing back leaves it idle.
                    let _ = lock(&device.arena).trim(0);
                }
            }
            Phase::Over => {}
        }
        let planned = match phase {
            Phase::Planned(active) => {
                active.away = active.away.saturating_sub(1);
                active.step = Some(Tally::default());
                true
            }
            _ => false,
        };
        self.active.store(planned, Ordering::Relaxed);
    }

    fn record(&self, step: u64) -> Phase {
        self.recorder.restart();
        self.recorder.step(step);
        Phase::Recording(1)
    }

    /// A plan of what was recorded, if it recurs.
    fn make(&self, fences: &Fences, recurs: f64) -> Option<DevicePlan> {
        let ids: Vec<u32> = streams(fences, self.device).collect();
        let rank = |id| ids.binary_search(&id).unwrap_or_else(|at| at) as u32;
        let recording = self.recorder.recording(rank);
        let terms = Terms { budget: BUDGET, slack: SLACK, recurs };
        DevicePlan::by(self.device, &recording, terms)
    }

    /// The pool has ended: gives back what nobody holds.
    pub fn end(&self, device: &Device) {
        let mut state = lock(&self.state);
        self.active.store(false, Ordering::Relaxed);
        self.recorder.stop();
        let State { phase, old, .. } = &mut *state;
        let mut arena = lock(&device.arena);
        if let Phase::Planned(active) = phase {
            retire(&mut active.range, old, device, &mut arena);
        }
        *phase = Phase::Over;
        old.retain(|range| !range.dissolve(device, &mut arena));
    }

    /// All idle memory is wanted: the range is memory like any other. Says whether there was any.
    pub fn trim(&self, device: &Device) -> bool {
        let mut state = lock(&self.state);
        let Phase::Planned(active) = &mut state.phase else { return false };
        let Some(range) = &active.range else { return false };
        let is_held = range.is_held(device);
        if !range.dissolve(device, &mut lock(&device.arena)) {
            return false;
        }
        active.range = None;
        // Where nobody holds a place, the next request that is as planned takes memory again.
        active.away = if is_held { AWAY } else { 0 };
        true
    }

    /// Checks the invariants of its ranges; panics with what is wrong.
    pub fn check(&self, device: &Device) {
        let state = lock(&self.state);
        let range = match &state.phase {
            Phase::Planned(active) => active.range.as_ref(),
            _ => None,
        };
        range.into_iter().chain(&state.old).for_each(|range| range.check(device));
    }

    /// Host memory held, in bytes.
    pub fn bytes(&self) -> u64 {
        let state = lock(&self.state);
        let mut ranges: usize = state.old.iter().map(Range::bookkeeping).sum();
        let mut bytes = 0;
        if let Phase::Planned(active) = &state.phase {
            let each = size_of::<plan::Planned>() + size_of::<((u32, u32), u64)>();
            bytes = active.plan.requests().len() * each;
            ranges += active.range.as_ref().map_or(0, Range::bookkeeping);
        }
        self.recorder.bytes() + self.positions.bytes() + (bytes + ranges) as u64
    }
}

/// Ends a range for good: now, or where it cannot be yet, once it can.
fn retire(range: &mut Option<Range>, old: &mut Vec<Range>, device: &Device, arena: &mut Arena) {
    old.extend(range.take().filter(|range| !range.dissolve(device, arena)));
}

/// What is asked for.
#[derive(Clone, Copy)]
pub struct Asked {
    pub stream: StreamId,
    pub bytes: u64,
    /// The step that it comes in.
    pub step: u64,
}

/// The ids of a device's streams, ascending, and so in the order in which they were made.
pub fn streams(fences: &Fences, device: DeviceId) -> impl Iterator<Item = u32> {
    fences.ids().filter(move |&id| fences.device(id) == device).map(|id| u32::from(id.get()))
}

fn rank(fences: &Fences, device: DeviceId, stream: StreamId) -> u32 {
    streams(fences, device).take_while(|&id| id < u32::from(stream.get())).count() as u32
}
