//! Real GPUs, as the devices of a run.
//!
//! A comparison is a copy of the bytes to the host, behind an event: nobody waits for it until the
//! host memory that such copies share is needed again, or the run ends. Once in a while a fill is
//! preceded by copies to the host that nobody looks at, so that streams fall behind and the pool meets
//! work in flight.

use super::devices::{Devices, Findings, SHOWN};
use super::ring::{Expected, Ring};
use crate::gpus::{Cuda, Metered, guarded, told};
use anyhow::{Context as _, bail};
use millpond::Stream;
use millpond::driver::cuda::cudarc::driver::result::{self, event, stream as streams};
use millpond::driver::cuda::cudarc::driver::{CudaContext, sys};
use std::ffi::c_void;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Bytes that a stream copies, some times over, to fall behind: near a tenth of a millisecond each time.
const BALLAST: usize = 4 << 20;
/// One fill in so many falls behind.
const BEHIND: u64 = 16;
/// No address of this host's programs is as high.
pub(super) const END: u64 = 1 << 49;

struct Device {
    context: Arc<CudaContext>,
    ring: Mutex<Ring>,
    /// Memory of the run's own, and as much of the host's, to copy it to.
    ballast: u64,
    host: u64,
}

/// NVIDIA GPUs.
pub(super) struct CudaDevices {
    devices: Vec<Device>,
    /// Set once the pool is there.
    driver: Mutex<Option<Arc<Metered>>>,
    mismatches: AtomicU64,
    details: Mutex<Vec<String>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn raw(stream: &Stream) -> sys::CUstream {
    stream.handle().0 as sys::CUstream
}

/// A pattern as devices fill with it, four bytes at a time.
fn word(pattern: u64) -> u32 {
    (pattern ^ (pattern >> 32)) as u32
}

impl CudaDevices {
    /// The first devices, each of which must reach every other's memory.
    pub fn new(cuda: &mut Cuda, devices: u16) -> anyhow::Result<Self> {
        let contexts = cuda.contexts(devices)?;
        reach(contexts)?;
        let devices = contexts.iter().map(Device::new).collect::<anyhow::Result<_>>()?;
        Ok(Self {
            devices,
            driver: Mutex::new(None),
            mismatches: AtomicU64::new(0),
            details: Mutex::default(),
        })
    }

    /// Whose books tell of leaks.
    pub fn watch(&self, driver: Arc<Metered>) {
        *lock(&self.driver) = Some(driver);
    }

    /// The stream's device, its context current.
    fn of(&self, stream: &Stream) -> anyhow::Result<&Device> {
        let device = &self.devices[usize::from(stream.device().0)];
        told("cuCtxSetCurrent", device.context.bind_to_thread())?;
        Ok(device)
    }

    fn compare(&self, found: &[u8], expected: &Expected) {
        let Some(at) = expected.differs(found) else { return };
        self.mismatches.fetch_add(1, Relaxed);
        let mut details = lock(&self.details);
        if details.len() < SHOWN {
            details.push(format!(
                "wrong contents at {:#x}: {:#04x} at byte {at} of {} instead of {:#04x}",
                expected.address,
                found[at],
                found.len(),
                expected.byte(at)
            ));
        }
    }
}

/// Fails where a device cannot touch another's memory.
fn reach(contexts: &[Arc<CudaContext>]) -> anyhow::Result<()> {
    for (from, one) in contexts.iter().enumerate() {
        for (to, other) in contexts.iter().enumerate().filter(|&(to, _)| to != from) {
            let mut can = 0;
            // SAFETY: both devices are those of live contexts, and the answer is ours.
            told("cuDeviceCanAccessPeer", unsafe {
                sys::cuDeviceCanAccessPeer(&raw mut can, one.cu_device(), other.cu_device())
                    .result()
            })?;
            if can == 0 {
                bail!("device {from} cannot reach the memory of device {to} (use --devices 1)");
            }
        }
    }
    Ok(())
}

impl Device {
    fn new(context: &Arc<CudaContext>) -> anyhow::Result<Self> {
        told("cuCtxSetCurrent", context.bind_to_thread())?;
        let ring = Mutex::new(Ring::new(context)?);
        let mut device = Self { context: Arc::clone(context), ring, ballast: 0, host: 0 };
        let none = "no memory to keep streams busy with";
        // SAFETY: the context is current; both are freed with the device, and the ballast is written
        // to before any stream knows it.
        unsafe {
            let ballast = guarded("cuMemAlloc", || result::malloc_sync(BALLAST));
            device.ballast = ballast.context(none)?;
            let host = guarded("cuMemHostAlloc", || result::malloc_host(BALLAST, 0));
            device.host = host.context(none)? as u64;
            told("cuMemsetD8", result::memset_d8_sync(device.ballast, 0xba, BALLAST))?;
            told("cuCtxSynchronize", context.synchronize())?;
        }
        Ok(device)
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        // Copies may still be under way where a run was given up.
        if self.context.synchronize().is_err() {
            return;
        }
        // SAFETY: allocated with the device, if they are there, and freed once.
        unsafe {
            if self.ballast != 0 {
                let _ = result::free_sync(self.ballast);
            }
            if self.host != 0 {
                let _ = result::free_host(self.host as *mut c_void);
            }
        }
    }
}

impl Devices for CudaDevices {
    fn fill(&self, stream: &Stream, address: u64, bytes: u64, pattern: u64) -> anyhow::Result<()> {
        let device = self.of(stream)?;
        let (word, stream) = (word(pattern), raw(stream));
        // SAFETY: nobody writes to the ballast, and nobody reads where it is copied to; the range is of
        // a live block that this stream may write to. Blocks, and the parts of them that are filled,
        // start at multiples of 512 bytes.
        unsafe {
            if pattern.is_multiple_of(BEHIND) {
                for _ in 0..=(pattern >> 32) % 8 {
                    let (to, from) = (device.host as *mut c_void, device.ballast);
                    let copied = sys::cuMemcpyDtoHAsync_v2(to, from, BALLAST, stream).result();
                    told("cuMemcpyDtoHAsync", copied)?;
                }
            }
            let words = bytes / 4;
            if words > 0 {
                let filled = sys::cuMemsetD32Async(address, word, words as usize, stream).result();
                told("cuMemsetD32Async", filled)?;
            }
            let (tail, rest) = (address + words * 4, bytes % 4);
            if rest > 0 {
                let byte = word.to_le_bytes()[0];
                let filled = sys::cuMemsetD8Async(tail, byte, rest as usize, stream).result();
                told("cuMemsetD8Async", filled)?;
            }
        }
        Ok(())
    }

