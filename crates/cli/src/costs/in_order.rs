//! Times of allocations in stream order, which the pool does not make: what it is compared with.

use super::measure::{BLOCKS, Rows, timed};
use crate::gpus::{guarded, told};
use millpond::driver::DriverError;
use millpond::driver::cuda::cudarc::driver::CudaContext;
use millpond::driver::cuda::cudarc::driver::result::{self, stream};

/// Allocations that the driver's pool has memory for, and their frees. Nothing where the device has
/// no such allocations.
pub(super) fn measure(
    context: &CudaContext,
    samples: usize,
    memory: u64,
    rows: &mut Rows,
) -> Result<(), DriverError> {
    if !context.has_async_alloc() {
        return Ok(());
    }
    told("cuCtxSetCurrent", context.bind_to_thread())?;
    let stream = told("cuStreamCreate", stream::create(stream::StreamKind::NonBlocking))?;
    for bytes in BLOCKS.into_iter().filter(|&bytes| bytes <= memory / 8) {
        let (mut allocs, mut frees) = (Vec::new(), Vec::new());
        // The first takes memory for the others: idle memory stays until the host waits.
        for nth in 0..=samples {
            // SAFETY: the stream is alive and its context current; the memory is freed once, and
            // nobody touches it.
            let (alloc, free) = unsafe {
                let alloc = || result::malloc_async(stream, bytes as usize);
                let (address, alloc) = timed(|| guarded("cuMemAllocAsync", alloc))?;
                let free = || result::free_async(address, stream);
                let ((), free) = timed(|| guarded("cuMemFreeAsync", free))?;
                (alloc, free)
            };
            if nth > 0 {
                allocs.push(alloc);
                frees.push(free);
            }
        }
        rows.add_named("cuMemAllocAsync", (Some(bytes), None), allocs);
        rows.add_named("cuMemFreeAsync", (Some(bytes), None), frees);
    }
    // SAFETY: the stream is ours, and nobody uses it any more.
    unsafe {
        told("cuStreamSynchronize", stream::synchronize(stream))?;
        told("cuStreamDestroy", stream::destroy(stream))
    }
}
