//! The CUDA driver's own allocators, to compare the pool with.
//!
//! `cuda-async` frees in stream order: before a free the block's stream is made to wait, by events,
//! for every other stream that used the block, as a program has to. What it reserves is what the
//! driver's pool says it held at most. `cuda-plain` needs no events, since the driver waits for the
//! device itself; what it reserves is how much less memory of the device was free, at the least,
//! looked at whenever more was live than ever before. Anything else that takes memory of the device
//! meanwhile counts too.

use super::allocator::{Allocator, Figures};
use super::life::Life;
use super::machine::Machine;
use super::program::Program;
use crate::args::{AllocatorName, ReplayArgs};
use crate::gpus::{Cuda, Meter, Reading, guarded, own_wait, told};
use anyhow::{Context as _, ensure};
use millpond::DeviceId;
use millpond::driver::DriverError;
use millpond::driver::cuda::cudarc::driver::result::{self, event, mem_pool, stream};
use millpond::driver::cuda::cudarc::driver::{CudaContext, sys};
use millpond_simgpu::Call;
use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

type Result<T> = std::result::Result<T, DriverError>;

/// `cuMemAllocAsync`, or `cuMemAlloc`.
pub(super) struct Peer {
    meter: Meter,
    devices: Vec<Device>,
    asynchronous: bool,
}

struct Device {
    context: Arc<CudaContext>,
    /// The driver's pool, as a number; 0 where it is not used.
    pool: u64,
    /// When the replay began.
    free: u64,
    /// The least since; statistics, ordered with nothing.
    least_free: AtomicU64,
}

/// A stream, with an event to say how far it has come.
pub(super) struct PeerStream {
    device: DeviceId,
    context: Arc<CudaContext>,
    stream: u64,
    event: u64,
}

/// A block, with the other streams that use it.
pub(super) struct PeerBlock {
    address: u64,
    bytes: u64,
    stream: Arc<PeerStream>,
    users: Vec<Arc<PeerStream>>,
}

/// Makes a context the calling thread's.
fn bind(context: &CudaContext) -> Result<()> {
    thread_local! {
        /// The context that was made current here last. Nobody else does so on a thread that
        /// allocates.
        static CURRENT: Cell<usize> = const { Cell::new(0) };
    }
    let raw = context.cu_ctx();
    if CURRENT.get() == raw as usize {
        return Ok(());
    }
    // SAFETY: the context is alive, since somebody holds it.
    told("cuCtxSetCurrent", unsafe { result::ctx::set_current(raw) })?;
    CURRENT.set(raw as usize);
    Ok(())
}

impl PeerStream {
    fn raw(&self) -> sys::CUstream {
        self.stream as sys::CUstream
    }

    fn event(&self) -> sys::CUevent {
        self.event as sys::CUevent
    }
}

impl Drop for PeerStream {
    fn drop(&mut self) {
        // SAFETY: both were made with the stream and end with it; work that they were given runs on,
        // and waits keep what they wait for. What the driver refuses is lost with the process.
        unsafe {
            let _ = event::destroy(self.event());
            let _ = stream::destroy(self.raw());
        }
    }
}

impl Peer {
    /// Later work of `waiter` comes after all that `signaller` was given.
    fn order(&self, waiter: &PeerStream, signaller: &PeerStream) -> Result<()> {
        // SAFETY: streams and event are alive while their owners are borrowed. The event may be
        // recorded again at once: the wait is for the record current at its call.
        unsafe {
            let record = || event::record(signaller.event(), signaller.raw());
            told("cuEventRecord", self.meter.call(Call::EventRecord, record))?;
            let flags = sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT;
            let wait = || stream::wait_event(waiter.raw(), signaller.event(), flags);
            told("cuStreamWaitEvent", self.meter.call(Call::StreamWait, wait))
        }
    }

    fn device_of(&self, device: DeviceId) -> &Device {
        &self.devices[usize::from(device.0)]
    }
}

