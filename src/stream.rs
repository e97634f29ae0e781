//! Streams as users hold them.

use crate::block::StreamId;
use crate::buffer::Buffer;
use crate::config::Lifetime;
use crate::core::{Core, Device, Enter, Handle};
use crate::driver::{DeviceId, Driver, StreamHandle};
use crate::error::{Error, Result};
use crate::fence::Owner;
use crate::movable::Movable;
use crate::sync::{Arc, AtomicU32, Ordering};
use std::any::Any;
use std::fmt;

/// An ordering domain of one device, registered with the pool.
///
/// Cheap to clone; clones are the same stream. When the last is dropped the pool records a last
/// seal, so that its memory is known to be free once its work is done, and destroys the handle if
/// it made it.
#[derive(Clone)]
pub struct Stream(Arc<Inner>);

struct Inner {
    core: Handle,
    device: Arc<Device>,
    id: StreamId,
    handle: StreamHandle,
    /// The stream whose memory serves: another one while this one captures.
    served_as: AtomicU32,
    /// What keeps a handle of the caller's alive.
    kept: Option<Arc<dyn Any + Send + Sync>>,
}

impl Drop for Inner {
    fn drop(&mut self) {
        if self.core.is_forked() {
            // Its end would call the driver.
            return std::mem::forget(self.kept.take());
        }
        self.core.close_stream(self.id);
    }
}

impl Stream {
    pub(crate) fn register(
        core: Handle,
        device: &Arc<Device>,
        handle: StreamHandle,
        owner: Owner,
    ) -> Result<Self> {
        let full = Error::TooManyStreams { device: device.id };
        let kept = match &owner {
            Owner::Kept(object) => Some(Arc::clone(object)),
            Owner::Pool | Owner::Caller => None,
        };
        let Some(id) = core.fences.register(device.id, handle, owner) else { return Err(full) };
        // The record exists for every id that is given out.
        core.open_stream(id);
        let served_as = AtomicU32::new(u32::from(id.get()));
        let device = Arc::clone(device);
        Ok(Self(Arc::new(Inner { core, device, id, handle, served_as, kept })))
    }

    /// A new stream of the driver's, which its end destroys.
    pub(crate) fn create(core: &Handle, device: DeviceId) -> Result<Self> {
        let home = core.device(device)?;
        let handle = core.driver.create_stream(device)?;
        Self::register(core.clone(), home, handle, Owner::Pool).inspect_err(|_| {
            let _ = core.driver.destroy_stream(device, handle);
        })
    }

    /// The stream whose memory serves this one.
    #[inline]
    pub(crate) fn served_as(&self) -> StreamId {
        // Relaxed: what a stream captures is submitted, and allocated, in an order of the caller's.
        StreamId(self.0.served_as.load(Ordering::Relaxed) as u16)
    }

    pub(crate) fn serve_as(&self, domain: StreamId) {
        self.0.served_as.store(u32::from(domain.get()), Ordering::Relaxed);
    }

    pub(crate) fn core(&self) -> &Handle {
        &self.0.core
    }

    /// The object of the caller's that keeps the handle alive.
    #[cfg(feature = "cuda")]
    pub(crate) fn kept(&self) -> Option<&Arc<dyn Any + Send + Sync>> {
        self.0.kept.as_ref()
    }

    /// The stream's number in its pool.
    #[inline]
    pub fn id(&self) -> StreamId {
        self.0.id
    }

    /// The device it belongs to.
    pub fn device(&self) -> DeviceId {
        self.0.device.id
    }

    /// The driver's handle, for submitting work.
    pub fn handle(&self) -> StreamHandle {
        self.0.handle
    }

    #[inline]
    pub(crate) fn home(&self) -> &Device {
        &self.0.device
    }

    #[inline]
    pub(crate) fn is_of(&self, core: &Core) -> bool {
        std::ptr::eq(&*self.0.core, core)
    }

