//! Many threads, on one stream and on many, with a ledger that sees every overlap.

use crate::machine::{Block, D0, D1, MIB, Machine, Rig};
use crate::support::{Ledger, Rng};
use millpond::{Pool, Reuse, Stream};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};

const THREADS: usize = 4;

/// A block with the streams that have to read it before it is freed, its own first.
struct Item {
    block: Block,
    readers: Vec<Stream>,
}

struct Crew<'r, M> {
    rig: &'r Rig<M>,
    pool: &'r Pool,
    streams: &'r [Stream],
    ledger: Mutex<Ledger>,
    most: u64,
}

impl<M: Machine> Crew<'_, M> {
    fn take(&self, stream: &Stream, bytes: u64) -> Option<Item> {
        let block = self.rig.try_get(stream, bytes).ok()?;
        let (address, granted) = (block.address(), block.buffer.granted_bytes());
        self.ledger.lock().unwrap().enter(address, granted);
        Some(Item { block, readers: vec![stream.clone()] })
    }

    fn give(&self, item: Item) {
        for reader in &item.readers {
            self.rig.read(reader, &item.block);
        }
        self.ledger.lock().unwrap().leave(item.block.address());
        drop(item.block);
    }

    /// Uses the block on another stream of its device.
    fn share(&self, item: &mut Item, user: &Stream, last: bool) {
        let home = item.readers[0].clone();
        if user.device() != home.device() || user.id() == home.id() {
            return;
        }
        self.rig.use_on(user, &home, &item.block);
        if last {
            // A use that is over; unless one until the free was declared before.
            if !item.readers.iter().any(|reader| reader.id() == user.id()) {
                item.block.buffer.last_use(user).unwrap();
            }
        } else {
            item.block.buffer.record_use(user).unwrap();
            item.readers.push(user.clone());
        }
    }

    /// One thread's part: random operations, some blocks freed by the next thread.
    fn work(&self, seed: u64, ops: usize, inbox: &Receiver<Item>, next: &Sender<Item>) {
        let (mut rng, mut held) = (Rng::new(seed), Vec::<Item>::new());
        for _ in 0..ops {
            let stream = &self.streams[rng.index(self.streams.len())];
            match rng.below(20) {
                0..9 => held.extend(self.take(stream, rng.size(self.most))),
                9..12 if !held.is_empty() => {
                    let place = rng.index(held.len());
                    self.share(&mut held[place], stream, rng.below(2) == 0);
                }
                12..14 if !held.is_empty() => {
                    let place = rng.index(held.len());
                    next.send(held.swap_remove(place)).unwrap();
                }
                14 => stream.wait(&self.streams[rng.index(self.streams.len())]).unwrap(),
                15 if rng.below(8) == 0 => {
                    self.pool.trim(stream.device(), rng.below(32 * MIB)).unwrap();
                }
                _ => inbox.try_iter().for_each(|item| self.give(item)),
            }
            while held.len() > 12 {
                let place = rng.index(held.len());
                self.give(held.swap_remove(place));
            }
        }
        held.into_iter().for_each(|item| self.give(item));
    }

    fn run(&self, ops: usize) {
        let (senders, receivers): (Vec<_>, Vec<_>) = (0..THREADS).map(|_| channel()).unzip();
        std::thread::scope(|scope| {
            for (place, inbox) in receivers.into_iter().enumerate() {
                let next = senders[(place + 1) % THREADS].clone();
                scope.spawn(move || {
                    self.work(place as u64 + 11, ops, &inbox, &next);
                    drop(next);
                    inbox.iter().for_each(|item| self.give(item));
                });
            }
            drop(senders);
        });
        assert_eq!(self.ledger.lock().unwrap().len(), 0);
    }
}

