//! One call of the CUDA driver: which context it runs in, and what its answer means.

use crate::driver::{DriverError, DriverResult};
use cudarc::driver::sys::{self, CUresult};
use std::ffi::CStr;
use std::ptr;

/// What failed, in the driver's own words.
pub(crate) fn failed(call: &'static str, code: CUresult) -> DriverError {
    // SAFETY: both functions store the address of a string that is never freed, or null.
    let text = |get: unsafe fn(CUresult, *mut *const std::ffi::c_char) -> CUresult| unsafe {
        let mut text = ptr::null();
        let known = get(code, &raw mut text) == CUresult::CUDA_SUCCESS && !text.is_null();
        known.then(|| CStr::from_ptr(text).to_string_lossy())
    };
    let name = text(sys::cuGetErrorName);
    let says = text(sys::cuGetErrorString);
    DriverError {
        call,
        code: code as i32,
        message: format!(
            "{}: {}",
            name.as_deref().unwrap_or("an error without a name"),
            says.as_deref().unwrap_or("no text")
        ),
        out_of_memory: code == CUresult::CUDA_ERROR_OUT_OF_MEMORY,
    }
}

/// An error of ours, under the code that the driver would give it.
pub(crate) fn refused(call: &'static str, code: CUresult, message: &str) -> DriverError {
    DriverError { call, code: code as i32, message: message.to_owned(), out_of_memory: false }
}

/// A call's answer.
pub(super) fn done(call: &'static str, code: CUresult) -> DriverResult<()> {
    match code {
        CUresult::CUDA_SUCCESS => Ok(()),
        code => Err(failed(call, code)),
    }
}

/// Calls a function of the driver, and names it where it fails.
macro_rules! call {
    ($function:ident($($argument:expr),* $(,)?)) => {
        $crate::driver::cuda::call::done(
            stringify!($function),
            cudarc::driver::sys::$function($($argument),*),
        )
    };
}
pub(super) use call;

/// A context that is current on the calling thread until this is dropped; then that is which was
/// before.
pub(crate) struct Current {
    before: sys::CUcontext,
    changed: bool,
}

impl Current {
    pub fn new(context: sys::CUcontext) -> DriverResult<Self> {
        let mut before = ptr::null_mut();
        // SAFETY: stores the current context, or null, in a place of ours.
        unsafe { call!(cuCtxGetCurrent(&raw mut before)) }?;
        let changed = before != context;
        if changed {
            // SAFETY: the caller's context is alive, or the driver says that it is not.
            unsafe { call!(cuCtxSetCurrent(context)) }?;
        }
        Ok(Self { before, changed })
    }

    /// Remembers which context is current, for calls that change it.
    pub fn keep() -> DriverResult<Self> {
        let mut before = ptr::null_mut();
        // SAFETY: as in `new`.
        unsafe { call!(cuCtxGetCurrent(&raw mut before)) }?;
        Ok(Self { before, changed: true })
    }
}

impl Drop for Current {
    fn drop(&mut self) {
        if self.changed {
            // SAFETY: it was current before, or none was. Refused where it has been destroyed since,
            // and by a driver that has shut down: then there is nothing to restore.
            let _ = unsafe { call!(cuCtxSetCurrent(self.before)) };
        }
    }
}

/// While this lives, the calling thread's calls disturb no capture, whoever's it is. In the modes that
/// threads start in, memory calls and questions about events fail while anybody captures, and his
/// capture with them.
pub(super) struct Relaxed(sys::CUstreamCaptureMode);

impl Relaxed {
    pub fn new() -> DriverResult<Self> {
        let mut mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
        // SAFETY: exchanges the thread's mode with the one in a place of ours.
        unsafe { call!(cuThreadExchangeStreamCaptureMode(&raw mut mode)) }?;
        Ok(Self(mode))
    }
}

impl Drop for Relaxed {
    fn drop(&mut self) {
        // SAFETY: as in `new`. Refused only by a driver that has shut down.
        let _ = unsafe { call!(cuThreadExchangeStreamCaptureMode(&raw mut self.0)) };
    }
}
