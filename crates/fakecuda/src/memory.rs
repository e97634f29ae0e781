//! Plain device memory, what is free, and what an address is.

use std::ffi::c_void;

use cudarc::driver::sys::{CUcontext, CUdeviceptr, CUmemoryPool};

use crate::error::{Answer, INVALID_VALUE, NOT_SUPPORTED};
use crate::machine::Machine;
use crate::pointer::Ptr;
use crate::{capture, pool};

/// What every host wait brings about.
pub(crate) fn after_wait(machine: &mut Machine, device: u16) -> Answer {
    pool::sync_point(machine, device);
    Ok(())
}

pub(crate) fn allocate(machine: &mut Machine, out: Ptr<CUdeviceptr>, bytes: usize) -> Answer {
    let context = machine.current()?;
    capture::potentially_unsafe(machine)?;
    if bytes == 0 || out.is_null() {
        return Err(INVALID_VALUE);
    }
    let device = machine.context(context)?.device;
    let address = pool::make_room(machine, device, |machine| {
        let address = machine.sim.malloc(device, bytes as u64);
        machine.judge(address)
    })?;
    machine.allocations.insert(address, context);
    out.set(address)
}

/// Rows of `width` bytes, a multiple of 512 bytes apart.
pub(crate) fn allocate_pitch(
    machine: &mut Machine,
    out: Ptr<CUdeviceptr>,
    pitch: Ptr<usize>,
    width: usize,
    height: usize,
    element: u32,
) -> Answer {
    if !matches!(element, 4 | 8 | 16) || pitch.is_null() || width == 0 || height == 0 {
        return Err(INVALID_VALUE);
    }
    let row = width.checked_next_multiple_of(512).ok_or(INVALID_VALUE)?;
    allocate(machine, out, row.checked_mul(height).ok_or(INVALID_VALUE)?)?;
    pitch.set(row)
}

/// Frees what any allocation gave, after waiting for the device.
pub(crate) fn free(machine: &mut Machine, address: CUdeviceptr) -> Answer {
    machine.current()?;
    capture::potentially_unsafe(machine)?;
    if address == 0 {
        return Ok(());
    }
    let freed = machine.sim.free(address);
    machine.judge(freed)?;
    machine.allocations.remove(&address);
    pool::given_back(machine, address);
    match machine.sim.device_of(address) {
        Some(device) => after_wait(machine, device),
        None => Ok(()),
    }
}

pub(crate) fn info(machine: &mut Machine, free: Ptr<usize>, total: Ptr<usize>) -> Answer {
    let device = machine.current_device()?;
    let info = machine.sim.memory_info(device);
    let (unused, all) = machine.judge(info)?;
    free.set(unused as usize)?;
    total.set(all as usize)
}

pub(crate) fn address_range(
    machine: &mut Machine,
    start: Ptr<CUdeviceptr>,
    len: Ptr<usize>,
    address: CUdeviceptr,
) -> Answer {
    machine.current()?;
    let found = machine.sim.memory_at(address);
    let (_, at, bytes) = found.ok_or(cudarc::driver::sys::CUresult::CUDA_ERROR_NOT_FOUND)?;
    start.set_if_wanted(at);
    len.set_if_wanted(bytes as usize);
    Ok(())
}

/// The attributes that programs ask for; INVALID_VALUE for what is no memory of the driver's.
pub(crate) fn attribute(
    machine: &mut Machine,
    out: Ptr<c_void>,
    attribute: u32,
    address: CUdeviceptr,
) -> Answer {
    const DEVICE: u32 = 2;
    const HOST: u32 = 1;
    machine.current()?;
    let found = machine.sim.memory_at(address);
    let pinned = machine.host_memory.find(address as usize, 1).is_some();
    if found.is_none() && !pinned {
        return Err(INVALID_VALUE);
    }
    let owner = machine.allocations.range(..=address).next_back().map(|(_, context)| *context);
    match (attribute, found) {
        (1, Some((device, ..))) => {
            let primary = machine.primary[usize::from(device)];
            out.cast::<CUcontext>().set(owner.or(primary).unwrap_or(0) as CUcontext)
        }
        (2, Some(_)) => out.cast::<u32>().set(DEVICE),
        (2, None) => out.cast::<u32>().set(HOST),
        (3, Some(_)) => out.cast::<CUdeviceptr>().set(address),
        (4, None) => out.cast::<u64>().set(address),
        (8, _) => out.cast::<u8>().set(0),
        (9, Some((device, ..))) => out.cast::<i32>().set(i32::from(device)),
        (11, Some((_, start, _))) => out.cast::<CUdeviceptr>().set(start),
        (12, Some((_, _, len))) => out.cast::<usize>().set(len as usize),
        (13, Some(_)) => out.cast::<u8>().set(1),
        (17, Some((_, start, _))) => {
            let pool = machine.pooled.get(&start).map_or(0, |(pool, _)| *pool);
            out.cast::<CUmemoryPool>().set(pool as CUmemoryPool)
        }
        (1 | 3 | 4 | 9 | 11..=13 | 17, _) => Err(INVALID_VALUE),
        _ => Err(NOT_SUPPORTED),
    }
}
