//! Allocation in a stream's order, as `cuMemAllocAsync` does it.
//!
//! The memory is a plain allocation. It begins at the point of the allocation in its stream and ends
//! at the point of the free in the stream that is given the free: whatever touches it must be ordered
//! between the two. The host waits for neither.

use crate::memory::Work;
use crate::sched::Op;
use crate::{Call, ErrorCode, Result, Sim, SimError, Stream};

impl Sim {
    /// Allocates memory of a device for work that comes after this point of the stream.
    ///
    /// Where memory is short, what other frees in stream order will give back is waited for.
    ///
    /// # Errors
    ///
    /// As [`malloc`](Self::malloc), and where the stream's handle is not valid.
    pub fn malloc_async(&self, device: u16, bytes: u64, stream: Stream) -> Result<u64> {
        const CALL: Call = Call::Alloc;
        let inner = &*self.inner;
        inner.check_device(CALL, device)?;
        let mut world = inner.world();
        let on = inner.given(CALL, stream)?;
        inner.enter(CALL, device)?;
        let answer = loop {
            let answer = world.memory.allocate(device, bytes);
            let dying = world.memory.dying(device);
            let short = matches!(&answer, Err(refusal) if refusal.code == ErrorCode::OutOfMemory);
            if !short || dying == 0 {
                break answer;
            }
            let world = &mut *world;
            let Some(sched) = &mut world.sched else { break answer };
            if !sched.step(&mut world.memory, &mut world.findings) {
                break answer;
            }
        };
        let (address, phys) = answer.map_err(|refusal| refusal.during(CALL))?;
        if let (Some(oracle), Some(key)) = (&mut world.oracle, on.key) {
            oracle.memory_created_on(key, phys, address);
        }
        Ok(address)
    }

    /// Frees what [`malloc_async`](Self::malloc_async) or [`malloc`](Self::malloc) gave, at this point
    /// of the stream. Work that is submitted from now on finds nothing there; the memory is free once
    /// the stream has come to this point.
    ///
    /// # Errors
    ///
    /// Where no allocation starts at the address, or the stream's handle is not valid.
    pub fn free_async(&self, address: u64, stream: Stream) -> Result<()> {
        const CALL: Call = Call::Free;
        let inner = &*self.inner;
        let mut world = inner.world();
        let device = world.memory.plain_device(address).map_err(|refusal| refusal.during(CALL))?;
        let on = inner.given(CALL, stream)?;
        inner.enter(CALL, device)?;
        let phys = world.memory.doom(address).map_err(|refusal| refusal.during(CALL))?;
        if let (Some(oracle), Some(key)) = (&mut world.oracle, on.key) {
            oracle.retire_on(key, phys, address);
        }
        match &mut world.sched {
            Some(sched) => sched.push(on.serial, Op::Work(Work::Bury { address })),
            None => world.memory.bury_plain(address),
        }
        Ok(())
    }

    /// Bytes of a device that were freed in stream order and are not free yet; 0 where there is no
    /// such device.
    pub fn dying_bytes(&self, device: u16) -> u64 {
        let world = self.inner.world();
        if device < self.device_count() { world.memory.dying(device) } else { 0 }
    }

    /// Sets how many bytes of a device a pool of the driver's keeps for later allocations. They count
    /// as used, not as leaked.
    ///
    /// # Errors
    ///
    /// Where the device does not exist, or so much memory is not free.
    pub fn set_idle_bytes(&self, device: u16, bytes: u64) -> Result<()> {
        const CALL: Call = Call::Alloc;
        self.inner.check_device(CALL, device)?;
        let answer = self.inner.world().memory.set_idle(device, bytes);
        answer.map_err(|refusal| -> SimError { refusal.during(CALL) })
    }
}
