//! Counters of driver calls by kind, and of the time that they take.
//!
//! A trace's `w` and `x` lines, and their like, record events and submit waits too, through the pool.
//! Those calls are counted by themselves: exactly, with several threads too, since the thread that
//! waits makes them.
//!
//! The counters are split into shards, one a thread as long as there are enough, so that two threads
//! that make calls do not fight over a cache line.

use crate::driver_calls::DriverCalls;
use millpond_simgpu::Call;
use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::Instant;

const KINDS: usize = Call::ALL.len();
/// More threads than this share.
const SHARDS: usize = 16;
/// What a wait that is not the pool's own consists of.
const OWN: [Call; 4] = [Call::EventRecord, Call::EventQuery, Call::StreamWait, Call::EventCreate];

/// A thread, to the counters.
#[derive(Clone, Copy)]
struct Me {
    shard: usize,
    /// Whether it is in a wait that is not the pool's own.
    waiting: bool,
}

thread_local! {
    static ME: Cell<Me> = const { Cell::new(Me { shard: usize::MAX, waiting: false }) };
}

fn me() -> Me {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    let mut me = ME.get();
    if me.shard == usize::MAX {
        me.shard = NEXT.fetch_add(1, Relaxed) % SHARDS;
        ME.set(me);
    }
    me
}

/// Runs a wait that is not the pool's own: its calls are counted apart.
#[inline]
pub(crate) fn own_wait<R>(wait: impl FnOnce() -> R) -> R {
    let mark = |waiting| ME.set(Me { waiting, ..ME.get() });
    mark(true);
    let result = wait();
    mark(false);
    result
}

/// One shard's counters of one side.
#[derive(Debug)]
#[repr(align(128))]
struct Dials {
    calls: [AtomicU64; KINDS],
    ns: AtomicU64,
}

impl Dials {
    fn new() -> Self {
        Self { calls: std::array::from_fn(|_| AtomicU64::new(0)), ns: AtomicU64::new(0) }
    }
}

/// The counters. Statistics: ordered with nothing.
#[derive(Debug)]
pub(crate) struct Meter {
    /// By shard: those of the pool, those of other waits.
    shards: Box<[[Dials; 2]]>,
    timed: AtomicBool,
}

impl Meter {
    /// Counters at zero; `timed` ones look at the clock around each call.
    pub fn new(timed: bool) -> Self {
        let shards = (0..SHARDS).map(|_| [Dials::new(), Dials::new()]).collect();
        Self { shards, timed: AtomicBool::new(timed) }
    }

    /// No more looks at the clock.
    pub fn stop_timing(&self) {
        self.timed.store(false, Relaxed);
    }

    /// Makes a call of the driver.
    #[inline]
    pub fn call<R>(&self, kind: Call, call: impl FnOnce() -> R) -> R {
        let me = me();
        let own = me.waiting && OWN.contains(&kind);
        let dials = &self.shards[me.shard][usize::from(own)];
        dials.calls[kind as usize].fetch_add(1, Relaxed);
        if !self.timed.load(Relaxed) {
            return call();
        }
        let start = Instant::now();
        let result = call();
        let ns = u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX);
        dials.ns.fetch_add(ns, Relaxed);
        result
    }

    /// What the counters show.
    pub fn reading(&self) -> Reading {
        let mut sums = [[0; KINDS]; 2];
        let mut ns = 0;
        for shard in &self.shards {
            for (sums, dials) in sums.iter_mut().zip(shard) {
                for (sum, calls) in sums.iter_mut().zip(&dials.calls) {
                    *sum += calls.load(Relaxed);
                }
            }
            ns += shard[0].ns.load(Relaxed);
        }
        let [pool, own] = sums;
        Reading { pool, own, driver_ns: ns }
    }
}

/// What the counters showed at one moment.
#[derive(Clone, Debug)]
pub(crate) struct Reading {
    pool: [u64; KINDS],
    own: [u64; KINDS],
    /// Time in the pool's calls.
    pub driver_ns: u64,
}

impl Reading {
    /// The pool's calls by kind.
    pub fn calls(&self) -> DriverCalls {
        DriverCalls::counted(|kind| self.pool[kind as usize])
    }

    /// The calls of other waits, of each kind of which there are any.
    pub fn own(&self) -> impl Iterator<Item = (Call, u64)> {
        OWN.into_iter().map(|kind| (kind, self.own[kind as usize]))
    }

    /// What happened from an earlier reading to this one.
    pub fn since(&self, earlier: &Self) -> Spent {
        let own = |kind| self.own[kind as usize] - earlier.own[kind as usize];
        Spent {
            calls: DriverCalls::counted(|kind| {
                self.pool[kind as usize] - earlier.pool[kind as usize]
            }),
            driver_ns: self.driver_ns.saturating_sub(earlier.driver_ns),
            trace_waits: own(Call::EventRecord) + own(Call::StreamWait),
        }
    }
}

/// Calls and time between two readings.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Spent {
    /// The pool's own calls.
    pub calls: DriverCalls,
    /// Their time.
    pub driver_ns: u64,
    /// Event records and stream waits of other waits.
    pub trace_waits: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pools_calls_and_other_waits_are_told_apart() {
        let meter = Meter::new(false);
        let before = meter.reading();
        let query = || meter.call(Call::EventQuery, || ());
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| (0..100).for_each(|_| query()));
            }
        });
        own_wait(|| {
            meter.call(Call::EventRecord, || ());
            meter.call(Call::StreamWait, || ());
            // No part of a wait.
            meter.call(Call::Sync, || ());
        });
        meter.call(Call::StreamWait, || ());
        let spent = meter.reading().since(&before);
        assert_eq!((spent.trace_waits, spent.driver_ns), (2, 0));
        let calls = spent.calls;
        assert_eq!((calls.event_query, calls.event_record, calls.stream_wait), (300, 0, 1));
        assert_eq!((calls.sync, calls.events(), calls.memory()), (1, 301, 0));
    }

    #[test]
    fn time_is_that_of_the_pools_calls_while_it_is_taken() {
        let meter = Meter::new(true);
        let nap = || std::thread::sleep(std::time::Duration::from_millis(2));
        own_wait(|| meter.call(Call::EventRecord, nap));
        assert_eq!(meter.reading().driver_ns, 0);
        meter.call(Call::Map, nap);
        let taken = meter.reading().driver_ns;
        assert!(taken >= 2_000_000, "{taken}");
        meter.stop_timing();
        meter.call(Call::Map, nap);
        assert_eq!(meter.reading().driver_ns, taken);
        assert_eq!(meter.reading().calls().map, 2);
    }
}