    fn check(&self, stream: &Stream, address: u64, bytes: u64, pattern: u64) -> anyhow::Result<()> {
        let device = self.of(stream)?;
        let mut ring = lock(&device.ring);
        let mut at = 0;
        while at < bytes {
            let len = (bytes - at).min(Ring::MOST);
            let expected = Expected { address, at, bytes, word: word(pattern) };
            // SAFETY: the range is of a live block that this stream may read.
            unsafe { ring.copy(raw(stream), len, expected, |found, of| self.compare(found, of)) }?;
            at += len;
        }
        ring.look(|found, of| self.compare(found, of))?;
        Ok(())
    }

    fn copy(&self, stream: &Stream, to: u64, from: u64, bytes: u64) -> anyhow::Result<()> {
        self.of(stream)?;
        // SAFETY: both ranges are of live blocks, of which this stream may read one and write to the
        // other; every device reaches all.
        let copied =
            unsafe { result::memcpy_dtod_async(to, from, usize::try_from(bytes)?, raw(stream)) };
        Ok(told("cuMemcpyDtoDAsync", copied)?)
    }

    fn meet(&self, all: &[&Stream]) -> anyhow::Result<()> {
        let mut events = Vec::with_capacity(all.len());
        for stream in all {
            self.of(stream)?;
            let flags = sys::CUevent_flags::CU_EVENT_DISABLE_TIMING;
            let event = told("cuEventCreate", event::create(flags))?;
            events.push(event);
            // SAFETY: both are alive, and of one context.
            told("cuEventRecord", unsafe { event::record(event, raw(stream)) })?;
        }
        for stream in all {
            self.of(stream)?;
            for &event in &events {
                let flags = sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT;
                // SAFETY: both are alive.
                let waits = unsafe { streams::wait_event(raw(stream), event, flags) };
                told("cuStreamWaitEvent", waits)?;
            }
        }
        for event in events {
            // SAFETY: made above, and destroyed once; waits keep what they wait for.
            told("cuEventDestroy", unsafe { event::destroy(event) })?;
        }
        Ok(())
    }

    fn settle(&self) -> anyhow::Result<()> {
        for device in &self.devices {
            told("cuCtxSynchronize", device.context.synchronize())?;
            lock(&device.ring).settle(|found, of| self.compare(found, of))?;
        }
        Ok(())
    }

    fn findings(&self) -> Findings {
        let driver = lock(&self.driver);
        Findings {
            hazards: None,
            mismatches: self.mismatches.load(Relaxed),
            // An error of the device's makes every later call fail, which ends the run.
            device_faults: 0,
            leaks: driver.as_ref().map(|driver| driver.leaks()).unwrap_or_default(),
            details: lock(&self.details).clone(),
        }
    }
}
