//! A step gap: the movable blocks of a device, their ages, and one round of moves.

use super::compact::{self, Plan};
use super::rate::{self, Seen};
use super::trim::Trims;
use super::{Budget, Defragmentation, Moved, StepTiming};
use crate::block::{Fence, Hint, StreamId};
use crate::core::{Core, Device, Grant};
use crate::error::{Error, Result};
use crate::fence::Fences;
use crate::heap::{Arena, Denied, Relocated};
use crate::slot::{Place, Slot};
use crate::sync::{Arc, Mutex, lock};
use std::time::{Duration, Instant};

/// Idle pages that a gap may bring together: a mapping each.
const REJOINED: u64 = 256;

/// The movable blocks of a device.
#[derive(Default)]
pub struct Movables {
    mode: Defragmentation,
    timing: StepTiming,
    /// Those that came since the last gap. Those that are gone leave when they are half of it.
    newcomers: Mutex<Newcomers>,
    gaps: Mutex<Gaps>,
}

#[derive(Default)]
struct Newcomers {
    slots: Vec<(Arc<Slot>, Hint)>,
    /// How many there may be before those that are gone leave.
    room: usize,
}

/// A movable block that was there at the last gap.
struct Member {
    slot: Arc<Slot>,
    /// Only gaps move blocks, so this is where it is.
    hint: Hint,
    survived: u32,
}

/// What gaps know of each other.
#[derive(Default)]
struct Gaps {
    members: Vec<Member>,
    number: u64,
    /// The step of the last gap, and the bytes copied in it.
    step: u64,
    copied: u64,
    /// The most that was in use at once in the last whole step.
    peak: u64,
    clock: Clock,
    /// Bytes a second, once there is more than an assumption.
    rate: Option<u64>,
    copies: Option<Copies>,
    trims: Trims,
}

/// Steps get as long as that at once, however short the last one was.
const SHORT: Duration = Duration::from_millis(1);

/// How long steps take.
#[derive(Default)]
struct Clock {
    begun: Option<Instant>,
    step: Option<Duration>,
}

impl Clock {
    /// A step begins, so many after the last.
    fn tick(&mut self, steps: u64) {
        let now = Instant::now();
        if let Some(begun) = self.begun.replace(now) {
            let took = now.duration_since(begun) / u32::try_from(steps.max(1)).unwrap_or(u32::MAX);
            // A pause in the program is no longer step: a step counts as twice the last at most.
            self.step = Some(match self.step {
                Some(before) => (3 * before + took.min(SHORT.max(2 * before))) / 4,
                None => took,
            });
        }
    }
}

/// A gap's copies, to be asked about.
struct Copies {
    bytes: u64,
    /// When they were submitted.
    at: Instant,
    first: (Fence, Seen),
    last: (Fence, Seen),
}

impl Copies {
    /// Asks once about what is not known to be over.
    fn look(&mut self, fences: &Fences) {
        for (fence, seen) in [&mut self.first, &mut self.last] {
            if seen.done.is_none()
                && let Ok(done) = fences.poll(*fence)
            {
                seen.note(done, self.at.elapsed());
            }
        }
    }
}

impl Movables {
    pub fn new(mode: Defragmentation, timing: StepTiming) -> Self {
        Self { mode, timing, ..Self::default() }
    }

    /// Whether blocks may move.
    pub fn are_on(&self) -> bool {
        self.mode != Defragmentation::Off
    }

    /// A block that may be moved from now on. Takes a lock, for a moment.
    pub fn enroll(&self, slot: &Arc<Slot>, hint: Hint) {
        if !self.are_on() {
            return;
        }
        let mut newcomers = lock(&self.newcomers);
        if newcomers.slots.len() > newcomers.room {
            newcomers.slots.retain(|(slot, _)| !slot.is_gone());
            newcomers.room = 2 * newcomers.slots.len() + 64;
        }
        newcomers.slots.push((Arc::clone(slot), hint));
    }

    /// Host memory held, in bytes.
    pub fn bytes(&self) -> u64 {
        let newcomers = lock(&self.newcomers).slots.len() as u64;
        let members = lock(&self.gaps).members.len() as u64;
        // Each has a slot of its own, with two counts.
        let slot = (size_of::<Slot>() + 2 * size_of::<usize>()) as u64;
        newcomers * (slot + size_of::<(Arc<Slot>, Hint)>() as u64)
            + members * (slot + size_of::<Member>() as u64)
    }

