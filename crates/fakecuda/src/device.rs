//! Initialisation, devices and their attributes.

use std::ffi::c_char;

use cudarc::driver::sys::{CUdevice_attribute as Attribute, CUuuid};

use crate::error::{Answer, INVALID_DEVICE, INVALID_VALUE};
use crate::machine::Machine;
use crate::pointer::Ptr;

/// CUDA 12.8.
const VERSION: i32 = 12_080;
/// That of an H100.
const CAPABILITY: (i32, i32) = (9, 0);

pub(crate) fn init(machine: &mut Machine, flags: u32) -> Answer {
    if flags != 0 {
        return Err(INVALID_VALUE);
    }
    machine.initialised = true;
    Ok(())
}

pub(crate) fn version(out: Ptr<i32>) -> Answer {
    out.set(VERSION)
}

pub(crate) fn count(machine: &mut Machine, out: Ptr<i32>) -> Answer {
    out.set(i32::from(machine.sim.device_count()))
}

pub(crate) fn get(machine: &mut Machine, out: Ptr<i32>, ordinal: i32) -> Answer {
    let device = machine.device(ordinal)?;
    out.set(machine.device_handle(device))
}

pub(crate) fn name(machine: &mut Machine, out: Ptr<c_char>, room: i32, device: i32) -> Answer {
    machine.device(device)?;
    out.set_text("fakecuda", room)
}

pub(crate) fn uuid(machine: &mut Machine, out: Ptr<CUuuid>, device: i32) -> Answer {
    let device = machine.device(device)?;
    let mut bytes = [0x66 as c_char; 16];
    for (byte, value) in bytes[14..].iter_mut().zip(device.to_be_bytes()) {
        *byte = value as c_char;
    }
    out.set(CUuuid { bytes })
}

pub(crate) fn total_memory(machine: &mut Machine, out: Ptr<usize>, device: i32) -> Answer {
    let device = machine.device(device)?;
    let bytes = machine.sim.capacity(device).ok_or(INVALID_DEVICE)?;
    out.set(usize::try_from(bytes).unwrap_or(usize::MAX))
}

pub(crate) fn capability(
    machine: &mut Machine,
    major: Ptr<i32>,
    minor: Ptr<i32>,
    device: i32,
) -> Answer {
    machine.device(device)?;
    major.set(CAPABILITY.0)?;
    minor.set(CAPABILITY.1)
}

fn bus(device: u16) -> String {
    format!("0000:{:02x}:{:02x}.0", device >> 8, device & 0xff)
}

pub(crate) fn bus_id(machine: &mut Machine, out: Ptr<c_char>, room: i32, device: i32) -> Answer {
    let device = machine.device(device)?;
    out.set_text(&bus(device), room)
}

pub(crate) fn by_bus_id(machine: &mut Machine, out: Ptr<i32>, id: Ptr<c_char>) -> Answer {
    let id = id.text()?.to_ascii_lowercase();
    let device = (0..machine.sim.device_count()).find(|device| bus(*device) == id);
    out.set(machine.device_handle(device.ok_or(INVALID_DEVICE)?))
}

/// What a program that looks for features may rely on; all else is 0.
pub(crate) fn attribute(
    machine: &mut Machine,
    out: Ptr<i32>,
    attribute: u32,
    device: i32,
) -> Answer {
    use Attribute as A;
    let device = machine.device(device)?;
    if attribute == 0 || attribute >= A::CU_DEVICE_ATTRIBUTE_MAX as u32 {
        return Err(INVALID_VALUE);
    }
    let values = [
        (A::CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK, 1024),
        (A::CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X, 1024),
        (A::CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y, 1024),
        (A::CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z, 64),
        (A::CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X, i32::MAX),
        (A::CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y, 65_535),
        (A::CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z, 65_535),
        (A::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK, 48 << 10),
        (A::CU_DEVICE_ATTRIBUTE_WARP_SIZE, 32),
        (A::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 132),
        (A::CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS, 1),
        (A::CU_DEVICE_ATTRIBUTE_PCI_BUS_ID, i32::from(device >> 8)),
        (A::CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID, i32::from(device & 0xff)),
        (A::CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT, 3),
        (A::CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING, 1),
        (A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, CAPABILITY.0),
        (A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, CAPABILITY.1),
        (A::CU_DEVICE_ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED, 1),
        (A::CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED, 1),
        (
            A::CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED,
            i32::from(machine.virtual_memory),
        ),
        (A::CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED, i32::from(machine.memory_pools)),
    ];
    let value = values.iter().find(|(known, _)| *known as u32 == attribute);
    out.set(value.map_or(0, |(_, value)| *value))
}

/// There is nothing to profile.
pub(crate) fn profiler(_machine: &mut Machine) -> Answer {
    Ok(())
}
