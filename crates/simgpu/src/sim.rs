//! The simulation as a whole: what it consists of, and what it tells about itself.
//!
//! # Locks
//!
//! Memory, queues and the race oracle are one *world* behind one lock. Streams and events are
//! tables with a lock for each entry. The order is world, stream, event. With [`Completion::Lag`]
//! and without the oracle, recording, querying and waiting for events touch no part of the world
//! and do not lock it: programs whose speed is measured make those calls often. Otherwise each call
//! holds the world from beginning to end, so that what the oracle is told comes in one order.

use std::fmt;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard};

use crate::event::EventState;
use crate::lag::Hang;
use crate::memory::{Memory, Mismatch, device_of};
use crate::meter::Meter;
use crate::oracle::{Clock, Hazard, Oracle};
use crate::sched::{Findings, Scheduler};
use crate::slots::Slots;
use crate::stream::StreamState;
use crate::sync::lock;
use crate::{Builder, Call, Completion, Costs, Counters, ErrorCode, Fault, Result, SimError};

/// A simulated machine with one or more GPUs. Clones are handles of the same machine.
///
/// See the [crate](crate) for an introduction.
#[derive(Clone)]
pub struct Sim {
    pub(crate) inner: Arc<Inner>,
}

/// What is common to all handles.
pub(crate) struct Inner {
    devices: u16,
    granularity: u64,
    span: u64,
    pub(crate) completion: Completion,
    pub(crate) costs: Costs,
    /// Whether event and stream calls need the world.
    ordered: bool,
    pub(crate) meter: Meter,
    /// Ticks so far.
    pub(crate) clock: AtomicU64,
    /// The serial number of the next stream.
    pub(crate) next_stream: AtomicU32,
    pub(crate) streams: Slots<StreamState>,
    pub(crate) events: Slots<EventState>,
    world: Mutex<World>,
}

/// What changes as one.
pub(crate) struct World {
    pub(crate) memory: Memory,
    /// With [`Completion::Scheduled`].
    pub(crate) sched: Option<Scheduler>,
    pub(crate) oracle: Option<Oracle>,
    pub(crate) findings: Findings,
    /// The last work of destroyed streams, by device, until the host has seen the device drained.
    pub(crate) destroyed: Vec<(u16, Clock)>,
    /// With [`Completion::Lag`]: hangs that have not ended, by the device that they keep busy.
    pub(crate) hangs: Vec<(u16, Arc<Hang>)>,
}

impl World {
    /// Lets the scheduler run until `done`; `false` where it gets stuck before.
    pub(crate) fn run_until(&mut self, done: impl Fn(&Scheduler) -> bool) -> bool {
        let Some(sched) = &mut self.sched else {
            return true;
        };
        while !done(sched) {
            if !sched.step(&mut self.memory, &mut self.findings) {
                return false;
            }
        }
        true
    }
}

impl Inner {
    /// The world, after the steps that a call brings.
    pub(crate) fn world(&self) -> MutexGuard<'_, World> {
        let mut world = lock(&self.world);
        let World { sched, memory, findings, .. } = &mut *world;
        if let Some(sched) = sched {
            sched.some_steps(memory, findings);
        }
        world
    }

    /// The world as it is.
    pub(crate) fn peek(&self) -> MutexGuard<'_, World> {
        lock(&self.world)
    }

    /// The world for a call that needs it only where calls must come in one order.
    pub(crate) fn turn(&self) -> Option<MutexGuard<'_, World>> {
        self.ordered.then(|| self.world())
    }

    /// Counts and prices a call; fails where it is to fail.
    pub(crate) fn enter(&self, call: Call, device: u16) -> Result<()> {
        self.meter.enter(call, device, self.costs.of(call))
    }

    pub(crate) fn check_device(&self, call: Call, device: u16) -> Result<()> {
        if device < self.devices {
            return Ok(());
        }
        Err(SimError::new(
            call,
            ErrorCode::InvalidDevice,
            format!("there is no device {device}, there are {}", self.devices),
        ))
    }
}

