//! The hot path against a host allocator: an allocate + free pair of one size.
//!
//! Rounds of the pool and of mimalloc alternate, so that a noisy machine bothers both alike; the
//! ratio at the end is of the medians.

use criterion::{Criterion, criterion_group, criterion_main};
use millpond::driver::sim::SimDriver;
use millpond::{DeviceId, Pool, Stream};
use millpond_simgpu::Sim;
use std::alloc::{GlobalAlloc, Layout};
use std::hint::black_box;
use std::time::Instant;

const BYTES: usize = 512;

fn pool() -> (Pool, Stream) {
    let sim = Sim::builder().build().expect("a simulated device");
    let pool = Pool::new(SimDriver::new(sim)).expect("a pool");
    let stream = pool.stream(DeviceId(0)).expect("a stream");
    (pool, stream)
}

fn buffer_pair(stream: &Stream) {
    drop(black_box(stream.alloc::<u8>(black_box(BYTES)).expect("memory")));
}

fn address_pair(pool: &Pool, stream: &Stream) {
    let address = pool.allocate(black_box(BYTES as u64), stream).expect("memory");
    pool.free(black_box(address)).expect("an allocated address");
}

fn mimalloc_pair() {
    let layout = Layout::from_size_align(black_box(BYTES), 16).expect("a layout");
    // SAFETY: the layout has a size; the block is freed with the layout it was made with.
    unsafe {
        let block = black_box(mimalloc::MiMalloc.alloc(layout));
        mimalloc::MiMalloc.dealloc(block, layout);
    }
}

/// Nanoseconds a call of `pair`, over one round.
fn round(pair: impl Fn()) -> f64 {
    const CALLS: u32 = 200_000;
    let start = Instant::now();
    (0..CALLS).for_each(|_| pair());
    start.elapsed().as_secs_f64() * 1e9 / f64::from(CALLS)
}

fn median(rounds: &mut [f64]) -> f64 {
    rounds.sort_by(f64::total_cmp);
    rounds[rounds.len() / 2]
}

fn interleaved() {
    let (pool, stream) = pool();
    let (mut ours, mut raw, mut theirs) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..101 {
        ours.push(round(|| buffer_pair(&stream)));
        theirs.push(round(mimalloc_pair));
        raw.push(round(|| address_pair(&pool, &stream)));
    }
    let (ours, raw, theirs) = (median(&mut ours), median(&mut raw), median(&mut theirs));
    println!("pairs of {BYTES} B, medians of interleaved rounds:");
    println!("  mimalloc            {theirs:6.2} ns");
    println!("  Stream and Buffer   {ours:6.2} ns = {:.2} x", ours / theirs);
    println!("  by raw address      {raw:6.2} ns = {:.2} x", raw / theirs);
}

fn pairs(criterion: &mut Criterion) {
    interleaved();
    let (pool, stream) = pool();
    let mut group = criterion.benchmark_group("pair");
    group.bench_function("buffer", |b| b.iter(|| buffer_pair(&stream)));
    group.bench_function("address", |b| b.iter(|| address_pair(&pool, &stream)));
    group.bench_function("mimalloc", |b| b.iter(mimalloc_pair));
    group.finish();
}

criterion_group!(hot, pairs);
criterion_main!(hot);
