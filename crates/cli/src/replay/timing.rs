//! Times of single calls.

use serde::Serialize;
use std::hint::black_box;
use std::time::{Duration, Instant};

/// The times of one kind of call, in nanoseconds, with what reading the clock costs in them.
#[derive(Clone, Debug, Default)]
pub(super) struct Samples(Vec<u32>);

impl Samples {
    /// Room for `calls` samples, touched already: noting one allocates nothing.
    pub fn with_capacity(calls: usize) -> Self {
        let mut samples = vec![u32::MAX; calls];
        samples.clear();
        Self(samples)
    }

    #[inline]
    pub fn note(&mut self, time: Duration) {
        self.0.push(u32::try_from(time.as_nanos()).unwrap_or(u32::MAX));
    }

    pub fn join(&mut self, mut other: Self) {
        self.0.append(&mut other.0);
    }

    /// The distribution, less what an empty measurement shows; `None` without a sample.
    pub fn distribution(mut self, empty_ns: u32) -> Option<Distribution> {
        let samples = &mut self.0;
        samples.sort_unstable();
        let (count, max) = (samples.len(), *samples.last()?);
        let less = |ns: u32| ns.saturating_sub(empty_ns);
        let sum: u64 = samples.iter().map(|&ns| u64::from(less(ns))).sum();
        // Nearest rank.
        let quantile = |percent: usize| less(samples[(count * percent).div_ceil(100).max(1) - 1]);
        Some(Distribution {
            mean: sum as f64 / count as f64,
            p50: quantile(50),
            p99: quantile(99),
            max: less(max),
        })
    }
}

/// Times of calls in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct Distribution {
    pub mean: f64,
    pub p50: u32,
    pub p99: u32,
    pub max: u32,
}

/// What measuring nothing shows: the median of many tries.
pub(super) fn empty_ns() -> u32 {
    const TRIES: usize = 10_001;
    let mut tries: Vec<u32> = (0..TRIES)
        .map(|_| {
            let start = Instant::now();
            black_box(());
            start.elapsed().subsec_nanos()
        })
        .collect();
    *tries.select_nth_unstable(TRIES / 2).1
}

/// The median; the mean of the two in the middle where their number is even.
pub(super) fn median(values: &mut [f64]) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let upper = values.len() / 2;
    match values.len() {
        0 => None,
        odd if odd % 2 == 1 => Some(values[upper]),
        _ => Some((values[upper - 1] + values[upper]) / 2.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distributes() {
        let mut samples = Samples::with_capacity(100);
        (1..=100).rev().for_each(|ns| samples.note(Duration::from_nanos(ns)));
        let distribution = samples.clone().distribution(10).unwrap();
        // 0 ten times, then 1 to 90.
        assert_eq!(distribution, Distribution { mean: 40.95, p50: 40, p99: 89, max: 90 });
        samples.join(Samples(vec![u32::MAX]));
        assert_eq!(samples.distribution(0).unwrap().max, u32::MAX);
        assert_eq!(Samples::default().distribution(0), None);
    }

    #[test]
    fn medians() {
        assert_eq!(median(&mut []), None);
        assert_eq!(median(&mut [3.0]), Some(3.0));
        assert_eq!(median(&mut [4.0, 1.0]), Some(2.5));
        assert_eq!(median(&mut [9.0, 1.0, 2.0]), Some(2.0));
    }
}
