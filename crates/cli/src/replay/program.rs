//! A trace compiled for replay.
//!
//! Blocks become *slots* and streams become indexes, so that a replay looks nothing up. A slot is
//! used again as soon as its block is freed (the last freed first): there are as many as blocks are
//! live at once, and they stay in the processor's caches.
//!
//! Invariants: `slot < slots` and `stream < streams.len()` in every operation; between an `Alloc`
//! of a slot and its next `Free` no other `Alloc` names it.

use super::carry::{Carry, Users};
use super::life::{Declared, Life, lives};
use anyhow::{Context, bail};
use millpond_trace as trace;
use millpond_trace::Trace;
use std::collections::HashMap;

/// One operation; of the marks, those of steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Op {
    Alloc {
        bytes: u64,
        slot: u32,
        stream: u16,
        life: Life,
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
    /// A step begins; whether it is one of the second half.
    Step {
        second_half: bool,
    },
    /// Backward is over, and the optimizer is to come.
    Gap,
    /// No operation of the trace, with streams that change from step to step: the slot's block is
    /// used on what its user's stream is by now.
    Carry(Carry),
}

/// A device of a replay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Device {
    /// The trace's number of it; with several of the trace's devices on it, its own.
    pub ordinal: u16,
    /// The most bytes live at once; with several of the trace's devices, the sum of theirs.
    pub peak_live_bytes: u64,
}

/// A trace ready to be replayed.
#[derive(Debug)]
pub(super) struct Program {
    pub ops: Vec<Op>,
    /// Most blocks live at once.
    pub slots: usize,
    /// Each stream's device, as an index in `devices`: the pool's devices are numbered like that, so
    /// a trace that names device 1,023 alone needs one.
    pub streams: Vec<u16>,
    pub devices: Vec<Device>,
    pub allocs: usize,
    pub frees: usize,
    /// Steps in the second half: half of them, rounded down.
    pub half_steps: u64,
    /// Whether streams change at each step.
    pub streams_fresh: bool,
    /// What is due before the blocks left at the end are freed.
    pub last_carries: Vec<Carry>,
}

impl Program {
    /// Allocations and frees: what the time of a replay is divided by.
    pub fn calls(&self) -> u64 {
        (self.allocs + self.frees) as u64
    }

    /// Of the trace's devices at most `most` get one of their own; further ones share them in turn.
    pub fn compile(
        trace: &Trace,
        streams_fresh: bool,
        most: u16,
        declared: Declared,
    ) -> anyhow::Result<Self> {
        let summary = trace.summary();
        let mut streams = Streams::default();
        let mut devices: Vec<Device> = Vec::new();
        let folded = summary.devices.len() > usize::from(most);
        for (index, part) in summary.devices.iter().enumerate() {
            let device = (index % usize::from(most)) as u16;
            match devices.get_mut(usize::from(device)) {
                Some(shared) => {
                    shared.peak_live_bytes =
                        shared.peak_live_bytes.saturating_add(part.peak_live_bytes);
                }
                None => devices.push(Device {
                    ordinal: if folded { device } else { part.ordinal },
                    peak_live_bytes: part.peak_live_bytes,
                }),
            }
            for &number in &part.streams {
                streams.add(device, part.ordinal, number)?;
            }
        }
        let counts = &summary.counts;
        let half_steps = counts.steps / 2;
        let mut compiler = Compiler {
            streams: &streams,
            blocks: vec![(0, 0); trace.blocks()],
            lives: lives(trace, declared),
            free: Vec::new(),
            slots: 0,
            first_half_steps: counts.steps - half_steps,
            steps: 0,
            users: streams_fresh.then(Users::default),
            ops: Vec::with_capacity(usize::try_from(counts.ops() + counts.steps)?),
        };
        for (at, op) in trace.ops().iter().enumerate() {
            let op = compiler.compile(op).with_context(|| {
                format!("{}:{}", trace.path().display(), trace.line(at).unwrap_or(0))
            })?;
            compiler.ops.extend(op);
        }
        let Compiler { ops, slots, users, .. } = compiler;
        Ok(Self {
            ops,
            slots: slots as usize,
            streams: streams.devices,
            devices,
            allocs: usize::try_from(counts.allocs)?,
            frees: usize::try_from(counts.frees)?,
            half_steps,
            streams_fresh,
            last_carries: users.map(Users::left).unwrap_or_default(),
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
    lives: Vec<Life>,
    free: Vec<u32>,
    slots: u32,
    first_half_steps: u64,
    steps: u64,
    /// With streams that change.
    users: Option<Users>,
    ops: Vec<Op>,
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
                let stream = self.streams.find(device, stream)?;
                self.note_use(slot, stream);
                let life = usize::try_from(id).ok().and_then(|id| self.lives.get(id));
                Op::Alloc { bytes, slot, stream, life: life.copied().unwrap_or_default() }
            }
            trace::Op::Free { id, .. } => {
                let (slot, _) = *self.block(id)?;
                self.free.push(slot);
                let carries = self.users.as_mut().map(|users| users.end(slot));
                self.ops.extend(carries.into_iter().flatten().map(Op::Carry));
                Op::Free { slot }
            }
            trace::Op::Use { id, stream } => {
                let (slot, device) = *self.block(id)?;
                let stream = self.streams.find(device, stream)?;
                self.note_use(slot, stream);
                Op::Use { slot, stream }
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
                if let Some(users) = &mut self.users {
                    users.change();
                }
                // With one step there is no second half.
                Op::Step { second_half: self.steps > self.first_half_steps }
            }
            trace::Op::Phase(trace::Phase::Optimizer) => Op::Gap,
            trace::Op::Phase(_) => return Ok(None),
        };
        Ok(Some(compiled))
    }

