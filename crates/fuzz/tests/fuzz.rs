//! Both targets under bolero: the corpus, then generated inputs.

use bolero::RunPhase;
use millpond_fuzz::program::Program;
use millpond_fuzz::trace;
use std::time::Duration;

/// Whether the input that runs is the one that will be reported.
fn reported() -> bool {
    bolero::with_context(|context| context.run_phase == RunPhase::Failure).unwrap_or(false)
}

#[test]
fn api() {
    bolero::check!()
        .with_max_len(800)
        .with_test_time(millpond_fuzz::time())
        .with_shrink_time(Duration::from_secs(20))
        .for_each(|bytes: &[u8]| {
            let program = Program::of(bytes);
            if reported() {
                eprintln!("{program}");
            }
            millpond_fuzz::api::run(&program);
        });
}

#[test]
fn trace_reader() {
    bolero::check!()
        .with_max_len(3000)
        .with_test_time(millpond_fuzz::time())
        .with_shrink_time(Duration::from_secs(20))
        .for_each(|input: &[u8]| {
            let bytes = trace::bytes_of(input);
            if reported() {
                eprintln!("{}", trace::as_file(input));
            }
            trace::check(&bytes);
        });
}
