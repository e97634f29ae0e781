//! Buffers: device memory as users hold it.

use crate::block::{Descriptor, Hint, State, StreamId};
use crate::core::{Core, Device, Grant};
use crate::driver::DeviceId;
#[cfg(feature = "cuda")]
use crate::driver::StreamHandle;
use crate::error::{Error, Result};
use crate::stream::Stream;
use std::fmt;
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::ptr::NonNull;

/// Device memory for `len` values of `T`, freed when dropped.
///
/// It may be dropped from any thread, and outlive its stream and its pool. The drop counts as the
/// end of use on the stream it was allocated on: whatever was submitted there before is over before
/// another stream gets the memory. Uses on other streams are declared with [`Buffer::record_use`] or
/// [`Buffer::last_use`].
///
/// The pool never reads or writes the memory; `T` only gives elements a size.
pub struct Buffer<T: Copy + 'static = u8> {
    core: NonNull<Core>,
    device: NonNull<Device>,
    block: NonNull<Descriptor>,
    hint: Hint,
    address: u64,
    len: usize,
    elements: PhantomData<fn() -> T>,
}

// SAFETY: a buffer is the right to one block; the core, the device and the descriptor it points to
// are shared between threads by design, and stay alive as `core` says.
unsafe impl<T: Copy + 'static> Send for Buffer<T> {}
// SAFETY: as above; `&Buffer` gives facts and recorded uses, which are atomic.
unsafe impl<T: Copy + 'static> Sync for Buffer<T> {}

