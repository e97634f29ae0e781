//! Plans at work on several threads: no byte is two users' at once, nor a later user's too early.

use crate::explore::Goal::*;
use crate::explore::compose;
use crate::yard::{Held, PAGE, Yard, below};
use millpond::{DeviceId, Planning, Pool, Reuse, Stream};
use millpond_simgpu::Completion;
use shuttle::thread::{self, JoinHandle};
use std::sync::Arc;

const D0: DeviceId = DeviceId(0);
/// Pages of each stream's blocks, one after the other. Their first lie side by side, and the others over
/// both of them.
const SIZES: [[u64; 3]; 2] = [[2, 3, 1], [1, 3, 2]];

/// A yard whose pool has a plan, in which the blocks of two streams have places that share bytes: in the
/// steps that it was made of they came one after the other.
fn planned(pages: u64, completion: Completion) -> (Arc<Yard>, Pool, [Stream; 2]) {
    let reuse = [Reuse::Wait, Reuse::Wait, Reuse::Completed, Reuse::SameStream][below(4) as usize];
    let set = |builder: millpond::Builder| builder.reuse(reuse).planned(Planning::default());
    let (yard, pool) = Yard::with(pages, completion, set);
    let streams = [(); 2].map(|()| pool.stream(D0).expect("a stream"));
    for _ in 0..2 {
        pool.begin_step();
        let get = |which: usize, turn: usize| {
            let bytes = SIZES[which][turn] * PAGE;
            yard.allocate_transient(&streams[which], bytes).expect("idle memory")
        };
        for held in [0, 1].map(|which| get(which, 0)) {
            yard.free(held);
        }
        for turn in 1..3 {
            (0..2).for_each(|which| yard.free(get(which, turn)));
        }
    }
    pool.begin_step();
    assert_eq!(pool.plan().devices().len(), 1, "steps that recur are planned");
    (yard, pool, streams)
}

/// A stream's part of a step, of which it may hold all blocks at once, or leave some to others.
fn part(yard: &Yard, which: usize, stream: &Stream) {
    let mut held: Vec<Held> = Vec::new();
    for size in SIZES[which] {
        held.extend(yard.allocate_transient(stream, size * PAGE));
        match below(4) {
            0 => {}
            1 => held.drain(..).for_each(|block| yard.pass(block)),
            _ => held.drain(..).for_each(|block| yard.free(block)),
        }
        yard.free_passed();
    }
    held.into_iter().for_each(|block| yard.free(block));
}

/// A thread for each stream's part.
fn start(yard: &Arc<Yard>, streams: &[Stream; 2]) -> Vec<JoinHandle<()>> {
    let each = streams.iter().enumerate().map(|(which, stream)| {
        let (yard, stream) = (Arc::clone(yard), stream.clone());
        thread::spawn(move || part(&yard, which, &stream))
    });
    each.collect()
}

fn join(threads: Vec<JoinHandle<()>>) {
    threads.into_iter().for_each(|thread| thread.join().expect("a thread that ends well"));
}

/// Two threads go through a step at once whose parts came one after the other when it was planned.
#[test]
fn parts_of_a_plan_at_once() {
    compose("parts_of_a_plan_at_once", &[Planned, Waited], || {
        let (yard, pool, streams) = planned(12, Completion::Lag(below(12)));
        for _ in 0..2 {
            join(start(&yard, &streams));
            pool.check_invariants_at(millpond::Level::Full);
            pool.begin_step();
        }
        drop(streams);
        yard.done(pool)
    });
}

/// Steps begin, memory is trimmed, and others need all of it, while places are held and claimed.
#[test]
fn a_plan_gives_way() {
    compose("a_plan_gives_way", &[Planned, Refused], || {
        let (yard, pool, streams) = planned(5, Completion::Lag(below(6)));
        let mut threads = start(&yard, &streams);
        let (on, home) = (pool.clone(), pool.stream(D0).expect("a stream"));
        let others = Arc::clone(&yard);
        threads.push(thread::spawn(move || {
            for _ in 0..3 {
                match below(3) {
                    0 => _ = on.begin_step(),
                    1 => _ = on.trim(D0, below(4) * PAGE).expect("a driver that works"),
                    _ => {
                        let all = others.allocate_transient(&home, (4 + below(2)) * PAGE);
                        all.into_iter().for_each(|held| others.free(held));
                    }
                }
            }
        }));
        join(threads);
        drop(streams);
        yard.done(pool)
    });
}
