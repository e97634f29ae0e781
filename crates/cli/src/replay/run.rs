//! One pass over a program: the loop, and what hooks into it.
//!
//! Timed replays run the loop with [`Plain`], which leaves nothing in it but the pool's calls and
//! the slots (and, with a lag, the clock). All that is measured call by call or checked hooks in
//! from `watch`.

use super::carry::Carry;
use super::machine::Machine;
use super::program::{Op, Program};
use crate::gpus::own_wait;
use anyhow::Context;
use millpond::{Buffer, Error, Result, Stream};
use millpond_simgpu::Sim;

/// What a pass does besides the operations themselves.
pub(super) trait Hooks {
    /// Allocates.
    fn alloc(&mut self, stream: &Stream, bytes: u64) -> Result<Buffer>;
    /// Frees.
    fn free(&mut self, buffer: Buffer);
    /// The slot's block was allocated.
    fn allocated(
        &mut self,
        _streams: &[Stream],
        _slot: u32,
        _stream: u16,
        _buffer: &Buffer,
    ) -> anyhow::Result<()> {
        Ok(())
    }
    /// The slot's block is about to be freed.
    fn freeing(&mut self, _streams: &[Stream], _slot: u32, _buffer: &Buffer) -> anyhow::Result<()> {
        Ok(())
    }
    /// The slot's block is used on another stream, too.
    fn used(&mut self, _slot: u32, _stream: u16) {}
    /// One operation is over.
    fn tick(&self);
    /// A step of the second half begins.
    fn steady_step(&mut self) {}
}

/// Nothing but the operations.
pub(super) struct Plain<'a, const LAG: bool> {
    pub sim: &'a Sim,
}

impl<const LAG: bool> Hooks for Plain<'_, LAG> {
    #[inline]
    fn alloc(&mut self, stream: &Stream, bytes: u64) -> Result<Buffer> {
        alloc(stream, bytes)
    }

    #[inline]
    fn free(&mut self, buffer: Buffer) {
        drop(buffer);
    }

    #[inline]
    fn tick(&self) {
        if LAG {
            self.sim.tick();
        }
    }
}

#[inline]
pub(super) fn alloc(stream: &Stream, bytes: u64) -> Result<Buffer> {
    // More than the host can address is more than any device has.
    stream.alloc(usize::try_from(bytes).unwrap_or(usize::MAX))
}

/// The blocks of a pass, by slot; empty where there was no memory.
pub(super) type Slots = Vec<Option<Buffer>>;

/// Refused allocations, by device.
pub(super) type Refused = Vec<u64>;

/// Runs a program once. What is live at its end stays in the slots.
pub(super) fn replay<H: Hooks>(
    machine: &Machine,
    program: &Program,
    streams: &mut [Stream],
    slots: &mut [Option<Buffer>],
    hooks: &mut H,
) -> anyhow::Result<Refused> {
    let mut refused = vec![0; program.devices];
    for op in &program.ops {
        match *op {
            Op::Alloc { bytes, slot, stream } => {
                match hooks.alloc(&streams[usize::from(stream)], bytes) {
                    Ok(buffer) => {
                        hooks.allocated(streams, slot, stream, &buffer)?;
                        slots[slot as usize] = Some(buffer);
                    }
                    Err(error) => {
                        expect_no_memory(error)?;
                        refused[usize::from(program.streams[usize::from(stream)])] += 1;
                    }
                }
            }
            Op::Free { slot } => {
                if let Some(buffer) = slots[slot as usize].take() {
                    hooks.freeing(streams, slot, &buffer)?;
                    hooks.free(buffer);
                }
            }
            Op::Use { slot, stream } => {
                if let Some(buffer) = &slots[slot as usize] {
                    buffer.record_use(&streams[usize::from(stream)])?;
                    hooks.used(slot, stream);
                }
            }
            Op::Wait { waiter, signaller } => {
                let (waiter, signaller) = (usize::from(waiter), usize::from(signaller));
                own_wait(|| streams[waiter].wait(&streams[signaller]))?;
            }
            Op::Step { second_half } => {
                if second_half {
                    hooks.steady_step();
                }
                if program.streams_fresh {
                    renew(machine, streams)?;
                }
                continue;
            }
            Op::Carry(due) => {
                carry(due, streams, slots)?;
                continue;
            }
        }
        hooks.tick();
    }
    Ok(refused)
}

/// Puts a new stream in the place of each. It waits for the old one, since a stream's later work
/// runs after its earlier work; the old one is dropped while its blocks live on.
fn renew(machine: &Machine, streams: &mut [Stream]) -> anyhow::Result<()> {
    for stream in streams {
        let fresh = machine.pool.stream(stream.device())?;
        own_wait(|| fresh.wait(stream))?;
        *stream = fresh;
    }
    Ok(())
}

fn carry(due: Carry, streams: &[Stream], slots: &[Option<Buffer>]) -> anyhow::Result<()> {
    if let Some(buffer) = &slots[due.slot as usize] {
        buffer.record_use(&streams[usize::from(due.stream)])?;
    }
    Ok(())
}

/// Frees what is live after a program's end.
pub(super) fn clear<H: Hooks>(
    program: &Program,
    streams: &[Stream],
    slots: &mut [Option<Buffer>],
    hooks: &mut H,
) -> anyhow::Result<()> {
    for &due in &program.last_carries {
        carry(due, streams, slots)?;
    }
    for (number, slot) in (0..).zip(slots) {
        if let Some(buffer) = slot.take() {
            hooks.freeing(streams, number, &buffer)?;
            hooks.free(buffer);
        }
    }
    Ok(())
}

/// Any error but one that says that there is no memory for a block.
#[cold]
fn expect_no_memory(error: Error) -> anyhow::Result<()> {
    match error {
        Error::OutOfMemory(_) | Error::TooLarge { .. } | Error::TooManyBlocks { .. } => Ok(()),
        Error::Driver(ref cause) if cause.out_of_memory => Ok(()),
        error => Err(error).context("an allocation failed"),
    }
}