    fn rate(&self, gaps: &Gaps) -> u64 {
        match self.timing {
            StepTiming::Given { bytes_per_second, .. } => bytes_per_second,
            StepTiming::Measured => gaps.rate.unwrap_or(rate::ASSUMED),
        }
    }

    /// Bytes that this gap may copy.
    fn budget(&self, gaps: &Gaps) -> u64 {
        let step = match self.timing {
            StepTiming::Given { step, .. } => Some(step),
            StepTiming::Measured => gaps.clock.step,
        };
        let budget = match self.mode {
            Defragmentation::Off => Budget::Bytes(0),
            Defragmentation::Compaction { budget } => budget,
            Defragmentation::Generational(ages) => Budget::Share(ages.share),
        };
        budget.bytes(gaps.copied, step, self.rate(gaps))
    }

    /// The blocks that this gap may move, by descriptor, with their numbers.
    fn candidates(&self, gaps: &Gaps) -> Vec<(u32, u32)> {
        let moves = |member: &Member| match self.mode {
            Defragmentation::Generational(ages) => ages.moves(gaps.number, member.survived),
            _ => true,
        };
        let free = gaps.members.iter().enumerate();
        let free = free.filter(|(_, member)| moves(member) && member.slot.is_idle());
        let mut all: Vec<_> = free.map(|(at, member)| (member.hint.index(), at as u32)).collect();
        all.sort_unstable();
        all
    }
}

impl Gaps {
    /// Another gap, in step `step` of the program.
    fn begin(&mut self, movables: &Movables, step: u64, device: &Device) {
        self.number += 1;
        // Where nobody says where steps begin, every gap is one's.
        if step == 0 || step != self.step || self.number == 1 {
            self.clock.tick(step.saturating_sub(self.step));
            (self.step, self.copied) = (step, 0);
            self.peak = device.gauge.end_of_step();
        }
        self.members.retain(|member| !member.slot.is_gone());
        self.members
            .iter_mut()
            .for_each(|member| member.survived = member.survived.saturating_add(1));
        let newcomers = std::mem::take(&mut lock(&movables.newcomers).slots);
        let fresh = newcomers.into_iter().filter(|(slot, _)| !slot.is_gone());
        self.members.extend(fresh.map(|(slot, hint)| Member { slot, hint, survived: 0 }));
    }

    /// What became known of the last gap's copies.
    fn learn(&mut self, rate: u64, fences: &Fences) {
        if let Some(mut copies) = self.copies.take() {
            copies.look(fences);
            let Copies { bytes, first, last, .. } = copies;
            self.rate = Some(rate::learnt(rate, bytes, first.1, last.1));
        }
    }
}

/// One round of moves.
#[derive(Default)]
struct Round {
    moved: Moved,
    /// The first and the last copy's fences.
    copies: Option<(Fence, Fence)>,
    /// Blocks whose owners let go while they were moved.
    orphans: Vec<Hint>,
    failed: Option<Denied>,
}

impl Round {
    fn carry_out(
        &mut self,
        gaps: &mut Gaps,
        device: &Device,
        arena: &mut Arena,
        plan: &Plan,
        on: StreamId,
        ground: &mut crate::heap::Ground,
    ) {
        for each in &plan.moves {
            let member = &mut gaps.members[each.block as usize];
            let Some(place) = member.slot.begin_move() else { continue };
            let (to, hint) = match arena.relocate(ground, place.hint, each.to, on) {
                Relocated::To(hint, ready) => {
                    // Nobody else frees it meanwhile.
                    device.moved(place.hint, hint);
                    member.hint = hint;
                    self.moved.blocks += 1;
                    self.moved.bytes += each.bytes;
                    let first = self.copies.map_or(ready, |copies| copies.0);
                    self.copies = Some((first, ready));
                    (Some(Place { hint, ready }), hint)
                }
                Relocated::Stays => (None, place.hint),
                Relocated::Failed(denied) => {
                    self.failed = Some(denied);
                    (None, place.hint)
                }
            };
            if member.slot.end_move(to) {
                self.orphans.push(hint);
            }
            if self.failed.is_some() {
                return;
            }
        }
    }
}

