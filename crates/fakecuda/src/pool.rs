//! Memory pools: allocation in stream order.
//!
//! A pool keeps what it has taken from the device, up to its release threshold, and gives the rest back
//! when the host next waits for the device. What it keeps is not where its blocks were: every block is
//! memory of its own, so that a use after the free is found, and whoever gets memory of another stream
//! is ordered by the driver. `reserved` is therefore a number, of which the part that is not in use
//! counts as used on the device.
//!
//! ```text
//! used <= reserved, unless the threshold is 0 and all is given back at once
//! reserved is a multiple of the granularity
//! ```

use std::ffi::c_void;

use cudarc::driver::sys::{CUdeviceptr, CUmemPoolHandle_st, CUmemoryPool, CUresult, CUstream_st};

use crate::capture;
use crate::error::{Answer, INVALID_VALUE, NOT_SUPPORTED};
use crate::machine::Machine;
use crate::pointer::Ptr;
use crate::virtual_memory::Location;

/// Size and alignment of blocks.
const UNIT: u64 = 512;

/// A pool of one device.
#[derive(Debug)]
pub(crate) struct Pool {
    device: u16,
    threshold: u64,
    reserved: u64,
    reserved_high: u64,
    used: u64,
    used_high: u64,
    /// Bytes at most; 0 without a limit.
    max: u64,
    /// Reuse of memory by other streams: follow events, opportunistic, internal dependencies. Kept for
    /// those who ask; memory of another stream always comes with an ordering.
    reuse: [u32; 3],
    /// Its handle was destroyed while blocks of it lived.
    destroyed: bool,
}

impl Pool {
    pub(crate) fn new(device: u16) -> Self {
        Self {
            device,
            threshold: 0,
            reserved: 0,
            reserved_high: 0,
            used: 0,
            used_high: 0,
            max: 0,
            reuse: [1; 3],
            destroyed: false,
        }
    }
}

impl Machine {
    fn pool(&mut self, pool: Ptr<CUmemPoolHandle_st>) -> Answer<usize> {
        let handle = pool.value();
        match self.pools.get(handle) {
            Some(pool) if !pool.destroyed => Ok(handle),
            _ => {
                self.no_handle("memory pool", handle, self.pools.fate(handle));
                Err(INVALID_VALUE)
            }
        }
    }

    /// Tells the simulator what a device's pools keep without use.
    fn set_idle(&mut self, device: u16) -> Answer {
        let dying = self.sim.dying_bytes(device);
        let idle: u64 = self
            .pools
            .iter()
            .filter(|(_, pool)| pool.device == device)
            .map(|(_, pool)| pool.reserved.saturating_sub(pool.used))
            .sum();
        // What is on its way back is still in use, and among what the pool keeps.
        let set = self.sim.set_idle_bytes(device, idle.saturating_sub(dying));
        self.judge(set)
    }
}

/// Lets a device's pools keep no more than they should; the host has waited for the device.
pub(crate) fn sync_point(machine: &mut Machine, device: u16) {
    let granularity = machine.sim.granularity();
    let dying = machine.sim.dying_bytes(device);
    for pool in machine.pools.values_mut().filter(|pool| pool.device == device) {
        // Memory of which nobody knows yet that it is done stays.
        let needed = (pool.used + dying).next_multiple_of(granularity);
        pool.reserved = pool.reserved.min(needed.max(pool.threshold));
    }
    // It only shrinks, so there is room.
    let _ = machine.set_idle(device);
}

/// Runs an allocation, again after all pools of the device have given back what they keep.
pub(crate) fn make_room<T>(
    machine: &mut Machine,
    device: u16,
    allocate: impl Fn(&mut Machine) -> Answer<T>,
) -> Answer<T> {
    let answer = allocate(machine);
    if !matches!(answer, Err(CUresult::CUDA_ERROR_OUT_OF_MEMORY)) {
        return answer;
    }
    trim_all(machine, device);
    allocate(machine)
}

fn trim_all(machine: &mut Machine, device: u16) {
    let granularity = machine.sim.granularity();
    let dying = machine.sim.dying_bytes(device);
    for pool in machine.pools.values_mut().filter(|pool| pool.device == device) {
        pool.reserved = pool.reserved.min((pool.used + dying).next_multiple_of(granularity));
    }
    let _ = machine.set_idle(device);
}

/// A block is back in its pool.
pub(crate) fn given_back(machine: &mut Machine, address: u64) {
    let Some((pool, bytes)) = machine.pooled.remove(&address) else {
        return;
    };
    let Some(state) = machine.pools.get_mut(pool) else {
        return;
    };
    state.used = state.used.saturating_sub(bytes);
    let (device, end) = (state.device, state.destroyed && state.used == 0);
    if end {
        machine.pools.remove(pool);
    }
    // What it keeps was in use until now, so there is room.
    let _ = machine.set_idle(device);
}