impl Allocator for Peer {
    type Stream = Arc<PeerStream>;
    type Block = PeerBlock;
    type Error = DriverError;

    fn stream(&self, device: DeviceId) -> Result<Arc<PeerStream>> {
        let context = Arc::clone(&self.device_of(device).context);
        // Not through `bind`: this runs where contexts are made, too.
        told("cuCtxSetCurrent", context.bind_to_thread())?;
        let flags = sys::CUevent_flags::CU_EVENT_DISABLE_TIMING;
        let event = told("cuEventCreate", event::create(flags))?;
        let stream = told("cuStreamCreate", stream::create(stream::StreamKind::NonBlocking));
        let stream = stream.inspect_err(|_| {
            // SAFETY: just made, and known to nobody.
            let _ = unsafe { event::destroy(event) };
        })?;
        Ok(Arc::new(PeerStream { device, context, stream: stream as u64, event: event as u64 }))
    }

    fn device(stream: &Arc<PeerStream>) -> DeviceId {
        stream.device
    }

    fn handle(stream: &Arc<PeerStream>) -> u64 {
        stream.stream
    }

    fn alloc(&self, stream: &Arc<PeerStream>, bytes: u64, _: Life) -> Result<PeerBlock> {
        bind(&stream.context)?;
        let len = usize::try_from(bytes).unwrap_or(usize::MAX);
        // SAFETY: the stream is alive, and its context current.
        let address = if self.asynchronous {
            let alloc = || unsafe { result::malloc_async(stream.raw(), len) };
            told("cuMemAllocAsync", self.meter.call(Call::Alloc, alloc))
        } else {
            let alloc = || unsafe { result::malloc_sync(len) };
            told("cuMemAlloc", self.meter.call(Call::Alloc, alloc))
        }?;
        Ok(PeerBlock { address, bytes, stream: Arc::clone(stream), users: Vec::new() })
    }

    fn free(&self, block: PeerBlock) -> Result<()> {
        bind(&block.stream.context)?;
        // SAFETY: the block was allocated here and is freed once. With `free_async` no other stream
        // touches it after what its own stream waits for; the plain free waits for the device.
        if self.asynchronous {
            for user in &block.users {
                self.order(&block.stream, user)?;
            }
            let free = || unsafe { result::free_async(block.address, block.stream.raw()) };
            told("cuMemFreeAsync", self.meter.call(Call::Free, free))
        } else {
            let free = || unsafe { result::free_sync(block.address) };
            told("cuMemFree", self.meter.call(Call::Free, free))
        }
    }

    fn record_use(&self, block: &mut PeerBlock, stream: &Arc<PeerStream>) -> Result<()> {
        let known = std::iter::once(&block.stream).chain(&block.users);
        if !known.into_iter().any(|user| Arc::ptr_eq(user, stream)) {
            block.users.push(Arc::clone(stream));
        }
        Ok(())
    }

    fn wait(&self, waiter: &Arc<PeerStream>, signaller: &Arc<PeerStream>) -> Result<()> {
        bind(&waiter.context)?;
        own_wait(|| self.order(waiter, signaller))
    }

    fn is_no_memory(error: &DriverError) -> bool {
        // A size beyond all memory is an invalid one to the driver.
        let invalid = sys::CUresult::CUDA_ERROR_INVALID_VALUE as i32;
        error.out_of_memory
            || (error.code == invalid && matches!(error.call, "cuMemAlloc" | "cuMemAllocAsync"))
    }

    fn used_on<R>(
        block: &PeerBlock,
        _: &Arc<PeerStream>,
        work: impl FnOnce(u64) -> R,
    ) -> Result<R> {
        Ok(work(block.address))
    }

    fn bytes(block: &PeerBlock) -> u64 {
        block.bytes
    }

    fn granted_bytes(_: &PeerBlock) -> Option<u64> {
        None
    }

    fn reading(&self) -> Reading {
        self.meter.reading()
    }

    fn stop_timing(&self) {
        self.meter.stop_timing();
    }

