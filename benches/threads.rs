//! What a second thread costs the first: two threads on streams of their own, one device.
//!
//! Every thread keeps 16 blocks; a step frees one at random and allocates one of a log-uniform
//! size. Rounds with one and with two threads alternate; the figure is the slowest thread's, the
//! median over rounds. A ratio of 1 is perfect scaling (the machine needs two idle cores).

use millpond::driver::sim::SimDriver;
use millpond::{Buffer, DeviceId, Pool, Stream};
use millpond_simgpu::Sim;
use std::sync::Barrier;
use std::time::Instant;

const LIVE: usize = 16;
const STEPS: u32 = 100_000;
const ROUNDS: usize = 15;

/// Sizes are log-uniform in `512 << 0 .. 512 << octaves`.
struct Load {
    name: &'static str,
    octaves: f64,
}

/// A generator that costs next to nothing beside what is measured (Marsaglia's xorshift).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
}

/// A thread's plan, drawn before the clock starts: the place to replace, and the size.
fn plan(seed: u64, octaves: f64) -> Vec<(usize, usize)> {
    let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    (0..STEPS)
        .map(|_| {
            let place = random.next() as usize % LIVE;
            let unit = (random.next() >> 11) as f64 / (1u64 << 53) as f64;
            (place, (512.0 * 2f64.powf(unit * octaves)) as usize)
        })
        .collect()
}

/// Nanoseconds a step of one thread.
fn run(stream: &Stream, plan: &[(usize, usize)], start: &Barrier) -> f64 {
    let mut held: Vec<Option<Buffer>> = (0..LIVE).map(|_| None).collect();
    start.wait();
    let begin = Instant::now();
    for &(place, bytes) in plan {
        held[place] = None;
        held[place] = Some(stream.alloc::<u8>(bytes).expect("memory"));
    }
    begin.elapsed().as_secs_f64() * 1e9 / f64::from(STEPS)
}

/// The slowest of `threads` threads, in nanoseconds a step.
fn round(streams: &[Stream], plans: &[Vec<(usize, usize)>], threads: usize) -> f64 {
    let start = Barrier::new(threads);
    let start = &start;
    std::thread::scope(|scope| {
        let runs: Vec<_> = (0..threads)
            .map(|thread| scope.spawn(move || run(&streams[thread], &plans[thread], start)))
            .collect();
        runs.into_iter().map(|run| run.join().expect("a thread that ran")).fold(0.0, f64::max)
    })
}

fn median(mut rounds: Vec<f64>) -> f64 {
    rounds.sort_by(f64::total_cmp);
    rounds[rounds.len() / 2]
}

fn main() {
    let loads = [
        Load { name: "below 1 MiB (512 B to 992 KiB)", octaves: 10.95 },
        Load { name: "mixed (512 B to 64 MiB)", octaves: 17.0 },
    ];
    for load in loads {
        let sim = Sim::builder().build().expect("a simulated device");
        let pool = Pool::new(SimDriver::new(sim)).expect("a pool");
        let streams: Vec<_> = (0..2).map(|_| pool.stream(DeviceId(0)).expect("a stream")).collect();
        let plans: Vec<_> = (0..2).map(|thread| plan(thread + 1, load.octaves)).collect();
        let (mut one, mut two) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            one.push(round(&streams, &plans, 1));
            two.push(round(&streams, &plans, 2));
        }
        let (one, two) = (median(one), median(two));
        println!(
            "{}: {one:.1} ns a step on one thread, {two:.1} on two: {:.2} x",
            load.name,
            two / one
        );
    }
}
