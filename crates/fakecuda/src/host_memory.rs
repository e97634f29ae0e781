//! Pinned host memory: allocated here, or the program's own and registered.
//!
//! Copies from and to it run when their stream comes to them. They hold the memory until then, so that
//! a program that frees it too early is told of and not followed into the void.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::collections::BTreeMap;
use std::ffi::c_void;
use std::sync::{Arc, Weak};

use cudarc::driver::sys::CUresult;

use crate::capture;
use crate::error::{Answer, INVALID_VALUE, NOT_SUPPORTED};
use crate::machine::Machine;
use crate::pointer::Ptr;

const PAGE: usize = 4096;
const HOST_FLAGS: u32 = 7;

/// A range of pinned host memory.
#[derive(Debug)]
pub(crate) struct Block {
    start: usize,
    len: usize,
    flags: u32,
    /// How it was allocated; none where it is the program's.
    layout: Option<Layout>,
}

impl Block {
    fn allocate(len: usize, flags: u32) -> Option<Self> {
        let layout = Layout::from_size_align(len, PAGE).ok().filter(|_| len > 0)?;
        // SAFETY: the layout's size is not 0.
        let start = unsafe { alloc_zeroed(layout) } as usize;
        (start != 0).then_some(Self { start, len, flags, layout: Some(layout) })
    }

    /// Copies out of it.
    pub(crate) fn read(&self, at: usize, len: usize) -> Vec<u8> {
        debug_assert!(at + len <= self.len);
        let mut bytes = vec![0; len];
        // SAFETY: the range lies in the block (whoever makes a copy checks it), which is alive: our
        // own as long as this value is, the program's until it is unregistered, which waits for the
        // copies. That the program does not write to it meanwhile is what it promises the driver.
        unsafe {
            std::ptr::copy_nonoverlapping((self.start + at) as *const u8, bytes.as_mut_ptr(), len);
        }
        bytes
    }

    /// Copies into it.
    pub(crate) fn write(&self, at: usize, bytes: &[u8]) {
        debug_assert!(at + bytes.len() <= self.len);
        // SAFETY: as in `read`.
        unsafe {
            std::ptr::copy_nonoverlapping(
                bytes.as_ptr(),
                (self.start + at) as *mut u8,
                bytes.len(),
            );
        }
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        if let Some(layout) = self.layout {
            // SAFETY: allocated with this layout in `allocate`, and freed only here.
            unsafe { dealloc(self.start as *mut u8, layout) };
        }
    }
}

/// All pinned memory, by its first address.
#[derive(Debug, Default)]
pub(crate) struct HostMemory(BTreeMap<usize, Arc<Block>>);

impl HostMemory {
    /// The block in which a range lies, and where.
    pub(crate) fn find(&self, address: usize, len: usize) -> Option<(&Arc<Block>, usize)> {
        let (start, block) = self.0.range(..=address).next_back()?;
        let at = address - start;
        (at.checked_add(len.max(1))? <= block.len).then_some((block, at))
    }
}

impl Machine {
    /// The block that a copy needs.
    pub(crate) fn pinned(&mut self, block: &Weak<Block>) -> Answer<Arc<Block>> {
        block.upgrade().ok_or_else(|| {
            self.violation("a graph copies from or to host memory that was freed".into());
            CUresult::CUDA_ERROR_ILLEGAL_ADDRESS
        })
    }
}

pub(crate) fn allocate(machine: &mut Machine, out: Ptr<*mut c_void>, len: usize) -> Answer {
    allocate_with_flags(machine, out, len, 0)
}

pub(crate) fn allocate_with_flags(
    machine: &mut Machine,
    out: Ptr<*mut c_void>,
    len: usize,
    flags: u32,
) -> Answer {
    machine.current()?;
    capture::potentially_unsafe(machine)?;
    if len == 0 || flags & !HOST_FLAGS != 0 || out.is_null() {
        return Err(INVALID_VALUE);
    }
    let block = Block::allocate(len, flags).ok_or(CUresult::CUDA_ERROR_OUT_OF_MEMORY)?;
    let start = block.start;
    machine.host_memory.0.insert(start, Arc::new(block));
    out.set(start as *mut c_void)
}

pub(crate) fn free(machine: &mut Machine, memory: Ptr<c_void>) -> Answer {
    machine.current()?;
    capture::potentially_unsafe(machine)?;
    let start = memory.value();
    match machine.host_memory.0.get(&start) {
        Some(block) if block.layout.is_some() => {
            if Arc::strong_count(block) > 1 {
                machine
                    .violation(format!("host memory {start:#x} freed while a copy is in flight"));
            }
            machine.host_memory.0.remove(&start);
            Ok(())
        }
        _ => {
            machine.violation(format!("no host memory was allocated at {start:#x}"));
            Err(INVALID_VALUE)
        }
    }
}

pub(crate) fn register(
    machine: &mut Machine,
    memory: Ptr<c_void>,
    len: usize,
    flags: u32,
) -> Answer {
    machine.current()?;
    capture::potentially_unsafe(machine)?;
    let start = memory.value();
    if start == 0 || len == 0 || start.checked_add(len).is_none() {
        return Err(INVALID_VALUE);
    }
    if flags & !3 != 0 {
        return Err(NOT_SUPPORTED);
    }
    let before = machine.host_memory.0.range(..start + len).next_back();
    if before.is_some_and(|(there, block)| there + block.len > start) {
        return Err(CUresult::CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
    }
    let block = Block { start, len, flags, layout: None };
    machine.host_memory.0.insert(start, Arc::new(block));
    Ok(())
}

pub(crate) fn unregister(machine: &mut Machine, memory: Ptr<c_void>) -> Answer {
    machine.current()?;
    capture::potentially_unsafe(machine)?;
    let start = memory.value();
    let block = machine.host_memory.0.get(&start).filter(|block| block.layout.is_none());
    let block = block.ok_or(CUresult::CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED)?;
    if Arc::strong_count(block) > 1 {
        // The memory is the program's, which may free it now: the copies must be over.
        machine.violation(format!("host memory {start:#x} unregistered while a copy is in flight"));
        for device in 0..machine.sim.device_count() {
            let done = machine.sim.device_synchronize(device);
            machine.judge(done)?;
        }
    }
    machine.host_memory.0.remove(&start);
    Ok(())
}

pub(crate) fn get_flags(machine: &mut Machine, out: Ptr<u32>, memory: Ptr<c_void>) -> Answer {
    machine.current()?;
    let (block, _) = machine.host_memory.find(memory.value(), 1).ok_or(INVALID_VALUE)?;
    out.set(block.flags)
}