    fn at_peak(&self, device: u16) {
        let device = &self.devices[usize::from(device)];
        if self.asynchronous || bind(&device.context).is_err() {
            return;
        }
        // A device that does not say is found out by the calls that matter.
        if let Ok((free, _)) = result::mem_get_info() {
            device.least_free.fetch_min(free as u64, Relaxed);
        }
    }

    fn figures(&self) -> Result<Figures> {
        use sys::CUmemPool_attribute as Attribute;
        let mut release_threshold = None;
        let mut peak_reserved = Vec::with_capacity(self.devices.len());
        for device in &self.devices {
            peak_reserved.push(if self.asynchronous {
                let attribute = Attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
                release_threshold = Some(pool_figure(device.pool, attribute)?);
                pool_figure(device.pool, Attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH)?
            } else {
                device.free.saturating_sub(device.least_free.load(Relaxed))
            });
        }
        Ok(Figures {
            peak_reserved,
            hits: None,
            ladder: None,
            buckets: None,
            merging: None,
            moves: None,
            cross_stream_hits: None,
            bookkeeping_bytes: None,
            release_threshold,
        })
    }
}

impl Machine<Peer> {
    /// The driver's allocator over as many real devices as the program needs.
    pub fn peer(program: &Program, args: &ReplayArgs, cuda: &mut Cuda) -> anyhow::Result<Self> {
        let asynchronous = args.allocator == AllocatorName::CudaAsync;
        let mut limits = Vec::new();
        let mut devices = Vec::new();
        for (index, context) in
            cuda.contexts(u16::try_from(program.devices.len())?)?.iter().enumerate()
        {
            told("cuCtxSetCurrent", context.bind_to_thread())?;
            let pool = if asynchronous {
                ensure!(context.has_async_alloc(), "device {index} has no cuMemAllocAsync");
                let threshold = args.release_threshold.map(|bytes| bytes.0);
                empty_pool(context, threshold).with_context(|| format!("device {index}"))?
            } else {
                0
            };
            let (free, total) = guarded("cuMemGetInfo", result::mem_get_info)?;
            limits.push(total as u64);
            let (free, least_free) = (free as u64, AtomicU64::new(free as u64));
            devices.push(Device { context: Arc::clone(context), pool, free, least_free });
        }
        let allocator = Peer { meter: Meter::new(true), devices, asynchronous };
        Ok(Self { allocator, limits, sim: None })
    }
}

/// The device's pool, with nothing left in it by an earlier replay.
fn empty_pool(context: &CudaContext, threshold: Option<u64>) -> Result<u64> {
    use sys::CUmemPool_attribute as Attribute;
    // SAFETY: the device is the context's.
    let pool = guarded("cuDeviceGetDefaultMemPool", || unsafe {
        result::device::get_default_mem_pool(context.cu_device())
    })?;
    told("cuCtxSynchronize", context.synchronize())?;
    // SAFETY: the pool is the device's own and lives as long as it; so below.
    guarded("cuMemPoolTrimTo", || unsafe { mem_pool::trim_to(pool, 0) })?;
    let set = |attribute, mut value: u64| {
        guarded("cuMemPoolSetAttribute", || unsafe {
            mem_pool::set_attribute(pool, attribute, (&raw mut value).cast())
        })
    };
    if let Some(bytes) = threshold {
        set(Attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, bytes)?;
    }
    // Zero is the one value that a high mark can be set to.
    set(Attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH, 0)?;
    Ok(pool as u64)
}

fn pool_figure(pool: u64, attribute: sys::CUmemPool_attribute) -> Result<u64> {
    let mut value = 0_u64;
    // SAFETY: the pool is a device's own; both attributes that are asked for are 64-bit numbers.
    guarded("cuMemPoolGetAttribute", || unsafe {
        mem_pool::get_attribute(pool as sys::CUmemoryPool, attribute, (&raw mut value).cast())
    })?;
    Ok(value)
}
