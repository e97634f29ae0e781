//! A trace compiled for replay.
//!
//! Blocks become *slots* and streams become indexes, so that a replay looks nothing up. A slot is
//! used again as soon as its block is freed (the last freed first): there are as many as blocks are
//! live at once, and they stay in the processor's caches.
//!
//! Invariants: `slot < slots` and `stream < streams.len()` in every operation; between an `Alloc`
//! of a slot and its next `Free` no other `Alloc` names it.

use anyhow::{Context, bail};
use millpond_trace as trace;
use millpond_trace::Trace;
use std::collections::HashMap;

/// One operation; marks are left out, but for the one that replays must see.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Op {
    Alloc {
        bytes: u64,
        slot: u32,
        stream: u16,
    },
    Free {
        slot: u32,
    },
    Use {
        slot: u32,
        stream: u16,
    },
    Wait {
        waiter: u16,
        signaller: u16,
    },
    /// The second half of the steps begins.
    Half,
}

/// A trace ready to be replayed.
#[derive(Debug)]
pub(super) struct Program {
    pub ops: Vec<Op>,
    /// Most blocks live at once.
    pub slots: usize,
    /// Each stream's device, as an index in the summary's devices: simulated devices are numbered
    /// like that, so a trace that names device 1,023 alone needs one.
    pub streams: Vec<u16>,
    pub devices: usize,
    pub allocs: usize,
    pub frees: usize,
    /// Steps in the second half: half of them, rounded down.
    pub half_steps: u64,
}

impl Program {
    /// Allocations and frees: what the time of a replay is divided by.
    pub fn calls(&self) -> u64 {
        (self.allocs + self.frees) as u64
    }

    pub fn compile(trace: &Trace) -> anyhow::Result<Self> {
        let summary = trace.summary();
        let mut streams = Streams::default();
        for (device, part) in (0..).zip(&summary.devices) {
            for &number in &part.streams {
                streams.add(device, part.ordinal, number)?;
            }
        }
        let counts = &summary.counts;
        let half_steps = counts.steps / 2;
        let mut compiler = Compiler {
            streams: &streams,
            blocks: vec![(0, 0); trace.blocks()],
            free: Vec::new(),
            slots: 0,
            first_half_steps: counts.steps - half_steps,
            steps: 0,
        };
        let mut ops = Vec::with_capacity(usize::try_from(counts.ops() + 1)?);
        for (at, op) in trace.ops().iter().enumerate() {
            let op = compiler.compile(op).with_context(|| {
                format!("{}:{}", trace.path().display(), trace.line(at).unwrap_or(0))
            })?;
            ops.extend(op);
        }
        Ok(Self {
            ops,
            slots: compiler.slots as usize,
            streams: streams.devices,
            devices: summary.devices.len(),
            allocs: usize::try_from(counts.allocs)?,
            frees: usize::try_from(counts.frees)?,
            half_steps,
        })
    }
}

#[derive(Default)]
struct Streams {
    devices: Vec<u16>,
    index: HashMap<(u16, u32), u16>,
}

impl Streams {
    fn add(&mut self, device: u16, ordinal: u16, number: u32) -> anyhow::Result<()> {
        let Ok(index) = u16::try_from(self.devices.len()) else {
            bail!("the trace names more than 65536 streams");
        };
        self.devices.push(device);
        self.index.insert((ordinal, number), index);
        Ok(())
    }

    fn find(&self, ordinal: u16, number: u32) -> anyhow::Result<u16> {
        let index = self.index.get(&(ordinal, number)).copied();
        index.with_context(|| format!("stream {number} of device {ordinal} is in no summary"))
    }
}

struct Compiler<'a> {
    streams: &'a Streams,
    /// Slot and device ordinal of each block of the trace.
    blocks: Vec<(u32, u16)>,
    free: Vec<u32>,
    slots: u32,
    first_half_steps: u64,
    steps: u64,
}

impl Compiler<'_> {
    fn compile(&mut self, op: &trace::Op) -> anyhow::Result<Option<Op>> {
        let compiled = match *op {
            trace::Op::Alloc { id, device, stream, bytes } => {
                let slot = self.free.pop().unwrap_or_else(|| {
                    self.slots += 1;
                    self.slots - 1
                });
                *self.block(id)? = (slot, device);
                Op::Alloc { bytes, slot, stream: self.streams.find(device, stream)? }
            }
            trace::Op::Free { id, .. } => {
                let (slot, _) = *self.block(id)?;
                self.free.push(slot);
                Op::Free { slot }
            }
            trace::Op::Use { id, stream } => {
                let (slot, device) = *self.block(id)?;
                Op::Use { slot, stream: self.streams.find(device, stream)? }
            }
            trace::Op::Wait { device, waiter, signaller } => Op::Wait {
                waiter: self.streams.find(device, waiter)?,
                signaller: self.streams.find(device, signaller)?,
            },
            trace::Op::WaitAcross { device, waiter, other, signaller } => Op::Wait {
                waiter: self.streams.find(device, waiter)?,
                signaller: self.streams.find(other, signaller)?,
            },
            trace::Op::Step(_) => {
                self.steps += 1;
                // With one step there is no second half.
                if self.steps != self.first_half_steps + 1 {
                    return Ok(None);
                }
                Op::Half
            }
            trace::Op::Phase(_) => return Ok(None),
        };
        Ok(Some(compiled))
    }

    fn block(&mut self, id: u64) -> anyhow::Result<&mut (u32, u16)> {
        let block = usize::try_from(id).ok().and_then(|id| self.blocks.get_mut(id));
        block.with_context(|| format!("block {id} is beyond the trace's own count"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn compile(text: &str) -> Program {
        Program::compile(&Trace::read("t", text.as_bytes()).unwrap()).unwrap()
    }

    #[test]
    fn slots_are_used_again() {
        let program = compile("a 7 0 0 1\na 8 0 3 2\nf 7 0\na 9 0 0 3\nu 9 3\nw 0 3 0\n");
        assert_eq!(program.slots, 2);
        assert_eq!(program.streams.len(), 2);
        assert_eq!(
            program.ops,
            [
                Op::Alloc { bytes: 1, slot: 0, stream: 0 },
                Op::Alloc { bytes: 2, slot: 1, stream: 1 },
                Op::Free { slot: 0 },
                Op::Alloc { bytes: 3, slot: 0, stream: 0 },
                Op::Use { slot: 0, stream: 1 },
                Op::Wait { waiter: 1, signaller: 0 },
            ]
        );
        assert_eq!(program.calls(), 4);
    }

    #[test]
    fn the_half_is_marked() {
        let half = |steps: usize| {
            let step = |n: usize| format!("m step {n}\na {n} 0 0 8\nm phase backward\nf {n} 0\n");
            let text: String = (0..steps).map(step).collect();
            let program = compile(&text);
            let before = program.ops.iter().position(|op| *op == Op::Half);
            (program.half_steps, before.map(|at| at / 2))
        };
        assert_eq!(half(1), (0, None));
        assert_eq!(half(2), (1, Some(1)));
        assert_eq!(half(5), (2, Some(3)));
        assert_eq!(half(6), (3, Some(3)));
    }

    #[test]
    fn operations_are_small() {
        assert_eq!(size_of::<Op>(), 16);
    }
}
