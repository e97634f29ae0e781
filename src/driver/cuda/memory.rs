//! Virtual memory management: pages of one device, who may touch them, and whether it works at all.

use super::call::{call, refused};
use crate::driver::DriverResult;
use cudarc::driver::sys::{self, CUresult};
use std::ffi::c_int;
use std::ptr;

/// Memory of a device, as `cuMemCreate` wants it described.
pub(super) fn properties(ordinal: c_int) -> sys::CUmemAllocationProp {
    // SAFETY: a plain C struct of integers, enums that have a zero, and a pointer; zero means "none"
    // in each, as the driver's documentation prescribes for what is not used.
    let mut prop: sys::CUmemAllocationProp = unsafe { std::mem::zeroed() };
    prop.type_ = sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
    prop.location = location(ordinal);
    prop
}

fn location(ordinal: c_int) -> sys::CUmemLocation {
    sys::CUmemLocation { type_: sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, id: ordinal }
}

/// Reading and writing by a device.
pub(super) fn access(ordinal: c_int) -> sys::CUmemAccessDesc {
    sys::CUmemAccessDesc {
        location: location(ordinal),
        flags: sys::CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
    }
}

/// Smallest size and alignment of a page.
pub(super) fn granularity(ordinal: c_int) -> DriverResult<u64> {
    let mut bytes = 0;
    let prop = properties(ordinal);
    let option = sys::CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_MINIMUM;
    // SAFETY: reads and writes places of ours.
    unsafe { call!(cuMemGetAllocationGranularity(&raw mut bytes, &raw const prop, option)) }?;
    let bytes = bytes as u64;
    if !bytes.is_power_of_two() {
        let message = format!("a granularity of {bytes} bytes is no power of two");
        return Err(refused(
            "cuMemGetAllocationGranularity",
            CUresult::CUDA_ERROR_UNKNOWN,
            &message,
        ));
    }
    Ok(bytes)
}

/// Reserves, creates, maps, touches and unmaps a page: some systems advertise virtual memory and
/// fail. The device's context is current.
pub(super) fn probe(ordinal: c_int, granularity: u64) -> DriverResult<()> {
    let (bytes, mut mapped) = (granularity as usize, false);
    let mut address = 0;
    // SAFETY: a reservation of our own, given back below.
    unsafe { call!(cuMemAddressReserve(&raw mut address, bytes, 0, 0, 0)) }?;
    let works = probe_page(ordinal, address, bytes, &mut mapped);
    if mapped {
        // Lost with its page, which may still be written to.
        return works;
    }
    // SAFETY: nothing is mapped there.
    works.and(unsafe { call!(cuMemAddressFree(address, bytes)) })
}

/// The part with a page; says whether it is `mapped` at the end.
fn probe_page(ordinal: c_int, address: u64, bytes: usize, mapped: &mut bool) -> DriverResult<()> {
    let mut page = 0;
    let prop = properties(ordinal);
    // SAFETY: a page of our own, released below.
    unsafe { call!(cuMemCreate(&raw mut page, bytes, &raw const prop, 0)) }?;
    // SAFETY: the address is reserved and nothing is mapped there. The handle is of no use once the
    // page is mapped; it lives until it is unmapped.
    let works = unsafe { call!(cuMemMap(address, bytes, 0, page, 0)) }.and_then(|()| {
        *mapped = true;
        let touched = touch(ordinal, address, bytes);
        // Where the page was not read nobody has waited for its fill.
        // SAFETY: null is the current context's default stream, which was given the fill.
        let idle =
            touched.is_ok() || unsafe { call!(cuStreamSynchronize(ptr::null_mut())) }.is_ok();
        if !idle {
            return touched;
        }
        // SAFETY: the whole mapping, which nothing touches any more.
        let unmapped = unsafe { call!(cuMemUnmap(address, bytes)) };
        *mapped = unmapped.is_err();
        touched.and(unmapped)
    });
    // SAFETY: our page.
    works.and(unsafe { call!(cuMemRelease(page)) })
}

/// Writes to a page and reads back.
fn touch(ordinal: c_int, address: u64, bytes: usize) -> DriverResult<()> {
    const MARK: u8 = 0xa5;
    let access = access(ordinal);
    let mut read = 0_u8;
    let last = address + bytes as u64 - 1;
    // SAFETY: the address is mapped; one byte is copied to a place of ours, after the fill and before
    // the call returns, as copies to pageable memory are. Where it fails, the fill may still run.
    unsafe {
        call!(cuMemSetAccess(address, bytes, &raw const access, 1))?;
        call!(cuMemsetD8_v2(address, MARK, bytes))?;
        call!(cuMemcpyDtoH_v2((&raw mut read).cast(), last, 1))?;
    }
    if read == MARK {
        return Ok(());
    }
    Err(refused("cuMemcpyDtoH", CUresult::CUDA_ERROR_UNKNOWN, "a mapped page does not keep bytes"))
}
