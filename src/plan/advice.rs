//! Which way of managing memory suits a program, and why.
//!
//! In this order, each rule by the constants below:
//!
//! 1. Too little was recorded: the default, which suits everything.
//! 2. A cache by exact size hits nearly always and would hold little more than is live.
//! 3. Requests recur from step to step: a plan.
//! 4. Most requests lie within one octave, and a cache that rounds sizes up holds little.
//! 5. The default.

use super::profile::Profile;
use std::fmt::Write as _;

/// Requests from which figures say something.
const ENOUGH: u64 = 100;
/// A cache hits often enough.
const HITS: f64 = 0.9;
/// What it holds is little: so many times the live peak.
const HELD: f64 = 1.03;
/// Enough of the bytes of a step recur that a plan serves it.
const RECURS: f64 = 0.9;
/// Enough of the requests lie within an octave.
const BAND: f64 = 0.8;
/// A cache that rounds sizes up may hold more, since it saves work.
const BUCKETS_HELD: f64 = 1.1;

/// A way of managing memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize), serde(rename_all = "kebab-case"))]
#[non_exhaustive]
pub enum Recommendation {
    /// The pool as it is: freed memory is cut, merged and moved.
    #[default]
    Pool,
    /// Freed blocks are kept for requests of exactly their size.
    ExactReuse,
    /// Freed blocks are kept for requests of about their size.
    BucketedReuse,
    /// What recurs has its place in advance.
    Plan,
}

impl Recommendation {
    /// Its name, in words.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Pool => "pool",
            Self::ExactReuse => "exact-reuse",
            Self::BucketedReuse => "bucketed-reuse",
            Self::Plan => "plan",
        }
    }
}

/// What suits a program, and why.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Advice {
    /// Which way.
    pub recommendation: Recommendation,
    /// The figures that speak for it.
    pub reason: String,
}

impl Advice {
    /// By a profile's figures; its own advice is not read.
    pub(super) fn on(profile: &Profile) -> Self {
        let peak = profile.peak_live_bytes.max(1) as f64;
        let held = |bytes: u64| bytes as f64 / peak;
        let exact = profile.exact_reuse;
        let buckets = profile.bucketed_reuse.all;
        let band = profile.most_requests;
        let recurring = profile.recurrence.unwrap_or_default();
        let percent = |share: f64| (share * 1000.0).round() / 10.0;
        let cache = format!(
            "reuse by exact size would hit {} % and hold {:.2} times the live peak",
            percent(exact.hit_rate),
            held(exact.held_bytes)
        );
        let (recommendation, reason) = if profile.requests < ENOUGH {
            let reason = format!("only {} requests were recorded", profile.requests);
            (Recommendation::Pool, reason)
        } else if exact.hit_rate >= HITS && held(exact.held_bytes) <= HELD {
            (Recommendation::ExactReuse, cache)
        } else if recurring.bytes >= RECURS {
            let reason = format!(
                "{} % of requests and {} % of bytes recur from step to step; {cache}",
                percent(recurring.requests),
                percent(recurring.bytes)
            );
            (Recommendation::Plan, reason)
        } else {
            let mut reason = format!(
                "{} % of requests lie within one octave; reuse of sizes rounded up would hit {} % and \
                 hold {:.2} times the live peak",
                percent(band.share),
                percent(buckets.hit_rate),
                held(buckets.held_bytes)
            );
            let fits = buckets.hit_rate >= HITS && held(buckets.held_bytes) <= BUCKETS_HELD;
            if band.share >= BAND && fits {
                (Recommendation::BucketedReuse, reason)
            } else {
                match profile.recurrence {
                    Some(share) => {
                        let bytes = percent(share.bytes);
                        let _ = write!(reason, "; {bytes} % of bytes recur; {cache}");
                    }
                    None => {
                        let _ = write!(reason, "; there are no two steps to compare; {cache}");
                    }
                }
                (Recommendation::Pool, reason)
            }
        };
        Self { recommendation, reason }
    }
}

#[cfg(test)]
mod tests {
    use super::super::recording::{Event, Recording};
    use super::*;

    const MIB: u64 = 1 << 20;

    /// Steps in which each block is freed by what `last` says: after so many further requests.
    fn advice(steps: u64, per_step: u64, size: impl Fn(u64, u64) -> u64, last: u64) -> Advice {
        let mut events = Vec::new();
        let mut block = 0;
        for step in 0..steps {
            events.push(Event::Step);
            for n in 0..per_step {
                events.push(Event::Alloc { block, stream: 0, bytes: size(step, n) });
                if let Some(old) = block.checked_sub(last) {
                    events.push(Event::Free { block: old });
                }
                block += 1;
            }
        }
        Profile::of(&Recording::from_iter(events)).advice
    }

    #[test]
    fn each_kind_of_program_gets_its_way() {
        let of = |advice: Advice| (advice.recommendation, advice.reason);
        // Always the same size: a cache by exact size.
        let (way, why) = of(advice(10, 50, |_, _| MIB, 8));
        assert_eq!(way, Recommendation::ExactReuse, "{why}");
        assert!(why.contains("would hit 98.2 %"), "{why}");
        // The same sizes each step, each once in it: a plan.
        let (way, why) = of(advice(10, 50, |_, n| MIB * (1 + n), 8));
        assert_eq!(way, Recommendation::Plan, "{why}");
        assert!(why.starts_with("100 % of requests and 100 % of bytes recur"), "{why}");
        // Sizes that never come twice, close together.
        let near = |step: u64, n: u64| 11 * MIB - 512 * ((step * 50 + n) * 37 % 1000);
        let (way, why) = of(advice(10, 50, near, 8));
        assert_eq!(way, Recommendation::BucketedReuse, "{why}");
        assert!(why.starts_with("100 % of requests lie within one octave"), "{why}");
        // And far apart.
        let far = |step: u64, n: u64| 512 << ((step * 31 + n * 7) * (step + n) % 17);
        let (way, why) = of(advice(10, 50, far, 8));
        assert_eq!(way, Recommendation::Pool, "{why}");
        let (way, why) = of(advice(1, 50, |_, _| MIB, 8));
        assert_eq!((way, why.as_str()), (Recommendation::Pool, "only 50 requests were recorded"));
    }
}
