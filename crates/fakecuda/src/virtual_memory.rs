//! Virtual memory management: reservations, physical memory, mappings, access. None of it needs a
//! current context.

use std::ffi::c_void;

use cudarc::driver::sys;
use cudarc::driver::sys::{CUdeviceptr, CUmemGenericAllocationHandle};
use millpond_simgpu::Page;

use crate::error::{Answer, INVALID_DEVICE, INVALID_VALUE, NOT_SUPPORTED};
use crate::machine::Machine;
use crate::pointer::Ptr;
use crate::{capture, pool, thread};

/// `CUmemLocation`, with numbers in place of enumerations, which a caller may fill with anything.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Location {
    pub kind: u32,
    pub id: i32,
}

/// `CUmemAllocationProp`, likewise.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Properties {
    kind: u32,
    handle_types: u32,
    location: Location,
    win32: *mut c_void,
    flags: [u8; 8],
}

/// `CUmemAccessDesc`, likewise.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Access {
    location: Location,
    flags: u32,
}

const _: () = assert!(size_of::<Location>() == size_of::<sys::CUmemLocation>());
const _: () = assert!(size_of::<Properties>() == size_of::<sys::CUmemAllocationProp>());
const _: () = assert!(size_of::<Access>() == size_of::<sys::CUmemAccessDesc>());

const ON_DEVICE: u32 = 1;
const PINNED: u32 = 1;
const NO_ACCESS: u32 = 0;
const READ_ONLY: u32 = 1;
const READ_WRITE: u32 = 3;

impl Machine {
    /// The device of a location.
    pub(crate) fn location(&self, location: Location) -> Answer<u16> {
        match location.kind {
            ON_DEVICE => self.device(location.id),
            2..=4 => Err(NOT_SUPPORTED),
            _ => Err(INVALID_VALUE),
        }
    }

    /// The device on which memory with such properties is made.
    fn properties(&self, properties: Ptr<Properties>) -> Answer<u16> {
        let properties = properties.get()?;
        if properties.kind != PINNED {
            return Err(INVALID_VALUE);
        }
        if properties.handle_types != 0 || properties.flags[0] != 0 {
            return Err(NOT_SUPPORTED);
        }
        self.location(properties.location)
    }
}

pub(crate) fn granularity(
    machine: &mut Machine,
    out: Ptr<usize>,
    properties: Ptr<Properties>,
    option: u32,
) -> Answer {
    machine.properties(properties)?;
    if option > 1 {
        return Err(INVALID_VALUE);
    }
    out.set(machine.sim.granularity() as usize)
}

/// Addresses are of no device; the simulator, whose are, takes those of the current context's device.
pub(crate) fn reserve(
    machine: &mut Machine,
    out: Ptr<CUdeviceptr>,
    bytes: usize,
    align: usize,
    _wish: CUdeviceptr,
    flags: u64,
) -> Answer {
    if flags != 0 || out.is_null() || (align != 0 && !align.is_power_of_two()) {
        return Err(INVALID_VALUE);
    }
    let context = thread::current().and_then(|context| machine.contexts.get(context));
    let device = context.map_or(0, |context| context.device);
    let address = machine.sim.reserve_aligned(device, bytes as u64, align.max(1) as u64);
    let address = machine.judge(address)?;
    out.set(address)
}

pub(crate) fn unreserve(machine: &mut Machine, address: CUdeviceptr, bytes: usize) -> Answer {
    capture::potentially_unsafe(machine)?;
    let freed = machine.sim.unreserve(address, bytes as u64);
    machine.judge(freed)
}

pub(crate) fn create(
    machine: &mut Machine,
    out: Ptr<CUmemGenericAllocationHandle>,
    bytes: usize,
    properties: Ptr<Properties>,
    flags: u64,
) -> Answer {
    capture::potentially_unsafe(machine)?;
    let device = machine.properties(properties)?;
    if flags != 0 || out.is_null() {
        return Err(INVALID_VALUE);
    }
    let page = pool::make_room(machine, device, |machine| {
        let page = machine.sim.page_create(device, bytes as u64);
        machine.judge(page)
    })?;
    out.set(page.0)
}

/// Handles that are not valid answer INVALID_VALUE here, as documented.
fn as_value<T>(answer: Answer<T>) -> Answer<T> {
    answer.map_err(|code| match code {
        crate::error::INVALID_HANDLE => INVALID_VALUE,
        code => code,
    })
}

pub(crate) fn release(machine: &mut Machine, handle: CUmemGenericAllocationHandle) -> Answer {
    capture::potentially_unsafe(machine)?;
    let released = machine.sim.page_release(Page(handle));
    as_value(machine.judge(released))
}

pub(crate) fn retain(
    machine: &mut Machine,
    out: Ptr<CUmemGenericAllocationHandle>,
    address: Ptr<c_void>,
) -> Answer {
    if out.is_null() {
        return Err(INVALID_VALUE);
    }
    let page = machine.sim.page_retain(address.value() as u64);
    let page = machine.judge(page)?;
    out.set(page.0)
}

pub(crate) fn map(
    machine: &mut Machine,
    address: CUdeviceptr,
    bytes: usize,
    offset: usize,
    handle: CUmemGenericAllocationHandle,
    flags: u64,
) -> Answer {
    capture::potentially_unsafe(machine)?;
    if flags != 0 || offset != 0 {
        return Err(INVALID_VALUE);
    }
    let mapped = machine.sim.map(address, bytes as u64, Page(handle));
    as_value(machine.judge(mapped))
}

pub(crate) fn unmap(machine: &mut Machine, address: CUdeviceptr, bytes: usize) -> Answer {
    capture::potentially_unsafe(machine)?;
    let unmapped = machine.sim.unmap(address, bytes as u64);
    machine.judge(unmapped)
}

pub(crate) fn set_access(
    machine: &mut Machine,
    address: CUdeviceptr,
    bytes: usize,
    wishes: Ptr<Access>,
    count: usize,
) -> Answer {
    capture::potentially_unsafe(machine)?;
    if count == 0 {
        return Err(INVALID_VALUE);
    }
    let (mut granted, mut denied) = (Vec::new(), Vec::new());
    for nth in 0..count {
        let wish = wishes.at(nth).get()?;
        let device = machine.location(wish.location)?;
        match wish.flags {
            NO_ACCESS => denied.push(device),
            READ_WRITE => granted.push(device),
            READ_ONLY => return Err(NOT_SUPPORTED),
            _ => return Err(INVALID_VALUE),
        }
    }
    let home = machine.sim.memory_at(address).map(|(device, ..)| device);
    if let Some(home) = home
        && granted.iter().any(|device| *device != home && !machine.peers)
    {
        return Err(INVALID_DEVICE);
    }
    let set = match granted.is_empty() {
        true => Ok(()),
        false => machine.sim.set_access(address, bytes as u64, &granted),
    };
    let set = set.and_then(|()| match denied.is_empty() {
        true => Ok(()),
        false => machine.sim.drop_access(address, bytes as u64, &denied),
    });
    machine.judge(set)
}

pub(crate) fn get_access(
    machine: &mut Machine,
    out: Ptr<u64>,
    location: Ptr<Location>,
    address: CUdeviceptr,
) -> Answer {
    let device = machine.location(location.get()?)?;
    let access = machine.sim.has_access(address, device).ok_or(INVALID_VALUE)?;
    out.set(u64::from(if access { READ_WRITE } else { NO_ACCESS }))
}
