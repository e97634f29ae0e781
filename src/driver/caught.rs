//! A driver whose panics are errors.
//!
//! A call that fails leaves everything as it was, and the pool goes on; a call that unwinds through the
//! pool would leave behind what it had in hand. So it does not get that far.

use super::{DeviceId, DeviceInfo, Driver, DriverResult, EventHandle, PageHandle, StreamHandle};
use crate::sync::Arc;
use std::time::Duration;

/// A driver, with calls that panic answered as calls that fail.
#[derive(Clone, Debug)]
pub struct Caught(pub Arc<dyn Driver>);

/// The driver of a model asserts what the model is about.
#[cfg(any(loom, shuttle))]
fn caught<T>(_: &'static str, body: impl FnOnce() -> DriverResult<T>) -> DriverResult<T> {
    body()
}

#[cfg(not(any(loom, shuttle)))]
fn caught<T>(call: &'static str, body: impl FnOnce() -> DriverResult<T>) -> DriverResult<T> {
    /// No driver has it.
    const PANICKED: i32 = -1;
    // The driver is the only state that a call leaves half changed, and its own to answer for.
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(body)).unwrap_or_else(|panic| {
        let message = format!("the driver panicked: {}", text(&*panic));
        Err(super::DriverError { call, code: PANICKED, message, out_of_memory: false })
    })
}

#[cfg(not(any(loom, shuttle)))]
fn text(panic: &(dyn std::any::Any + Send)) -> &str {
    match (panic.downcast_ref::<&str>(), panic.downcast_ref::<String>()) {
        (Some(text), _) => text,
        (_, Some(text)) => text,
        _ => "no message",
    }
}

macro_rules! caught {
    ($(fn $name:ident(device: DeviceId $(, $arg:ident: $type:ty)*) -> $out:ty;)*) => {
        impl Driver for Caught {
            fn name(&self) -> &'static str {
                self.0.name()
            }

            fn device_count(&self) -> u16 {
                self.0.device_count()
            }

            fn device_of_context(&self, context: u64) -> Option<DeviceId> {
                self.0.device_of_context(context)
            }

            $(fn $name(&self, device: DeviceId $(, $arg: $type)*) -> DriverResult<$out> {
                caught(stringify!($name), || self.0.$name(device $(, $arg)*))
            })*
        }
    };
}

caught! {
    fn device(device: DeviceId) -> DeviceInfo;
    fn check_stream(device: DeviceId, stream: StreamHandle) -> ();
    fn create_stream(device: DeviceId) -> StreamHandle;
    fn destroy_stream(device: DeviceId, stream: StreamHandle) -> ();
    fn create_event(device: DeviceId) -> EventHandle;
    fn destroy_event(device: DeviceId, event: EventHandle) -> ();
    fn record(device: DeviceId, event: EventHandle, stream: StreamHandle) -> ();
    fn query(device: DeviceId, event: EventHandle) -> bool;
    fn wait(device: DeviceId, stream: StreamHandle, event: EventHandle) -> ();
    fn synchronize(device: DeviceId, event: EventHandle, timeout: Duration) -> bool;
    fn copy(device: DeviceId, stream: StreamHandle, to: u64, from: u64, bytes: u64) -> ();
    fn reserve(device: DeviceId, bytes: u64) -> u64;
    fn unreserve(device: DeviceId, address: u64, bytes: u64) -> ();
    fn create_page(device: DeviceId, bytes: u64) -> PageHandle;
    fn release_page(device: DeviceId, page: PageHandle) -> ();
    fn map(device: DeviceId, address: u64, bytes: u64, page: PageHandle) -> ();
    fn set_access(device: DeviceId, address: u64, bytes: u64, to: &[DeviceId]) -> ();
    fn unmap(device: DeviceId, address: u64, bytes: u64) -> ();
    fn allocate(device: DeviceId, bytes: u64) -> u64;
    fn free(device: DeviceId, address: u64) -> ();
    fn enable_peer(device: DeviceId, to: DeviceId) -> ();
}
