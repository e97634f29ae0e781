//! A driver whose calls are counted, and, where their time is real, timed.

use super::books::{Books, Leaks};
use super::meter::{Meter, Reading};
use millpond::DeviceId;
use millpond::driver::{DeviceInfo, Driver, DriverResult, EventHandle, PageHandle, StreamHandle};
use millpond_simgpu::{Call, Sim};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Any driver behind a [`Meter`].
#[derive(Debug)]
pub(crate) struct Metered {
    driver: Arc<dyn Driver>,
    meter: Meter,
    /// Where the driver is simulated: it keeps the time that its calls take.
    sim: Option<Sim>,
    /// Where nobody else keeps them.
    books: Option<Mutex<Books>>,
}

impl Metered {
    /// Simulated GPUs, whose calls have prices.
    pub fn simulated(driver: Arc<dyn Driver>, sim: Sim) -> Self {
        Self { driver, meter: Meter::new(false), sim: Some(sim), books: None }
    }

    /// Real GPUs: the host's clock tells.
    pub fn timed(driver: Arc<dyn Driver>) -> Self {
        Self { driver, meter: Meter::new(true), sim: None, books: None }
    }

    /// The same, with what was not given back.
    pub fn booked(driver: Arc<dyn Driver>) -> Self {
        Self { books: Some(Mutex::default()), ..Self::timed(driver) }
    }

    /// What the driver has not got back; nothing without books.
    pub fn leaks(&self) -> Leaks {
        let books = self.books.as_ref();
        books.map(|books| lock(books).leaks()).unwrap_or_default()
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

fn lock(books: &Mutex<Books>) -> std::sync::MutexGuard<'_, Books> {
    books.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Each call, by kind, and what it does to the books where it succeeds.
macro_rules! metered {
    ($(
        $kind:ident: fn $name:ident($($arg:ident: $type:ty),*) -> $out:ty
        $(, |$books:ident, $given:pat_param| $note:expr)?;
    )*) => {
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

            $(fn $name(&self, $($arg: $type),*) -> DriverResult<$out> {
                let call = || self.meter.call(Call::$kind, || self.driver.$name($($arg),*));
                $(if let Some(books) = &self.books {
                    // From before the call: what is given back here may be given out there at once.
                    let $books = &mut lock(books);
                    let result = call();
                    if let Ok($given) = &result {
                        $note;
                    }
                    return result;
                })?
                call()
            })*
        }
    };
}

metered! {
    MemoryInfo: fn device(device: DeviceId) -> DeviceInfo;
    StreamCreate: fn create_stream(device: DeviceId) -> StreamHandle, |books, _| books.stream();
    StreamDestroy: fn destroy_stream(device: DeviceId, stream: StreamHandle) -> (),
        |books, ()| books.stream_back();
    EventCreate: fn create_event(device: DeviceId) -> EventHandle, |books, _| books.event();
    EventDestroy: fn destroy_event(device: DeviceId, event: EventHandle) -> (),
        |books, ()| books.event_back();
    EventRecord: fn record(device: DeviceId, event: EventHandle, stream: StreamHandle) -> ();
    EventQuery: fn query(device: DeviceId, event: EventHandle) -> bool;
    StreamWait: fn wait(device: DeviceId, stream: StreamHandle, event: EventHandle) -> ();
    Sync: fn synchronize(device: DeviceId, event: EventHandle, timeout: Duration) -> bool;
    Copy: fn copy(device: DeviceId, stream: StreamHandle, to: u64, from: u64, bytes: u64) -> ();
    Reserve: fn reserve(device: DeviceId, bytes: u64) -> u64,
        |books, address| books.reservation(*address, bytes);
    Unreserve: fn unreserve(device: DeviceId, address: u64, bytes: u64) -> (),
        |books, ()| books.reservation_back(address);
    Create: fn create_page(device: DeviceId, bytes: u64) -> PageHandle,
        |books, page| books.page(device, *page, bytes);
    Release: fn release_page(device: DeviceId, page: PageHandle) -> (),
        |books, ()| books.page_back(device, page);
    Map: fn map(device: DeviceId, address: u64, bytes: u64, page: PageHandle) -> (),
        |books, ()| books.mapping(address, bytes);
    SetAccess: fn set_access(device: DeviceId, address: u64, bytes: u64, to: &[DeviceId]) -> ();
    Unmap: fn unmap(device: DeviceId, address: u64, bytes: u64) -> (),
        |books, ()| books.mappings_back(address, bytes);
    Alloc: fn allocate(device: DeviceId, bytes: u64) -> u64,
        |books, address| books.plain(*address, bytes);
    Free: fn free(device: DeviceId, address: u64) -> (), |books, ()| books.plain_back(address);
    PeerAccess: fn enable_peer(device: DeviceId, to: DeviceId) -> ();
}
