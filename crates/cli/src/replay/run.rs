//! One pass over a program: the loop, and what hooks into it.
//!
//! Timed replays run the loop with [`Plain`], which leaves nothing in it but the allocator's
//! calls and the slots (or with [`Lagging`], which has the clock as well). All that is measured call by call or checked hooks in
//! from `watch`.

use super::allocator::Allocator;
use super::carry::Carry;
use super::life::Life;
use super::program::{Op, Program};
use anyhow::Context;
use millpond_simgpu::Sim;

/// What a pass does besides the operations themselves.
pub(super) trait Hooks<A: Allocator> {
    /// Allocates.
    #[inline]
    fn alloc(
        &mut self,
        from: &A,
        stream: &A::Stream,
        bytes: u64,
        life: Life,
    ) -> Result<A::Block, A::Error> {
        from.alloc(stream, bytes, life)
    }
    /// Frees.
    #[inline]
    fn free(&mut self, from: &A, block: A::Block) -> Result<(), A::Error> {
        from.free(block)
    }
    /// The slot's block was allocated.
    #[inline]
    fn allocated(
        &mut self,
        _streams: &[A::Stream],
        _slot: u32,
        _stream: u16,
        _block: &A::Block,
    ) -> anyhow::Result<()> {
        Ok(())
    }
    /// The slot's block is about to be freed.
    #[inline]
    fn freeing(
        &mut self,
        _streams: &[A::Stream],
        _slot: u32,
        _block: &A::Block,
    ) -> anyhow::Result<()> {
        Ok(())
    }
    /// The slot's block is used on another stream, too.
    #[inline]
    fn used(&mut self, _slot: u32, _stream: u16) {}
    /// One operation is over.
    #[inline]
    fn tick(&self) {}
    /// A step begins.
    #[inline]
    fn step(&mut self) {}
    /// It is one of the second half.
    #[inline]
    fn steady_step(&mut self) {}
}

/// Nothing but the operations.
pub(super) struct Plain;

impl<A: Allocator> Hooks<A> for Plain {}

/// The operations, and the clock by which completion lags.
pub(super) struct Lagging<'a>(pub &'a Sim);

impl<A: Allocator> Hooks<A> for Lagging<'_> {
    #[inline]
    fn tick(&self) {
        self.0.tick();
    }
}

/// The blocks of a pass, by slot; empty where there was no memory.
pub(super) type Slots<A> = Vec<Option<<A as Allocator>::Block>>;

/// Refused allocations, by device.
pub(super) type Refused = Vec<u64>;

/// Runs a program once. What is live at its end stays in the slots.
pub(super) fn replay<A: Allocator, H: Hooks<A>>(
    allocator: &A,
    program: &Program,
    streams: &mut [A::Stream],
    slots: &mut [Option<A::Block>],
    hooks: &mut H,
) -> anyhow::Result<Refused> {
    let mut refused = vec![0; program.devices.len()];
    for op in &program.ops {
        match *op {
            Op::Alloc { bytes, slot, stream, life } => {
                match hooks.alloc(allocator, &streams[usize::from(stream)], bytes, life) {
                    Ok(block) => {
                        hooks.allocated(streams, slot, stream, &block)?;
                        slots[slot as usize] = Some(block);
                    }
                    Err(error) => {
                        expect_no_memory::<A>(error)?;
                        refused[usize::from(program.streams[usize::from(stream)])] += 1;
                    }
                }
            }
            Op::Free { slot } => {
                if let Some(block) = slots[slot as usize].take() {
                    hooks.freeing(streams, slot, &block)?;
                    hooks.free(allocator, block)?;
                }
            }
            Op::Use { slot, stream } => {
                if let Some(block) = &mut slots[slot as usize] {
                    allocator.record_use(block, &streams[usize::from(stream)])?;
                    hooks.used(slot, stream);
                }
            }
            Op::Wait { waiter, signaller } => {
                let (waiter, signaller) = (usize::from(waiter), usize::from(signaller));
                allocator.wait(&streams[waiter], &streams[signaller])?;
            }
            Op::Step { second_half } => {
                if second_half {
                    hooks.steady_step();
                }
                allocator.begin_step();
                allocator.step_gap(streams)?;
                hooks.step();
                if program.streams_fresh {
                    renew(allocator, streams)?;
                }
                continue;
            }
            Op::Gap => {
                allocator.step_gap(streams)?;
                continue;
            }
            Op::Carry(due) => {
                carry(allocator, due, streams, slots)?;
                continue;
            }
        }
        hooks.tick();
    }
    Ok(refused)
}

/// Puts a new stream in the place of each. It waits for the old one, since a stream's later work
/// runs after its earlier work; the old one is dropped while its blocks live on.
fn renew<A: Allocator>(allocator: &A, streams: &mut [A::Stream]) -> anyhow::Result<()> {
    for stream in streams {
        let fresh = allocator.stream(A::device(stream))?;
        allocator.wait(&fresh, stream)?;
        *stream = fresh;
    }
    Ok(())
}

fn carry<A: Allocator>(
    allocator: &A,
    due: Carry,
    streams: &[A::Stream],
    slots: &mut [Option<A::Block>],
) -> anyhow::Result<()> {
    if let Some(block) = &mut slots[due.slot as usize] {
        allocator.record_use(block, &streams[usize::from(due.stream)])?;
    }
    Ok(())
}

/// Frees what is live after a program's end.
pub(super) fn clear<A: Allocator, H: Hooks<A>>(
    allocator: &A,
    program: &Program,
    streams: &[A::Stream],
    slots: &mut [Option<A::Block>],
    hooks: &mut H,
) -> anyhow::Result<()> {
    for &due in &program.last_carries {
        carry(allocator, due, streams, slots)?;
    }
    for (number, slot) in (0..).zip(slots) {
        if let Some(block) = slot.take() {
            hooks.freeing(streams, number, &block)?;
            hooks.free(allocator, block)?;
        }
    }
    Ok(())
}

/// Any error but one that says that there is no memory for a block.
#[cold]
fn expect_no_memory<A: Allocator>(error: A::Error) -> anyhow::Result<()> {
    if A::is_no_memory(&error) { Ok(()) } else { Err(error).context("an allocation failed") }
}
