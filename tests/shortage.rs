//! No spurious out-of-memory: random programs near the capacity of a device, against a model that
//! knows what could still be served. The pool may refuse only what the model finds impossible, by
//! any reuse, wait or stitch that its policy allows.
//!
//! A run is drawn from its seed alone. One that fails says its seed; `MILLPOND_SHORTAGE_SEED` runs
//! that one again. `MILLPOND_SLOW=1` runs ten times as many.
#![cfg(feature = "sim")]

#[path = "shortage/model.rs"]
mod model;
#[path = "shortage/program.rs"]
mod program;
mod support;

use program::{Run, Setup, Tally};

const RUNS: u64 = 2000;

#[test]
fn nothing_is_refused_that_could_be_served() {
    if let Ok(seed) = std::env::var("MILLPOND_SHORTAGE_SEED") {
        let seed = seed.parse().expect("a number");
        println!("{:?}\n{:#?}", Setup::draw(seed), Run::new(seed).finish());
        return;
    }
    let mut all = Tally::default();
    for seed in 0..if support::slow() { 10 * RUNS } else { RUNS } {
        all.add(Run::new(seed).finish());
    }
    // The programs reached what they are meant to try.
    assert!(all.refused > 5 * RUNS && all.served > 20 * RUNS, "{all:#?}");
    assert!(all.refused_behind_hangs > RUNS / 4 && all.served_while_stuck > RUNS, "{all:#?}");
    assert!(all.served_at_the_edge > RUNS && all.moved > RUNS, "{all:#?}");
    assert!(all.host_waits > RUNS && all.stream_waits > RUNS, "{all:#?}");
}
