//! Copies and fills, on a stream and on the default one.
//!
//! Copies from pageable memory read it at once; copies to pageable memory wait, as they do on a real
//! driver. Copies and fills that name no stream go to the legacy default stream, and nothing but a
//! copy to pageable memory tells the host that they are done.

use std::ffi::c_void;
use std::sync::Arc;

use cudarc::driver::sys::{CUctx_st, CUdeviceptr, CUresult, CUstream_st};
use millpond_simgpu::{Sim, Touch};

use crate::context;
use crate::error::{Answer, INVALID_VALUE};
use crate::machine::Machine;
use crate::op::Op;
use crate::pointer::Ptr;

/// The streams that calls without a stream use.
const DEFAULT: usize = 0;

fn set(
    machine: &mut Machine,
    stream: usize,
    address: CUdeviceptr,
    pattern: u64,
    len: Option<usize>,
    unit: u64,
) -> Answer {
    let stream = machine.stream_by_value(stream)?;
    let len = len.ok_or(INVALID_VALUE)? as u64;
    if !address.is_multiple_of(unit) {
        return Err(INVALID_VALUE);
    }
    if len == 0 {
        return Ok(());
    }
    machine.submit(stream, Op::Fill { address, len, pattern })
}

macro_rules! sets {
    ($($name:ident, $name_async:ident, $value:ty, $unit:literal, $spread:literal;)*) => {$(
        pub(crate) fn $name(
            machine: &mut Machine,
            address: CUdeviceptr,
            value: $value,
            count: usize,
        ) -> Answer {
            let len = count.checked_mul($unit);
            set(machine, DEFAULT, address, u64::from(value) * $spread, len, $unit)
        }

        pub(crate) fn $name_async(
            machine: &mut Machine,
            address: CUdeviceptr,
            value: $value,
            count: usize,
            stream: Ptr<CUstream_st>,
        ) -> Answer {
            let len = count.checked_mul($unit);
            set(machine, stream.value(), address, u64::from(value) * $spread, len, $unit)
        }
    )*};
}

sets! {
    set_d8, set_d8_async, u8, 1, 0x0101_0101_0101_0101;
    set_d16, set_d16_async, u16, 2, 0x0001_0001_0001_0001;
    set_d32, set_d32_async, u32, 4, 0x0000_0001_0000_0001;
}

fn to_device(
    machine: &mut Machine,
    stream: usize,
    to: CUdeviceptr,
    from: Ptr<c_void>,
    len: usize,
) -> Answer {
    let stream = machine.stream_by_value(stream)?;
    if len == 0 {
        return Ok(());
    }
    if let Some((block, at)) = machine.host_memory.find(from.value(), len) {
        let block = Arc::downgrade(block);
        return machine.submit(stream, Op::FromPinned { block, at, address: to, len });
    }
    refuse_capture(machine, stream)?;
    let data = from.bytes(len)?.into();
    machine.submit(stream, Op::Write { address: to, data })
}

fn to_host(
    machine: &mut Machine,
    stream: usize,
    to: Ptr<c_void>,
    from: CUdeviceptr,
    len: usize,
    wait: bool,
) -> Answer {
    let stream = machine.stream_by_value(stream)?;
    if len == 0 {
        return Ok(());
    }
    if to.is_null() {
        return Err(INVALID_VALUE);
    }
    if let Some((block, at)) = machine.host_memory.find(to.value(), len).filter(|_| !wait) {
        let block = Arc::downgrade(block);
        return machine.submit(stream, Op::ToPinned { block, at, address: from, len });
    }
    refuse_capture(machine, stream)?;
    machine.order(stream)?;
    let sim = machine.stream_state(stream)?.sim;
    let bytes = read(&machine.sim, sim, from, len);
    let bytes = machine.judge(bytes)?;
    to.set_bytes(&bytes)
}

/// What the host reads, once the stream has come to it: zeros where bytes do not exist.
fn read(
    sim: &Sim,
    stream: millpond_simgpu::Stream,
    from: CUdeviceptr,
    len: usize,
) -> millpond_simgpu::Result<Vec<u8>> {
    if sim.has_contents() {
        return sim.read_bytes(stream, from, len as u64);
    }
    sim.launch(stream, &[Touch::read(from, len as u64)])?;
    sim.stream_synchronize(stream)?;
    Ok(vec![0; len])
}

/// Pageable memory is not captured: nothing says how long it lives.
fn refuse_capture(machine: &mut Machine, stream: usize) -> Answer {
    crate::capture::refuse_on(machine, stream)
}

