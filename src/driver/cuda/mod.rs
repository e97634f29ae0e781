//! The CUDA driver: [`Driver`] through [`cudarc`].
//!
//! The library is opened when it is first used, so that programs build and start where there is no
//! CUDA: ask [`is_present`]. A [`CudaDriver`] stands on the caller's contexts and streams; it makes
//! no object of cudarc's itself, since those ask for the current context at each call and create
//! events of their own.
//!
//! # What it does beyond passing calls on
//!
//! * The calling thread's current context is, after each call, what it was before.
//! * A page is mapped, written and read once before virtual memory is relied on. Where that fails,
//!   memory is taken by `cuMemAlloc` ([`CudaDriver::fallback`] says why).
//! * An event is never recorded on a stream that captures, nor a wait submitted to one: both would
//!   become part of the graph. Such calls fail with `CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED`; the
//!   pool makes none when it was told of the capture.
//! * Its calls run in relaxed capture mode, as far as the calling thread is concerned, so that they
//!   disturb no capture, not even one of a stream that the pool does not know, or that begins meanwhile.
//! * A host wait polls, since the driver has none with a time limit.
//!
//! # End of life
//!
//! After the driver has shut down every call fails with `CUDA_ERROR_DEINITIALIZED`, which drops do
//! not mention. In a forked child CUDA does not work at all; the pool does not call it there.

pub(crate) mod call;
mod memory;

use super::{
    DeviceId, DeviceInfo, Driver, DriverError, DriverResult, EventHandle, PageHandle, StreamHandle,
};
use call::{Current, Relaxed, call, done, failed, refused};
pub use cudarc;
use cudarc::driver::sys::{self, CUresult};
use cudarc::driver::{CudaContext, result};
use std::ptr;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// cudarc's handle of the thread's own default stream.
const PER_THREAD: StreamHandle = StreamHandle(2);

/// The longest pause between two questions of a host wait.
const LONGEST_PAUSE: Duration = Duration::from_micros(500);

/// Whether a CUDA driver library can be opened. It may still find no device.
pub fn is_present() -> bool {
    // SAFETY: opens and closes the driver's library, whose initialisers are the vendor's.
    unsafe { sys::is_culib_present() }
}

/// NVIDIA GPUs as the pool's driver.
#[derive(Debug)]
pub struct CudaDriver {
    devices: Box<[Device]>,
    contexts: Box<[Arc<CudaContext>]>,
}

/// One device, and what was asked about it once.
#[derive(Debug)]
struct Device {
    context: Context,
    ordinal: sys::CUdevice,
    info: DeviceInfo,
    /// Why there is no virtual memory.
    fallback: Option<DriverError>,
}

/// A context's handle. It is alive as long as the driver, which holds cudarc's object too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Context(sys::CUcontext);

// SAFETY: contexts may be used from any thread; the driver locks.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

impl CudaDriver {
    /// All devices, by their primary contexts: [`DeviceId`]s are CUDA's ordinals.
    ///
    /// # Errors
    /// Where there is no driver library, no device, or a device cannot be used.
    pub fn all() -> DriverResult<Self> {
        require_library()?;
        let of = |call| move |error: result::DriverError| failed(call, error.0);
        // SAFETY: the call has no arguments of ours.
        unsafe { call!(cuInit(0)) }?;
        let count = result::device::get_count().map_err(of("cuDeviceGetCount"))?;
        // Making a context makes it current.
        let current = Current::keep()?;
        let contexts: Vec<_> = (0..count as usize)
            .map(|ordinal| CudaContext::new(ordinal).map_err(of("cuDevicePrimaryCtxRetain")))
            .collect::<DriverResult<_>>()?;
        // And so does giving it up, where a device cannot be used.
        let driver = Self::new(contexts);
        drop(current);
        driver
    }

    /// The devices of these contexts: [`DeviceId`]s are their places in the list. The contexts are
    /// kept alive.
    ///
    /// # Errors
    /// For an empty list; where a device cannot be asked about itself.
    pub fn new(contexts: impl IntoIterator<Item = Arc<CudaContext>>) -> DriverResult<Self> {
        let contexts: Box<[_]> = contexts.into_iter().collect();
        if contexts.is_empty() {
            let message = "there is no device to take memory from";
            return Err(refused("cuDeviceGetCount", CUresult::CUDA_ERROR_NO_DEVICE, message));
        }
        let devices = contexts.iter().map(|context| Device::new(context));
        let devices = devices.collect::<DriverResult<_>>()?;
        Ok(Self { devices, contexts })
    }