fn allocate_on(
    machine: &mut Machine,
    out: Ptr<CUdeviceptr>,
    bytes: usize,
    pool: usize,
    stream: usize,
) -> Answer {
    if out.is_null() {
        return Err(INVALID_VALUE);
    }
    if bytes == 0 {
        return out.set(0);
    }
    let state = machine.pools.get(pool).ok_or(INVALID_VALUE)?;
    let (device, used, reserved) = (state.device, state.used, state.reserved);
    let (threshold, max) = (state.threshold, state.max);
    let block = (bytes as u64).checked_next_multiple_of(UNIT).ok_or(INVALID_VALUE)?;
    let after = used.checked_add(block).ok_or(CUresult::CUDA_ERROR_OUT_OF_MEMORY)?;
    if max != 0 && after > max {
        return Err(CUresult::CUDA_ERROR_OUT_OF_MEMORY);
    }
    capture::refuse_on(machine, stream)?;
    // The block takes the place of memory that the pool kept.
    if let Some(state) = machine.pools.get_mut(pool) {
        state.used = after;
    }
    let _ = machine.set_idle(device);
    let mut answer = machine.order(stream);
    if answer.is_ok() {
        let on = machine.stream_state(stream)?.sim;
        answer = make_room(machine, device, |machine| {
            let address = machine.sim.malloc_async(device, block, on);
            machine.judge(address)
        })
        .map(|address| {
            machine.pooled.insert(address, (pool, block));
            let _ = out.set(address);
        });
    }
    let granularity = machine.sim.granularity();
    let state = machine.pools.get_mut(pool).ok_or(INVALID_VALUE)?;
    if answer.is_err() {
        (state.used, state.reserved) = (used, state.reserved.min(reserved));
        let _ = machine.set_idle(device);
        return answer;
    }
    state.used_high = state.used_high.max(after);
    let wanted = after.next_multiple_of(granularity);
    state.reserved = state.reserved.max(wanted);
    if machine.set_idle(device).is_err()
        && let Some(state) = machine.pools.get_mut(pool)
    {
        // The rest of the last unit does not fit.
        state.reserved = after.max(threshold.min(reserved));
        let _ = machine.set_idle(device);
    }
    if let Some(state) = machine.pools.get_mut(pool) {
        state.reserved_high = state.reserved_high.max(state.reserved);
    }
    Ok(())
}

pub(crate) fn allocate(
    machine: &mut Machine,
    out: Ptr<CUdeviceptr>,
    bytes: usize,
    stream: Ptr<CUstream_st>,
) -> Answer {
    let stream = machine.stream(stream)?;
    if !machine.memory_pools {
        return Err(NOT_SUPPORTED);
    }
    let device = machine.stream_device(stream)?;
    let (_, pool) = machine.device_pools[usize::from(device)];
    allocate_on(machine, out, bytes, pool, stream)
}

pub(crate) fn allocate_from(
    machine: &mut Machine,
    out: Ptr<CUdeviceptr>,
    bytes: usize,
    pool: Ptr<CUmemPoolHandle_st>,
    stream: Ptr<CUstream_st>,
) -> Answer {
    let stream = machine.stream(stream)?;
    let pool = machine.pool(pool)?;
    allocate_on(machine, out, bytes, pool, stream)
}

pub(crate) fn free(
    machine: &mut Machine,
    address: CUdeviceptr,
    stream: Ptr<CUstream_st>,
) -> Answer {
    let stream = machine.stream(stream)?;
    if address == 0 {
        return Ok(());
    }
    capture::refuse_on(machine, stream)?;
    machine.order(stream)?;
    let on = machine.stream_state(stream)?.sim;
    let freed = machine.sim.free_async(address, on);
    machine.judge(freed)?;
    machine.allocations.remove(&address);
    given_back(machine, address);
    Ok(())
}

pub(crate) fn default_of(machine: &mut Machine, out: Ptr<CUmemoryPool>, device: i32) -> Answer {
    let device = machine.device(device)?;
    if !machine.memory_pools {
        return Err(NOT_SUPPORTED);
    }
    out.set(machine.device_pools[usize::from(device)].0 as CUmemoryPool)
}

pub(crate) fn current_of(machine: &mut Machine, out: Ptr<CUmemoryPool>, device: i32) -> Answer {
    let device = machine.device(device)?;
    if !machine.memory_pools {
        return Err(NOT_SUPPORTED);
    }
    out.set(machine.device_pools[usize::from(device)].1 as CUmemoryPool)
}

