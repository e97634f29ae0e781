//! Streams: created ones, the legacy default stream (null or 0x1) and those of threads (0x2).
//!
//! The legacy default stream waits for all earlier work of its context's blocking streams, and they
//! wait for its. The simulator knows no such stream, so events that nobody sees make these orderings,
//! each time that one side has been given work that the other has not come after yet.

use std::collections::BTreeMap;

use cudarc::driver::sys::{CUcontext, CUevent_st, CUresult, CUstream, CUstream_st};

use crate::error::{Answer, INVALID_CONTEXT, INVALID_HANDLE, INVALID_VALUE, NOT_SUPPORTED};
use crate::machine::Machine;
use crate::pointer::Ptr;
use crate::{capture, memory, thread};

const NON_BLOCKING: u32 = 1;
const LEGACY: usize = 1;
const PER_THREAD: usize = 2;

/// How a stream came to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    Created,
    Legacy,
    PerThread,
}

/// A stream.
#[derive(Debug)]
pub(crate) struct Stream {
    pub context: usize,
    pub sim: millpond_simgpu::Stream,
    pub role: Role,
    flags: u32,
    priority: i32,
    /// Never given to another.
    pub id: u64,
    /// How often it was given something.
    work: u64,
    /// How much of the legacy stream's work it comes after.
    seen_legacy: u64,
    /// Of the legacy stream: how much of other streams' work it comes after.
    seen: BTreeMap<usize, u64>,
    /// The capture that it takes part in.
    pub capture: Option<u64>,
}

impl Stream {
    pub(crate) fn is_default(&self) -> bool {
        self.role != Role::Created
    }

    /// Whether the legacy default stream and it wait for each other.
    pub(crate) fn is_blocking(&self) -> bool {
        self.role != Role::Legacy && self.flags & NON_BLOCKING == 0
    }
}

impl Machine {
    fn new_stream(
        &mut self,
        context: usize,
        role: Role,
        flags: u32,
        priority: i32,
    ) -> Answer<usize> {
        let device = self.context(context)?.device;
        let sim = self.sim.stream_create(device);
        let sim = self.judge(sim)?;
        let id = self.fresh_id();
        Ok(self.streams.insert(Stream {
            context,
            sim,
            role,
            flags,
            priority,
            id,
            work: 0,
            seen_legacy: 0,
            seen: BTreeMap::new(),
            capture: None,
        }))
    }

    /// The stream that a program means; needs a current context, of whatever device.
    pub(crate) fn stream(&mut self, stream: Ptr<CUstream_st>) -> Answer<usize> {
        self.stream_by_value(stream.value())
    }

    pub(crate) fn stream_by_value(&mut self, stream: usize) -> Answer<usize> {
        let current = self.current()?;
        match stream {
            0 | LEGACY => {
                if let Some(stream) = self.context(current)?.legacy {
                    return Ok(stream);
                }
                let stream = self.new_stream(current, Role::Legacy, 0, 0)?;
                let context = self.contexts.get_mut(current).ok_or(INVALID_CONTEXT)?;
                context.legacy = Some(stream);
                Ok(stream)
            }
            PER_THREAD => {
                let thread = thread::id();
                if let Some(stream) = self.context(current)?.per_thread.get(&thread) {
                    return Ok(*stream);
                }
                let stream = self.new_stream(current, Role::PerThread, 0, 0)?;
                let context = self.contexts.get_mut(current).ok_or(INVALID_CONTEXT)?;
                context.per_thread.insert(thread, stream);
                Ok(stream)
            }
            handle => match self.streams.get(handle) {
                Some(stream) => {
                    let context = stream.context;
                    self.context(context)?;
                    Ok(handle)
                }
                None => Err(self.no_handle("stream", handle, self.streams.fate(handle))),
            },
        }
    }

    /// What is behind a handle that [`stream`](Self::stream) gave.
    pub(crate) fn stream_state(&self, stream: usize) -> Answer<&Stream> {
        self.streams.get(stream).ok_or(INVALID_HANDLE)
    }

    /// The device of a stream.
    pub(crate) fn stream_device(&self, stream: usize) -> Answer<u16> {
        Ok(self.context(self.stream_state(stream)?.context)?.device)
    }

    /// Orders what a stream is given next as default streams demand.
    pub(crate) fn order(&mut self, stream: usize) -> Answer {
        let state = self.stream_state(stream)?;
        let (context, sim) = (state.context, state.sim);
        if state.role == Role::Legacy {
            let seen = |other: usize| state.seen.get(&other).copied().unwrap_or(0);
            let blocking = self.streams.iter();
            let blocking = blocking.filter(|(_, s)| s.context == context && s.is_blocking());
            let (mut behind, mut captures) = (Vec::new(), Vec::new());
            for (other, state) in blocking {
                captures.extend(state.capture);
                if state.work > seen(other) {
                    behind.push((other, state.sim, state.work));
                }
            }
            if !captures.is_empty() {
                capture::invalidate(self, &captures);
                return Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
            }
            for (_, from, _) in &behind {
                self.link(context, *from, sim)?;
            }
            if let Some(state) = self.streams.get_mut(stream) {
                state.seen.extend(behind.iter().map(|(other, _, work)| (*other, *work)));
            }
        } else if state.is_blocking()
            && let Some(legacy) = self.context(context)?.legacy
        {
            let (from, work) = {
                let legacy = self.stream_state(legacy)?;
                (legacy.sim, legacy.work)
            };
            if work > state.seen_legacy {
                self.link(context, from, sim)?;
                if let Some(state) = self.streams.get_mut(stream) {
                    state.seen_legacy = work;
                }
            }
        }
        if let Some(state) = self.streams.get_mut(stream) {
            state.work += 1;
        }
        Ok(())
    }

