//! What a program asks for, in figures.

use super::advice::Advice;
use super::recording::{History, Recording};
use super::reuse::{self, BucketReuse, ReuseEstimate};
use std::collections::BTreeMap;

/// Samples of the live bytes.
const SAMPLES: u64 = 512;

/// What one device's program asked for, in figures. All bytes are as asked for.
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Profile {
    /// Allocations.
    pub requests: u64,
    /// Their bytes.
    pub requested_bytes: u64,
    /// Allocations and frees.
    pub operations: u64,
    /// Steps that were marked.
    pub steps: u64,
    /// The most bytes that were live.
    pub peak_live_bytes: u64,
    /// Requests by size, the octaves that there are in ascending order.
    pub sizes: Vec<Octave>,
    /// The range of sizes an octave wide that holds the most requests.
    pub most_requests: Band,
    /// The one that holds the most bytes.
    pub most_bytes: Band,
    /// What a cache of blocks by exact size would do.
    pub exact_reuse: ReuseEstimate,
    /// What one would do that rounds sizes up.
    pub bucketed_reuse: BucketReuse,
    /// How much of a step's requests recur, over the second half of the steps; nothing where no step
    /// of it has one before it.
    pub recurrence: Option<Share>,
    /// The same step by step, from the second on.
    pub recurrence_by_step: Vec<Share>,
    /// How long blocks live.
    pub lifetimes: Lifetimes,
    /// Stream by stream.
    pub streams: Vec<StreamProfile>,
    /// Live bytes over time: the most in each of a few hundred parts of it.
    pub live: Vec<LiveSample>,
    /// Allocations and frees before each step.
    pub step_operations: Vec<u64>,
    /// What suits it.
    pub advice: Advice,
}

/// Requests and bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Octave {
    /// Sizes from this many bytes, a power of two, to less than twice as many.
    pub from_bytes: u64,
    /// How many requests.
    pub requests: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// Sizes from one up to less than twice as many bytes, and what they make of all.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Band {
    /// The least size.
    pub from_bytes: u64,
    /// The share of what is counted.
    pub share: f64,
}

/// Parts of a whole, in requests and in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Share {
    /// Of the requests.
    pub requests: f64,
    /// Of their bytes.
    pub bytes: f64,
}

/// How long blocks live.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Lifetimes {
    /// Freed in the step that they were allocated in.
    pub within_step: Count,
    /// Freed in the next step.
    pub next_step: Count,
    /// Freed later.
    pub longer: Count,
    /// Not freed.
    pub never: Count,
    /// Of those that were freed, allocations and frees between the two: half of the blocks lived for at
    /// most so many.
    pub operations_p50: u64,
    /// 99 in 100 of them.
    pub operations_p99: u64,
}

/// Blocks and their bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Count {
    /// How many.
    pub blocks: u64,
    /// Their bytes.
    pub bytes: u64,
}

impl Count {
    fn add(&mut self, bytes: u64) {
        self.blocks += 1;
        self.bytes = self.bytes.saturating_add(bytes);
    }
}

/// One stream's part.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct StreamProfile {
    /// Its number among the device's streams.
    pub stream: u32,
    /// Allocations on it.
    pub requests: u64,
    /// Their bytes.
    pub requested_bytes: u64,
    /// The most of its blocks' bytes that were live.
    pub peak_live_bytes: u64,
}

/// Live bytes at some time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct LiveSample {
    /// Allocations and frees before.
    pub operation: u64,
    /// The most bytes that were live from then to the next sample.
    pub bytes: u64,
}

impl Profile {
    /// Sums up what was recorded.
    #[must_use]
    pub fn of(recording: &Recording) -> Self {
        let history = recording.history();
        let recurrence_by_step: Vec<Matched> =
            (2..=history.steps()).map(|step| Matched::of(&history, step)).collect();
        let half = recurrence_by_step.len() - recurrence_by_step.len() / 2;
        let steady = recurrence_by_step.iter().rev().take(half.max(1));
        let steady = steady.copied().reduce(Matched::plus).map(Matched::share);
        let course = Course::of(&history);
        let bytes_of = |count: fn(u64) -> u64| band(&history, count);
        let mut profile = Self {
            requests: history.requests.len() as u64,
            requested_bytes: sum(history.requests.iter().map(|request| request.bytes)),
            operations: history.operations,
            steps: history.steps() as u64,
            peak_live_bytes: course.peak,
            sizes: octaves(&history),
            most_requests: bytes_of(|_| 1),
            most_bytes: bytes_of(|bytes| bytes),
            exact_reuse: reuse::exact(&history),
            bucketed_reuse: reuse::bucketed(&history),
            recurrence: steady,
            recurrence_by_step: recurrence_by_step.into_iter().map(Matched::share).collect(),
            lifetimes: lifetimes(&history),
            streams: course.streams,
            live: course.live,
            step_operations: step_operations(recording),
            advice: Advice::default(),
        };
        profile.advice = Advice::on(&profile);
        profile
    }
}

