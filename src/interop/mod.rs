//! With the CUDA driver: the pool's memory where cudarc's users need it.
//!
//! | wanted | given |
//! |---|---|
//! | a kernel's argument | `&Buffer`, `&mut Buffer`, [`Slice`] |
//! | what takes [`DevicePtr`] or [`DevicePtrMut`]: copies, fills, cuBLAS, … | [`Buffer::on`], [`Buffer::on_mut`], [`Slice`] |
//! | what takes `&CudaSlice`, views, sub-slices | [`Slice`] |
//! | what takes a `CudaSlice` for good | [`Buffer::into_cuda_slice`], back by [`Pool::take_back`] |
//!
//! A [`Buffer`] leaves the order between streams to the caller, as everywhere in the pool, and costs
//! nothing. A [`Slice`] has cudarc's own read and write events beside it where the context tracks
//! them (`CudaContext::is_event_tracking`), so that its uses on several streams are ordered as those
//! of any `CudaSlice`: two events are made for each, and its end makes its stream wait for them. It
//! keeps the pool's stream, and with it the pool: what it was used for before its end comes before the
//! next user of its memory.

mod bits;

use crate::buffer::Buffer;
use crate::driver::cuda::call::{Current, failed, refused};
use crate::driver::{DeviceId, StreamHandle};
use crate::error::{Error, Result};
use crate::fence::Owner;
use crate::movable::Pinned;
use crate::pool::Pool;
use crate::stream::Stream;
pub use bits::AnyBits;
use cudarc::driver::sys::{CUdeviceptr, CUresult};
use cudarc::driver::{
    CudaSlice, CudaStream, CudaViewMut, DevicePtr, DevicePtrMut, DeviceRepr, DeviceSlice,
    LaunchArgs, PushKernelArg, SyncOnDrop, ValidAsZeroBits,
};
use std::any::Any;
use std::fmt;
use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::sync::Arc;

impl Pool {
    /// Registers a stream of cudarc's, which is kept alive until the pool is through with it, on the
    /// device of its context.
    ///
    /// # Errors
    /// As [`Pool::register_stream`]; a driver error where the pool was not built over the stream's
    /// context.
    pub fn register_cuda_stream(&self, stream: &Arc<CudaStream>) -> Result<Stream> {
        self.core().check_process()?;
        let device = self.device_of(stream).ok_or_else(|| {
            let message = format!(
                "the stream's context, of CUDA device {}, is none of those that the pool was built over",
                stream.context().ordinal()
            );
            refused("Pool::register_cuda_stream", CUresult::CUDA_ERROR_INVALID_CONTEXT, &message)
        })?;
        let handle = handle_of(stream);
        let object: Arc<dyn Any + Send + Sync> = Arc::new(Kept(Some(Arc::clone(stream))));
        self.register_as(device, handle, Owner::Kept(object))
    }

    /// Takes back memory that [`Buffer::into_cuda_slice`] gave away. Where cudarc tracks events, the
    /// slice's stream is made to wait for its uses on others. Where the pool's stream has gone meanwhile,
    /// the host waits for cudarc's, since nothing else says when the memory's uses are over.
    ///
    /// # Errors
    /// The slice, with the reason, where its memory is not a block of this pool that was given away;
    /// [`Error::Forked`]; a driver error from such a wait.
    pub fn take_back<T: Copy + 'static>(
        &self,
        mut slice: CudaSlice<T>,
    ) -> std::result::Result<Buffer<T>, (Error, CudaSlice<T>)> {
        if let Err(error) = self.core().check_process() {
            return Err((error, slice));
        }
        let stream = Arc::clone(slice.stream());
        // As for a write: the stream waits for all uses. (As for a read, the event of reads by others would
        // be recorded anew, and theirs forgotten.)
        let address = slice.device_ptr_mut(&stream).0;
        let buffer = match Buffer::from_address(self.core(), address, slice.len()) {
            Ok(buffer) => buffer,
            Err(error) => return Err((error, slice)),
        };
        if !buffer.is_of_stream(self.device_of(&stream), handle_of(&stream))
            && let Err(error) = stream.synchronize()
        {
            buffer.into_address();
            return Err((failed("cuStreamSynchronize", error.0).into(), slice));
        }
        slice.leak();
        Ok(buffer)
    }

    /// The device of a stream's context.
    fn device_of(&self, stream: &CudaStream) -> Option<DeviceId> {
        self.driver().device_of_context(stream.context().cu_ctx().addr() as u64)
    }
}

