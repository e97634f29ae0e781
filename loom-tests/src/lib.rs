//! Loom models of millpond's concurrent structures, over the shipped code.
//!
//! Every model is a test named after the race it looks for. Its text says which interleaving would
//! be the bug, and it asserts that it reached the outcomes it is about (an `Outcomes` counts them
//! over all executions). Every role is a spawned thread and the main thread only sets up, joins and
//! looks: with a role in the main thread loom 0.7 can explore one interleaving and say nothing
//! (tokio-rs/loom#392).
//!
//! ```text
//! RUSTFLAGS="--cfg loom --cfg crossbeam_loom -C debug-assertions" LOOM_MAX_BRANCHES=10000 \
//!     LOOM_MAX_PREEMPTIONS=2 cargo test -p loom-tests --release --target-dir target/loom
//! ```
//!
//! A larger `LOOM_MAX_PREEMPTIONS` explores more. Without `--cfg loom` this crate is empty.
//! `mutants.sh` plants mistakes in the library, one at a time, and checks that the model, or the
//! other test, that is there for it fails by the assertion that is there for it.
#![cfg(loom)]

pub mod device;
pub mod driver;

use loom::model::Builder;
use millpond::internals::{end_leases, stray};
use std::io::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Preemptions a model explores when the environment does not say.
const PREEMPTIONS: usize = 2;

/// Explores every interleaving of `body`, and says how many there were.
pub fn explore(name: &str, body: impl Fn() + Send + Sync + 'static) {
    explore_exactly(Builder::new().preemption_bound.unwrap_or(PREEMPTIONS), name, body);
}

/// As [`explore`], with a preemption less: for models whose roles pass through all layers or through
/// the host epochs, which multiply the interleavings.
pub fn explore_shallow(name: &str, body: impl Fn() + Send + Sync + 'static) {
    let wanted = Builder::new().preemption_bound.unwrap_or(PREEMPTIONS);
    explore_exactly(wanted.saturating_sub(1).max(1), name, body);
}

/// As [`explore`], with at least `preemptions` of them: for models whose bug needs so many.
pub fn explore_deep(preemptions: usize, name: &str, body: impl Fn() + Send + Sync + 'static) {
    let wanted = Builder::new().preemption_bound.unwrap_or(PREEMPTIONS);
    explore_exactly(wanted.max(preemptions), name, body);
}

fn explore_exactly(preemptions: usize, name: &str, body: impl Fn() + Send + Sync + 'static) {
    let executions = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&executions);
    let mut builder = Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(move || {
        counter.fetch_add(1, Ordering::Relaxed);
        stray();
        body();
    });
    let executions = executions.load(Ordering::Relaxed);
    // Not `println!`, which the test harness keeps to itself.
    let _ = writeln!(std::io::stdout(), "model {name}: {executions} executions");
    assert!(executions > 1, "model {name} explored one interleaving only");
}

/// Starts a role of a model: a thread that has no thread cache.
pub fn role<T: 'static>(body: impl FnOnce() -> T + 'static) -> loom::thread::JoinHandle<T> {
    loom::thread::spawn(|| {
        stray();
        body()
    })
}

/// Starts a role that leases a thread cache, and gives it back when it ends.
pub fn leasing_role<T: Send + 'static>(
    body: impl FnOnce() -> T + Send + 'static,
) -> loom::thread::JoinHandle<T> {
    let builder = loom::thread::Builder::new().stack_size(STACK_WORDS);
    let body = || {
        let outcome = body();
        end_leases();
        outcome
    };
    builder.spawn(body).expect("a thread")
}

/// The stack of roles that build large structures, in words.
pub(crate) const STACK_WORDS: usize = 1 << 15;

/// Which outcomes a model has reached, over all its executions; lives outside the model.
#[derive(Default)]
pub struct Outcomes(AtomicU64);

impl Outcomes {
    /// No outcome yet.
    pub const fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// Marks outcome `number`.
    pub fn reached(&self, number: u32) {
        self.0.fetch_or(1 << number, Ordering::Relaxed);
    }

    /// Marks outcome `number` if it was one.
    pub fn reached_if(&self, number: u32, was: bool) {
        if was {
            self.reached(number);
        }
    }

    /// Asserts that outcomes `0..count` were all reached.
    pub fn assert_all(&self, count: u32) {
        let seen = self.0.load(Ordering::Relaxed);
        assert_eq!(seen, (1 << count) - 1, "outcomes never reached (bit mask {seen:b})");
    }
}