    /// Makes later work of `to` come after all of `from` so far, a stream of the context.
    fn link(
        &mut self,
        context: usize,
        from: millpond_simgpu::Stream,
        to: millpond_simgpu::Stream,
    ) -> Answer {
        let device = self.context(context)?.device;
        let event = self.sim.event_create(device);
        let event = self.judge(event)?;
        let recorded = self.sim.event_record(event, from);
        let waited = recorded.and_then(|()| self.sim.stream_wait(to, event));
        let destroyed = self.sim.event_destroy(event);
        self.judge(waited.and(destroyed))
    }

    /// Takes a stream away. Its work still runs.
    pub(crate) fn drop_stream(&mut self, stream: usize) -> millpond_simgpu::Result<()> {
        let Some(state) = self.streams.get(stream) else {
            return Ok(());
        };
        self.sim.stream_destroy(state.sim)?;
        self.streams.remove(stream);
        for other in self.streams.values_mut() {
            other.seen.remove(&stream);
        }
        Ok(())
    }
}

pub(crate) fn create(machine: &mut Machine, out: Ptr<CUstream>, flags: u32) -> Answer {
    create_with_priority(machine, out, flags, 0)
}

pub(crate) fn create_with_priority(
    machine: &mut Machine,
    out: Ptr<CUstream>,
    flags: u32,
    priority: i32,
) -> Answer {
    let context = machine.current()?;
    if flags & !NON_BLOCKING != 0 || out.is_null() {
        return Err(INVALID_VALUE);
    }
    // Priorities out of range are clamped, as documented.
    let stream = machine.new_stream(context, Role::Created, flags, priority.clamp(-5, 0))?;
    out.set(stream as CUstream)
}

pub(crate) fn destroy(machine: &mut Machine, stream: Ptr<CUstream_st>) -> Answer {
    let stream = machine.stream(stream)?;
    if machine.stream_state(stream)?.is_default() {
        machine.violation("a default stream destroyed".into());
        return Err(INVALID_HANDLE);
    }
    capture::refuse_on(machine, stream)?;
    let destroyed = machine.drop_stream(stream);
    machine.judge(destroyed)
}

/// A stream that the host asks about or waits for, and the simulated one behind it.
fn asked(
    machine: &mut Machine,
    stream: Ptr<CUstream_st>,
) -> Answer<(usize, millpond_simgpu::Stream)> {
    let stream = machine.stream(stream)?;
    capture::refuse_on(machine, stream)?;
    capture::potentially_unsafe(machine)?;
    if machine.stream_state(stream)?.role == Role::Legacy {
        machine.order(stream)?;
    }
    Ok((stream, machine.stream_state(stream)?.sim))
}

pub(crate) fn query(machine: &mut Machine, stream: Ptr<CUstream_st>) -> Answer {
    let (_, sim) = asked(machine, stream)?;
    let done = machine.sim.stream_query(sim);
    match machine.judge(done)? {
        true => Ok(()),
        false => Err(CUresult::CUDA_ERROR_NOT_READY),
    }
}

pub(crate) fn synchronize(machine: &mut Machine, stream: Ptr<CUstream_st>) -> Answer {
    let (stream, sim) = asked(machine, stream)?;
    let done = machine.sim.stream_synchronize(sim);
    machine.judge(done)?;
    let device = machine.stream_device(stream)?;
    memory::after_wait(machine, device)
}

pub(crate) fn wait_event(
    machine: &mut Machine,
    stream: Ptr<CUstream_st>,
    event: Ptr<CUevent_st>,
    flags: u32,
) -> Answer {
    let stream = machine.stream(stream)?;
    let event = machine.event(event)?;
    match flags {
        0 => {}
        1 => return Err(NOT_SUPPORTED),
        _ => return Err(INVALID_VALUE),
    }
    if capture::wait(machine, stream, event)? {
        return Ok(());
    }
    machine.order(stream)?;
    let (stream, event) = (machine.stream_state(stream)?.sim, machine.event_state(event)?.sim);
    let waited = machine.sim.stream_wait(stream, event);
    machine.judge(waited)
}

pub(crate) fn get_context(
    machine: &mut Machine,
    stream: Ptr<CUstream_st>,
    out: Ptr<CUcontext>,
) -> Answer {
    let stream = machine.stream(stream)?;
    out.set(machine.stream_state(stream)?.context as CUcontext)
}

pub(crate) fn get_device(machine: &mut Machine, stream: Ptr<CUstream_st>, out: Ptr<i32>) -> Answer {
    let stream = machine.stream(stream)?;
    out.set(machine.device_handle(machine.stream_device(stream)?))
}

pub(crate) fn get_flags(machine: &mut Machine, stream: Ptr<CUstream_st>, out: Ptr<u32>) -> Answer {
    let stream = machine.stream(stream)?;
    out.set(machine.stream_state(stream)?.flags)
}

pub(crate) fn get_id(machine: &mut Machine, stream: Ptr<CUstream_st>, out: Ptr<u64>) -> Answer {
    let stream = machine.stream(stream)?;
    out.set(machine.stream_state(stream)?.id)
}

pub(crate) fn get_priority(
    machine: &mut Machine,
    stream: Ptr<CUstream_st>,
    out: Ptr<i32>,
) -> Answer {
    let stream = machine.stream(stream)?;
    out.set(machine.stream_state(stream)?.priority)
}
