//! Whole pools under shuttle: compositions that the loom models cannot reach, and lock-freedom.
//!
//! The library is the shipped one, its primitives shuttle's (`src/sync.rs`); the driver is the
//! simulated one, with the race oracle, and each of its calls one step. Shuttle runs one order of
//! steps after another, drawn from a seed, all of them sequentially consistent: what memory orderings
//! do is for loom.
//!
//! ```text
//! RUSTFLAGS="--cfg shuttle" cargo test --test shuttle --target-dir target/shuttle
//! ```
//!
//! | variable | |
//! |---|---|
//! | `MILLPOND_SHUTTLE_RUNS=n` | orders for each scheduler of a composition |
//! | `MILLPOND_SHUTTLE_SEED=n` | another seed; a failure names the one that repeats it |
#![cfg(all(shuttle, feature = "sim"))]

#[path = "../support/mod.rs"]
mod support;

mod compositions;
mod explore;
mod freedom;
mod plans;
mod starve;
mod yard;
