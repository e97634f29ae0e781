//! A driver that tells apart the event calls of the trace's own waits.
//!
//! The pool records events and submits waits for its own ends; a trace's `w` and `x` lines do so
//! too, through the pool. The latter are counted by themselves: exactly, with several threads too,
//! since the calls are made by the thread that waits.

use millpond::DeviceId;
use millpond::driver::sim::SimDriver;
use millpond::driver::{DeviceInfo, Driver, DriverResult, EventHandle, PageHandle, StreamHandle};
use millpond_simgpu::Costs;
use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

thread_local! {
    /// Whether this thread is in a wait of the trace's own.
    static WAITING: Cell<bool> = const { Cell::new(false) };
}

/// Runs a wait of the trace's own.
pub(super) fn own_wait<R>(wait: impl FnOnce() -> R) -> R {
    WAITING.set(true);
    let result = wait();
    WAITING.set(false);
    result
}

/// Event calls made in the trace's own waits.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct OwnCalls {
    pub records: u64,
    pub queries: u64,
    pub waits: u64,
    pub creates: u64,
}

impl OwnCalls {
    /// What they cost in simulated time.
    pub fn ns(&self, costs: &Costs) -> u64 {
        use millpond_simgpu::Call;
        self.records * costs.of(Call::EventRecord)
            + self.queries * costs.of(Call::EventQuery)
            + self.waits * costs.of(Call::StreamWait)
            + self.creates * costs.of(Call::EventCreate)
    }
}

/// [`SimDriver`] that counts the calls of [`own_wait`].
#[derive(Debug)]
pub(super) struct CountingDriver {
    sim: SimDriver,
    records: AtomicU64,
    queries: AtomicU64,
    waits: AtomicU64,
    creates: AtomicU64,
}

impl CountingDriver {
    pub fn new(sim: SimDriver) -> Self {
        let zero = || AtomicU64::new(0);
        Self { sim, records: zero(), queries: zero(), waits: zero(), creates: zero() }
    }

    pub fn own_calls(&self) -> OwnCalls {
        OwnCalls {
            records: self.records.load(Relaxed),
            queries: self.queries.load(Relaxed),
            waits: self.waits.load(Relaxed),
            creates: self.creates.load(Relaxed),
        }
    }
}

#[inline]
fn count(calls: &AtomicU64) {
    if WAITING.get() {
        calls.fetch_add(1, Relaxed);
    }
}

impl Driver for CountingDriver {
    fn name(&self) -> &'static str {
        self.sim.name()
    }

    fn device_count(&self) -> u16 {
        self.sim.device_count()
    }

    fn device(&self, device: DeviceId) -> DriverResult<DeviceInfo> {
        self.sim.device(device)
    }

    fn device_of_context(&self, context: u64) -> Option<DeviceId> {
        self.sim.device_of_context(context)
    }

    fn check_stream(&self, device: DeviceId, stream: StreamHandle) -> DriverResult<()> {
        self.sim.check_stream(device, stream)
    }

    fn create_stream(&self, device: DeviceId) -> DriverResult<StreamHandle> {
        self.sim.create_stream(device)
    }

    fn destroy_stream(&self, device: DeviceId, stream: StreamHandle) -> DriverResult<()> {
        self.sim.destroy_stream(device, stream)
    }

    fn create_event(&self, device: DeviceId) -> DriverResult<EventHandle> {
        count(&self.creates);
        self.sim.create_event(device)
    }

    fn destroy_event(&self, device: DeviceId, event: EventHandle) -> DriverResult<()> {
        self.sim.destroy_event(device, event)
    }

    fn record(
        &self,
        device: DeviceId,
        event: EventHandle,
        stream: StreamHandle,
    ) -> DriverResult<()> {
        count(&self.records);
        self.sim.record(device, event, stream)
    }

    fn query(&self, device: DeviceId, event: EventHandle) -> DriverResult<bool> {
        count(&self.queries);
        self.sim.query(device, event)
    }

    fn wait(&self, device: DeviceId, stream: StreamHandle, event: EventHandle) -> DriverResult<()> {
        count(&self.waits);
        self.sim.wait(device, stream, event)
    }

    fn synchronize(
        &self,
        device: DeviceId,
        event: EventHandle,
        timeout: Duration,
    ) -> DriverResult<bool> {
        self.sim.synchronize(device, event, timeout)
    }

    fn copy(
        &self,
        device: DeviceId,
        stream: StreamHandle,
        to: u64,
        from: u64,
        bytes: u64,
    ) -> DriverResult<()> {
        self.sim.copy(device, stream, to, from, bytes)
    }

    fn reserve(&self, device: DeviceId, bytes: u64) -> DriverResult<u64> {
        self.sim.reserve(device, bytes)
    }

    fn unreserve(&self, device: DeviceId, address: u64, bytes: u64) -> DriverResult<()> {
        self.sim.unreserve(device, address, bytes)
    }

    fn create_page(&self, device: DeviceId, bytes: u64) -> DriverResult<PageHandle> {
        self.sim.create_page(device, bytes)
    }

    fn release_page(&self, device: DeviceId, page: PageHandle) -> DriverResult<()> {
        self.sim.release_page(device, page)
    }

    fn map(
        &self,
        device: DeviceId,
        address: u64,
        bytes: u64,
        page: PageHandle,
    ) -> DriverResult<()> {
        self.sim.map(device, address, bytes, page)
    }

    fn set_access(
        &self,
        device: DeviceId,
        address: u64,
        bytes: u64,
        to: &[DeviceId],
    ) -> DriverResult<()> {
        self.sim.set_access(device, address, bytes, to)
    }

    fn unmap(&self, device: DeviceId, address: u64, bytes: u64) -> DriverResult<()> {
        self.sim.unmap(device, address, bytes)
    }

    fn allocate(&self, device: DeviceId, bytes: u64) -> DriverResult<u64> {
        self.sim.allocate(device, bytes)
    }

    fn free(&self, device: DeviceId, address: u64) -> DriverResult<()> {
        self.sim.free(device, address)
    }

    fn enable_peer(&self, device: DeviceId, to: DeviceId) -> DriverResult<()> {
        self.sim.enable_peer(device, to)
    }

    fn capturing(&self, device: DeviceId, on: bool) -> DriverResult<()> {
        self.sim.capturing(device, on)
    }
}
