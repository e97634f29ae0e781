//! What the tests share: short names for the driver's functions and their codes.
#![allow(dead_code, unused_imports)]

use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::Arc;

pub use cudarc::driver::sys::CUresult as Code;
pub use cudarc::driver::sys::{self, CUdeviceptr, CUevent, CUstream};
pub use cudarc::driver::{CudaContext, CudaStream, result};
pub use fakecuda::{Config, Fake, start};
pub use millpond_simgpu::{Completion, HazardKind, Sim};

pub const UNIT: usize = 2 << 20;

/// A machine of two devices with contents and the oracle, and the first device's context, current.
pub fn two_devices() -> (Fake, Arc<CudaContext>) {
    machine(Sim::builder().devices(2).contents(true).oracle(true))
}

pub fn machine(config: impl Into<Config>) -> (Fake, Arc<CudaContext>) {
    let fake = start(config).unwrap();
    let context = CudaContext::new(0).unwrap();
    (fake, context)
}

/// The code of an answer.
pub fn code<T>(answer: Result<T, cudarc::driver::DriverError>) -> Code {
    answer.err().map_or(Code::CUDA_SUCCESS, |error| error.0)
}

pub fn kinds(fake: &Fake) -> Vec<HazardKind> {
    fake.sim().hazards().iter().map(|hazard| hazard.kind()).collect()
}

/// Nothing was misused, and nothing raced.
#[track_caller]
pub fn clean(fake: &Fake) {
    assert_eq!(fake.violations(), Vec::<String>::new());
    assert_eq!(fake.sim().hazards(), []);
}

/// Exactly one violation more than `before`, and what it says.
#[track_caller]
pub fn one_violation(fake: &Fake, before: usize, words: &str) {
    let violations = fake.violations();
    assert_eq!(violations.len(), before + 1, "{violations:?}");
    assert!(violations[before].contains(words), "{:?} says nothing of {words}", violations[before]);
}

// The driver's functions, with locals for what they give out.

pub fn stream(flags: u32) -> CUstream {
    let mut stream = null_mut();
    // SAFETY: a pointer to a local.
    unsafe { sys::cuStreamCreate(&mut stream, flags) }.result().unwrap();
    stream
}

pub fn event(flags: u32) -> CUevent {
    let mut event = null_mut();
    // SAFETY: a pointer to a local.
    unsafe { sys::cuEventCreate(&mut event, flags) }.result().unwrap();
    event
}

/// An event without timing.
pub fn plain_event() -> CUevent {
    event(2)
}

// SAFETY, for these: handles and addresses are numbers to fakecuda, which follows none of them; that
// they may be wrong is what the tests are about.

pub fn record(event: CUevent, stream: CUstream) -> Code {
    unsafe { sys::cuEventRecord(event, stream) }
}

pub fn wait(stream: CUstream, event: CUevent) -> Code {
    unsafe { sys::cuStreamWaitEvent(stream, event, 0) }
}

pub fn query(event: CUevent) -> Code {
    unsafe { sys::cuEventQuery(event) }
}

pub fn destroy_event(event: CUevent) -> Code {
    unsafe { sys::cuEventDestroy_v2(event) }
}

pub fn destroy_stream(stream: CUstream) -> Code {
    unsafe { sys::cuStreamDestroy_v2(stream) }
}

pub fn query_stream(stream: CUstream) -> Code {
    unsafe { sys::cuStreamQuery(stream) }
}

pub fn synchronize(stream: CUstream) -> Code {
    unsafe { sys::cuStreamSynchronize(stream) }
}

pub fn fill(address: CUdeviceptr, byte: u8, len: usize, stream: CUstream) -> Code {
    unsafe { sys::cuMemsetD8Async(address, byte, len, stream) }
}

pub fn copy(to: CUdeviceptr, from: CUdeviceptr, len: usize, stream: CUstream) -> Code {
    unsafe { sys::cuMemcpyDtoDAsync_v2(to, from, len, stream) }
}

