//! Threads that end, and threads that stand still.

use crate::{CAPACITY, D0, Rig};
use millpond::{Pool, Stream};
use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Barrier};

/// Fills the device with blocks of many small classes, and frees them into this thread's caches.
fn hoard(stream: &Stream) -> u64 {
    let mut held = Vec::new();
    let mut bytes = 0;
    for step in 0.. {
        match stream.alloc::<u8>(1 + step * 7919 % 900_000) {
            Ok(buffer) => held.push(buffer),
            Err(_) => break,
        }
    }
    held.iter().for_each(|buffer| bytes += buffer.granted_bytes());
    bytes
}

/// What lay in the caches of a thread that has ended, or that stands still, goes to others: small
/// blocks by their sizes, and all of it as one.
#[test]
fn nothing_is_stranded_in_a_thread() {
    for stands_still in [false, true] {
        let rig = Rig::new();
        let Rig { pool, stream, .. } = &rig;
        let (filled, done) = (Barrier::new(2), Barrier::new(2));
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                assert!(hoard(stream) > CAPACITY * 9 / 10);
                if stands_still {
                    filled.wait();
                    done.wait();
                }
            });
            if stands_still {
                filled.wait();
            } else {
                thread.join().unwrap();
            }
            assert_eq!(pool.stats().devices[0].live_bytes, 0);
            assert_eq!(pool.stats().devices[0].reserved_bytes, CAPACITY);
            // In small pieces, then in one.
            assert!(hoard(stream) > CAPACITY * 9 / 10);
            drop(stream.alloc::<u8>(CAPACITY as usize).unwrap());
            assert_eq!(pool.stats().devices[0].ladder.refused, 2, "each time it was full");
            if stands_still {
                done.wait();
            }
        });
        rig.done();
    }
}

fn work(pool: &Pool, stream: &Stream) {
    let held = [1, 5000, 60_000, 900_000, 3 << 20].map(|bytes| stream.alloc::<u8>(bytes).unwrap());
    let other = pool.stream(D0).unwrap();
    held[1].record_use(&other).unwrap();
    drop(held);
}

/// The pool's tables are those of the threads that there are at once, not of all that ever were.
#[test]
fn thousands_of_threads() {
    let rig = Rig::new();
    let (mut early, mut hits) = (0, 0);
    for round in 0..1000 {
        let all_at_once = Arc::new(Barrier::new(4));
        let threads = [(); 4].map(|()| {
            let (pool, stream) = (rig.pool.clone(), rig.stream.clone());
            let all_at_once = Arc::clone(&all_at_once);
            std::thread::spawn(move || {
                work(&pool, &stream);
                if round == 0 {
                    // As many caches as there will ever be in use.
                    all_at_once.wait();
                }
            })
        });
        // A thread is joined after its storage has ended, unlike one of a scope.
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        (0..10).for_each(|_| rig.sim.tick());
        if round == 20 {
            early = rig.pool.stats().bookkeeping_bytes;
        }
        let stats = rig.pool.stats().hits;
        let now = stats.thread + stats.stream + stats.shard + stats.heap;
        assert_eq!(now - hits, 4 * 5, "the counts of threads that ended stay");
        hits = now;
    }
    let late = rig.pool.stats().bookkeeping_bytes;
    assert!(late <= early + early / 10, "{early} bytes for some threads, {late} for 4000");
    rig.done();
}

thread_local! {
    static IN_THE_POOL: Cell<bool> = const { Cell::new(false) };
}

/// Somebody else in the process leaves closures for the end of `crossbeam-epoch`'s default epochs.
/// They may block, or come back to the pool: none runs inside a call of the pool.
#[test]
fn closures_of_others_stay_outside() {
    static RAN: AtomicU64 = AtomicU64::new(0);
    static INSIDE: AtomicU64 = AtomicU64::new(0);
    let leave = || {
        let guard = crossbeam_epoch::pin();
        for _ in 0..200 {
            guard.defer(|| {
                RAN.fetch_add(1, Ordering::Relaxed);
                INSIDE.fetch_add(u64::from(IN_THE_POOL.get()), Ordering::Relaxed);
            });
        }
        guard.flush();
    };
    let rig = Rig::new();
    leave();
    for _ in 0..2000 {
        IN_THE_POOL.set(true);
        // Through the stream's cache; and at the end of a stream.
        drop(rig.stream.alloc::<u8>(3 << 20).unwrap());
        drop(rig.pool.stream(D0).unwrap());
        drop(rig.pool.stats());
        IN_THE_POOL.set(false);
    }
    assert_eq!(INSIDE.load(Ordering::Relaxed), 0, "a call of the pool ran a closure of others");
    // They do run.
    (0..2000).for_each(|_| crossbeam_epoch::pin().flush());
    assert!(RAN.load(Ordering::Relaxed) > 0);
    rig.done();
}
