//! The kernels that there are, and their launches.
//!
//! Each says what it reads and writes, and does it:
//!
//! | kernel | parameters | effect |
//! |---|---|---|
//! | `fill_u64` | `u64 *out, u64 n, u64 value` | `out[i] = value` |
//! | `touch` | `void *memory, u64 bytes` | writes the bytes, and leaves them as they are |
//! | `read` | `const void *memory, u64 bytes` | reads the bytes |
//! | `add_f32` | `float *out, const float *a, const float *b, u64 n` | `out[i] = a[i] + b[i]` |
//! | `sin_kernel` | `float *out, const float *in, int n` | `out[i] = sin(in[i])` |

use std::ffi::{CStr, c_void};
use std::sync::Arc;

use cudarc::driver::sys::{CUfunc_st, CUlaunchConfig, CUresult, CUstream_st};
use millpond_simgpu::Touch;

use crate::error::{Answer, INVALID_HANDLE, INVALID_VALUE, NOT_SUPPORTED};
use crate::machine::Machine;
use crate::op::{Op, Run};
use crate::pointer::Ptr;

/// What a launch touches and does.
type Work = (Vec<Touch>, Run);

/// A kernel.
#[derive(Debug)]
pub(crate) struct Kernel {
    pub name: &'static CStr,
    /// The sizes of its parameters.
    parameters: &'static [usize],
    /// What it touches and does, for values of the parameters; none where they are too large.
    work: fn(&[u64]) -> Option<Work>,
}

const KERNELS: &[Kernel] = &[
    Kernel {
        name: c"fill_u64",
        parameters: &[8, 8, 8],
        work: |p| {
            let (out, count, value) = (p[0], p[1], p[2]);
            let touches = vec![Touch::write(out, count.checked_mul(8)?)];
            Some((
                touches,
                Arc::new(move |b| b.write(out, &value.to_le_bytes().repeat(count as usize))),
            ))
        },
    },
    Kernel {
        name: c"touch",
        parameters: &[8, 8],
        work: |p| Some((vec![Touch::write(p[0], p[1])], Arc::new(|_| {}))),
    },
    Kernel {
        name: c"read",
        parameters: &[8, 8],
        work: |p| Some((vec![Touch::read(p[0], p[1])], Arc::new(|_| {}))),
    },
    Kernel {
        name: c"add_f32",
        parameters: &[8, 8, 8, 8],
        work: |p| {
            let (out, a, b, bytes) = (p[0], p[1], p[2], p[3].checked_mul(4)?);
            let touches =
                vec![Touch::read(a, bytes), Touch::read(b, bytes), Touch::write(out, bytes)];
            let run: Run = Arc::new(move |memory| {
                let sums = floats(&memory.read(a, bytes))
                    .zip(floats(&memory.read(b, bytes)))
                    .flat_map(|(a, b)| (a + b).to_le_bytes())
                    .collect::<Vec<u8>>();
                memory.write(out, &sums);
            });
            Some((touches, run))
        },
    },
    Kernel {
        name: c"sin_kernel",
        parameters: &[8, 8, 4],
        work: |p| {
            // A negative count runs no thread.
            let count = u64::try_from(p[2] as u32 as i32).unwrap_or(0);
            let (out, input, bytes) = (p[0], p[1], count * 4);
            let touches = vec![Touch::read(input, bytes), Touch::write(out, bytes)];
            let run: Run = Arc::new(move |memory| {
                let sines = floats(&memory.read(input, bytes))
                    .flat_map(|value| value.sin().to_le_bytes())
                    .collect::<Vec<u8>>();
                memory.write(out, &sines);
            });
            Some((touches, run))
        },
    },
];

fn floats(bytes: &[u8]) -> impl Iterator<Item = f32> {
    bytes.chunks_exact(4).map(|chunk| f32::from_le_bytes([chunk[0], chunk[1], chunk[2], chunk[3]]))
}

/// A kernel by its name.
pub(crate) fn named(name: &str) -> Option<&'static Kernel> {
    KERNELS.iter().find(|kernel| kernel.name.to_bytes() == name.as_bytes())
}

/// Threads in a block at most, and blocks in a grid at most, by dimension.
const BLOCK: [u32; 3] = [1024, 1024, 64];
const GRID: [u32; 3] = [i32::MAX as u32, 65_535, 65_535];

