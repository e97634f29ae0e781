//! NVIDIA GPUs: which there are, and their contexts.

use anyhow::{Context as _, ensure};
use millpond::driver::DriverError;
use millpond::driver::cuda::cudarc::driver::{CudaContext, result, sys};
use millpond::driver::cuda::{CudaDriver, is_present};
use std::ffi::CStr;
use std::sync::Arc;

/// The GPUs that the driver has.
#[derive(Debug)]
pub(crate) struct Cuda {
    present: u16,
    /// Name of the first.
    name: String,
    /// Of the first devices, as many as have been asked for: each takes memory and time.
    contexts: Vec<Arc<CudaContext>>,
}

impl Cuda {
    /// Asks the driver.
    ///
    /// # Errors
    /// Where there is no driver, or no device.
    pub fn find() -> Result<Self, DriverError> {
        let missing = |message: &str| DriverError {
            call: "cuInit",
            code: sys::CUresult::CUDA_ERROR_NO_DEVICE as i32,
            message: message.to_owned(),
            out_of_memory: false,
        };
        if !is_present() {
            return Err(missing("there is no CUDA driver library"));
        }
        let count = guarded("cuDeviceGetCount", CudaContext::device_count)?;
        let present = u16::try_from(count).unwrap_or(u16::MAX);
        if present == 0 {
            return Err(missing("the CUDA driver has no device"));
        }
        let name =
            guarded("cuDeviceGetName", || result::device::get_name(result::device::get(0)?))?;
        Ok(Self { present, name, contexts: Vec::new() })
    }

    /// How many devices there are.
    pub fn present(&self) -> u16 {
        self.present
    }

    /// The first line's words.
    pub fn describe(&self) -> String {
        match self.present {
            1 => self.name.clone(),
            several => format!("{several} devices, the first: {}", self.name),
        }
    }

    /// The contexts of the first `devices` devices.
    pub fn contexts(&mut self, devices: u16) -> anyhow::Result<&[Arc<CudaContext>]> {
        ensure!(devices <= self.present, "there are {} devices, not {devices}", self.present);
        while self.contexts.len() < usize::from(devices) {
            let next = self.contexts.len();
            let context = guarded("cuDevicePrimaryCtxRetain", || CudaContext::new(next));
            let context = context.with_context(|| format!("device {next} cannot be used"))?;
            self.contexts.push(context);
        }
        Ok(&self.contexts[..usize::from(devices)])
    }

    /// The pool's driver over the first `devices` devices.
    pub fn driver(&mut self, devices: u16, plain: bool) -> anyhow::Result<CudaDriver> {
        let driver = CudaDriver::new(self.contexts(devices)?.iter().cloned())?;
        Ok(if plain { driver.without_virtual_memory() } else { driver })
    }
}

/// What a pool may take of a real device where so much is free: one in 32 bytes is left to others.
pub(crate) fn leave_some(free: u64, granularity: u64) -> u64 {
    ((free - free / 32) / granularity * granularity).max(granularity)
}

/// A call of the driver, its error in the pool's terms.
pub(crate) fn told<T>(
    call: &'static str,
    answer: Result<T, result::DriverError>,
) -> Result<T, DriverError> {
    answer.map_err(|error| DriverError {
        call,
        code: error.0 as i32,
        message: describe(error),
        out_of_memory: error.0 == sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY,
    })
}

/// As [`told`], for a function that an older driver may lack, which cudarc answers by a panic.
pub(crate) fn guarded<T>(
    call: &'static str,
    body: impl FnOnce() -> Result<T, result::DriverError>,
) -> Result<T, DriverError> {
    // Nothing of this program's is half changed by a call that was never made.
    let answer = std::panic::catch_unwind(std::panic::AssertUnwindSafe(body));
    answer.map_or_else(
        |_| {
            Err(DriverError {
                call,
                code: sys::CUresult::CUDA_ERROR_NOT_FOUND as i32,
                message: "this CUDA driver does not have the call".to_owned(),
                out_of_memory: false,
            })
        },
        |answer| told(call, answer),
    )
}

#[cold]
fn describe(error: result::DriverError) -> String {
    let text = std::panic::catch_unwind(|| error.error_string().map(CStr::to_string_lossy));
    match text {
        Ok(Ok(text)) => text.into_owned(),
        _ => format!("{:?}", error.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_of_what_is_free_is_left_in_whole_pages() {
        assert_eq!(leave_some(64 << 21, 1 << 21), 62 << 21);
        assert_eq!(leave_some(63 << 21, 1 << 21), 61 << 21);
        assert_eq!(leave_some(0, 1 << 21), 1 << 21);
    }
}