/// A registered stream. Its end may come in any call of the pool's: cudarc makes the stream's context
/// current then, and here the one before is made so again.
struct Kept(Option<Arc<CudaStream>>);

impl Drop for Kept {
    fn drop(&mut self) {
        let current = Current::keep();
        drop(self.0.take());
        drop(current);
    }
}

fn handle_of(stream: &CudaStream) -> StreamHandle {
    StreamHandle(stream.cu_stream().expose_provenance() as u64)
}

impl Stream {
    /// The stream of cudarc's that was registered.
    pub fn cuda(&self) -> Option<Arc<CudaStream>> {
        self.kept()?.downcast_ref::<Kept>()?.0.clone()
    }

    /// As [`Stream::alloc`], as a [`Slice`].
    ///
    /// # Errors
    /// As [`Stream::alloc`]; a driver error where the stream was not registered by
    /// [`Pool::register_cuda_stream`], or where cudarc gets no events.
    pub fn alloc_slice<T: AnyBits>(&self, len: usize) -> Result<Slice<T>> {
        self.alloc_unset(len)
    }

    /// A slice whose contents are no values of `T` yet.
    fn alloc_unset<T: Copy + 'static>(&self, len: usize) -> Result<Slice<T>> {
        let cuda = self.require_cuda("Stream::alloc_slice")?;
        let buffer = self.alloc(len)?;
        let slice = lend(&buffer, &cuda)?;
        Ok(Slice { slice, buffer: ManuallyDrop::new(buffer), stream: self.clone() })
    }

    fn require_cuda(&self, call: &'static str) -> Result<Arc<CudaStream>> {
        self.cuda().ok_or_else(|| {
            let message = format!("{} is no stream of cudarc's that was registered", self.id());
            refused(call, CUresult::CUDA_ERROR_INVALID_HANDLE, &message).into()
        })
    }

    /// As [`Stream::alloc_slice`], with every byte set to zero by work on the stream.
    ///
    /// # Errors
    /// As [`Stream::alloc_slice`], and the driver's where it refuses the fill.
    pub fn alloc_slice_zeroed<T>(&self, len: usize) -> Result<Slice<T>>
    where
        T: DeviceRepr + ValidAsZeroBits + Copy + 'static,
    {
        let mut slice = self.alloc_unset(len)?;
        let stream = Arc::clone(slice.stream());
        stream.memset_zeros(&mut slice).map_err(|error| failed("cuMemsetD8Async", error.0))?;
        Ok(slice)
    }
}

/// A [`CudaSlice`] over a buffer's memory, which was allocated on `stream`: its uses on other streams come
/// after what makes the memory that stream's, as if it had written to it just now. It does not own the
/// memory, and must not be dropped.
fn lend<T: Copy + 'static>(
    buffer: &Buffer<T>,
    stream: &Arc<CudaStream>,
) -> Result<ManuallyDrop<CudaSlice<T>>> {
    // cudarc would call the driver.
    buffer.check_process()?;
    let upgrade = || {
        // SAFETY: the buffer's memory is valid for its length. Whatever its contents are, they are values
        // of `T`, or are set before the caller lets anybody see them.
        unsafe { stream.upgrade_device_ptr(buffer.address(), buffer.len()) }
    };
    // cudarc panics where it gets no events; nothing is half done then.
    let lent = std::panic::catch_unwind(std::panic::AssertUnwindSafe(upgrade));
    let mut lent = lent.map(ManuallyDrop::new).map_err(|_| {
        let message = "cudarc got no events for a slice";
        refused("cuEventCreate", CUresult::CUDA_ERROR_UNKNOWN, message)
    })?;
    drop(lent.device_ptr_mut(stream));
    Ok(lent)
}

/// A [`Buffer`] as a [`CudaSlice`], which it dereferences to.
///
/// Dropping it makes its stream wait for its uses on others, as far as cudarc tracks them, and frees
/// the buffer.
pub struct Slice<T: Copy + 'static> {
    slice: ManuallyDrop<CudaSlice<T>>,
    buffer: ManuallyDrop<Buffer<T>>,
    /// The pool's name for the slice's stream: as long as it is registered, what was submitted to it
    /// comes before the free.
    stream: Stream,
}

