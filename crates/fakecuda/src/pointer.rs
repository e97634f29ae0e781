//! Pointers that come from the caller, and the other arguments of a driver function.
//!
//! What a caller of the driver promises of its pointers is taken for granted once, in [`Arg::take`];
//! everything behind it is safe code.

use std::ffi::{CStr, c_char, c_void};

use crate::error::{Answer, INVALID_VALUE};

/// A pointer of the caller's: null, or valid for what the function does with it, as the driver's
/// documentation demands. Handles, which the driver's types dress up as pointers, are never followed.
pub(crate) struct Ptr<T>(*mut T);

impl<T> Clone for Ptr<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Ptr<T> {}

impl<T> Ptr<T> {
    pub(crate) fn null() -> Self {
        Self(std::ptr::null_mut())
    }

    /// A handle that was found in a structure of the caller's.
    pub(crate) fn from_handle(handle: *mut T) -> Self {
        Self(handle)
    }

    /// The value of a handle, or of an address.
    pub(crate) fn value(self) -> usize {
        self.0 as usize
    }

    pub(crate) fn is_null(self) -> bool {
        self.0.is_null()
    }

    /// Writes what a function gives out.
    pub(crate) fn set(self, value: T) -> Answer {
        if self.0.is_null() {
            return Err(INVALID_VALUE);
        }
        // SAFETY: not null, so valid for a write, as the caller of the driver promises (`Arg::take`);
        // of any alignment.
        unsafe { self.0.write_unaligned(value) };
        Ok(())
    }

    /// The same where the caller may want nothing of it.
    pub(crate) fn set_if_wanted(self, value: T) {
        if !self.0.is_null() {
            // SAFETY: as in `set`.
            unsafe { self.0.write_unaligned(value) };
        }
    }

    /// The `nth` of an array.
    pub(crate) fn at(self, nth: usize) -> Self {
        Self(self.0.wrapping_add(nth))
    }

    /// The same address for another type, as `void*` arguments ask for.
    pub(crate) fn cast<U>(self) -> Ptr<U> {
        Ptr(self.0.cast())
    }
}

impl<T: Copy> Ptr<T> {
    /// Reads what a function is given.
    pub(crate) fn get(self) -> Answer<T> {
        if self.0.is_null() {
            return Err(INVALID_VALUE);
        }
        // SAFETY: not null, so valid for a read, as the caller of the driver promises (`Arg::take`);
        // of any alignment, since packed argument buffers have none.
        Ok(unsafe { self.0.read_unaligned() })
    }
}

impl Ptr<c_char> {
    /// A string that ends with a zero.
    pub(crate) fn text(self) -> Answer<String> {
        if self.0.is_null() {
            return Err(INVALID_VALUE);
        }
        // SAFETY: not null, so a string that ends with a zero, as the caller of the driver promises.
        let text = unsafe { CStr::from_ptr(self.0) };
        Ok(text.to_string_lossy().into_owned())
    }

    /// Writes a string of at most `room` bytes, its zero included.
    pub(crate) fn set_text(self, text: &str, room: i32) -> Answer {
        let room = usize::try_from(room).unwrap_or(0);
        if room == 0 {
            return Err(INVALID_VALUE);
        }
        let kept = &text.as_bytes()[..text.len().min(room - 1)];
        for (nth, byte) in kept.iter().chain(&[0]).enumerate() {
            self.at(nth).set(*byte as c_char)?;
        }
        Ok(())
    }
}

impl Ptr<c_void> {
    /// Host memory that a caller names by a number, as copies between any two addresses do: it makes
    /// the promises of a pointer for it.
    pub(crate) fn from_address(address: usize) -> Self {
        Self(address as *mut c_void)
    }

    /// Host memory that is read now.
    pub(crate) fn bytes(self, len: usize) -> Answer<Vec<u8>> {
        match len {
            0 => Ok(Vec::new()),
            _ if self.0.is_null() => Err(INVALID_VALUE),
            // SAFETY: not null, so valid for reads of `len` bytes, as the caller of a copy promises.
            _ => Ok(unsafe { std::slice::from_raw_parts(self.0.cast::<u8>(), len) }.to_vec()),
        }
    }

    /// Host memory that is written now.
    pub(crate) fn set_bytes(self, bytes: &[u8]) -> Answer {
        if bytes.is_empty() {
            return Ok(());
        }
        if self.0.is_null() {
            return Err(INVALID_VALUE);
        }
        // SAFETY: not null, so valid for writes of that many bytes, as the caller of a copy promises;
        // `bytes` is ours, so they do not overlap.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.0.cast(), bytes.len()) };
        Ok(())
    }
}

/// An argument of a driver function, as the code behind it sees it.
pub(crate) trait Arg {
    type Taken: Copy;

    /// # Safety
    ///
    /// A pointer must be what the driver's documentation demands of it: null, or valid for reads
    /// and writes of what the function it is given to reads and writes.
    unsafe fn take(self) -> Self::Taken;
}

impl<T> Arg for *mut T {
    type Taken = Ptr<T>;

    unsafe fn take(self) -> Ptr<T> {
        Ptr(self)
    }
}

impl<T> Arg for *const T {
    type Taken = Ptr<T>;

    unsafe fn take(self) -> Ptr<T> {
        Ptr(self.cast_mut())
    }
}

macro_rules! plain {
    ($($ty:ty),*) => {$(
        impl Arg for $ty {
            type Taken = Self;

            unsafe fn take(self) -> Self {
                self
            }
        }
    )*};
}

plain!(u8, u16, u32, i32, u64, usize);
plain!(cudarc::driver::sys::CUhostFn, cudarc::driver::sys::CUstreamCallback);