pub fn free(address: CUdeviceptr) -> Code {
    unsafe { sys::cuMemFree_v2(address) }
}

pub fn try_alloc(bytes: usize) -> Result<CUdeviceptr, Code> {
    let mut address = 0;
    match unsafe { sys::cuMemAlloc_v2(&mut address, bytes) } {
        Code::CUDA_SUCCESS => Ok(address),
        code => Err(code),
    }
}

pub fn alloc(bytes: usize) -> CUdeviceptr {
    try_alloc(bytes).unwrap()
}

pub fn alloc_async(bytes: usize, stream: CUstream) -> CUdeviceptr {
    unsafe { result::malloc_async(stream, bytes) }.unwrap()
}

pub fn free_async(address: CUdeviceptr, stream: CUstream) -> Code {
    unsafe { sys::cuMemFreeAsync(address, stream) }
}

/// Reads bytes back, on a stream.
pub fn bytes(address: CUdeviceptr, len: usize, stream: CUstream) -> Vec<u8> {
    let mut host = vec![0u8; len];
    unsafe { result::memcpy_dtoh_async(&mut host, address, stream) }.unwrap();
    host
}

pub fn location(device: i32) -> sys::CUmemLocation {
    let type_ = sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE;
    sys::CUmemLocation { type_, id: device }
}

pub fn properties(device: i32) -> sys::CUmemAllocationProp {
    // SAFETY: all zeros are a valid value of this plain structure.
    let mut properties: sys::CUmemAllocationProp = unsafe { std::mem::zeroed() };
    properties.type_ = sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location = location(device);
    properties
}

pub fn reserve(bytes: usize) -> CUdeviceptr {
    let mut address = 0;
    unsafe { sys::cuMemAddressReserve(&mut address, bytes, 0, 0, 0) }.result().unwrap();
    address
}

pub fn page(device: i32) -> u64 {
    let mut handle = 0;
    let properties = properties(device);
    unsafe { sys::cuMemCreate(&mut handle, UNIT, &properties, 0) }.result().unwrap();
    handle
}

pub fn map(address: CUdeviceptr, handle: u64) -> Code {
    unsafe { sys::cuMemMap(address, UNIT, 0, handle, 0) }
}

pub fn unmap(address: CUdeviceptr, len: usize) -> Code {
    unsafe { sys::cuMemUnmap(address, len) }
}

pub fn release(handle: u64) -> Code {
    unsafe { sys::cuMemRelease(handle) }
}

pub fn unreserve(address: CUdeviceptr, len: usize) -> Code {
    unsafe { sys::cuMemAddressFree(address, len) }
}

pub fn grant(address: CUdeviceptr, len: usize, devices: &[i32]) -> Code {
    set_access(address, len, devices, sys::CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE)
}

pub fn set_access(
    address: CUdeviceptr,
    len: usize,
    devices: &[i32],
    flags: sys::CUmemAccess_flags,
) -> Code {
    let access: Vec<_> = devices
        .iter()
        .map(|device| sys::CUmemAccessDesc { location: location(*device), flags })
        .collect();
    unsafe { sys::cuMemSetAccess(address, len, access.as_ptr(), access.len()) }
}

pub fn begin(stream: CUstream, mode: sys::CUstreamCaptureMode) -> Code {
    unsafe { sys::cuStreamBeginCapture_v2(stream, mode) }
}

pub fn end(stream: CUstream) -> Result<sys::CUgraph, Code> {
    let mut graph = null_mut();
    match unsafe { sys::cuStreamEndCapture(stream, &mut graph) } {
        Code::CUDA_SUCCESS => Ok(graph),
        code => {
            assert!(graph.is_null(), "a capture that fails gives no graph");
            Err(code)
        }
    }
}

pub fn status(stream: CUstream) -> Result<sys::CUstreamCaptureStatus, Code> {
    unsafe { result::stream::is_capturing(stream) }.map_err(|error| error.0)
}

pub fn no_argument() -> *mut c_void {
    null_mut()
}
