//! When a run has done enough, and how far it has come.

use crate::output;
use indicatif::ProgressBar;
use std::time::{Duration, Instant};

/// What a run is to reach.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Goal {
    Steps(u64),
    Time(Duration),
    /// Calls that the pool has answered.
    Operations(u64),
}

/// How far a run has come, for a person to see.
pub(super) struct Progress {
    goal: Goal,
    bar: ProgressBar,
    start: Instant,
}

impl Progress {
    pub fn new(goal: Goal) -> Self {
        let len = match goal {
            Goal::Steps(number) | Goal::Operations(number) => number,
            Goal::Time(time) => time.as_millis() as u64,
        };
        Self { goal, bar: output::progress(len, "stress"), start: Instant::now() }
    }

    /// Whether so much is enough.
    pub fn is_over(&self, steps: u64, operations: u64) -> bool {
        let (at, over) = match self.goal {
            Goal::Steps(goal) => (steps, steps >= goal),
            Goal::Operations(goal) => (operations, operations >= goal),
            Goal::Time(time) => {
                let elapsed = self.start.elapsed();
                (elapsed.min(time).as_millis() as u64, elapsed >= time)
            }
        };
        self.bar.set_position(at);
        over
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
