//! Driver calls between two moments of a replay.

use super::driver::{CountingDriver, OwnCalls};
use crate::driver_calls::DriverCalls;
use millpond_simgpu::{Call, Counters, Sim};

/// What the driver's counters show at one moment.
#[derive(Clone, Debug)]
pub(super) struct Reading {
    counters: Counters,
    own: OwnCalls,
    /// Simulated time of all devices' calls, without the trace's own waits.
    driver_ns: u64,
}

impl Reading {
    pub fn take(sim: &Sim, driver: &CountingDriver) -> Self {
        let own = driver.own_calls();
        let all: u64 = (0..sim.device_count()).map(|device| sim.host_ns(device)).sum();
        let driver_ns = all.saturating_sub(own.ns(sim.costs()));
        Self { counters: sim.counters(), own, driver_ns }
    }

    /// What happened from an earlier reading to this one.
    pub fn since(&self, earlier: &Self) -> Spent {
        let counters = &self.counters - &earlier.counters;
        // The own calls are read before the counters, so with threads at work they may lag behind.
        let others =
            |call, now: u64, then: u64| counters.get(call).saturating_sub(now.saturating_sub(then));
        let (now, then) = (self.own, earlier.own);
        Spent {
            calls: DriverCalls::counted(|call| match call {
                Call::EventRecord => others(call, now.records, then.records),
                Call::EventQuery => others(call, now.queries, then.queries),
                Call::StreamWait => others(call, now.waits, then.waits),
                _ => counters.get(call),
            }),
            driver_ns: self.driver_ns.saturating_sub(earlier.driver_ns),
            trace_waits: (now.records - then.records) + (now.waits - then.waits),
        }
    }
}

/// Calls and simulated time between two readings.
#[derive(Clone, Copy, Debug)]
pub(super) struct Spent {
    /// The pool's own calls.
    pub calls: DriverCalls,
    /// Their time.
    pub driver_ns: u64,
    /// Event records and stream waits of the trace's own waits.
    pub trace_waits: u64,
}