impl<T: AnyBits> Slice<T> {
    /// A buffer as a slice of the cudarc stream that it was allocated on.
    ///
    /// # Errors
    /// The buffer, with the reason: where cudarc gets no events, the stream is another one, or is not
    /// cudarc's; [`Error::Forked`].
    pub fn new(
        buffer: Buffer<T>,
        stream: &Stream,
    ) -> std::result::Result<Self, (Error, Buffer<T>)> {
        const CALL: &str = "Slice::new";
        // While the stream captures, what is allocated on it is a graph's.
        if !buffer.is_on(stream, stream.id()) && !buffer.is_on(stream, stream.served_as()) {
            return Err((another_stream(CALL), buffer));
        }
        match stream.require_cuda(CALL).and_then(|cuda| lend(&buffer, &cuda)) {
            Ok(slice) => {
                Ok(Self { slice, buffer: ManuallyDrop::new(buffer), stream: stream.clone() })
            }
            Err(error) => Err((error, buffer)),
        }
    }
}

impl<T: Copy + 'static> Slice<T> {
    /// The buffer, once the stream was made to wait for the slice's uses on others.
    pub fn into_buffer(self) -> Buffer<T> {
        let mut this = ManuallyDrop::new(self);
        // SAFETY: neither is used again, and what `this` is of is not dropped. The stream is read once.
        let stream = unsafe { std::ptr::read(&raw const this.stream) };
        let buffer = this.end();
        drop(stream);
        buffer
    }

    /// Ends the slice; the buffer is what is left. Once.
    fn end(&mut self) -> Buffer<T> {
        // SAFETY: neither is used again, and the slice is not dropped.
        let (slice, buffer) =
            unsafe { (ManuallyDrop::take(&mut self.slice), ManuallyDrop::take(&mut self.buffer)) };
        if buffer.check_process().is_err() {
            // Its end would call the driver; the buffer's does not.
            std::mem::forget(slice);
            return buffer;
        }
        // First the waits, then what the free counts as done.
        slice.leak();
        // A graph's memory: outside of the captures that it is of, the stream's work is a use like any
        // other's.
        if !buffer.is_on(&self.stream, self.stream.served_as()) {
            buffer.used_by(self.stream.id());
        }
        buffer
    }

    /// The buffer, which stays in the slice.
    pub fn buffer(&self) -> &Buffer<T> {
        &self.buffer
    }

    /// The whole as a view to write to. There is no `&mut CudaSlice`: swapped for another, each would
    /// free the other's memory.
    pub fn as_view_mut(&mut self) -> CudaViewMut<'_, T> {
        self.slice.as_view_mut()
    }
}

impl<T: Copy + 'static> Deref for Slice<T> {
    type Target = CudaSlice<T>;

    fn deref(&self) -> &CudaSlice<T> {
        &self.slice
    }
}

impl<T: Copy + 'static> Drop for Slice<T> {
    fn drop(&mut self) {
        drop(self.end());
    }
}

impl<T: Copy + 'static> DeviceSlice<T> for Slice<T> {
    fn len(&self) -> usize {
        self.slice.len()
    }

    fn stream(&self) -> &Arc<CudaStream> {
        self.slice.stream()
    }
}

impl<T: Copy + 'static> DevicePtr<T> for Slice<T> {
    fn device_ptr<'a>(&'a self, stream: &'a CudaStream) -> (CUdeviceptr, SyncOnDrop<'a>) {
        self.slice.device_ptr(stream)
    }
}

impl<T: Copy + 'static> DevicePtrMut<T> for Slice<T> {
    fn device_ptr_mut<'a>(&'a mut self, stream: &'a CudaStream) -> (CUdeviceptr, SyncOnDrop<'a>) {
        self.slice.device_ptr_mut(stream)
    }
}

impl<T: Copy + 'static> fmt::Debug for Slice<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Slice").field(&*self.buffer).finish()
    }
}

/// A buffer for what reads device memory, as one of a stream.
#[derive(Clone, Copy, Debug)]
pub struct On<'b, T: Copy + 'static> {
    buffer: &'b Buffer<T>,
    stream: &'b Arc<CudaStream>,
}

/// A buffer for what writes device memory, as one of a stream.
#[derive(Debug)]
pub struct OnMut<'b, T: Copy + 'static> {
    buffer: &'b mut Buffer<T>,
    stream: &'b Arc<CudaStream>,
}

impl<T: AnyBits> Buffer<T> {
    /// For copies and whatever else takes [`DevicePtr`]; `stream` is what it will be told the memory is
    /// of. The pool is told nothing: uses on other streams than the buffer's own are the caller's to
    /// order and to declare ([`Buffer::record_use`]).
    pub fn on<'b>(&'b self, stream: &'b Arc<CudaStream>) -> On<'b, T> {
        On { buffer: self, stream }
    }

