//! Fuzz targets: [`api`], programs of calls to the pool over two simulated devices, and [`trace`],
//! inputs of the trace reader. `tests/fuzz.rs` hands them to bolero, on the stable toolchain.
//!
//! A crate of its own, outside the workspace's default members: whoever builds the library, or tests
//! it with `cargo test`, builds no bolero.
//!
//! ```sh
//! cargo test -p millpond-fuzz                                    # the corpus, then 3 s a target
//! MILLPOND_FUZZ_SECONDS=60 cargo test -p millpond-fuzz --test fuzz
//! MILLPOND_FUZZ_SECONDS=600 cargo test --release -p millpond-fuzz --test fuzz api
//! ```
//!
//! # The corpus
//!
//! `tests/__fuzz__/TARGET/corpus` is replayed first, each file as it is. Every file begins with a `#`
//! line that says why it is there. Those of `api` are programs as text ([`program`]); bytes that are
//! no text are a program too, by which random inputs become programs. Those of `trace` are a recipe
//! line ([`trace`]) and the text of a trace, or any bytes.
//!
//! # When a target fails
//!
//! Bolero shrinks the input, and the target prints it in the form that the corpus has. Put it there
//! as a file, with a first line that says what it found: the next run replays it first.
#![forbid(unsafe_code)]

pub mod api;
mod machine;
pub mod program;
pub mod trace;

use std::time::Duration;

/// How long a target generates inputs, after its corpus: `MILLPOND_FUZZ_SECONDS`, 3 by default.
pub fn time() -> Duration {
    let seconds = match std::env::var("MILLPOND_FUZZ_SECONDS") {
        Ok(text) => text.parse().unwrap_or_else(|_| panic!("MILLPOND_FUZZ_SECONDS={text}")),
        Err(_) => 3,
    };
    Duration::from_secs(seconds)
}