impl<T: Copy + 'static> Buffer<T> {
    #[inline]
    pub(crate) fn new(core: &Core, device: &Device, grant: Grant<'_>, len: usize) -> Self {
        Self {
            core: NonNull::from(core),
            device: NonNull::from(device),
            block: NonNull::from(grant.block),
            hint: grant.hint,
            address: grant.block.address(),
            len,
            elements: PhantomData,
        }
    }

    /// The device address, aligned to 512 bytes.
    #[inline]
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Number of elements.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it holds no element. Never true: a buffer has at least one byte.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Bytes asked for.
    pub fn bytes(&self) -> u64 {
        self.len as u64 * size_of::<T>() as u64
    }

    /// Bytes of the block that serves it: at least [`Buffer::bytes`].
    pub fn granted_bytes(&self) -> u64 {
        self.block().size()
    }

    /// The device that the memory is on.
    pub fn device(&self) -> DeviceId {
        self.home().id
    }

    /// The stream it was allocated on.
    pub fn stream(&self) -> StreamId {
        self.block().stream()
    }

    /// Where the address is kept.
    #[cfg(feature = "cuda")]
    pub(crate) fn address_ref(&self) -> &u64 {
        &self.address
    }

    /// Refuses in a forked child of the process that built the pool.
    #[cfg(feature = "cuda")]
    pub(crate) fn check_process(&self) -> Result<()> {
        self.core().check_process()
    }

    /// Whether it was allocated on the stream that `id`, one of this pool's, stands for.
    #[cfg(feature = "cuda")]
    pub(crate) fn is_on(&self, of: &Stream, id: StreamId) -> bool {
        of.is_of(self.core()) && self.stream() == id
    }

    /// Whether the stream that it was allocated on is registered, and is the one of this handle.
    #[cfg(feature = "cuda")]
    pub(crate) fn is_of_stream(&self, device: Option<DeviceId>, handle: StreamHandle) -> bool {
        let stream = self.core().fences.stream(self.stream());
        Some(stream.device()) == device && stream.handle() == handle && !stream.is_retired()
    }

    /// The work that a stream of the pool's has been given so far uses the memory.
    #[cfg(feature = "cuda")]
    pub(crate) fn used_by(&self, stream: StreamId) {
        if self.is_live() {
            self.core().last_use(self.block(), stream);
        }
    }

    fn core(&self) -> &Core {
        // SAFETY: a core lives while one of its blocks is live, and stays for good once a buffer's
        // was freed by its address.
        unsafe { self.core.as_ref() }
    }

    fn home(&self) -> &Device {
        // SAFETY: the core owns its devices.
        unsafe { self.device.as_ref() }
    }

    fn block(&self) -> &Descriptor {
        // SAFETY: descriptors are type-stable as long as the core.
        unsafe { self.block.as_ref() }
    }

    /// Says that work on `stream` uses this memory until it is dropped.
    ///
    /// # Errors
    /// [`Error::ForeignStream`] when the stream belongs to another pool; [`Error::NotAllocated`] when
    /// the memory was freed by its address; [`Error::Forked`].
    pub fn record_use(&self, stream: &Stream) -> Result<()> {
        self.own(stream)?;
        self.core().record_use(self.block(), stream.served_as());
        Ok(())
    }

    /// Says that the work `stream` has been given so far is its last that touches this memory: the
    /// drop need not wait for what it is given later.
    ///
    /// # Errors
    /// [`Error::ForeignStream`] when the stream belongs to another pool; [`Error::NotAllocated`] when
    /// the memory was freed by its address; [`Error::Forked`].
    pub fn last_use(&self, stream: &Stream) -> Result<()> {
        self.own(stream)?;
        self.core().last_use(self.block(), stream.served_as());
        Ok(())
    }

    fn own(&self, stream: &Stream) -> Result<()> {
        self.core().check_process()?;
        if !stream.is_of(self.core()) {
            Err(Error::ForeignStream { stream: stream.id() })
        } else if !self.is_live() {
            Err(Error::NotAllocated { address: self.address })
        } else {
            Ok(())
        }
    }

    /// The same memory as elements of another type. Gives the buffer back when its bytes are not a
    /// whole number of them.
    ///
    /// # Errors
    /// The buffer itself.
    pub fn cast<U: Copy + 'static>(self) -> std::result::Result<Buffer<U>, Self> {
        let bytes = self.bytes();
        let size = size_of::<U>() as u64;
        if size == 0 || !bytes.is_multiple_of(size) {
            return Err(self);
        }
        let old = ManuallyDrop::new(self);
        Ok(Buffer {
            core: old.core,
            device: old.device,
            block: old.block,
            hint: old.hint,
            address: old.address,
            len: (bytes / size) as usize,
            elements: PhantomData,
        })
    }

    /// Gives up the buffer without freeing it: [`crate::Pool::free`] takes the address later. Once the
    /// last `Pool` and [`Stream`] are gone nobody can, and the pool's memory stays taken for good.
    pub fn into_address(self) -> u64 {
        let buffer = ManuallyDrop::new(self);
        buffer.block().make_raw(buffer.hint);
        buffer.address
    }

    /// Undoes [`Buffer::into_address`]: the live block at an address, which nothing but the address leads
    /// to, as a buffer of `len` elements.
    #[cfg(feature = "cuda")]
    pub(crate) fn from_address(core: &Core, address: u64, len: usize) -> Result<Self> {
        core.check_process()?;
        let (device, grant, _) = core.live_at(address)?;
        let bytes = (len as u64).saturating_mul(size_of::<T>() as u64);
        if bytes > grant.block.size() || !grant.block.unmake_raw(grant.hint) {
            return Err(Error::UnknownAddress { address });
        }
        Ok(Self::new(core, device, grant, len))
    }

    /// Whether the block is still this buffer's: it may have been freed by its address.
    fn is_live(&self) -> bool {
        let word = self.block().word();
        word.matches(self.hint) && word.state() == State::Live
    }
}

impl<T: Copy + 'static> Drop for Buffer<T> {
    #[inline]
    fn drop(&mut self) {
        let grant = Grant { block: self.block(), hint: self.hint };
        self.core().free(self.home(), grant);
    }
}

impl<T: Copy + 'static> fmt::Debug for Buffer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Buffer")
            .field("address", &format_args!("{:#x}", self.address))
            .field("bytes", &self.bytes())
            .field("device", &self.device().0)
            .field("stream", &self.stream().get())
            .finish()
    }
}
