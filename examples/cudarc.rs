//! A program on cudarc before and after: the same vector addition, step after step.
//!
//! ```sh
//! cargo run --example cudarc --features cuda-12080 -- --driver fake     # simulated, seen through CUDA
//! cargo run --example cudarc --features cuda-12080                      # the first GPU of this machine
//! ```
//!
//! What changes: a pool over the context, the stream registered with it once, and `stream.alloc_zeros`
//! becomes `memory.alloc_slice_zeroed`. Copies, fills, views and launches stay as they are. Where no
//! slice is used on two streams, a plain `Buffer` does with no event at all: the last of the three.

use cudarc::driver::{CudaContext, CudaFunction, CudaStream, LaunchConfig, PushKernelArg};
use cudarc::nvrtc::Ptx;
use millpond::driver::cuda::{CudaDriver, cudarc, is_present};
use millpond::{Buffer, Pool, Stream};
use millpond_simgpu::Sim;
use std::sync::Arc;

type Result<T = ()> = std::result::Result<T, Box<dyn std::error::Error>>;

const LEN: usize = 100_000;
const STEPS: usize = 10;

/// Before: CUDA's own allocator, by way of cudarc.
fn before(stream: &Arc<CudaStream>, add: &CudaFunction, ones: &[f32]) -> Result<Vec<f32>> {
    let mut total = stream.alloc_zeros::<f32>(LEN)?;
    for _ in 0..STEPS {
        let mut term = stream.alloc_zeros::<f32>(LEN)?;
        stream.memcpy_htod(ones, &mut term)?;
        let mut sum = stream.alloc_zeros::<f32>(LEN)?;
        let mut launch = stream.launch_builder(add);
        launch.arg(&mut sum).arg(&total).arg(&term).arg(&LEN);
        // SAFETY: the kernel reads and writes LEN floats, which each slice has.
        unsafe { launch.launch(LaunchConfig::for_num_elems(LEN as u32)) }?;
        total = sum;
    }
    Ok(stream.clone_dtoh(&total)?)
}

/// After: two words in each of two lines.
fn after(
    stream: &Arc<CudaStream>,
    memory: &Stream,
    add: &CudaFunction,
    ones: &[f32],
) -> Result<Vec<f32>> {
    let mut total = memory.alloc_slice_zeroed::<f32>(LEN)?;
    for _ in 0..STEPS {
        let mut term = memory.alloc_slice_zeroed::<f32>(LEN)?;
        stream.memcpy_htod(ones, &mut term)?;
        let mut sum = memory.alloc_slice_zeroed::<f32>(LEN)?;
        let mut launch = stream.launch_builder(add);
        launch.arg(&mut sum).arg(&total).arg(&term).arg(&LEN);
        // SAFETY: as before.
        unsafe { launch.launch(LaunchConfig::for_num_elems(LEN as u32)) }?;
        total = sum;
    }
    Ok(stream.clone_dtoh(&total)?)
}

/// With plain buffers: no object of cudarc's and no event for a block.
fn with_buffers(
    stream: &Arc<CudaStream>,
    memory: &Stream,
    add: &CudaFunction,
    ones: &[f32],
) -> Result<Vec<f32>> {
    let mut total: Buffer<f32> = memory.alloc(LEN)?;
    stream.memset_zeros(&mut total.on_mut(stream))?;
    for _ in 0..STEPS {
        let mut term = memory.alloc(LEN)?;
        stream.memcpy_htod(ones, &mut term.on_mut(stream))?;
        let mut sum = memory.alloc(LEN)?;
        let mut launch = stream.launch_builder(add);
        launch.arg(&mut sum).arg(&total).arg(&term).arg(&LEN);
        // SAFETY: as before.
        unsafe { launch.launch(LaunchConfig::for_num_elems(LEN as u32)) }?;
        total = sum;
    }
    Ok(stream.clone_dtoh(&total.on(stream))?)
}

/// `out[i] = a[i] + b[i]` for `i < n`.
const ADD: &str = "
.version 6.0
.target sm_50
.address_size 64

.visible .entry add_f32(.param .u64 out, .param .u64 a, .param .u64 b, .param .u64 n)
{
    .reg .pred %p<2>;
    .reg .f32 %f<4>;
    .reg .b32 %r<5>;
    .reg .b64 %rd<10>;

    ld.param.u64 %rd1, [out];
    ld.param.u64 %rd2, [a];
    ld.param.u64 %rd3, [b];
    ld.param.u64 %rd4, [n];
    mov.u32 %r1, %ctaid.x;
    mov.u32 %r2, %ntid.x;
    mov.u32 %r3, %tid.x;
    mad.lo.u32 %r4, %r1, %r2, %r3;
    cvt.u64.u32 %rd5, %r4;
    setp.ge.u64 %p1, %rd5, %rd4;
    @%p1 bra DONE;
    cvta.to.global.u64 %rd1, %rd1;
    cvta.to.global.u64 %rd2, %rd2;
    cvta.to.global.u64 %rd3, %rd3;
    shl.b64 %rd6, %rd5, 2;
    add.u64 %rd7, %rd2, %rd6;
    add.u64 %rd8, %rd3, %rd6;
    add.u64 %rd9, %rd1, %rd6;
    ld.global.f32 %f1, [%rd7];
    ld.global.f32 %f2, [%rd8];
    add.f32 %f3, %f1, %f2;
    st.global.f32 [%rd9], %f3;
DONE:
    ret;
}
";

fn main() -> Result {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        [] | ["--driver", "cuda"] if is_present() => run(),
        [] | ["--driver", "cuda"] => Err("there is no CUDA driver: try --driver fake".into()),
        ["--driver", "fake"] => run_on_fake(),
        _ => Err("expected --driver cuda or fake".into()),
    }
}

/// On a simulated GPU; an error where anything raced or was misused.
fn run_on_fake() -> Result {
    let fake = fakecuda::start(Sim::builder().contents(true).oracle(true))?;
    run()?;
    match (fake.sim().hazards().first(), fake.violations().first()) {
        (None, None) => Ok(()),
        found => Err(format!("{found:?}").into()),
    }
}

fn run() -> Result {
    let context = CudaContext::new(0)?;
    let stream = context.new_stream()?;
    let module = context.load_module(Ptx::from_src(ADD))?;
    let add = module.load_function("add_f32")?;
    let ones = vec![1.0; LEN];
    let expected = vec![STEPS as f32; LEN];
    assert_eq!(before(&stream, &add, &ones)?, expected);

    // The pool: a driver over the contexts, and each stream registered once.
    let pool = Pool::new(CudaDriver::new([Arc::clone(&context)])?)?;
    let memory = pool.register_cuda_stream(&stream)?;
    assert_eq!(after(&stream, &memory, &add, &ones)?, expected);
    assert_eq!(with_buffers(&stream, &memory, &add, &ones)?, expected);

    println!("{:?}", pool.stats().hits);
    Ok(())
}

#[test]
fn the_same_sums_before_and_after() {
    run_on_fake().unwrap();
}