fn sum(bytes: impl Iterator<Item = u64>) -> u64 {
    bytes.fold(0, u64::saturating_add)
}

fn octaves(history: &History) -> Vec<Octave> {
    let mut octaves: BTreeMap<u64, Octave> = BTreeMap::new();
    for request in &history.requests {
        let from_bytes = 1 << request.bytes.max(1).ilog2();
        let octave = octaves.entry(from_bytes).or_default();
        octave.from_bytes = from_bytes;
        octave.requests += 1;
        octave.bytes = octave.bytes.saturating_add(request.bytes);
    }
    octaves.into_values().collect()
}

/// The range of sizes, an octave wide, that has the most of what `count` makes of each size.
fn band(history: &History, count: fn(u64) -> u64) -> Band {
    let mut sizes: BTreeMap<u64, u128> = BTreeMap::new();
    for request in &history.requests {
        *sizes.entry(request.bytes).or_default() += u128::from(count(request.bytes));
    }
    let all: u128 = sizes.values().sum();
    let sizes: Vec<(u64, u128)> = sizes.into_iter().collect();
    let (mut best, mut best_from) = (0, 0);
    let (mut inside, mut end) = (0, 0);
    for &(from, own) in &sizes {
        while let Some(&(bytes, counted)) = sizes.get(end)
            && u128::from(bytes) < 2 * u128::from(from)
        {
            inside += counted;
            end += 1;
        }
        // Sizes of 0 bytes have no octave.
        if inside > best {
            (best, best_from) = (inside, from);
        }
        inside -= own.min(inside);
    }
    Band { from_bytes: best_from, share: best as f64 / all.max(1) as f64 }
}

/// Requests of a step that the step before had at the same place with the same size.
#[derive(Clone, Copy)]
struct Matched {
    matched: (u64, u128),
    all: (u64, u128),
}

impl Matched {
    fn of(history: &History, step: usize) -> Self {
        let before = history.places(step - 1, |_| true);
        let mut found = Self { matched: (0, 0), all: (0, 0) };
        history.each_place(
            step,
            |_| true,
            |index, place| {
                let bytes = history.requests[index].bytes;
                let one = (1, u128::from(bytes));
                found.all = (found.all.0 + one.0, found.all.1 + one.1);
                if before.get(&place).is_some_and(|&twin| history.requests[twin].bytes == bytes) {
                    found.matched = (found.matched.0 + one.0, found.matched.1 + one.1);
                }
            },
        );
        found
    }

    fn plus(self, other: Self) -> Self {
        let add = |a: (u64, u128), b: (u64, u128)| (a.0 + b.0, a.1 + b.1);
        Self { matched: add(self.matched, other.matched), all: add(self.all, other.all) }
    }

    fn share(self) -> Share {
        Share {
            requests: self.matched.0 as f64 / self.all.0.max(1) as f64,
            bytes: self.matched.1 as f64 / self.all.1.max(1) as f64,
        }
    }
}

fn lifetimes(history: &History) -> Lifetimes {
    let mut lifetimes = Lifetimes::default();
    let mut lived = Vec::new();
    for request in &history.requests {
        let class = match request.freed {
            None => &mut lifetimes.never,
            Some(freed) => {
                lived.push(freed.operation - request.operation);
                match freed.step - request.step {
                    0 => &mut lifetimes.within_step,
                    1 => &mut lifetimes.next_step,
                    _ => &mut lifetimes.longer,
                }
            }
        };
        class.add(request.bytes);
    }
    lived.sort_unstable();
    // The smallest that so many in a hundred are not above.
    let percentile = |hundredths: usize| {
        let rank = (lived.len() * hundredths).div_ceil(100);
        rank.checked_sub(1).map_or(0, |at| lived[at])
    };
    lifetimes.operations_p50 = percentile(50);
    lifetimes.operations_p99 = percentile(99);
    lifetimes
}

/// Live bytes over time, of all streams and of each.
struct Course {
    peak: u64,
    live: Vec<LiveSample>,
    streams: Vec<StreamProfile>,
}

impl Course {
    fn of(history: &History) -> Self {
        let mut streams: BTreeMap<u32, (StreamProfile, u64)> = BTreeMap::new();
        let mut course = Self { peak: 0, live: Vec::new(), streams: Vec::new() };
        let stride = history.operations.div_ceil(SAMPLES).max(1);
        let (mut live, mut operation) = (0_u64, 0);
        reuse::in_order(history, |index, freed| {
            let request = &history.requests[index];
            let (profile, own) = streams.entry(request.stream).or_default();
            profile.stream = request.stream;
            if freed {
                live = live.saturating_sub(request.bytes);
                *own = own.saturating_sub(request.bytes);
            } else {
                live = live.saturating_add(request.bytes);
                *own = own.saturating_add(request.bytes);
                profile.requests += 1;
                profile.requested_bytes = profile.requested_bytes.saturating_add(request.bytes);
            }
            profile.peak_live_bytes = profile.peak_live_bytes.max(*own);
            course.peak = course.peak.max(live);
            match course.live.last_mut() {
                Some(sample) if operation % stride > 0 => sample.bytes = sample.bytes.max(live),
                _ => course.live.push(LiveSample { operation, bytes: live }),
            }
            operation += 1;
        });
        course.streams = streams.into_values().map(|(profile, _)| profile).collect();
        course
    }
}