fn fits(grid: [u32; 3], block: [u32; 3]) -> bool {
    let within = |is: [u32; 3], most: [u32; 3]| is.iter().zip(most).all(|(n, m)| *n > 0 && *n <= m);
    let threads = block.iter().map(|n| u64::from(*n)).product::<u64>();
    within(grid, GRID) && within(block, BLOCK) && threads <= 1024
}

fn submit(
    machine: &mut Machine,
    function: Ptr<CUfunc_st>,
    (grid, block): ([u32; 3], [u32; 3]),
    stream: Ptr<CUstream_st>,
    parameters: Ptr<*mut c_void>,
    extra: Ptr<*mut c_void>,
) -> Answer {
    let context = machine.current()?;
    let stream = machine.stream(stream)?;
    let function = machine.function(function)?;
    let (kernel, of) = (function.kernel, function.context);
    if !fits(grid, block) {
        return Err(INVALID_VALUE);
    }
    if !extra.is_null() {
        return Err(NOT_SUPPORTED);
    }
    // A kernel needs its stream's context, which must be current; copies do not.
    if of != context || machine.stream_state(stream)?.context != context {
        machine
            .violation("a kernel launched on a stream that is not of the current context".into());
        return Err(INVALID_HANDLE);
    }
    if parameters.is_null() {
        return Err(INVALID_VALUE);
    }
    let mut values = Vec::with_capacity(kernel.parameters.len());
    for (nth, size) in kernel.parameters.iter().enumerate() {
        let value = word(parameters.at(nth).get()?, *size)?;
        values.push(value);
    }
    let (touches, run) = (kernel.work)(&values).ok_or(INVALID_VALUE)?;
    machine.submit(stream, Op::Kernel { touches, run }).map_err(|code| match code {
        INVALID_VALUE => CUresult::CUDA_ERROR_ILLEGAL_ADDRESS,
        code => code,
    })
}

/// A parameter of four or eight bytes.
fn word(parameter: *mut c_void, size: usize) -> Answer<u64> {
    let parameter = Ptr::from_address(parameter as usize);
    match size {
        4 => Ok(u64::from(parameter.cast::<u32>().get()?)),
        _ => parameter.cast::<u64>().get(),
    }
}

#[expect(clippy::too_many_arguments, reason = "as many as the driver's function has")]
pub(crate) fn launch(
    machine: &mut Machine,
    function: Ptr<CUfunc_st>,
    grid_x: u32,
    grid_y: u32,
    grid_z: u32,
    block_x: u32,
    block_y: u32,
    block_z: u32,
    _shared: u32,
    stream: Ptr<CUstream_st>,
    parameters: Ptr<*mut c_void>,
    extra: Ptr<*mut c_void>,
) -> Answer {
    let shape = ([grid_x, grid_y, grid_z], [block_x, block_y, block_z]);
    submit(machine, function, shape, stream, parameters, extra)
}

#[expect(clippy::too_many_arguments, reason = "as many as the driver's function has")]
pub(crate) fn launch_cooperative(
    machine: &mut Machine,
    function: Ptr<CUfunc_st>,
    grid_x: u32,
    grid_y: u32,
    grid_z: u32,
    block_x: u32,
    block_y: u32,
    block_z: u32,
    _shared: u32,
    stream: Ptr<CUstream_st>,
    parameters: Ptr<*mut c_void>,
) -> Answer {
    let shape = ([grid_x, grid_y, grid_z], [block_x, block_y, block_z]);
    submit(machine, function, shape, stream, parameters, Ptr::null())
}

pub(crate) fn launch_ex(
    machine: &mut Machine,
    config: Ptr<CUlaunchConfig>,
    function: Ptr<CUfunc_st>,
    parameters: Ptr<*mut c_void>,
    extra: Ptr<*mut c_void>,
) -> Answer {
    let config = config.get()?;
    if config.numAttrs != 0 {
        return Err(NOT_SUPPORTED);
    }
    let grid = [config.gridDimX, config.gridDimY, config.gridDimZ];
    let block = [config.blockDimX, config.blockDimY, config.blockDimZ];
    let stream = Ptr::from_handle(config.hStream);
    submit(machine, function, (grid, block), stream, parameters, extra)
}