impl Sim {
    /// Starts the configuration of a simulation.
    pub fn builder() -> Builder {
        Builder::default()
    }

    pub(crate) fn start(config: &Builder, capacities: Vec<u64>, granularity: u64) -> Self {
        let scheduled = config.completion == Completion::Scheduled;
        let world = World {
            memory: Memory::new(
                &capacities,
                granularity,
                config.address_space,
                config.shared_addresses,
                config.contents,
            ),
            sched: scheduled.then(|| Scheduler::new(config.seed)),
            oracle: config.oracle.then(Oracle::new),
            findings: Findings::default(),
            destroyed: Vec::new(),
            hangs: Vec::new(),
        };
        let inner = Inner {
            devices: capacities.len() as u16,
            granularity,
            span: config.address_space,
            completion: config.completion,
            costs: config.costs.clone(),
            ordered: scheduled || config.oracle,
            meter: Meter::new(capacities.len()),
            clock: AtomicU64::new(0),
            next_stream: AtomicU32::new(0),
            streams: Slots::new(),
            events: Slots::new(),
            world: Mutex::new(world),
        };
        Self { inner: Arc::new(inner) }
    }

    /// Number of devices.
    pub fn device_count(&self) -> u16 {
        self.inner.devices
    }

    /// Smallest size and alignment of a page.
    pub fn granularity(&self) -> u64 {
        self.inner.granularity
    }

    /// Physical memory of a device in bytes, if there is such a device.
    pub fn capacity(&self, device: u16) -> Option<u64> {
        let world = lock(&self.inner.world);
        (device < self.inner.devices).then(|| world.memory.info(device).1)
    }

    /// Whether the bytes of device memory exist.
    pub fn has_contents(&self) -> bool {
        lock(&self.inner.world).memory.has_contents()
    }

    /// The device whose address it is, whether or not anything is there.
    pub fn device_of(&self, address: u64) -> Option<u16> {
        device_of(address, self.inner.span, self.inner.devices)
    }

    /// Moves the clock of [`Completion::Lag`] on by one; one atomic addition. Nothing else looks at
    /// the clock.
    pub fn tick(&self) {
        self.inner.clock.fetch_add(1, Relaxed);
    }

    /// What the clock shows.
    pub fn now(&self) -> u64 {
        self.inner.clock.load(Relaxed)
    }

    /// How often each call was made so far, per device.
    pub fn counters(&self) -> Counters {
        self.inner.meter.counters()
    }

    /// Calls of all kinds so far. A sweep that fails each call in turn counts them in a first run.
    pub fn total_calls(&self) -> u64 {
        self.counters().total()
    }

    /// Simulated time that the host has spent in calls of a device, in nanoseconds; 0 where there
    /// is no such device.
    pub fn host_ns(&self, device: u16) -> u64 {
        self.inner.meter.host_ns(device)
    }

    /// What calls cost.
    pub fn costs(&self) -> &Costs {
        &self.inner.costs
    }

    /// Lets a call fail that is still to come.
    pub fn inject(&self, fault: Fault) {
        self.inner.meter.inject(fault);
    }

    /// Lets the `nth` call from now on fail, whatever its kind; 1 is the next.
    pub fn inject_any(&self, nth: u64, code: ErrorCode) {
        self.inner.meter.inject_any(nth, code, false);
    }

    /// Lets every call fail from the `nth` from now on, whatever its kind; 1 is the next.
    pub fn inject_all(&self, nth: u64, code: ErrorCode) {
        self.inner.meter.inject_any(nth, code, true);
    }

    /// Forgets all faults; says whether any was still to come (sticky ones always are).
    pub fn clear_faults(&self) -> bool {
        self.inner.meter.clear_faults()
    }

