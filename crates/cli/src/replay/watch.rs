//! Passes that are measured call by call, or checked for races.

use super::allocator::Allocator;
use super::life::Life;
use super::machine::Machine;
use super::program::Program;
use super::run::Hooks;
use super::timing::Samples;
use crate::gpus::Reading;
use anyhow::Context;
use millpond_simgpu::{Stream, Touch};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

/// Bytes of one device while a replay runs, counted from what the trace asks for and gets.
///
/// Invariant: `peak_live` is the largest `live` so far, and `waste_at_peak` was `waste` then.
#[derive(Debug, Default)]
pub(super) struct Gauge {
    live: u64,
    /// Granted beyond what was asked for.
    waste: u64,
    pub peak_live: u64,
    pub waste_at_peak: u64,
}

impl Gauge {
    /// Whether there was never so much, and how much there is.
    fn add(&mut self, held: Held) -> (bool, u64) {
        self.live += held.bytes;
        self.waste += held.waste;
        let higher = self.live > self.peak_live;
        if higher {
            (self.peak_live, self.waste_at_peak) = (self.live, self.waste);
        }
        (higher, self.live)
    }

    fn remove(&mut self, held: Held) {
        self.live -= held.bytes;
        self.waste -= held.waste;
    }
}

/// The most bytes of a device within a step.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct StepPeaks {
    pub live: u64,
    pub reserved: u64,
}

/// What a slot's block holds.
#[derive(Clone, Copy, Debug, Default)]
struct Held {
    bytes: u64,
    waste: u64,
    device: u16,
}

/// The measurements of a first replay.
pub(super) struct Cold<'a> {
    pub alloc: Samples,
    pub free: Samples,
    /// What the driver's counters showed where each step of the second half began.
    pub steady: Vec<Reading>,
    /// The devices, as each step left them, and before the first.
    pub steps: Vec<Vec<StepPeaks>>,
    held: Vec<Held>,
    gauges: &'a [Mutex<Gauge>],
}

impl<'a> Cold<'a> {
    pub fn new(program: &Program, gauges: &'a [Mutex<Gauge>]) -> Self {
        Self {
            alloc: Samples::with_capacity(program.allocs),
            free: Samples::with_capacity(program.frees),
            steady: Vec::with_capacity(usize::try_from(program.half_steps).unwrap_or(0)),
            steps: vec![vec![StepPeaks::default(); program.devices.len()]],
            held: vec![Held::default(); program.slots],
            gauges,
        }
    }

    fn change<R>(&self, held: Held, change: impl FnOnce(&mut Gauge, Held) -> R) -> R {
        let gauge = &self.gauges[usize::from(held.device)];
        change(&mut gauge.lock().unwrap_or_else(PoisonError::into_inner), held)
    }
}

/// The touches that the race oracle checks: each block's first write, and a last read of it on each
/// stream that used it.
pub(super) struct Touches {
    /// The last label given to a block. Threads draw from ranges of their own.
    last_label: u64,
    /// By slot.
    marks: Vec<Mark>,
}

#[derive(Clone, Default)]
struct Mark {
    label: u64,
    /// The streams that use it, its own first.
    streams: Vec<u16>,
}

impl Touches {
    pub fn new(program: &Program, thread: u16) -> Self {
        let marks = vec![Mark::default(); program.slots];
        Self { last_label: u64::from(thread) << 48, marks }
    }
}

/// Measures and checks, as far as it is told to.
pub(super) struct Watch<'a, A> {
    pub machine: &'a Machine<A>,
    pub program: &'a Program,
    pub lag: bool,
    pub cold: Option<Cold<'a>>,
    pub touches: Option<&'a mut Touches>,
}

