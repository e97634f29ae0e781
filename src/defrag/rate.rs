//! How fast a device copies: an assumption, put right by what is seen without waiting.
//!
//! A gap's copies lie between two events of their stream. Nobody waits for either; whenever they are
//! asked about it is known of each whether it was over by then. That bounds how long the copies took,
//! from both sides, and the assumption is kept within the bounds. What is seen late bounds little, and
//! then the assumption stays.

use std::time::Duration;

/// Bytes a second where nothing else is known: less than half of what an A100 copies within its memory.
pub const ASSUMED: u64 = 500_000_000_000;

/// What was seen of an event: when it was last not done, and when it first was, since some moment.
#[derive(Clone, Copy, Debug, Default)]
pub struct Seen {
    pub not_yet: Option<Duration>,
    pub done: Option<Duration>,
}

impl Seen {
    /// An answer about the event.
    pub fn note(&mut self, done: bool, at: Duration) {
        match done {
            true => _ = self.done.get_or_insert(at),
            false => self.not_yet = Some(at),
        }
    }
}

/// The bounds of the time between two events: at least, and at most.
fn between(first: Seen, last: Seen) -> (Duration, Option<Duration>) {
    let least = match (first.done, last.not_yet) {
        (Some(done), Some(not_yet)) => not_yet.saturating_sub(done),
        _ => Duration::ZERO,
    };
    let most = last.done.map(|done| done.saturating_sub(first.not_yet.unwrap_or_default()));
    (least, most)
}

/// Bytes a second, after copies of `bytes` between two events. At most doubled or halved by one gap: a
/// bound may be a coincidence.
pub fn learnt(rate: u64, bytes: u64, first: Seen, last: Seen) -> u64 {
    let (least, most) = between(first, last);
    let per_second = |time: Duration| (bytes as f64 / time.as_secs_f64().max(1e-9)) as u64;
    let mut learnt = rate;
    if let Some(most) = most {
        // It was at least as fast as that.
        learnt = learnt.max(per_second(most));
    }
    if least > Duration::ZERO {
        learnt = learnt.min(per_second(least));
    }
    learnt.clamp(rate / 2, rate.saturating_mul(2)).max(1)
}

/// How long copies of `bytes` take.
pub fn time(bytes: u64, rate: u64) -> Duration {
    Duration::from_secs_f64(bytes as f64 / rate.max(1) as f64)
}

/// Bytes that are copied in a time.
pub fn bytes(time: Duration, rate: u64) -> u64 {
    (time.as_secs_f64() * rate as f64) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn seen(not_yet: Option<u32>, done: Option<u32>) -> Seen {
        Seen { not_yet: not_yet.map(|ms| ms * MS), done: done.map(|ms| ms * MS) }
    }

    #[test]
    fn bounds_move_the_assumption_and_nothing_else_does() {
        let learnt = |first, last| learnt(1_000_000, 1000, first, last);
        // A thousand bytes at a million a second take a millisecond.
        assert_eq!(
            learnt(seen(None, None), seen(Some(9), None)),
            1_000_000,
            "nothing was seen done"
        );
        assert_eq!(learnt(seen(None, Some(50)), seen(Some(0), Some(50))), 1_000_000, "seen late");
        assert_eq!(learnt(seen(Some(3), Some(4)), seen(Some(3), Some(4))), 1_000_000);
        // It was done within 0.8 ms.
        let quick = Seen { done: Some(800 * MS / 1000), ..seen(None, None) };
        assert_eq!(learnt(quick, quick), 1_250_000);
        // It took longer than 1.5 ms: from done at 1 until not yet done at 2.5.
        let slow = Seen { not_yet: Some(2500 * MS / 1000), ..seen(None, Some(9)) };
        assert_eq!(learnt(seen(None, Some(1)), slow), 666_666);
        // At most by half, and twice.
        assert_eq!(learnt(seen(None, Some(1)), seen(Some(100), None)), 500_000);
        assert_eq!(learnt(seen(None, Some(0)), seen(None, Some(0))), 2_000_000);
    }

    #[test]
    fn the_first_answer_of_done_counts() {
        let mut seen = Seen::default();
        for (done, ms) in [(false, 1), (false, 2), (true, 3), (true, 4)] {
            seen.note(done, ms * MS);
        }
        assert_eq!((seen.not_yet, seen.done), (Some(2 * MS), Some(3 * MS)));
    }

    #[test]
    fn time_and_bytes_agree() {
        assert_eq!(bytes(time(1 << 30, ASSUMED), ASSUMED) >> 20, 1 << 10);
        assert_eq!(time(1, 0), Duration::from_secs(1));
    }
}