    /// Shuts the driver down, as the end of a process does before the last destructors have run:
    /// from here on every call answers [`ErrorCode::Deinitialized`].
    pub fn shutdown(&self) {
        self.inner.meter.shut_down();
    }

    /// Destroys a device's context, as another library in the process may do: from here on every call
    /// of that device answers [`ErrorCode::ContextDestroyed`], as does a wait for one of its events.
    /// The other devices go on. What the device held counts as a leak. Nothing happens where there is
    /// no such device.
    pub fn destroy_context(&self, device: u16) {
        self.inner.meter.destroy_context(device);
    }

    /// What the race oracle has found, the first ones in detail; empty without the oracle.
    pub fn hazards(&self) -> Vec<Hazard> {
        let world = lock(&self.inner.world);
        let oracle = world.oracle.as_ref();
        oracle.map_or_else(Vec::new, |oracle| oracle.hazards().to_vec())
    }

    /// How much the race oracle has found; 0 without the oracle.
    pub fn hazard_count(&self) -> u64 {
        let world = lock(&self.inner.world);
        world.oracle.as_ref().map_or(0, Oracle::hazard_count)
    }

    /// How many content checks ([`check_fill`](Self::check_fill)) have failed.
    pub fn content_mismatches(&self) -> u64 {
        lock(&self.inner.world).findings.mismatches
    }

    /// The first content checks that failed.
    pub fn mismatches(&self) -> Vec<Mismatch> {
        lock(&self.inner.world).findings.kept.clone()
    }

    /// How many pieces of work found no memory at an address when they ran, which on a GPU ends the
    /// context. Only [`Completion::Scheduled`] can find any: there, work runs later than it is
    /// submitted.
    pub fn device_faults(&self) -> u64 {
        lock(&self.inner.world).findings.faults
    }

    /// What has not been given back.
    pub fn leaks(&self) -> Leaks {
        (0..self.inner.devices).map(|device| self.leaks_of(device)).sum()
    }

    /// What has not been given back of one device; nothing where there is no such device.
    pub fn leaks_of(&self, device: u16) -> Leaks {
        if device >= self.inner.devices {
            return Leaks::default();
        }
        let census = lock(&self.inner.world).memory.census(device);
        Leaks {
            pages: census.pages,
            mappings: census.mappings,
            reservations: census.reservations,
            allocations: census.allocations,
            streams: self.inner.streams.count(|stream| stream.device == device),
            events: self.inner.events.count(|event| event.device == device),
            bytes: census.bytes,
        }
    }
}

impl fmt::Debug for Sim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sim")
            .field("devices", &self.inner.devices)
            .field("completion", &self.inner.completion)
            .finish_non_exhaustive()
    }
}

/// What a program still holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Leaks {
    /// Pages whose handle is not released, or that are still mapped.
    pub pages: usize,
    /// Mappings.
    pub mappings: usize,
    /// Reservations of addresses.
    pub reservations: usize,
    /// Plain allocations.
    pub allocations: usize,
    /// Streams.
    pub streams: usize,
    /// Events.
    pub events: usize,
    /// Physical bytes of the pages and plain allocations.
    pub bytes: u64,
}

impl Leaks {
    /// Whether everything has been given back.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

impl std::iter::Sum for Leaks {
    fn sum<I: Iterator<Item = Self>>(each: I) -> Self {
        each.fold(Self::default(), |all, one| Self {
            pages: all.pages + one.pages,
            mappings: all.mappings + one.mappings,
            reservations: all.reservations + one.reservations,
            allocations: all.allocations + one.allocations,
            streams: all.streams + one.streams,
            events: all.events + one.events,
            bytes: all.bytes + one.bytes,
        })
    }
}

impl fmt::Display for Leaks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} pages, {} mappings, {} reservations, {} allocations ({} bytes), {} streams, {} events",
            self.pages,
            self.mappings,
            self.reservations,
            self.allocations,
            self.bytes,
            self.streams,
            self.events
        )
    }
}
