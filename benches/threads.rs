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
const STEPS: u32 = 1_000_000;
const ROUNDS: usize = 9;

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
fn run(stream: &Stream, plan: &[(usize, usize)]) -> f64 {
    let mut held: Vec<Option<Buffer>> = (0..LIVE).map(|_| None).collect();
    let begin = Instant::now();
    for &(place, bytes) in plan {
        held[place] = None;
        held[place] = Some(stream.alloc::<u8>(bytes).expect("memory"));
    }
    begin.elapsed().as_secs_f64() * 1e9 / f64::from(STEPS)
}

/// Rounds on one thread and on two, in turn, as nanoseconds a step of the slowest thread. Both threads
/// live through all rounds, as a training run's do; in every other round one of them rests.
fn rounds(pool: &Pool, octaves: f64) -> (Vec<f64>, Vec<f64>) {
    let meet = Barrier::new(2);
    let worker = |number: usize| {
        let stream = pool.stream(DeviceId(0)).expect("a stream");
        let plan = plan(number as u64 + 1, octaves);
        let mut times = Vec::new();
        for round in 0..2 * ROUNDS {
            meet.wait();
            let rests = number == 1 && round % 2 == 0;
            times.push(if rests { 0.0 } else { run(&stream, &plan) });
        }
        times
    };
    let worker = &worker;
    let [first, second] = std::thread::scope(|scope| {
        [0, 1]
            .map(|number| scope.spawn(move || worker(number)))
            .map(|thread| thread.join().expect("a thread that ran"))
    });
    let slowest: Vec<f64> = first.iter().zip(&second).map(|(a, b)| a.max(*b)).collect();
    let every_other = |from: usize| slowest.iter().skip(from).step_by(2).copied().collect();
    (every_other(0), every_other(1))
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
        let (one, two) = rounds(&pool, load.octaves);
        let (one, two) = (median(one), median(two));
        let hits = pool.stats().hits;
        let all = hits.thread + hits.stream + hits.shard + hits.heap;
        println!(
            "{}: {one:.1} ns a step on one thread, {two:.1} on two: {:.2} x; {:.1} % from the heap",
            load.name,
            two / one,
            100.0 * hits.heap as f64 / all as f64
        );
    }
}
