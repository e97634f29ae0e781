//! Two to six threads over two devices. Each composition says what meets in it.

use crate::explore::Goal::*;
use crate::explore::{compose, config};
use crate::yard::{PAGE, Yard, below};
use millpond::{DeviceId, Pool, Reuse, Stream};
use millpond_simgpu::Completion;
use shuttle::Runner;
use shuttle::scheduler::{RandomScheduler, UncontrolledNondeterminismCheckScheduler};
use shuttle::sync::Barrier;
use shuttle::thread::{self, JoinHandle};
use std::sync::Arc;

/// Starts a thread that runs `body` over the yard.
fn start(yard: &Arc<Yard>, body: impl FnOnce(&Yard) + Send + 'static) -> JoinHandle<()> {
    let yard = Arc::clone(yard);
    thread::spawn(move || body(&yard))
}

fn join(threads: Vec<JoinHandle<()>>) {
    threads.into_iter().for_each(|thread| thread.join().expect("a thread that ends well"));
}

fn streams<const N: usize>(pool: &Pool, devices: [u16; N]) -> [Stream; N] {
    devices.map(|device| pool.stream(DeviceId(device)).expect("a stream"))
}

fn reuse() -> Reuse {
    [Reuse::Wait, Reuse::Completed, Reuse::SameStream][below(3) as usize]
}

/// Requests that need nearly all memory meet frees of it on other threads: claims by the arena
/// against claims by hint, notes against merges, pages that move against users.
#[test]
fn out_of_memory_during_frees() {
    compose(
        "out_of_memory_during_frees",
        &[StreamHit, ShardHit, CrossStream, Moved, Refused],
        || {
            let (yard, pool) = Yard::new(6, reuse(), Completion::Lag(below(6)));
            let [a, b, c] = streams(&pool, [0, 0, 1]);
            let threads =
                [(&a, vec![b.clone()]), (&b, vec![a.clone()]), (&a, vec![]), (&c, vec![])];
            let threads = threads.map(|(home, others)| {
                let home = home.clone();
                start(&yard, move |yard| yard.work(&home, &others, 12, 0))
            });
            join(threads.into());
            drop((a, b, c));
            yard.done(pool)
        },
    );
}

/// Small and large blocks, uses on other streams, frees on other threads, on both devices at once.
#[test]
fn mixed_layers() {
    compose("mixed_layers", &[ThreadHit, StreamHit, ShardHit, CrossStream], || {
        let (yard, pool) = Yard::new(12, reuse(), Completion::Scheduled);
        let all = streams(&pool, [0, 0, 1, 1, 0]);
        let threads = all.iter().map(|home| {
            let (home, others) = (home.clone(), all.to_vec());
            start(&yard, move |yard| yard.work(&home, &others, 10, 4000))
        });
        join(threads.collect());
        drop(all);
        yard.done(pool)
    });
}

/// Memory goes back to the driver, figures are taken and blocks pinned while others allocate.
#[test]
fn trim_during_allocation() {
    compose("trim_during_allocation", &[ThreadHit, StreamHit, CrossStream], || {
        let (yard, pool) = Yard::new(8, reuse(), Completion::Lag(below(4)));
        let [a, b, c] = streams(&pool, [0, 0, 1]);
        let mut threads: Vec<_> = [&a, &b, &c]
            .map(|home| {
                let (home, others) = (home.clone(), vec![a.clone(), b.clone()]);
                start(&yard, move |yard| yard.work(&home, &others, 8, 2000))
            })
            .into();
        let (trimmed, home) = (pool.clone(), a.clone());
        threads.push(start(&yard, move |yard| {
            for _ in 0..3 {
                let target = below(4) * PAGE;
                trimmed.trim(DeviceId(below(2) as u16), target).expect("a driver that works");
                if let Some(held) = yard.allocate(&home, PAGE, true) {
                    let pin = trimmed.pin(held.buffer.address()).expect("a live block");
                    yard.free(held);
                    trimmed.trim_all(0).expect("a driver that works");
                    drop(pin);
                }
                let stats = trimmed.stats();
                assert!(stats.devices.iter().all(|of| of.live_bytes <= of.reserved_bytes));
            }
        }));
        join(threads);
        drop((a, b, c));
        yard.done(pool)
    });
}

/// Threads end with full caches while others need the memory in them, and new threads lease the
/// caches.
#[test]
fn thread_exit_during_steal() {
    compose("thread_exit_during_steal", &[ThreadHit, StreamHit, Moved], || {
        let (yard, pool) = Yard::new(4, reuse(), Completion::Lag(below(3)));
        let [a, b] = streams(&pool, [0, 0]);
        let mut threads: Vec<_> = [&a, &b, &a]
            .map(|home| {
                let home = home.clone();
                start(&yard, move |yard| {
                    // The second time round the thread keeps bins for its sizes.
                    for _ in 0..2 {
                        let held: Vec<_> =
                            (0..3).filter_map(|_| yard.allocate(&home, 30_000, true)).collect();
                        held.into_iter().for_each(|held| yard.free(held));
                    }
                })
            })
            .into();
        let (thief, victim) = (b.clone(), a.clone());
        threads.push(start(&yard, move |yard| {
            for pages in [3, 4, 2] {
                if let Some(held) = yard.allocate(&thief, pages * PAGE, true) {
                    yard.free(held);
                }
            }
            yard.work(&victim, &[], 4, 30_000);
        }));
        join(threads);
        let late = {
            let home = a.clone();
            start(&yard, move |yard| yard.work(&home, &[], 6, 30_000))
        };
        join(vec![late]);
        drop((a, b));
        yard.done(pool)
    });
}