    fn note_use(&mut self, slot: u32, stream: u16) {
        if let Some(users) = &mut self.users {
            users.note(slot, stream);
        }
    }

    fn block(&mut self, id: u64) -> anyhow::Result<&mut (u32, u16)> {
        let block = usize::try_from(id).ok().and_then(|id| self.blocks.get_mut(id));
        block.with_context(|| format!("block {id} is beyond the trace's own count"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn alloc(bytes: u64, slot: u32, stream: u16) -> Op {
        Op::Alloc { bytes, slot, stream, life: Life::Plain }
    }

    fn compile(text: &str) -> Program {
        Program::compile(
            &Trace::read("t", text.as_bytes()).unwrap(),
            false,
            u16::MAX,
            Declared::Nothing,
        )
        .unwrap()
    }

    #[test]
    fn slots_are_used_again() {
        let program = compile("a 7 0 0 1\na 8 0 3 2\nf 7 0\na 9 0 0 3\nu 9 3\nw 0 3 0\n");
        assert_eq!(program.slots, 2);
        assert_eq!(program.streams.len(), 2);
        assert_eq!(
            program.ops,
            [
                alloc(1, 0, 0),
                alloc(2, 1, 1),
                Op::Free { slot: 0 },
                alloc(3, 0, 0),
                Op::Use { slot: 0, stream: 1 },
                Op::Wait { waiter: 1, signaller: 0 },
            ]
        );
        assert_eq!(program.calls(), 4);
    }

    #[test]
    fn devices_are_shared_in_turn() {
        let text = "a 1 3 0 8\na 2 5 0 16\na 3 9 1 32\nx 3 0 9 1\nf 1 0\n";
        let trace = Trace::read("t", text.as_bytes()).unwrap();
        let device = |ordinal, peak_live_bytes| Device { ordinal, peak_live_bytes };
        let own = Program::compile(&trace, false, 3, Declared::Nothing).unwrap();
        assert_eq!(
            (&own.devices[..], &own.streams[..]),
            (&[device(3, 8), device(5, 16), device(9, 32)][..], &[0, 1, 2][..])
        );
        let shared = Program::compile(&trace, false, 2, Declared::Nothing).unwrap();
        assert_eq!(shared.devices, [device(0, 40), device(1, 16)]);
        assert_eq!(shared.streams, [0, 1, 0]);
        // Streams of one device that were of two are two.
        assert_eq!(shared.ops[3], Op::Wait { waiter: 0, signaller: 2 });
    }

    #[test]
    fn the_half_is_marked() {
        let half = |steps: usize| {
            let step = |n: usize| format!("m step {n}\na {n} 0 0 8\nm phase backward\nf {n} 0\n");
            let text: String = (0..steps).map(step).collect();
            let program = compile(&text);
            let steps = program.ops.iter().filter_map(|op| match op {
                Op::Step { second_half } => Some(*second_half),
                _ => None,
            });
            (program.half_steps, steps.clone().position(|second_half| second_half))
        };
        assert_eq!(half(1), (0, None));
        assert_eq!(half(2), (1, Some(1)));
        assert_eq!(half(5), (2, Some(3)));
        assert_eq!(half(6), (3, Some(3)));
    }

    #[test]
    fn changed_streams_are_told_before_a_free() {
        let text = "a 1 0 0 8\nu 1 5\na 2 0 0 8\nm step 1\nu 2 5\nm step 2\nu 1 5\nf 1 0\nf 2 0\n";
        let trace = Trace::read("t", format!("{text}a 3 0 5 8\nm step 3\n").as_bytes()).unwrap();
        let program = Program::compile(&trace, true, u16::MAX, Declared::Nothing).unwrap();
        let carry = |slot, stream| Op::Carry(Carry { slot, stream });
        let from = program.ops.iter().rposition(|op| matches!(op, Op::Use { .. })).unwrap();
        assert_eq!(
            program.ops[from + 1..],
            [
                // Stream 5 is told already: the trace itself says so in this step.
                carry(0, 0),
                Op::Free { slot: 0 },
                carry(1, 0),
                carry(1, 1),
                Op::Free { slot: 1 },
                alloc(8, 1, 1),
                Op::Step { second_half: true },
            ]
        );
        assert_eq!(program.last_carries, [Carry { slot: 1, stream: 1 }]);
    }

    #[test]
    fn operations_are_small() {
        assert_eq!(size_of::<Op>(), 16);
    }
}