fn between(
    machine: &mut Machine,
    stream: usize,
    to: (u16, u64),
    from: (u16, u64),
    len: usize,
) -> Answer {
    let stream = machine.stream_by_value(stream)?;
    if len == 0 {
        return Ok(());
    }
    machine.submit(stream, Op::Copy { to, from, len: len as u64 })
}

/// Copies as a stream's device sees both ranges.
fn within(
    machine: &mut Machine,
    stream: usize,
    to: CUdeviceptr,
    from: CUdeviceptr,
    len: usize,
) -> Answer {
    let handle = machine.stream_by_value(stream)?;
    let device = machine.stream_device(handle)?;
    between(machine, stream, (device, to), (device, from), len)
}

pub(crate) fn htod(
    machine: &mut Machine,
    to: CUdeviceptr,
    from: Ptr<c_void>,
    len: usize,
) -> Answer {
    let stream = machine.stream_by_value(DEFAULT)?;
    machine.order(stream)?;
    to_device(machine, DEFAULT, to, from, len)?;
    // Pinned memory must not be changed before it has been read.
    match machine.host_memory.find(from.value(), len.max(1)) {
        Some(_) => {
            let sim = machine.stream_state(stream)?.sim;
            let done = machine.sim.stream_synchronize(sim);
            machine.judge(done)
        }
        None => Ok(()),
    }
}

pub(crate) fn htod_async(
    machine: &mut Machine,
    to: CUdeviceptr,
    from: Ptr<c_void>,
    len: usize,
    stream: Ptr<CUstream_st>,
) -> Answer {
    to_device(machine, stream.value(), to, from, len)
}

pub(crate) fn dtoh(
    machine: &mut Machine,
    to: Ptr<c_void>,
    from: CUdeviceptr,
    len: usize,
) -> Answer {
    to_host(machine, DEFAULT, to, from, len, true)
}

pub(crate) fn dtoh_async(
    machine: &mut Machine,
    to: Ptr<c_void>,
    from: CUdeviceptr,
    len: usize,
    stream: Ptr<CUstream_st>,
) -> Answer {
    to_host(machine, stream.value(), to, from, len, false)
}

pub(crate) fn dtod(
    machine: &mut Machine,
    to: CUdeviceptr,
    from: CUdeviceptr,
    len: usize,
) -> Answer {
    within(machine, DEFAULT, to, from, len)
}

pub(crate) fn dtod_async(
    machine: &mut Machine,
    to: CUdeviceptr,
    from: CUdeviceptr,
    len: usize,
    stream: Ptr<CUstream_st>,
) -> Answer {
    within(machine, stream.value(), to, from, len)
}

pub(crate) fn peer(
    machine: &mut Machine,
    to: CUdeviceptr,
    to_context: Ptr<CUctx_st>,
    from: CUdeviceptr,
    from_context: Ptr<CUctx_st>,
    len: usize,
) -> Answer {
    let to_device = context::named(machine, to_context)?;
    let from_device = context::named(machine, from_context)?;
    between(machine, DEFAULT, (to_device, to), (from_device, from), len)
}

pub(crate) fn peer_async(
    machine: &mut Machine,
    to: CUdeviceptr,
    to_context: Ptr<CUctx_st>,
    from: CUdeviceptr,
    from_context: Ptr<CUctx_st>,
    len: usize,
    stream: Ptr<CUstream_st>,
) -> Answer {
    let to_device = context::named(machine, to_context)?;
    let from_device = context::named(machine, from_context)?;
    between(machine, stream.value(), (to_device, to), (from_device, from), len)
}

/// A copy that finds out by itself what its addresses are.
fn any(
    machine: &mut Machine,
    to: CUdeviceptr,
    from: CUdeviceptr,
    len: usize,
    stream: Option<Ptr<CUstream_st>>,
) -> Answer {
    let handle = stream.map_or(DEFAULT, Ptr::value);
    let host = |address: u64| Ptr::from_address(address as usize);
    let on_device = |address| machine.sim.device_of(address).is_some();
    match (on_device(to), on_device(from)) {
        (true, true) => within(machine, handle, to, from, len),
        (true, false) => to_device(machine, handle, to, host(from), len),
        (false, true) => to_host(machine, handle, host(to), from, len, stream.is_none()),
        (false, false) => Err(CUresult::CUDA_ERROR_NOT_SUPPORTED),
    }
}

pub(crate) fn unified(
    machine: &mut Machine,
    to: CUdeviceptr,
    from: CUdeviceptr,
    len: usize,
) -> Answer {
    any(machine, to, from, len, None)
}

pub(crate) fn unified_async(
    machine: &mut Machine,
    to: CUdeviceptr,
    from: CUdeviceptr,
    len: usize,
    stream: Ptr<CUstream_st>,
) -> Answer {
    any(machine, to, from, len, Some(stream))
}
