//! Events.

use cudarc::driver::sys::{CUevent, CUevent_st, CUresult, CUstream_st};

use crate::capture::{self, Captured};
use crate::error::{Answer, INVALID_HANDLE, INVALID_VALUE, NOT_SUPPORTED};
use crate::machine::Machine;
use crate::pointer::Ptr;
use crate::{clock, memory};

const DISABLE_TIMING: u32 = 2;
const INTERPROCESS: u32 = 4;
const FLAGS: u32 = 7;

/// An event.
#[derive(Debug)]
pub(crate) struct Event {
    pub context: usize,
    pub sim: millpond_simgpu::Event,
    flags: u32,
    /// When it was recorded last.
    recorded: Option<u64>,
    /// Where, if that was in a capture.
    pub captured: Option<Captured>,
}

impl Event {
    /// Whether there is a record outside of captures.
    pub(crate) fn was_recorded(&self) -> bool {
        self.recorded.is_some()
    }
}

impl Machine {
    /// The event that a program means; needs a current context, of whatever device.
    pub(crate) fn event(&mut self, event: Ptr<CUevent_st>) -> Answer<usize> {
        self.current()?;
        let handle = event.value();
        match self.events.get(handle) {
            Some(event) => {
                self.context(event.context)?;
                Ok(handle)
            }
            None => Err(self.no_handle("event", handle, self.events.fate(handle))),
        }
    }

    /// What is behind a handle that [`event`](Self::event) gave.
    pub(crate) fn event_state(&self, event: usize) -> Answer<&Event> {
        self.events.get(event).ok_or(INVALID_HANDLE)
    }

    /// Takes an event away.
    pub(crate) fn drop_event(&mut self, event: usize) -> millpond_simgpu::Result<()> {
        if let Some(state) = self.events.get(event) {
            self.sim.event_destroy(state.sim)?;
            self.events.remove(event);
        }
        Ok(())
    }
}

pub(crate) fn create(machine: &mut Machine, out: Ptr<CUevent>, flags: u32) -> Answer {
    let context = machine.current()?;
    if flags & !FLAGS != 0 || out.is_null() {
        return Err(INVALID_VALUE);
    }
    if flags & INTERPROCESS != 0 {
        let timed = flags & DISABLE_TIMING == 0;
        return Err(if timed { INVALID_VALUE } else { NOT_SUPPORTED });
    }
    let device = machine.context(context)?.device;
    let sim = machine.sim.event_create(device);
    let sim = machine.judge(sim)?;
    let event =
        machine.events.insert(Event { context, sim, flags, recorded: None, captured: None });
    out.set(event as CUevent)
}

pub(crate) fn destroy(machine: &mut Machine, event: Ptr<CUevent_st>) -> Answer {
    let event = machine.event(event)?;
    let destroyed = machine.drop_event(event);
    machine.judge(destroyed)
}

pub(crate) fn record(
    machine: &mut Machine,
    event: Ptr<CUevent_st>,
    stream: Ptr<CUstream_st>,
) -> Answer {
    let event = machine.event(event)?;
    let stream = machine.stream(stream)?;
    let (state, on) = (machine.event_state(event)?, machine.stream_state(stream)?);
    if state.context != on.context {
        machine.violation(format!("event {event:#x} recorded on a stream of another context"));
        return Err(INVALID_HANDLE);
    }
    if let Some(captured) = capture::position(machine, stream)? {
        if let Some(state) = machine.events.get_mut(event) {
            state.captured = Some(captured);
        }
        return Ok(());
    }
    machine.order(stream)?;
    let recorded = machine
        .sim
        .event_record(machine.event_state(event)?.sim, machine.stream_state(stream)?.sim);
    machine.judge(recorded)?;
    let now = clock::now(&machine.sim);
    if let Some(state) = machine.events.get_mut(event) {
        (state.recorded, state.captured) = (Some(now), None);
    }
    Ok(())
}

pub(crate) fn record_with_flags(
    machine: &mut Machine,
    event: Ptr<CUevent_st>,
    stream: Ptr<CUstream_st>,
    flags: u32,
) -> Answer {
    match flags {
        0 => record(machine, event, stream),
        1 => Err(NOT_SUPPORTED),
        _ => Err(INVALID_VALUE),
    }
}

pub(crate) fn query(machine: &mut Machine, event: Ptr<CUevent_st>) -> Answer {
    let event = machine.event(event)?;
    capture::refuse_captured(machine, event)?;
    capture::potentially_unsafe(machine)?;
    let done = machine.sim.event_query(machine.event_state(event)?.sim);
    match machine.judge(done)? {
        true => Ok(()),
        false => Err(CUresult::CUDA_ERROR_NOT_READY),
    }
}

pub(crate) fn synchronize(machine: &mut Machine, event: Ptr<CUevent_st>) -> Answer {
    let event = machine.event(event)?;
    capture::refuse_captured(machine, event)?;
    capture::potentially_unsafe(machine)?;
    let done = machine.sim.event_synchronize(machine.event_state(event)?.sim, None);
    machine.judge(done)?;
    let context = machine.event_state(event)?.context;
    let device = machine.context(context)?.device;
    memory::after_wait(machine, device)
}

/// The time between two records, in simulated milliseconds.
pub(crate) fn elapsed(
    machine: &mut Machine,
    out: Ptr<f32>,
    start: Ptr<CUevent_st>,
    end: Ptr<CUevent_st>,
) -> Answer {
    let (start, end) = (machine.event(start)?, machine.event(end)?);
    let mut times = [0; 2];
    let mut pending = false;
    for (event, time) in [start, end].into_iter().zip(&mut times) {
        let state = machine.event_state(event)?;
        let timed = state.flags & DISABLE_TIMING == 0;
        *time = state.recorded.filter(|_| timed).ok_or(INVALID_HANDLE)?;
        let done = machine.sim.event_query(state.sim);
        pending |= !machine.judge(done)?;
    }
    if machine.event_state(start)?.context != machine.event_state(end)?.context {
        return Err(INVALID_HANDLE);
    }
    if pending {
        return Err(CUresult::CUDA_ERROR_NOT_READY);
    }
    out.set((times[1] as f64 - times[0] as f64) as f32 / 1e6)
}