    /// Allocates `len` values of `T`, uninitialised, for work submitted to this stream from now on.
    /// The address is aligned to 512 bytes.
    ///
    /// Lock-free when the thread, the stream or the device's shards have a block of the size; a
    /// miss enters the device's arena, one thread at a time.
    ///
    /// # Errors
    /// [`Error::ZeroSize`], also for elements without a size; [`Error::TooLarge`] above
    /// [`size::REQUEST_MAX`](crate::size::REQUEST_MAX) bytes, also where their number overflows;
    /// [`Error::OutOfMemory`] after every remedy was tried, [`Error::TooManyBlocks`],
    /// [`Error::Forked`], or a driver error.
    #[inline]
    pub fn alloc<T: Copy + 'static>(&self, len: usize) -> Result<Buffer<T>> {
        self.alloc_in(len, Lifetime::Transient, Enter::Wait)
    }

    /// As [`Stream::alloc`], for values that are to live so long: what lives for long is kept together
    /// where [`Builder::buddy`](crate::Builder::buddy) says so.
    ///
    /// Lock-free also when a chunk has room where a block has started before.
    ///
    /// # Errors
    /// As [`Stream::alloc`].
    pub fn alloc_as<T: Copy + 'static>(&self, len: usize, lifetime: Lifetime) -> Result<Buffer<T>> {
        self.alloc_in(len, lifetime, Enter::Wait)
    }

    /// As [`Stream::alloc`], but answers [`Error::Busy`] instead of waiting for a thread that is in
    /// the arena.
    ///
    /// # Errors
    /// As [`Stream::alloc`], and [`Error::Busy`].
    #[inline]
    pub fn try_alloc<T: Copy + 'static>(&self, len: usize) -> Result<Buffer<T>> {
        self.alloc_in(len, Lifetime::Transient, Enter::Try)
    }

    #[inline]
    fn alloc_in<T: Copy + 'static>(
        &self,
        len: usize,
        lifetime: Lifetime,
        enter: Enter,
    ) -> Result<Buffer<T>> {
        // A product beyond u64 is beyond the largest request as well.
        let bytes = (len as u64).saturating_mul(size_of::<T>() as u64);
        let device = self.home();
        let grant = self.0.core.allocate_as(device, self.served_as(), bytes, lifetime, enter)?;
        Ok(Buffer::new(&self.0.core, device, grant, len))
    }

    /// Allocates `len` values of `T` in a block that the pool may move while nobody has it pinned. Where
    /// blocks may move ([`crate::Builder::defragmentation`]) it takes a lock, for a moment.
    ///
    /// # Errors
    /// As [`Stream::alloc`], and [`Error::Capturing`].
    pub fn alloc_movable<T: Copy + 'static>(&self, len: usize) -> Result<Movable<T>> {
        self.check_capture()?;
        let bytes = (len as u64).saturating_mul(size_of::<T>() as u64);
        let device = &self.0.device;
        let grant = self.0.core.allocate(device, self.id(), bytes, Enter::Wait)?;
        Ok(Movable::new(&self.0.core, device, grant, len))
    }

    /// Refuses while the stream captures: a graph keeps the addresses it was given.
    pub(crate) fn check_capture(&self) -> Result<()> {
        let captures =
            self.served_as() != self.id() || self.0.core.fences.stream(self.id()).is_barred();
        if captures { Err(Error::Capturing { stream: self.id() }) } else { Ok(()) }
    }

    /// Makes work submitted to this stream from now on run after all work that `other` has been
    /// given so far. The pool remembers it: memory that `other` freed before needs no second wait.
    ///
    /// # Errors
    /// [`Error::ForeignStream`], [`Error::Capturing`], [`Error::Forked`], or a driver error.
    pub fn wait(&self, other: &Stream) -> Result<()> {
        self.0.core.check_process()?;
        if !other.is_of(&self.0.core) {
            return Err(Error::ForeignStream { stream: other.id() });
        }
        for stream in [self, other] {
            if self.0.core.fences.stream(stream.id()).is_barred() {
                return Err(Error::Capturing { stream: stream.id() });
            }
        }
        Ok(self.0.core.fences.wait_for_all(self.0.id, other.0.id)?)
    }
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stream")
            .field("id", &self.0.id.0)
            .field("device", &self.0.device.id.0)
            .finish()
    }
}
