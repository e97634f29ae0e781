//! Driver calls between two moments of a replay.

use super::driver::{CountingDriver, OwnCalls};
use millpond_simgpu::{Call, Counters, Sim};
use serde::Serialize;

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
        let get = |call| counters.get(call);
        // The own calls are read before the counters, so with threads at work they may lag behind.
        let others = |call, now: u64, then: u64| get(call).saturating_sub(now.saturating_sub(then));
        let (now, then) = (self.own, earlier.own);
        Spent {
            calls: DriverCalls {
                alloc: get(Call::Alloc),
                free: get(Call::Free),
                create: get(Call::Create),
                map: get(Call::Map),
                set_access: get(Call::SetAccess),
                unmap: get(Call::Unmap),
                release: get(Call::Release),
                event_record: others(Call::EventRecord, now.records, then.records),
                event_query: others(Call::EventQuery, now.queries, then.queries),
                stream_wait: others(Call::StreamWait, now.waits, then.waits),
                sync: get(Call::Sync),
            },
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

/// Calls by kind.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct DriverCalls {
    pub alloc: u64,
    pub free: u64,
    pub create: u64,
    pub map: u64,
    pub set_access: u64,
    pub unmap: u64,
    pub release: u64,
    pub event_record: u64,
    pub event_query: u64,
    pub stream_wait: u64,
    pub sync: u64,
}

impl DriverCalls {
    /// Calls that take, map or give back memory.
    pub fn memory(&self) -> u64 {
        let Self { alloc, free, create, map, set_access, unmap, release, .. } = *self;
        alloc + free + create + map + set_access + unmap + release
    }

    /// Calls about events.
    pub fn events(&self) -> u64 {
        self.event_record + self.event_query + self.stream_wait
    }
}