impl<A: Allocator> Watch<'_, A> {
    fn touch(
        &self,
        stream: &A::Stream,
        block: &A::Block,
        label: u64,
        kind: impl Fn(u64, u64) -> Touch,
    ) -> anyhow::Result<()> {
        // Real devices do not tell who touches what, and nobody asks them to.
        let Some(sim) = &self.machine.sim else { return Ok(()) };
        let launched = A::used_on(block, stream, |address| {
            let touch = kind(address, A::bytes(block)).label(label);
            sim.launch(Stream(A::handle(stream)), &[touch])
        })?;
        launched.context("work that touches a block was refused")
    }
}

impl<A: Allocator> Hooks<A> for Watch<'_, A> {
    fn alloc(
        &mut self,
        from: &A,
        stream: &A::Stream,
        bytes: u64,
        life: Life,
    ) -> Result<A::Block, A::Error> {
        let Some(cold) = &mut self.cold else { return from.alloc(stream, bytes, life) };
        let start = Instant::now();
        let result = from.alloc(stream, bytes, life);
        cold.alloc.note(start.elapsed());
        result
    }

    fn free(&mut self, from: &A, block: A::Block) -> Result<(), A::Error> {
        let Some(cold) = &mut self.cold else { return from.free(block) };
        let start = Instant::now();
        let result = from.free(block);
        cold.free.note(start.elapsed());
        result
    }

    fn allocated(
        &mut self,
        streams: &[A::Stream],
        slot: u32,
        stream: u16,
        block: &A::Block,
    ) -> anyhow::Result<()> {
        if let Some(cold) = &mut self.cold {
            let bytes = A::bytes(block);
            let waste = A::granted_bytes(block).map_or(0, |granted| granted - bytes);
            let held = Held { bytes, waste, device: self.program.streams[usize::from(stream)] };
            cold.held[slot as usize] = held;
            let (higher, live) = cold.change(held, Gauge::add);
            if higher {
                self.machine.allocator.at_peak(held.device);
            }
            if let Some(peaks) = cold.steps.last_mut() {
                let reserved = self.machine.allocator.reserved(held.device);
                let peaks = &mut peaks[usize::from(held.device)];
                peaks.live = peaks.live.max(live);
                peaks.reserved = peaks.reserved.max(reserved);
            }
        }
        if let Some(touches) = &mut self.touches {
            touches.last_label += 1;
            let label = touches.last_label;
            let mark = &mut touches.marks[slot as usize];
            mark.label = label;
            mark.streams.clear();
            mark.streams.push(stream);
            self.touch(&streams[usize::from(stream)], block, label, Touch::write)?;
        }
        Ok(())
    }

    fn freeing(
        &mut self,
        streams: &[A::Stream],
        slot: u32,
        block: &A::Block,
    ) -> anyhow::Result<()> {
        if let Some(cold) = &self.cold {
            cold.change(cold.held[slot as usize], Gauge::remove);
        }
        if let Some(touches) = &self.touches {
            let mark = &touches.marks[slot as usize];
            for &stream in &mark.streams {
                self.touch(&streams[usize::from(stream)], block, mark.label, Touch::read)?;
            }
        }
        Ok(())
    }

    fn used(&mut self, slot: u32, stream: u16) {
        if let Some(touches) = &mut self.touches {
            let streams = &mut touches.marks[slot as usize].streams;
            if !streams.contains(&stream) {
                streams.push(stream);
            }
        }
    }

    fn tick(&self) {
        if let (true, Some(sim)) = (self.lag, &self.machine.sim) {
            sim.tick();
        }
    }

    fn step(&mut self) {
        if let Some(cold) = &mut self.cold {
            let allocator = &self.machine.allocator;
            let peaks = cold.gauges.iter().enumerate().map(|(device, gauge)| StepPeaks {
                live: gauge.lock().unwrap_or_else(PoisonError::into_inner).live,
                reserved: allocator.reserved(device as u16),
            });
            cold.steps.push(peaks.collect());
        }
    }

    fn steady_step(&mut self) {
        if let Some(cold) = &mut self.cold {
            cold.steady.push(self.machine.allocator.reading());
        }
    }
}