fn step_operations(recording: &Recording) -> Vec<u64> {
    // As the history counts: without frees of what it does not know.
    let history = recording.history();
    let mut firsts: Vec<u64> = Vec::with_capacity(history.steps());
    for step in 1..=history.steps() {
        let next = history.requests.get(history.step(step).start);
        firsts.push(next.map_or(history.operations, |request| request.operation));
    }
    firsts
}

#[cfg(test)]
mod tests {
    use super::super::recording::Event;
    use super::*;

    const MIB: u64 = 1 << 20;

    /// Three steps of the same two streams; what is asked for last differs from step to step.
    fn recording() -> Recording {
        let mut events = vec![Event::Alloc { block: 1000, stream: 0, bytes: 10 * MIB }];
        for step in 0..4_u64 {
            let block = 10 * step;
            events.push(Event::Step);
            events.push(Event::Alloc { block, stream: 0, bytes: MIB });
            if step > 0 {
                events.push(Event::Free { block: block - 9 });
            }
            events.push(Event::Alloc { block: block + 1, stream: 1, bytes: 2 * MIB });
            events.push(Event::Free { block });
            events.push(Event::Alloc { block: block + 2, stream: 0, bytes: 512 * (step + 1) });
            events.push(Event::Free { block: block + 2 });
        }
        events.into_iter().collect()
    }

    #[test]
    fn figures_of_a_small_program() {
        let profile = Profile::of(&recording());
        assert_eq!((profile.requests, profile.operations, profile.steps), (13, 24, 4));
        assert_eq!(profile.peak_live_bytes, 13 * MIB);
        assert_eq!(profile.requested_bytes, 22 * MIB + 512 * 10);
        let sizes: Vec<_> = profile.sizes.iter().map(|o| (o.from_bytes, o.requests)).collect();
        assert_eq!(sizes, [(512, 1), (1024, 2), (2048, 1), (MIB, 4), (2 * MIB, 4), (8 * MIB, 1)]);
        // 1 MiB up to less than 2, or 2 up to less than 4: the first of equals.
        assert_eq!(profile.most_requests, Band { from_bytes: MIB, share: 4.0 / 13.0 });
        assert_eq!(profile.most_bytes.from_bytes, 10 * MIB);
        assert_eq!(profile.recurrence_by_step.len(), 3);
        assert_eq!(profile.recurrence.unwrap().requests, 2.0 / 3.0);
        let lifetimes = &profile.lifetimes;
        let blocks =
            [lifetimes.within_step, lifetimes.next_step, lifetimes.longer, lifetimes.never];
        assert_eq!(blocks.map(|count| count.blocks), [8, 3, 0, 2]);
        assert_eq!(lifetimes.never.bytes, 12 * MIB);
        assert_eq!((lifetimes.operations_p50, lifetimes.operations_p99), (3, 5));
        let streams: Vec<_> = profile.streams.iter().map(|s| (s.stream, s.requests)).collect();
        assert_eq!(streams, [(0, 9), (1, 4)]);
        assert_eq!(profile.streams[1].peak_live_bytes, 2 * MIB);
        assert_eq!(profile.step_operations, [1, 6, 12, 18]);
        assert_eq!(profile.live.iter().map(|s| s.bytes).max(), Some(13 * MIB));
    }

    #[test]
    fn samples_keep_the_peak() {
        let events = (0..10_000_u64).flat_map(|n| {
            let bytes = if n == 4321 { 1 << 40 } else { 512 };
            [Event::Alloc { block: n, stream: 0, bytes }, Event::Free { block: n }]
        });
        let profile = Profile::of(&events.collect());
        assert!(profile.live.len() as u64 <= SAMPLES);
        assert_eq!(profile.live.iter().map(|sample| sample.bytes).max(), Some(1 << 40));
    }

    #[test]
    fn hostile_figures_do_not_overflow() {
        let events = (0..5).map(|block| Event::Alloc { block, stream: u32::MAX, bytes: u64::MAX });
        let profile = Profile::of(&events.chain([Event::Step, Event::Step]).collect());
        assert_eq!(profile.peak_live_bytes, u64::MAX);
        assert_eq!(Profile::of(&Recording::default()).requests, 0);
    }
}
