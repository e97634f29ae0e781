//! Runs a composition in many orders of its steps.

use millpond::Stats;
use shuttle::scheduler::{PctScheduler, RandomScheduler, Scheduler};
use shuttle::{Config, Runner};
use std::io::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

const RUNS: u64 = 300;
const SEED: u64 = 1;

fn number(variable: &str, default: u64) -> u64 {
    match std::env::var(variable) {
        Ok(text) => text.parse().unwrap_or_else(|_| panic!("{variable}={text} is no number")),
        Err(_) => default,
    }
}

/// The configuration of all runs: stacks that a pool under construction fits on.
pub fn config() -> Config {
    let mut config = Config::new();
    config.stack_size = 1 << 19;
    config.silence_warnings = true;
    config
}

/// Says how to repeat a failure, unless it is told that there was none.
struct Seeded<'a> {
    name: &'a str,
    scheduler: String,
    seed: u64,
    runs: u64,
}

impl Drop for Seeded<'_> {
    fn drop(&mut self) {
        let Self { name, scheduler, seed, runs } = self;
        let outcome = if std::thread::panicking() { "FAILED" } else { "passed" };
        // Not `println!`, which the test harness keeps to itself.
        let _ = writeln!(
            std::io::stdout(),
            "composition {name}, {scheduler}: {outcome}; MILLPOND_SHUTTLE_SEED={seed} MILLPOND_SHUTTLE_RUNS={runs}"
        );
    }
}

/// What a composition has to reach, over all its orders, to be worth its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Goal {
    ThreadHit,
    StreamHit,
    ShardHit,
    /// A block of another stream was had.
    CrossStream,
    /// Pages moved from behind idle blocks.
    Moved,
    /// A request was refused for want of memory.
    Refused,
    /// A plan's place was had.
    Planned,
    /// A stream was made to wait.
    Waited,
}

impl Goal {
    fn reached(self, stats: &Stats) -> u64 {
        let ladders = || stats.devices.iter().map(|device| device.ladder);
        match self {
            Self::ThreadHit => stats.hits.thread,
            Self::StreamHit => stats.hits.stream,
            Self::ShardHit => stats.hits.shard,
            Self::CrossStream => stats.cross_stream.hits,
            Self::Moved => ladders().map(|ladder| ladder.moved).sum(),
            Self::Refused => ladders().map(|ladder| ladder.refused).sum(),
            Self::Planned => stats.hits.planned,
            Self::Waited => stats.cross_stream.waits,
        }
    }
}

/// Runs `body` under random schedules, and under schedules with few changes of priority (PCT:
/// Burckhardt et al., "A randomized scheduler with probabilistic guarantees of finding bugs", 2010).
/// All `goals` must have been reached in one of them, by the figures that `body` answers.
pub fn compose(name: &'static str, goals: &'static [Goal], body: fn() -> Stats) {
    let (seed, runs) =
        (number("MILLPOND_SHUTTLE_SEED", SEED), number("MILLPOND_SHUTTLE_RUNS", RUNS));
    let reached: Arc<Vec<AtomicU64>> = Arc::new(goals.iter().map(|_| AtomicU64::new(0)).collect());
    let run = |scheduler: String, with: Box<dyn Scheduler + Send>| {
        let _said = Seeded { name, scheduler, seed, runs };
        let reached = Arc::clone(&reached);
        let explored = Runner::new(with, config()).run(move || {
            let stats = body();
            for (goal, reached) in goals.iter().zip(&*reached) {
                reached.fetch_add(goal.reached(&stats), Ordering::Relaxed);
            }
        });
        assert_eq!(explored as u64, runs, "orders explored");
    };
    run("random".to_owned(), Box::new(RandomScheduler::new_from_seed(seed, runs as usize)));
    for depth in [2, 4] {
        let pct = PctScheduler::new_from_seed(seed, depth, runs as usize);
        run(format!("pct of depth {depth}"), Box::new(pct));
    }
    for (goal, reached) in goals.iter().zip(&*reached) {
        // Fewer runs than usual may miss one.
        let missed = runs >= RUNS && reached.load(Ordering::Relaxed) == 0;
        assert!(!missed, "{name} never reached {goal:?}");
    }
}