    /// Takes plain allocations even where there is virtual memory.
    #[must_use]
    pub fn without_virtual_memory(mut self) -> Self {
        for device in &mut self.devices {
            device.info.virtual_memory = false;
        }
        self
    }

    /// The contexts, in the order of the devices.
    pub fn contexts(&self) -> &[Arc<CudaContext>] {
        &self.contexts
    }

    /// Why memory of a device is taken in plain allocations, if it is so by necessity.
    pub fn fallback(&self, device: DeviceId) -> Option<&DriverError> {
        self.devices.get(usize::from(device.0))?.fallback.as_ref()
    }

    /// Free and total bytes of a device, over all that use it.
    ///
    /// # Errors
    /// Where the driver does not say.
    pub fn memory_info(&self, device: DeviceId) -> DriverResult<(u64, u64)> {
        let (mut free, mut total) = (0, 0);
        // SAFETY: stores to places of ours.
        self.on(device, |_| unsafe { call!(cuMemGetInfo_v2(&raw mut free, &raw mut total)) })?;
        Ok((free as u64, total as u64))
    }

    fn of(&self, device: DeviceId) -> DriverResult<&Device> {
        let found = self.devices.get(usize::from(device.0));
        found.ok_or_else(|| {
            let message = format!("{device} does not exist: there are {}", self.devices.len());
            refused("cuDeviceGet", CUresult::CUDA_ERROR_INVALID_DEVICE, &message)
        })
    }

    /// Makes calls in a device's context.
    fn on<T>(
        &self,
        device: DeviceId,
        calls: impl FnOnce(&Device) -> DriverResult<T>,
    ) -> DriverResult<T> {
        let device = self.of(device)?;
        let _current = Current::new(device.context.0)?;
        let _relaxed = Relaxed::new()?;
        calls(device)
    }
}

/// Fails where cudarc would panic.
fn require_library() -> DriverResult<()> {
    if is_present() {
        return Ok(());
    }
    let message =
        "no CUDA driver library (libcuda.so) can be opened: is NVIDIA's driver installed?";
    Err(refused("cuInit", CUresult::CUDA_ERROR_NOT_INITIALIZED, message))
}

impl Device {
    fn new(context: &CudaContext) -> DriverResult<Self> {
        let ordinal = context.cu_device();
        let of = |call| move |error: result::DriverError| failed(call, error.0);
        let _current = Current::new(context.cu_ctx())?;
        let _relaxed = Relaxed::new()?;
        let name = result::device::get_name(ordinal).map_err(of("cuDeviceGetName"))?;
        let mut bytes = 0;
        // SAFETY: stores to a place of ours.
        unsafe { call!(cuDeviceTotalMem_v2(&raw mut bytes, ordinal)) }?;
        let probed = probe(ordinal);
        let info = DeviceInfo {
            name,
            memory_bytes: bytes as u64,
            // Of plain allocations it is the unit that they are taken in.
            granularity: probed.as_ref().map_or(2 << 20, |&granularity| granularity),
            virtual_memory: probed.is_ok(),
        };
        Ok(Self { context: Context(context.cu_ctx()), ordinal, info, fallback: probed.err() })
    }
}

/// The granularity of virtual memory, where it works.
fn probe(ordinal: sys::CUdevice) -> DriverResult<u64> {
    let attribute =
        sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED;
    let mut supported = 0;
    // SAFETY: stores to a place of ours.
    unsafe { call!(cuDeviceGetAttribute(&raw mut supported, attribute, ordinal)) }?;
    if supported == 0 {
        let message = "the device has no virtual memory management";
        return Err(refused("cuMemCreate", CUresult::CUDA_ERROR_NOT_SUPPORTED, message));
    }
    let granularity = memory::granularity(ordinal)?;
    memory::probe(ordinal, granularity)?;
    Ok(granularity)
}

fn stream(handle: StreamHandle) -> sys::CUstream {
    ptr::with_exposed_provenance_mut(handle.0 as usize)
}

fn event(handle: EventHandle) -> sys::CUevent {
    ptr::with_exposed_provenance_mut(handle.0 as usize)
}

/// Refuses a submission to a stream that captures: it would become part of the graph.
///
/// # Safety
/// The stream is alive.
unsafe fn refuse_capture(call: &'static str, handle: StreamHandle) -> DriverResult<()> {
    let mut status = sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
    // SAFETY: the stream is alive; stores to a place of ours.
    unsafe { call!(cuStreamIsCapturing(stream(handle), &raw mut status)) }?;
    if status == sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE {
        return Ok(());
    }
    let message = "the stream captures, and the pool was not told: see `GraphMemory`";
    Err(refused(call, CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, message))
}

