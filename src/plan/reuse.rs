//! What a cache of freed blocks would do for a program: hits, and what it would hold.
//!
//! Blocks go back to the stream that they were allocated on, are never cut or merged, and nothing is
//! given back: a miss takes new memory.

use super::recording::History;
use crate::size::QUANTUM;
use std::collections::HashMap;

/// Bytes from which a block is medium, and above which it is large.
const MEDIUM: u64 = 1 << 20;
const LARGE: u64 = 100 << 20;

/// What a cache of freed blocks would do.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct ReuseEstimate {
    /// Requests that a freed block of the same stream would serve, as a share of all.
    pub hit_rate: f64,
    /// All that it would take from the device.
    pub held_bytes: u64,
}

/// Reuse of sizes rounded up to eight steps an octave, together and by bucket.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct BucketReuse {
    /// All requests.
    pub all: ReuseEstimate,
    /// Below 1 MiB.
    pub small: ReuseEstimate,
    /// From 1 to 100 MiB.
    pub medium: ReuseEstimate,
    /// Above.
    pub large: ReuseEstimate,
}

#[derive(Clone, Copy, Default)]
struct Tally {
    requests: u64,
    hits: u64,
    held: u64,
}

impl Tally {
    fn count(&mut self, hit: bool, bytes: u64) {
        self.requests += 1;
        if hit {
            self.hits += 1;
        } else {
            self.held = self.held.saturating_add(bytes);
        }
    }

    fn estimate(self) -> ReuseEstimate {
        let hit_rate = self.hits as f64 / self.requests.max(1) as f64;
        ReuseEstimate { hit_rate, held_bytes: self.held }
    }
}

/// A block serves requests of exactly its size, in units of 512 bytes.
pub(super) fn exact(history: &History) -> ReuseEstimate {
    let mut idle: HashMap<(u32, u64), u64> = HashMap::new();
    let mut tally = Tally::default();
    in_order(history, |index, freed| {
        let request = &history.requests[index];
        let bytes = rounded(request.bytes);
        let count = idle.entry((request.stream, bytes)).or_default();
        if freed {
            *count += 1;
        } else {
            tally.count(*count > 0, bytes);
            *count = count.saturating_sub(1);
        }
    });
    tally.estimate()
}

/// Sizes are rounded up to one of eight steps an octave; a block serves requests of its step.
pub(super) fn bucketed(history: &History) -> BucketReuse {
    let mut idle: HashMap<(u32, u64), u64> = HashMap::new();
    let mut tallies = [Tally::default(); 3];
    in_order(history, |index, freed| {
        let request = &history.requests[index];
        let bytes = stepped(request.bytes);
        let count = idle.entry((request.stream, bytes)).or_default();
        if freed {
            *count += 1;
        } else {
            tallies[bucket(request.bytes)].count(*count > 0, bytes);
            *count = count.saturating_sub(1);
        }
    });
    let mut all = Tally::default();
    for tally in &tallies {
        all.requests += tally.requests;
        all.hits += tally.hits;
        all.held = all.held.saturating_add(tally.held);
    }
    let [small, medium, large] = tallies.map(Tally::estimate);
    BucketReuse { all: all.estimate(), small, medium, large }
}

/// The next of eight sizes an octave, of 512 bytes at least.
fn stepped(bytes: u64) -> u64 {
    let octave = 1_u64 << bytes.max(1).ilog2();
    bytes.checked_next_multiple_of((octave / 8).max(QUANTUM)).unwrap_or(u64::MAX)
}

fn rounded(bytes: u64) -> u64 {
    bytes.checked_next_multiple_of(QUANTUM).unwrap_or(u64::MAX)
}

fn bucket(bytes: u64) -> usize {
    usize::from(bytes >= MEDIUM) + usize::from(bytes > LARGE)
}

/// Calls `each` with every allocation and free (true) in order, by the request's index.
pub(super) fn in_order(history: &History, mut each: impl FnMut(usize, bool)) {
    let mut order: Vec<(u64, usize, bool)> = Vec::with_capacity(2 * history.requests.len());
    for (index, request) in history.requests.iter().enumerate() {
        order.push((request.operation, index, false));
        order.extend(request.freed.map(|freed| (freed.operation, index, true)));
    }
    order.sort_unstable();
    order.into_iter().for_each(|(_, index, freed)| each(index, freed));
}

#[cfg(test)]
mod tests {
    use super::super::recording::{Event, Recording};
    use super::*;

    /// Allocates (`stream`, `bytes`) or frees the n-th block.
    fn history(ops: &[Result<(u32, u64), u64>]) -> History {
        let mut block = 0;
        let events = ops.iter().map(|op| match *op {
            Ok((stream, bytes)) => {
                block += 1;
                Event::Alloc { block: block - 1, stream, bytes }
            }
            Err(block) => Event::Free { block },
        });
        Recording::from_iter(events).history()
    }

    #[test]
    fn exact_reuse_takes_the_same_size_of_the_same_stream() {
        let of = |ops: &[_]| exact(&history(ops));
        let hit = of(&[Ok((0, 1000)), Err(0), Ok((0, 1024)), Err(1), Ok((0, 513))]);
        assert_eq!((hit.hit_rate, hit.held_bytes), (2.0 / 3.0, 1024));
        let others = of(&[Ok((0, 1000)), Err(0), Ok((1, 1000)), Ok((0, 1025))]);
        assert_eq!((others.hit_rate, others.held_bytes), (0.0, 1024 + 1024 + 1536));
    }

    #[test]
    fn buckets_serve_what_is_as_large_or_a_little_smaller() {
        let large = 2 * LARGE;
        let ops = [
            Ok((0, 8 * MEDIUM)),
            Ok((0, large)),
            Err(0),
            Err(1),
            Ok((0, 8 * MEDIUM - 1)),
            Ok((0, large - 7 * MEDIUM)),
            Err(2),
            // A step below, a step above, and another stream.
            Ok((0, 7 * MEDIUM)),
            Ok((0, 9 * MEDIUM)),
            Ok((1, 8 * MEDIUM)),
            Ok((0, MEDIUM - 1)),
        ];
        let estimate = bucketed(&history(&ops));
        assert_eq!(estimate.all.hit_rate, 2.0 / 8.0);
        assert_eq!((estimate.small.hit_rate, estimate.small.held_bytes), (0.0, MEDIUM));
        assert_eq!((estimate.medium.hit_rate, estimate.medium.held_bytes), (0.2, 32 * MEDIUM));
        assert_eq!((estimate.large.hit_rate, estimate.large.held_bytes), (0.5, stepped(large)));
    }

    #[test]
    fn steps_are_eight_an_octave() {
        assert_eq!([1, 512, 513, 4096, 4097].map(stepped), [512, 512, 1024, 4096, 4608]);
        assert_eq!([8 * MEDIUM + 1, u64::MAX].map(stepped), [9 * MEDIUM, u64::MAX]);
    }
}