    /// For fills, copies and whatever else takes [`DevicePtrMut`]; see [`Buffer::on`].
    pub fn on_mut<'b>(&'b mut self, stream: &'b Arc<CudaStream>) -> OnMut<'b, T> {
        OnMut { buffer: self, stream }
    }

    /// Gives the memory to a [`CudaSlice`] of the cudarc stream that it was allocated on, for what takes
    /// one for good. [`Pool::take_back`] makes it a buffer again. Dropped instead, the slice asks CUDA to
    /// free memory that is not CUDA's to free: that fails, cudarc's next call reports it, and the block
    /// stays taken for good.
    ///
    /// # Errors
    /// The buffer, with the reason: where cudarc gets no events, the stream is another one, or is not
    /// cudarc's, and where the memory is a graph's; [`Error::Forked`].
    pub fn into_cuda_slice(
        self,
        stream: &Stream,
    ) -> std::result::Result<CudaSlice<T>, (Error, Self)> {
        const CALL: &str = "Buffer::into_cuda_slice";
        if !self.is_on(stream, stream.id()) {
            return Err((another_stream(CALL), self));
        }
        match stream.require_cuda(CALL).and_then(|cuda| lend(&self, &cuda)) {
            Ok(slice) => {
                self.into_address();
                Ok(ManuallyDrop::into_inner(slice))
            }
            Err(error) => Err((error, self)),
        }
    }
}

fn another_stream(call: &'static str) -> Error {
    let message = "a slice is of the stream that its buffer was allocated on";
    refused(call, CUresult::CUDA_ERROR_INVALID_HANDLE, message).into()
}

macro_rules! device_slice {
    ($name:ident) => {
        impl<T: Copy + 'static> DeviceSlice<T> for $name<'_, T> {
            fn len(&self) -> usize {
                self.buffer.len()
            }

            fn stream(&self) -> &Arc<CudaStream> {
                self.stream
            }
        }

        impl<T: Copy + 'static> DevicePtr<T> for $name<'_, T> {
            fn device_ptr<'a>(&'a self, _: &'a CudaStream) -> (CUdeviceptr, SyncOnDrop<'a>) {
                (self.buffer.address(), SyncOnDrop::Record(None))
            }
        }
    };
}

device_slice!(On);
device_slice!(OnMut);

impl<T: Copy + 'static> DevicePtrMut<T> for OnMut<'_, T> {
    fn device_ptr_mut<'a>(&'a mut self, _: &'a CudaStream) -> (CUdeviceptr, SyncOnDrop<'a>) {
        (self.buffer.address(), SyncOnDrop::Record(None))
    }
}

// SAFETY: what is pushed is the address of a device address that the buffer keeps, for as long as the
// buffer is borrowed, as for cudarc's own slices.
unsafe impl<'a, 'b: 'a, T: Copy + 'static> PushKernelArg<&'b Buffer<T>> for LaunchArgs<'a> {
    #[inline(always)]
    fn arg(&mut self, arg: &'b Buffer<T>) -> &mut Self {
        self.arg(arg.address_ref())
    }
}

// SAFETY: as above.
unsafe impl<'a, 'b: 'a, T: Copy + 'static> PushKernelArg<&'b mut Buffer<T>> for LaunchArgs<'a> {
    #[inline(always)]
    fn arg(&mut self, arg: &'b mut Buffer<T>) -> &mut Self {
        self.arg(arg.address_ref())
    }
}

// SAFETY: what is pushed is the address of the address that the guard keeps while it is borrowed, and that
// is the block's as long.
unsafe impl<'a, 'b: 'a, T: Copy + 'static> PushKernelArg<&'b Pinned<'_, T>> for LaunchArgs<'a> {
    #[inline(always)]
    fn arg(&mut self, arg: &'b Pinned<'_, T>) -> &mut Self {
        self.arg(arg.address_ref())
    }
}

// SAFETY: as cudarc's own.
unsafe impl<'a, 'b: 'a, T: Copy + 'static> PushKernelArg<&'b Slice<T>> for LaunchArgs<'a> {
    #[inline(always)]
    fn arg(&mut self, arg: &'b Slice<T>) -> &mut Self {
        self.arg(&*arg.slice)
    }
}

// SAFETY: as cudarc's own.
unsafe impl<'a, 'b: 'a, T: Copy + 'static> PushKernelArg<&'b mut Slice<T>> for LaunchArgs<'a> {
    #[inline(always)]
    fn arg(&mut self, arg: &'b mut Slice<T>) -> &mut Self {
        self.arg(&mut *arg.slice)
    }
}
