//! The race oracle and the scheduler judge each other.
//!
//! A random program in which the oracle finds no hazard must leave the same bytes behind under every
//! seed; and what the oracle finds must not depend on the seed, as long as the host does not ask.
//! The first would fail if the oracle took for ordered what the scheduler can run in either order,
//! the second if it judged by what happened to be done.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use millpond_simgpu::{Completion, Hazard, Sim};
use proptest::prelude::*;

const BLOCKS: usize = 2;
const STREAMS: usize = 3;

#[derive(Clone, Debug)]
enum Step {
    Fill(usize, usize),
    Copy(usize, usize),
    /// One stream is ordered after another by an event.
    Order(usize, usize),
    /// An event is recorded on one stream now, and waited for by another at the next `Late`.
    Record(usize),
    Late(usize),
    Rendezvous(usize, usize),
    Recreate(usize),
    Synchronize(usize),
}

fn step() -> impl Strategy<Value = Step> {
    use Step::*;
    let (stream, block) = (0..STREAMS, 0..BLOCKS);
    prop_oneof![
        3 => (stream.clone(), block.clone()).prop_map(|(s, b)| Fill(s, b)),
        1 => (stream.clone(), block).prop_map(|(s, b)| Copy(s, b)),
        4 => (stream.clone(), stream.clone()).prop_map(|(a, b)| Order(a, b)),
        1 => stream.clone().prop_map(Record),
        1 => stream.clone().prop_map(Late),
        1 => (stream.clone(), stream.clone()).prop_map(|(a, b)| Rendezvous(a, b)),
        1 => stream.clone().prop_map(Recreate),
        1 => stream.prop_map(Synchronize),
    ]
}

/// Runs the program; what is in memory at its end, and what the oracle found.
fn run(steps: &[Step], seed: u64) -> (Vec<Vec<u8>>, Vec<Hazard>) {
    let sim = Sim::builder()
        .completion(Completion::Scheduled)
        .contents(true)
        .oracle(true)
        .seed(seed)
        .build()
        .unwrap();
    let mut streams: Vec<_> = (0..STREAMS).map(|_| sim.stream_create(0).unwrap()).collect();
    let blocks: Vec<_> = (0..BLOCKS).map(|_| sim.malloc(0, 16).unwrap()).collect();
    for block in &blocks {
        sim.fill(streams[0], *block, 16, u64::MAX).unwrap();
    }
    sim.device_synchronize(0).unwrap();
    let (event, late) = (sim.event_create(0).unwrap(), sim.event_create(0).unwrap());
    for (at, step) in steps.iter().enumerate() {
        match *step {
            Step::Fill(s, b) => sim.fill(streams[s], blocks[b], 16, at as u64).unwrap(),
            Step::Copy(s, b) => {
                let other = blocks[(b + 1) % BLOCKS];
                sim.copy(streams[s], blocks[b], other, 16).unwrap();
            }
            Step::Order(a, b) => {
                sim.event_record(event, streams[a]).unwrap();
                sim.stream_wait(streams[b], event).unwrap();
            }
            Step::Record(s) => sim.event_record(late, streams[s]).unwrap(),
            Step::Late(s) => sim.stream_wait(streams[s], late).unwrap(),
            Step::Rendezvous(a, b) if a != b => {
                sim.rendezvous(&[streams[a], streams[b]]).unwrap();
            }
            Step::Rendezvous(..) => {}
            Step::Recreate(s) => {
                sim.stream_destroy(streams[s]).unwrap();
                streams[s] = sim.stream_create(0).unwrap();
            }
            Step::Synchronize(s) => sim.stream_synchronize(streams[s]).unwrap(),
        }
    }
    let hazards = sim.hazards();
    sim.device_synchronize(0).unwrap();
    let read = |block: &u64| sim.read_bytes(streams[0], *block, 16).unwrap();
    (blocks.iter().map(read).collect(), hazards)
}

#[test]
fn what_the_oracle_passes_is_the_same_under_every_seed() {
    let (clean, differing) = (AtomicU32::new(0), AtomicU32::new(0));
    let config = ProptestConfig::with_cases(600);
    proptest!(config, |(steps in prop::collection::vec(step(), 1..14))| {
        let (bytes, hazards) = run(&steps, 0);
        let mut differs = false;
        for seed in 1..12 {
            let (other_bytes, other_hazards) = run(&steps, seed);
            prop_assert_eq!(&hazards, &other_hazards, "seed {}", seed);
            differs |= bytes != other_bytes;
        }
        if hazards.is_empty() {
            prop_assert!(!differs, "no hazard, and yet the bytes depend on the seed");
            clean.fetch_add(1, Relaxed);
        }
        differing.fetch_add(u32::from(differs), Relaxed);
    });
    // The test has teeth only if programs of both kinds came up.
    let (clean, differing) = (clean.into_inner(), differing.into_inner());
    assert!(clean > 100, "{clean} clean programs");
    assert!(differing > 100, "{differing} programs that depend on the seed");
}