impl Core {
    /// One round of moves on a device, by copies on one of its streams; then idle memory goes back.
    pub fn step_gap(&self, device: &Device, on: StreamId) -> Result<Moved> {
        let movables = &device.movables;
        if !movables.are_on() {
            return Ok(Moved::default());
        }
        let gaps = &mut *lock(&movables.gaps);
        gaps.begin(movables, self.step(), device);
        let measured = movables.timing == StepTiming::Measured;
        if measured {
            gaps.learn(movables.rate(gaps), &self.fences);
        }
        let (budget, candidates) = (movables.budget(gaps), movables.candidates(gaps));
        let mut round = Round::default();
        let mut arena = lock(&device.arena);
        let mut before = None;
        let grounds = match candidates.is_empty() {
            true => Vec::new(),
            false => arena.grounds(on, &candidates),
        };
        for mut ground in grounds {
            let left = budget - round.moved.bytes;
            let plan = compact::plan(&ground.stretches, &ground.pieces, left);
            round.moved.left_blocks += plan.left.0;
            round.moved.left_bytes += plan.left.1;
            if measured && round.copies.is_none() && !plan.moves.is_empty() {
                // An event before the copies; where there is none now, nothing is learnt from them.
                let stamp = self.fences.stamp(on);
                before = matches!(self.fences.seal(stamp), Ok(true)).then_some(stamp);
            }
            round.carry_out(gaps, device, &mut arena, &plan, on, &mut ground);
            if round.failed.is_some() {
                break;
            }
        }
        if round.failed.is_none() {
            match arena.rejoin(on, REJOINED) {
                Ok(bytes) => round.moved.joined_bytes = bytes,
                Err(denied) => round.failed = Some(denied),
            }
        }
        let (needed, slack) = arena.needed(gaps.peak.max(device.gauge.peak_of_step()));
        if round.failed.is_none()
            && let Some(target) = gaps.trims.target(device.gauge.reserved(), needed, slack)
        {
            match arena.shrink_to(target) {
                Ok(returned) => round.moved.returned_bytes = returned,
                Err(error) => round.failed = Some(Denied::Driver(error)),
            }
            gaps.trims.done(round.moved.returned_bytes, device.gauge.reserved());
        }
        drop(arena);
        for hint in round.orphans {
            // Without the arena's lock, as any free.
            self.free(device, Grant { block: device.blocks.at(hint.index()), hint });
        }
        let Moved { blocks, bytes, .. } = round.moved;
        round.moved.time = rate::time(bytes, movables.rate(gaps));
        gaps.copied += bytes;
        device.gauge.count_moves(blocks, bytes, round.moved.time);
        // An event behind the copies at once: pins wait for it also when the stream captures later, or ends.
        if let Some((_, last)) = round.copies
            && matches!(self.fences.seal(last), Ok(true))
            && let Some(first) = before
        {
            let at = Instant::now();
            let seen = Seen::default();
            let mut copies = Copies { bytes, at, first: (first, seen), last: (last, seen) };
            copies.look(&self.fences);
            gaps.copies = Some(copies);
        }
        match round.failed {
            None => Ok(round.moved),
            Some(Denied::Driver(error)) => Err(error.into()),
            Some(_) => Err(Error::TooManyBlocks { device: device.id }),
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    /// A first step of no time at all is not every later one's measure.
    #[test]
    fn the_clock_gets_away_from_nothing() {
        let second = Duration::from_secs(1);
        let ago = |time| Instant::now().checked_sub(time);
        for first in [Duration::ZERO, Duration::from_nanos(3)] {
            let mut clock = Clock { begun: ago(second), step: Some(first) };
            let mut steps = 0;
            while clock.step < Some(second / 2) {
                clock.begun = ago(second);
                clock.tick(1);
                steps += 1;
                assert!(steps < 50, "after {steps} steps of a second each takes {:?}", clock.step);
            }
        }
        // A pause is no step.
        let mut clock = Clock { begun: ago(100 * second), step: Some(second) };
        clock.tick(1);
        assert!(clock.step < Some(2 * second), "{:?}", clock.step);
    }
}
