//! A driver whose calls are counted, and, where their time is real, timed.

use super::meter::{Meter, Reading};
use millpond::DeviceId;
use millpond::driver::{DeviceInfo, Driver, DriverResult, EventHandle, PageHandle, StreamHandle};
use millpond_simgpu::{Call, Sim};
use std::sync::Arc;
use std::time::Duration;

/// Any driver behind a [`Meter`].
#[derive(Debug)]
pub(crate) struct Metered {
    driver: Arc<dyn Driver>,
    meter: Meter,
    /// Where the driver is simulated: it keeps the time that its calls take.
    sim: Option<Sim>,
}

impl Metered {
    /// Simulated GPUs, whose calls have prices.
    pub fn simulated(driver: Arc<dyn Driver>, sim: Sim) -> Self {
        Self { driver, meter: Meter::new(false), sim: Some(sim) }
    }

    /// Real GPUs: the host's clock tells.
    pub fn timed(driver: Arc<dyn Driver>) -> Self {
        Self { driver, meter: Meter::new(true), sim: None }
    }

    /// Times of calls are of no more interest.
    pub fn stop_timing(&self) {
        self.meter.stop_timing();
    }

    /// What the counters show.
    pub fn reading(&self) -> Reading {
        let mut reading = self.meter.reading();
        if let Some(sim) = &self.sim {
            // Read after the counters, so with threads at work it may be ahead of them.
            let all: u64 = (0..sim.device_count()).map(|device| sim.host_ns(device)).sum();
            let own: u64 = reading.own().map(|(kind, calls)| calls * sim.costs().of(kind)).sum();
            reading.driver_ns = all.saturating_sub(own);
        }
        reading
    }
}

macro_rules! metered {
    ($($kind:ident: fn $name:ident($($arg:ident: $type:ty),*) -> $out:ty;)*) => {
        impl Driver for Metered {
            fn name(&self) -> &'static str {
                self.driver.name()
            }

            fn device_count(&self) -> u16 {
                self.driver.device_count()
            }

            fn device_of_context(&self, context: u64) -> Option<DeviceId> {
                self.driver.device_of_context(context)
            }

            fn check_stream(&self, device: DeviceId, stream: StreamHandle) -> DriverResult<()> {
                self.driver.check_stream(device, stream)
            }

            fn capturing(&self, device: DeviceId, on: bool) -> DriverResult<()> {
                self.driver.capturing(device, on)
            }

            $(fn $name(&self, $($arg: $type),*) -> DriverResult<$out> {
                self.meter.call(Call::$kind, || self.driver.$name($($arg),*))
            })*
        }
    };
}

metered! {
    MemoryInfo: fn device(device: DeviceId) -> DeviceInfo;
    StreamCreate: fn create_stream(device: DeviceId) -> StreamHandle;
    StreamDestroy: fn destroy_stream(device: DeviceId, stream: StreamHandle) -> ();
    EventCreate: fn create_event(device: DeviceId) -> EventHandle;
    EventDestroy: fn destroy_event(device: DeviceId, event: EventHandle) -> ();
    EventRecord: fn record(device: DeviceId, event: EventHandle, stream: StreamHandle) -> ();
    EventQuery: fn query(device: DeviceId, event: EventHandle) -> bool;
    StreamWait: fn wait(device: DeviceId, stream: StreamHandle, event: EventHandle) -> ();
    Sync: fn synchronize(device: DeviceId, event: EventHandle, timeout: Duration) -> bool;
    Copy: fn copy(device: DeviceId, stream: StreamHandle, to: u64, from: u64, bytes: u64) -> ();
    Reserve: fn reserve(device: DeviceId, bytes: u64) -> u64;
    Unreserve: fn unreserve(device: DeviceId, address: u64, bytes: u64) -> ();
    Create: fn create_page(device: DeviceId, bytes: u64) -> PageHandle;
    Release: fn release_page(device: DeviceId, page: PageHandle) -> ();
    Map: fn map(device: DeviceId, address: u64, bytes: u64, page: PageHandle) -> ();
    SetAccess: fn set_access(device: DeviceId, address: u64, bytes: u64, to: &[DeviceId]) -> ();
    Unmap: fn unmap(device: DeviceId, address: u64, bytes: u64) -> ();
    Alloc: fn allocate(device: DeviceId, bytes: u64) -> u64;
    Free: fn free(device: DeviceId, address: u64) -> ();
    PeerAccess: fn enable_peer(device: DeviceId, to: DeviceId) -> ();
}