pub(crate) fn set_current(
    machine: &mut Machine,
    device: i32,
    pool: Ptr<CUmemPoolHandle_st>,
) -> Answer {
    let device = machine.device(device)?;
    let pool = machine.pool(pool)?;
    if machine.pools.get(pool).is_none_or(|pool| pool.device != device) {
        return Err(INVALID_VALUE);
    }
    machine.device_pools[usize::from(device)].1 = pool;
    Ok(())
}

/// `CUmemPoolProps`, with numbers in place of enumerations.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Properties {
    kind: u32,
    handle_types: u32,
    location: Location,
    security: *mut c_void,
    max: usize,
    usage: u16,
    reserved: [u8; 54],
}

const _: () = assert!(size_of::<Properties>() == size_of::<cudarc::driver::sys::CUmemPoolProps>());

pub(crate) fn create(
    machine: &mut Machine,
    out: Ptr<CUmemoryPool>,
    properties: Ptr<Properties>,
) -> Answer {
    let properties = properties.get()?;
    if !machine.memory_pools || properties.handle_types != 0 || properties.usage != 0 {
        return Err(NOT_SUPPORTED);
    }
    if properties.kind != 1 || properties.reserved != [0; 54] || out.is_null() {
        return Err(INVALID_VALUE);
    }
    let device = machine.location(properties.location)?;
    let pool = Pool { max: properties.max as u64, ..Pool::new(device) };
    let pool = machine.pools.insert(pool);
    out.set(pool as CUmemoryPool)
}

/// A pool ends once its last block is back. A device whose current pool it was goes back to its own.
pub(crate) fn destroy(machine: &mut Machine, pool: Ptr<CUmemPoolHandle_st>) -> Answer {
    let pool = machine.pool(pool)?;
    if machine.device_pools.iter().any(|(default, _)| *default == pool) {
        return Err(INVALID_VALUE);
    }
    for (default, current) in &mut machine.device_pools {
        if *current == pool {
            *current = *default;
        }
    }
    let state = machine.pools.get_mut(pool).ok_or(INVALID_VALUE)?;
    (state.destroyed, state.threshold) = (true, 0);
    let (device, empty) = (state.device, state.used == 0);
    if empty {
        machine.pools.remove(pool);
    }
    machine.set_idle(device)
}

pub(crate) fn trim(machine: &mut Machine, pool: Ptr<CUmemPoolHandle_st>, keep: usize) -> Answer {
    let pool = machine.pool(pool)?;
    let granularity = machine.sim.granularity();
    let device = machine.pools.get(pool).ok_or(INVALID_VALUE)?.device;
    let dying = machine.sim.dying_bytes(device);
    if let Some(state) = machine.pools.get_mut(pool) {
        let needed = (state.used + dying).next_multiple_of(granularity);
        state.reserved = state.reserved.min(needed.max(keep as u64));
    }
    machine.set_idle(device)
}

pub(crate) fn get_attribute(
    machine: &mut Machine,
    pool: Ptr<CUmemPoolHandle_st>,
    attribute: u32,
    out: Ptr<c_void>,
) -> Answer {
    let pool = machine.pool(pool)?;
    let state = machine.pools.get(pool).ok_or(INVALID_VALUE)?;
    match attribute {
        1..=3 => out.cast::<u32>().set(state.reuse[attribute as usize - 1]),
        4 => out.cast::<u64>().set(state.threshold),
        5 => out.cast::<u64>().set(state.reserved),
        6 => out.cast::<u64>().set(state.reserved_high),
        7 => out.cast::<u64>().set(state.used),
        8 => out.cast::<u64>().set(state.used_high),
        _ => Err(INVALID_VALUE),
    }
}

pub(crate) fn set_attribute(
    machine: &mut Machine,
    pool: Ptr<CUmemPoolHandle_st>,
    attribute: u32,
    value: Ptr<c_void>,
) -> Answer {
    let pool = machine.pool(pool)?;
    let state = machine.pools.get_mut(pool).ok_or(INVALID_VALUE)?;
    match attribute {
        1..=3 => state.reuse[attribute as usize - 1] = value.cast::<u32>().get()?,
        4 => state.threshold = value.cast::<u64>().get()?,
        // High-water marks can only be reset.
        6 if value.cast::<u64>().get()? == 0 => state.reserved_high = state.reserved,
        8 if value.cast::<u64>().get()? == 0 => state.used_high = state.used,
        _ => return Err(INVALID_VALUE),
    }
    Ok(())
}
