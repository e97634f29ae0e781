//! The simulated driver: [`Driver`] over [`millpond_simgpu::Sim`].

use super::{
    DeviceId, DeviceInfo, Driver, DriverError, DriverResult, EventHandle, PageHandle, StreamHandle,
};
use millpond_simgpu::{ErrorCode, Event, Page, Sim, SimError, Stream};
use std::time::Duration;

/// Simulated GPUs as the pool's driver. Keep a clone of the [`Sim`] to submit work, to inject faults
/// and to read hazards and costs.
#[derive(Clone, Debug)]
pub struct SimDriver {
    sim: Sim,
    virtual_memory: bool,
}

impl SimDriver {
    /// A driver over simulated devices.
    pub fn new(sim: Sim) -> Self {
        Self { sim, virtual_memory: true }
    }

    /// The same, of devices without virtual memory management.
    pub fn without_virtual_memory(sim: Sim) -> Self {
        Self { sim, virtual_memory: false }
    }

    /// The simulated devices.
    pub fn sim(&self) -> &Sim {
        &self.sim
    }
}

impl From<StreamHandle> for Stream {
    fn from(handle: StreamHandle) -> Self {
        Self(handle.0)
    }
}

fn failed(error: SimError) -> DriverError {
    DriverError {
        call: error.call.name(),
        code: error.code.number(),
        out_of_memory: error.code == ErrorCode::OutOfMemory,
        message: format!("{}: {}", error.code, error.message),
    }
}

impl Driver for SimDriver {
    fn name(&self) -> &'static str {
        "sim"
    }

    fn device_count(&self) -> u16 {
        self.sim.device_count()
    }

    fn device(&self, device: DeviceId) -> DriverResult<DeviceInfo> {
        let (_, memory_bytes) = self.sim.memory_info(device.0).map_err(failed)?;
        Ok(DeviceInfo {
            name: format!("simulated GPU {}", device.0),
            memory_bytes,
            granularity: self.sim.granularity(),
            virtual_memory: self.virtual_memory,
        })
    }

    fn device_of_context(&self, _: u64) -> Option<DeviceId> {
        None
    }

    fn check_stream(&self, _: DeviceId, _: StreamHandle) -> DriverResult<()> {
        Ok(())
    }

    fn create_stream(&self, device: DeviceId) -> DriverResult<StreamHandle> {
        self.sim.stream_create(device.0).map(|stream| StreamHandle(stream.0)).map_err(failed)
    }

    fn destroy_stream(&self, _: DeviceId, stream: StreamHandle) -> DriverResult<()> {
        self.sim.stream_destroy(stream.into()).map_err(failed)
    }

    fn create_event(&self, device: DeviceId) -> DriverResult<EventHandle> {
        self.sim.event_create(device.0).map(|event| EventHandle(event.0)).map_err(failed)
    }

    fn destroy_event(&self, _: DeviceId, event: EventHandle) -> DriverResult<()> {
        self.sim.event_destroy(Event(event.0)).map_err(failed)
    }

    fn record(&self, _: DeviceId, event: EventHandle, stream: StreamHandle) -> DriverResult<()> {
        self.sim.event_record(Event(event.0), stream.into()).map_err(failed)
    }

    fn query(&self, _: DeviceId, event: EventHandle) -> DriverResult<bool> {
        self.sim.event_query(Event(event.0)).map_err(failed)
    }

    fn wait(&self, _: DeviceId, stream: StreamHandle, event: EventHandle) -> DriverResult<()> {
        self.sim.stream_wait(stream.into(), Event(event.0)).map_err(failed)
    }

    fn synchronize(
        &self,
        _: DeviceId,
        event: EventHandle,
        timeout: Duration,
    ) -> DriverResult<bool> {
        self.sim.event_synchronize(Event(event.0), Some(timeout)).map_err(failed)
    }

    fn copy(
        &self,
        _: DeviceId,
        stream: StreamHandle,
        to: u64,
        from: u64,
        bytes: u64,
    ) -> DriverResult<()> {
        self.sim.copy(stream.into(), to, from, bytes).map_err(failed)
    }

    fn reserve(&self, device: DeviceId, bytes: u64) -> DriverResult<u64> {
        self.sim.reserve(device.0, bytes).map_err(failed)
    }

    fn unreserve(&self, _: DeviceId, address: u64, bytes: u64) -> DriverResult<()> {
        self.sim.unreserve(address, bytes).map_err(failed)
    }

    fn create_page(&self, device: DeviceId, bytes: u64) -> DriverResult<PageHandle> {
        self.sim.page_create(device.0, bytes).map(|page| PageHandle(page.0)).map_err(failed)
    }

    fn release_page(&self, _: DeviceId, page: PageHandle) -> DriverResult<()> {
        self.sim.page_release(Page(page.0)).map_err(failed)
    }

    fn map(&self, _: DeviceId, address: u64, bytes: u64, page: PageHandle) -> DriverResult<()> {
        self.sim.map(address, bytes, Page(page.0)).map_err(failed)
    }

    fn set_access(
        &self,
        _: DeviceId,
        address: u64,
        bytes: u64,
        to: &[DeviceId],
    ) -> DriverResult<()> {
        let to: Vec<u16> = to.iter().map(|device| device.0).collect();
        self.sim.set_access(address, bytes, &to).map_err(failed)
    }

    fn unmap(&self, _: DeviceId, address: u64, bytes: u64) -> DriverResult<()> {
        self.sim.unmap(address, bytes).map_err(failed)
    }

    fn allocate(&self, device: DeviceId, bytes: u64) -> DriverResult<u64> {
        self.sim.malloc(device.0, bytes).map_err(failed)
    }

    fn free(&self, _: DeviceId, address: u64) -> DriverResult<()> {
        self.sim.free(address).map_err(failed)
    }

    fn enable_peer(&self, device: DeviceId, to: DeviceId) -> DriverResult<()> {
        self.sim.peer_access(to.0, device.0).map_err(failed)
    }
}