/// Streams end while others use, free and ask for their blocks; their numbers are given out again.
#[test]
fn streams_end_during_frees() {
    compose("streams_end_during_frees", &[ShardHit, CrossStream], || {
        let (yard, pool) = Yard::new(8, reuse(), Completion::Scheduled);
        let shared = pool.stream(DeviceId(0)).expect("a stream");
        let threads = (0..3u16).map(|number| {
            let (pool, shared) = (pool.clone(), shared.clone());
            start(&yard, move |yard| {
                for _ in 0..2 {
                    let own = pool.stream(DeviceId(number / 2)).expect("a stream");
                    yard.work(&own, std::slice::from_ref(&shared), 5, 3000);
                    if let Some(mut held) = yard.allocate(&own, PAGE, true) {
                        yard.use_on(&mut held, &shared, below(2) == 0);
                        yard.pass(held);
                    }
                    drop(own);
                    yard.free_passed();
                }
            })
        });
        let mut threads: Vec<_> = threads.collect();
        let home = shared.clone();
        threads.push(start(&yard, move |yard| yard.work(&home, &[], 10, 3000)));
        join(threads);
        drop(shared);
        yard.done(pool)
    });
}

/// The last handle of the pool is dropped while blocks are freed, by threads with a cache and
/// without; whoever comes last gives the memory back.
#[test]
fn pool_dropped_during_frees() {
    compose("pool_dropped_during_frees", &[], || {
        let (yard, pool) = Yard::new(8, Reuse::Wait, Completion::Lag(below(3)));
        let [a, b] = streams(&pool, [0, 1]);
        let held: Vec<_> =
            [(&a, PAGE), (&a, 700), (&b, PAGE), (&b, 700), (&a, 700), (&b, 2 * PAGE)]
                .into_iter()
                .map(|(home, bytes)| yard.allocate(home, bytes, true).expect("memory"))
                .collect();
        let mut threads = Vec::new();
        for (number, held) in held.into_iter().enumerate() {
            if number % 2 == 0 {
                threads.push(start(&yard, move |yard| yard.free(held)));
            } else {
                let pool = pool.clone();
                threads.push(start(&yard, move |yard| {
                    // Has a lease, and maybe bins for the size.
                    yard.work(&held.home.clone(), &[], below(3), 700);
                    drop(pool);
                    yard.free_passed();
                    yard.free(held);
                }));
            }
        }
        let stats = pool.stats();
        drop((a, b, pool));
        join(threads);
        yard.free_passed();
        yard.quiet();
        stats
    });
}

/// The last handle is dropped while a thread with a cache frees the last block, which goes there. The
/// thread may not see that the pool closes; it looks again when it ends.
#[test]
fn pool_dropped_during_the_last_free() {
    compose("pool_dropped_during_the_last_free", &[ThreadHit], || {
        let (yard, pool) = Yard::new(2, Reuse::Wait, Completion::Lag(0));
        let home = pool.stream(DeviceId(0)).expect("a stream");
        let met = Arc::new(Barrier::new(2));
        let thread = {
            let met = Arc::clone(&met);
            start(&yard, move |_| {
                // From the second on the thread keeps bins for the size.
                let get = || home.alloc::<u8>(700).expect("memory");
                (0..3).for_each(|_| drop(get()));
                let last = get();
                drop(home);
                met.wait();
                drop(last);
            })
        };
        met.wait();
        let stats = pool.stats();
        drop(pool);
        join(vec![thread]);
        yard.quiet();
        stats
    });
}

/// A seed repeats an order, so that what fails can be looked at.
#[test]
fn orders_are_replayed() {
    let inner = RandomScheduler::new_from_seed(7, 20);
    let twice = UncontrolledNondeterminismCheckScheduler::new(inner);
    let explored = Runner::new(twice, config()).run(|| {
        let (yard, pool) = Yard::new(6, Reuse::Wait, Completion::Scheduled);
        let [a, b, c] = streams(&pool, [0, 0, 1]);
        let threads = [&a, &b, &c].map(|home| {
            let (home, others) = (home.clone(), vec![a.clone(), b.clone()]);
            start(&yard, move |yard| yard.work(&home, &others, 8, 3000))
        });
        join(threads.into());
        drop((a, b, c));
        yard.done(pool);
    });
    assert!(explored >= 20, "orders explored: {explored}");
}