/// Asks about an event.
///
/// # Safety
/// The event is alive.
unsafe fn is_done(handle: EventHandle) -> DriverResult<bool> {
    // SAFETY: the event is alive.
    match unsafe { sys::cuEventQuery(event(handle)) } {
        CUresult::CUDA_ERROR_NOT_READY => Ok(false),
        code => done("cuEventQuery", code).map(|()| true),
    }
}

// Handles come from this driver and are alive, as `Driver`'s callers see to; those of streams may be
// the caller's, who promised that of them to the pool. A context is alive as long as the driver. Each
// call stores only to places of its own. That is the reason of every `unsafe` below.
impl Driver for CudaDriver {
    fn name(&self) -> &'static str {
        "cuda"
    }

    fn device_count(&self) -> u16 {
        self.devices.len() as u16
    }

    fn device(&self, device: DeviceId) -> DriverResult<DeviceInfo> {
        Ok(self.of(device)?.info.clone())
    }

    fn device_of_context(&self, context: u64) -> Option<DeviceId> {
        let found =
            self.devices.iter().position(|device| device.context.0.addr() as u64 == context);
        found.map(|at| DeviceId(at as u16))
    }

    fn check_stream(&self, device: DeviceId, handle: StreamHandle) -> DriverResult<()> {
        const CALL: &str = "cuStreamGetCtx";
        if handle == PER_THREAD {
            let message = "the per-thread default stream is another one on each thread: \
                           register a stream that was created";
            return Err(refused(CALL, CUresult::CUDA_ERROR_NOT_SUPPORTED, message));
        }
        self.on(device, |device| {
            let mut context = ptr::null_mut();
            // SAFETY: as above.
            unsafe { call!(cuStreamGetCtx(stream(handle), &raw mut context)) }?;
            if context == device.context.0 {
                return Ok(());
            }
            let message = "the stream is of another context than the device's";
            Err(refused(CALL, CUresult::CUDA_ERROR_INVALID_CONTEXT, message))
        })
    }

    fn create_stream(&self, device: DeviceId) -> DriverResult<StreamHandle> {
        self.on(device, |_| {
            let mut created = ptr::null_mut();
            let flags = sys::CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
            // SAFETY: as above.
            unsafe { call!(cuStreamCreate(&raw mut created, flags)) }?;
            Ok(StreamHandle(created.expose_provenance() as u64))
        })
    }

    fn destroy_stream(&self, device: DeviceId, handle: StreamHandle) -> DriverResult<()> {
        // SAFETY: as above; it was created here and is destroyed once.
        self.on(device, |_| unsafe { call!(cuStreamDestroy_v2(stream(handle))) })
    }

    fn create_event(&self, device: DeviceId) -> DriverResult<EventHandle> {
        self.on(device, |_| {
            let mut created = ptr::null_mut();
            let flags = sys::CUevent_flags::CU_EVENT_DISABLE_TIMING as u32;
            // SAFETY: as above.
            unsafe { call!(cuEventCreate(&raw mut created, flags)) }?;
            Ok(EventHandle(created.expose_provenance() as u64))
        })
    }

    fn destroy_event(&self, device: DeviceId, handle: EventHandle) -> DriverResult<()> {
        // SAFETY: as above; it was created here and is destroyed once.
        self.on(device, |_| unsafe { call!(cuEventDestroy_v2(event(handle))) })
    }

    fn record(&self, device: DeviceId, handle: EventHandle, on: StreamHandle) -> DriverResult<()> {
        // SAFETY: as above.
        self.on(device, |_| unsafe {
            refuse_capture("cuEventRecord", on)?;
            call!(cuEventRecord(event(handle), stream(on)))
        })
    }

    fn query(&self, device: DeviceId, handle: EventHandle) -> DriverResult<bool> {
        // SAFETY: as above.
        self.on(device, |_| unsafe { is_done(handle) })
    }

    fn wait(&self, device: DeviceId, waiter: StreamHandle, on: EventHandle) -> DriverResult<()> {
        let flags = sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT as u32;
        // SAFETY: as above.
        self.on(device, |_| unsafe {
            refuse_capture("cuStreamWaitEvent", waiter)?;
            call!(cuStreamWaitEvent(stream(waiter), event(on), flags))
        })
    }

    fn synchronize(
        &self,
        device: DeviceId,
        handle: EventHandle,
        timeout: Duration,
    ) -> DriverResult<bool> {
        self.on(device, |_| {
            let start = Instant::now();
            let mut pause = Duration::from_micros(1);
            loop {
                // SAFETY: as above.
                if unsafe { is_done(handle) }? {
                    return Ok(true);
                }
                let left = timeout.saturating_sub(start.elapsed());
                if left.is_zero() {
                    return Ok(false);
                }
                std::thread::sleep(pause.min(left));
                pause = (pause * 2).min(LONGEST_PAUSE);
            }
        })
    }

    fn copy(
        &self,
        device: DeviceId,
        stream: StreamHandle,
        to: u64,
        from: u64,
        bytes: u64,
    ) -> DriverResult<()> {
        // SAFETY: as above.
        self.on(device, |_| unsafe {
            call!(cuMemcpyDtoDAsync_v2(to, from, bytes as usize, self::stream(stream)))
        })
    }

    fn reserve(&self, device: DeviceId, bytes: u64) -> DriverResult<u64> {
        self.on(device, |_| {
            let mut address = 0;
            // SAFETY: as above.
            unsafe { call!(cuMemAddressReserve(&raw mut address, bytes as usize, 0, 0, 0)) }?;
            Ok(address)
        })
    }

    fn unreserve(&self, device: DeviceId, address: u64, bytes: u64) -> DriverResult<()> {
        // SAFETY: as above.
        self.on(device, |_| unsafe { call!(cuMemAddressFree(address, bytes as usize)) })
    }

    fn create_page(&self, device: DeviceId, bytes: u64) -> DriverResult<PageHandle> {
        self.on(device, |device| {
            let mut page = 0;
            let prop = memory::properties(device.ordinal);
            // SAFETY: as above.
            unsafe { call!(cuMemCreate(&raw mut page, bytes as usize, &raw const prop, 0)) }?;
            Ok(PageHandle(page))
        })
    }

    fn release_page(&self, device: DeviceId, page: PageHandle) -> DriverResult<()> {
        // SAFETY: as above.
        self.on(device, |_| unsafe { call!(cuMemRelease(page.0)) })
    }

    fn map(
        &self,
        device: DeviceId,
        address: u64,
        bytes: u64,
        page: PageHandle,
    ) -> DriverResult<()> {
        // SAFETY: as above.
        self.on(device, |_| unsafe { call!(cuMemMap(address, bytes as usize, 0, page.0, 0)) })
    }

    fn set_access(
        &self,
        device: DeviceId,
        address: u64,
        bytes: u64,
        to: &[DeviceId],
    ) -> DriverResult<()> {
        let access = to.iter().map(|&to| Ok(memory::access(self.of(to)?.ordinal)));
        let access = access.collect::<DriverResult<Vec<_>>>()?;
        // SAFETY: as above.
        self.on(device, |_| unsafe {
            call!(cuMemSetAccess(address, bytes as usize, access.as_ptr(), access.len()))
        })
    }

    fn unmap(&self, device: DeviceId, address: u64, bytes: u64) -> DriverResult<()> {
        // SAFETY: as above.
        self.on(device, |_| unsafe { call!(cuMemUnmap(address, bytes as usize)) })
    }

    fn allocate(&self, device: DeviceId, bytes: u64) -> DriverResult<u64> {
        self.on(device, |_| {
            let mut address = 0;
            // SAFETY: as above.
            unsafe { call!(cuMemAlloc_v2(&raw mut address, bytes as usize)) }?;
            Ok(address)
        })
    }

    fn free(&self, device: DeviceId, address: u64) -> DriverResult<()> {
        // SAFETY: as above.
        self.on(device, |_| unsafe { call!(cuMemFree_v2(address)) })
    }

    fn enable_peer(&self, device: DeviceId, to: DeviceId) -> DriverResult<()> {
        let home = self.of(device)?;
        self.on(to, |to| {
            let mut possible = 0;
            // SAFETY: as above.
            unsafe { call!(cuDeviceCanAccessPeer(&raw mut possible, to.ordinal, home.ordinal)) }?;
            if possible == 0 {
                let message = format!("CUDA device {} cannot touch memory of {device}", to.ordinal);
                let code = CUresult::CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
                return Err(refused("cuCtxEnablePeerAccess", code, &message));
            }
            // SAFETY: as above.
            match unsafe { sys::cuCtxEnablePeerAccess(home.context.0, 0) } {
                CUresult::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED => Ok(()),
                code => done("cuCtxEnablePeerAccess", code),
            }
        })
    }
}
