//! The driver layer: what the pool asks of a GPU runtime, as one small trait.
//!
//! Everything above this module is written against [`Driver`] and knows no backend. A backend
//! supplies devices, streams, events and virtual memory; the pool supplies every policy.
//!
//! # Contract
//!
//! * Submissions to one stream ([`Driver::record`], [`Driver::wait`], and the caller's own work) are
//!   linearised by the driver. The fence protocol relies on it: a stamp that read `q` before a seal
//!   advanced `q` was preceded by submissions that the seal's event covers.
//! * An event that was never recorded answers "done": the pool never queries one.
//! * [`Driver::unmap`] and [`Driver::release_page`] do **not** wait for work in flight.
//! * A call that fails has had no effect. One that panics counts as one that fails.
//! * Calls may block or take locks inside the driver; the pool makes none on its lock-free paths.

use std::fmt;
use std::time::Duration;

mod caught;
#[cfg(feature = "cuda")]
pub mod cuda;
#[cfg(feature = "sim")]
pub mod sim;

pub(crate) use caught::Caught;

/// A GPU, by ordinal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeviceId(pub u16);

/// A driver's stream handle. Drivers reuse the values of destroyed streams, so the pool never
/// tells streams apart by it (see [`crate::StreamId`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamHandle(pub u64);

/// A driver's event handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EventHandle(pub u64);

/// A driver's handle of physical memory: one page (or a small multiple).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageHandle(pub u64);

impl fmt::Display for DeviceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "device {}", self.0)
    }
}

/// What the pool asks about a device before it uses it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceInfo {
    /// Name for people.
    pub name: String,
    /// Physical memory in bytes.
    pub memory_bytes: u64,
    /// Smallest size and alignment of a mapping in bytes; a power of two.
    pub granularity: u64,
    /// Whether memory can be taken in pages and mapped. Where not, it is taken in plain allocations.
    pub virtual_memory: bool,
}

/// Why a driver call failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{call} failed: {message} (code {code})")]
pub struct DriverError {
    /// The call, by the driver's own name.
    pub call: &'static str,
    /// The driver's numeric code.
    pub code: i32,
    /// The driver's text for the code.
    pub message: String,
    /// Whether the call failed for want of physical memory.
    pub out_of_memory: bool,
}

/// Result of a driver call.
pub type DriverResult<T> = Result<T, DriverError>;

/// A GPU runtime.
pub trait Driver: Send + Sync + fmt::Debug + 'static {
    /// A short name: `sim`, `cuda`.
    fn name(&self) -> &'static str;

    /// Number of devices.
    fn device_count(&self) -> u16;

    /// Facts about one device.
    fn device(&self, device: DeviceId) -> DriverResult<DeviceInfo>;

    /// The device that a context of the backend's belongs to, by the context's raw handle; `None` where
    /// the backend has no contexts, or not this one.
    fn device_of_context(&self, context: u64) -> Option<DeviceId>;

    /// Refuses a stream of the caller's that is not one of `device`, or that cannot be used from every
    /// thread, as far as the backend can tell.
    fn check_stream(&self, device: DeviceId, stream: StreamHandle) -> DriverResult<()>;

    /// Creates a stream on `device`.
    fn create_stream(&self, device: DeviceId) -> DriverResult<StreamHandle>;

    /// Destroys a stream. Work already submitted still runs.
    fn destroy_stream(&self, device: DeviceId, stream: StreamHandle) -> DriverResult<()>;

    /// Creates an event without timing on `device`.
    fn create_event(&self, device: DeviceId) -> DriverResult<EventHandle>;

    /// Destroys an event; legal before it has completed.
    fn destroy_event(&self, device: DeviceId, event: EventHandle) -> DriverResult<()>;

    /// Records `event` after all work that `stream` has been given. Both belong to `device`.
    fn record(
        &self,
        device: DeviceId,
        event: EventHandle,
        stream: StreamHandle,
    ) -> DriverResult<()>;

    /// Whether the work before the event's last record is done.
    fn query(&self, device: DeviceId, event: EventHandle) -> DriverResult<bool>;

    /// Makes later work of `stream` (on `device`) wait for the event's last record so far; the
    /// event may belong to another device.
    fn wait(&self, device: DeviceId, stream: StreamHandle, event: EventHandle) -> DriverResult<()>;

    /// Blocks the host until the event is done or `timeout` has passed; says whether it is done.
    fn synchronize(
        &self,
        device: DeviceId,
        event: EventHandle,
        timeout: Duration,
    ) -> DriverResult<bool>;

    /// Copies device memory as work of `stream`, which belongs to `device`. The device may touch both
    /// ranges.
    fn copy(
        &self,
        device: DeviceId,
        stream: StreamHandle,
        to: u64,
        from: u64,
        bytes: u64,
    ) -> DriverResult<()>;

    /// Reserves `bytes` of address space of `device`, aligned to the granularity.
    fn reserve(&self, device: DeviceId, bytes: u64) -> DriverResult<u64>;

    /// Gives back a whole reservation with nothing mapped in it.
    fn unreserve(&self, device: DeviceId, address: u64, bytes: u64) -> DriverResult<()>;

    /// Takes physical memory: `bytes` is a multiple of the granularity.
    fn create_page(&self, device: DeviceId, bytes: u64) -> DriverResult<PageHandle>;

    /// Gives physical memory back. Mapped memory lives on until it is unmapped.
    fn release_page(&self, device: DeviceId, page: PageHandle) -> DriverResult<()>;

    /// Maps the whole of `page` at `address` (offset 0, `bytes` long).
    fn map(&self, device: DeviceId, address: u64, bytes: u64, page: PageHandle)
    -> DriverResult<()>;

    /// Makes mapped memory of `device` accessible to `to`; one call may cover many mappings.
    fn set_access(
        &self,
        device: DeviceId,
        address: u64,
        bytes: u64,
        to: &[DeviceId],
    ) -> DriverResult<()>;

    /// Unmaps whole mappings. Does not wait for work in flight.
    fn unmap(&self, device: DeviceId, address: u64, bytes: u64) -> DriverResult<()>;

    /// Takes physical memory with an address of the driver's choice, aligned to 512 bytes at least.
    fn allocate(&self, device: DeviceId, bytes: u64) -> DriverResult<u64>;

    /// Gives back what [`Driver::allocate`] gave. May wait for all work of the device.
    fn free(&self, device: DeviceId, address: u64) -> DriverResult<()>;

    /// Lets `to` touch plain allocations of `device`, those to come included. No error where it may
    /// already.
    fn enable_peer(&self, device: DeviceId, to: DeviceId) -> DriverResult<()>;
}