fn run<M: Machine>(make: impl Fn(u16, u64) -> M, devices: u16, streams: usize, most: u64) {
    for reuse in [Reuse::SameStream, Reuse::Completed, Reuse::Wait] {
        let rig = Rig::new(&make, devices, 48 * MIB);
        let pool = rig.builder().reuse(reuse).build().unwrap();
        let streams: Vec<Stream> = (0..streams)
            .map(|place| pool.stream([D0, D1][place % usize::from(devices)]).unwrap())
            .collect();
        let ledger = Mutex::default();
        let crew = Crew { rig: &rig, pool: &pool, streams: &streams, ledger, most };
        crew.run(250);
        pool.check_invariants_at(millpond::Level::Full);
        assert_eq!(pool.stats().devices[0].live_bytes, 0);
        drop(streams);
        rig.done(pool);
    }
}

/// All threads allocate on one stream.
pub fn many_threads_one_stream<M: Machine>(make: impl Fn(u16, u64) -> M) {
    run(make, 1, 1, 3 * MIB);
}

/// All threads use all streams of two devices.
pub fn many_threads_many_streams<M: Machine>(make: impl Fn(u16, u64) -> M) {
    run(make, 2, 6, 3 * MIB);
}

/// Only sizes that the caches serve.
pub fn many_threads_small_blocks<M: Machine>(make: impl Fn(u16, u64) -> M) {
    run(make, 1, 3, 30_000);
}

/// Streams come and go on every thread, while others use their memory.
pub fn many_threads_short_lived_streams<M: Machine>(make: impl Fn(u16, u64) -> M) {
    let rig = Rig::new(make, 2, 64 * MIB);
    let pool = rig.pool();
    std::thread::scope(|scope| {
        for seed in 0..THREADS as u64 {
            let (rig, pool) = (&rig, &pool);
            scope.spawn(move || {
                let mut rng = Rng::new(seed);
                for round in 0..40 {
                    let stream = pool.stream([D0, D1][round % 2]).unwrap();
                    let late = rig.get(&stream, rng.size(2 * MIB));
                    for _ in 0..3 {
                        rig.touch(&stream, rng.size(2 * MIB));
                    }
                    rig.read(&stream, &late);
                    drop(stream);
                    drop(late);
                    rig.machine.pass_time();
                }
            });
        }
    });
    rig.done(pool);
}

/// One thread takes from the arena what was freed before its stream's wait, while the stream that
/// freed it takes the same blocks from its own cache, uses and frees them again.
pub fn taken_by_hint_and_by_fit_at_once<M: Machine>(make: impl Fn(u16, u64) -> M) {
    let rig = Rig::new(make, 1, 1 << 30);
    let pool = rig.builder().reuse(Reuse::SameStream).build().unwrap();
    let [s, t] = [0; 2].map(|_| pool.stream(D0).unwrap());
    let sizes: Vec<u64> = (1..60).map(|i| 2 * MIB + i * 512).collect();
    // Live blocks between them keep them apart, so each stays what its size says.
    let (between, held): (Vec<_>, Vec<_>) =
        sizes.iter().map(|&bytes| (rig.get(&s, 2 * MIB), rig.get(&s, bytes))).unzip();
    held.into_iter().for_each(|block| rig.free(&s, block));
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (rig, sizes, theirs, done) = (&rig, &sizes, s.clone(), &done);
        scope.spawn(move || {
            let mut rng = Rng::new(5);
            while !done.load(Ordering::Relaxed) {
                rig.touch(&theirs, sizes[rng.index(sizes.len())]);
            }
        });
        let (mut rng, mut kept) = (Rng::new(6), std::collections::VecDeque::new());
        for _ in 0..400 {
            t.wait(&s).unwrap();
            kept.push_back(rig.get(&t, sizes[rng.index(sizes.len())]));
            // Kept for a while, so that the next one is not this one again.
            if kept.len() > 20 {
                kept.pop_front().into_iter().for_each(|block| rig.free(&t, block));
                s.wait(&t).unwrap();
            }
        }
        kept.into_iter().for_each(|block| rig.free(&t, block));
        done.store(true, Ordering::Relaxed);
    });
    between.into_iter().for_each(|block| rig.free(&s, block));
    drop((s, t));
    rig.done(pool);
}
