//! Contexts: primary ones, which are counted, and those that a program creates.
//!
//! At its end a context takes its streams, events, allocations and modules with it, as on a real
//! driver; what was still there is noted, since a program that leaves things behind leaks them.

use std::collections::{BTreeMap, BTreeSet};

use cudarc::driver::sys::{CUcontext, CUctx_st, CUresult};

use crate::error::{Answer, CONTEXT_IS_DESTROYED, INVALID_CONTEXT, INVALID_VALUE, NOT_SUPPORTED};
use crate::machine::Machine;
use crate::pointer::Ptr;
use crate::{capture, memory, pool, thread};

/// A context.
#[derive(Debug)]
pub(crate) struct Context {
    pub device: u16,
    pub id: u64,
    /// Of a primary context, how often it was retained.
    retained: u32,
    flags: u32,
    /// The context was destroyed under its users ([`Fake::destroy_context`](crate::Fake)).
    pub gone: bool,
    /// Its legacy default stream, once used.
    pub legacy: Option<usize>,
    /// The default streams of threads, by thread.
    pub per_thread: BTreeMap<u64, usize>,
    /// Contexts whose memory it may touch.
    pub peers: BTreeSet<usize>,
    limits: BTreeMap<u32, usize>,
    cache_config: u32,
}

fn handle(context: usize) -> CUcontext {
    context as CUcontext
}

impl Machine {
    fn new_context(&mut self, device: u16, flags: u32) -> usize {
        let id = self.fresh_id();
        self.contexts.insert(Context {
            device,
            id,
            retained: 1,
            flags,
            gone: false,
            legacy: None,
            per_thread: BTreeMap::new(),
            peers: BTreeSet::new(),
            limits: BTreeMap::new(),
            cache_config: 0,
        })
    }

    /// Ends a context, with all that it has.
    fn end_context(&mut self, context: usize) -> Answer {
        let device = self.context(context)?.device;
        capture::end_all_of(self, context);
        // What is in flight is waited for, as far as it ends at all: host functions do.
        let done = self.sim.device_synchronize(device);
        if done.is_err() && self.host_functions_go_on() {
            return Err(CUresult::CUDA_ERROR_LAUNCH_TIMEOUT);
        }
        let of = |owner: usize| owner == context;
        let streams: Vec<_> = self.streams.iter().filter(|(_, s)| of(s.context)).collect();
        let left = streams.iter().filter(|(_, stream)| !stream.is_default()).count();
        let streams: Vec<usize> = streams.iter().map(|(handle, _)| *handle).collect();
        let events: Vec<usize> =
            self.events.iter().filter(|(_, e)| of(e.context)).map(|(handle, _)| handle).collect();
        let allocations: Vec<u64> =
            self.allocations.iter().filter(|(_, c)| of(**c)).map(|(address, _)| *address).collect();
        let modules: Vec<usize> =
            self.modules.iter().filter(|(_, m)| of(m.context)).map(|(handle, _)| handle).collect();
        if left + events.len() + allocations.len() > 0 {
            self.abandoned.push(format!(
                "the context of device {device} ended with {left} streams, {} events and {} \
                 allocations",
                events.len(),
                allocations.len()
            ));
        }
        for stream in streams {
            let _ = self.drop_stream(stream);
        }
        for event in events {
            let _ = self.drop_event(event);
        }
        for address in allocations {
            self.allocations.remove(&address);
            let _ = self.sim.free(address);
        }
        for module in modules {
            self.drop_module(module);
        }
        self.contexts.remove(context);
        if let Some(primary) = self.primary.get_mut(usize::from(device))
            && *primary == Some(context)
        {
            *primary = None;
        }
        pool::sync_point(self, device);
        Ok(())
    }

    /// Marks a device's contexts as destroyed by somebody else.
    pub(crate) fn destroy_contexts_of(&mut self, device: u16) {
        self.sim.destroy_context(device);
        for context in self.contexts.values_mut().filter(|context| context.device == device) {
            context.gone = true;
        }
    }

    fn current_mut(&mut self) -> Answer<&mut Context> {
        let context = self.current()?;
        self.contexts.get_mut(context).ok_or(INVALID_CONTEXT)
    }
}

pub(crate) fn primary_retain(machine: &mut Machine, out: Ptr<CUcontext>, device: i32) -> Answer {
    let device = machine.device(device)?;
    if let Some(context) = machine.primary[usize::from(device)] {
        machine.context(context)?;
        if let Some(context) = machine.contexts.get_mut(context) {
            context.retained += 1;
        }
        return out.set(handle(context));
    }
    let context = machine.new_context(device, 0);
    machine.primary[usize::from(device)] = Some(context);
    out.set(handle(context))
}

pub(crate) fn primary_release(machine: &mut Machine, device: i32) -> Answer {
    let device = machine.device(device)?;
    let Some(context) = machine.primary[usize::from(device)] else {
        machine.violation(format!("primary context of device {device} released too often"));
        return Err(INVALID_CONTEXT);
    };
    machine.context(context)?;
    match machine.contexts.get_mut(context) {
        Some(state) if state.retained > 1 => {
            state.retained -= 1;
            Ok(())
        }
        _ => machine.end_context(context),
    }
}

pub(crate) fn primary_reset(machine: &mut Machine, device: i32) -> Answer {
    let device = machine.device(device)?;
    match machine.primary[usize::from(device)] {
        Some(context) => machine.end_context(context),
        None => Ok(()),
    }
}

pub(crate) fn primary_state(
    machine: &mut Machine,
    device: i32,
    flags: Ptr<u32>,
    active: Ptr<i32>,
) -> Answer {
    let device = machine.device(device)?;
    let context = machine.primary[usize::from(device)];
    let context = context.and_then(|context| machine.contexts.get(context));
    flags.set(context.map_or(0, |context| context.flags))?;
    active.set(i32::from(context.is_some()))
}

pub(crate) fn primary_set_flags(machine: &mut Machine, device: i32, flags: u32) -> Answer {
    let device = machine.device(device)?;
    let context = machine.primary[usize::from(device)];
    if let Some(context) = context.and_then(|context| machine.contexts.get_mut(context)) {
        context.flags = flags;
    }
    Ok(())
}

pub(crate) fn create(
    machine: &mut Machine,
    out: Ptr<CUcontext>,
    flags: u32,
    device: i32,
) -> Answer {
    let device = machine.device(device)?;
    if out.is_null() {
        return Err(INVALID_VALUE);
    }
    let context = machine.new_context(device, flags);
    thread::push(context);
    out.set(handle(context))
}

pub(crate) fn create_v3<T>(
    machine: &mut Machine,
    out: Ptr<CUcontext>,
    affinities: Ptr<T>,
    count: i32,
    flags: u32,
    device: i32,
) -> Answer {
    match affinities.is_null() && count == 0 {
        true => create(machine, out, flags, device),
        false => Err(NOT_SUPPORTED),
    }
}

pub(crate) fn create_v4<T>(
    machine: &mut Machine,
    out: Ptr<CUcontext>,
    parameters: Ptr<T>,
    flags: u32,
    device: i32,
) -> Answer {
    create_v3(machine, out, parameters, 0, flags, device)
}

pub(crate) fn destroy(machine: &mut Machine, context: Ptr<CUctx_st>) -> Answer {
    let context = context.value();
    if machine.primary.contains(&Some(context)) {
        machine.violation(format!("primary context {context:#x} destroyed instead of released"));
        return Err(INVALID_CONTEXT);
    }
    machine.end_context(context)?;
    if thread::current() == Some(context) {
        thread::pop();
    }
    Ok(())
}

pub(crate) fn set_current(machine: &mut Machine, context: Ptr<CUctx_st>) -> Answer {
    if context.is_null() {
        thread::set_current(None);
        return Ok(());
    }
    machine.context(context.value())?;
    thread::set_current(Some(context.value()));
    Ok(())
}

pub(crate) fn get_current(_machine: &mut Machine, out: Ptr<CUcontext>) -> Answer {
    out.set(handle(thread::current().unwrap_or(0)))
}

pub(crate) fn push(machine: &mut Machine, context: Ptr<CUctx_st>) -> Answer {
    machine.context(context.value())?;
    thread::push(context.value());
    Ok(())
}

pub(crate) fn pop(_machine: &mut Machine, out: Ptr<CUcontext>) -> Answer {
    let context = thread::pop().ok_or(INVALID_CONTEXT)?;
    out.set_if_wanted(handle(context));
    Ok(())
}

pub(crate) fn get_device(machine: &mut Machine, out: Ptr<i32>) -> Answer {
    out.set(machine.device_handle(machine.current_device()?))
}

pub(crate) fn get_flags(machine: &mut Machine, out: Ptr<u32>) -> Answer {
    out.set(machine.current_mut()?.flags)
}

pub(crate) fn set_flags(machine: &mut Machine, flags: u32) -> Answer {
    machine.current_mut()?.flags = flags;
    Ok(())
}

pub(crate) fn get_id(machine: &mut Machine, context: Ptr<CUctx_st>, out: Ptr<u64>) -> Answer {
    let context = if context.is_null() { machine.current()? } else { context.value() };
    out.set(machine.context(context)?.id)
}

pub(crate) fn api_version(machine: &mut Machine, context: Ptr<CUctx_st>, out: Ptr<u32>) -> Answer {
    let context = if context.is_null() { machine.current()? } else { context.value() };
    machine.context(context)?;
    out.set(3_020)
}

/// Limits as devices have them; those that were set come back as they were set.
pub(crate) fn get_limit(machine: &mut Machine, out: Ptr<usize>, limit: u32) -> Answer {
    let defaults = [1 << 10, 1 << 20, 8 << 20, 2, 2_048, 128, 0, 0, 0];
    let default = defaults.get(limit as usize).ok_or(INVALID_VALUE)?;
    let context = machine.current_mut()?;
    out.set(context.limits.get(&limit).copied().unwrap_or(*default))
}

pub(crate) fn set_limit(machine: &mut Machine, limit: u32, value: usize) -> Answer {
    if limit > 8 {
        return Err(INVALID_VALUE);
    }
    machine.current_mut()?.limits.insert(limit, value);
    Ok(())
}

pub(crate) fn get_cache_config(machine: &mut Machine, out: Ptr<u32>) -> Answer {
    out.set(machine.current_mut()?.cache_config)
}

pub(crate) fn set_cache_config(machine: &mut Machine, config: u32) -> Answer {
    if config > 3 {
        return Err(INVALID_VALUE);
    }
    machine.current_mut()?.cache_config = config;
    Ok(())
}

pub(crate) fn priorities(machine: &mut Machine, least: Ptr<i32>, greatest: Ptr<i32>) -> Answer {
    machine.current()?;
    least.set_if_wanted(0);
    greatest.set_if_wanted(-5);
    Ok(())
}

/// Waits for all work of the context. Devices are waited for as a whole: the simulator knows no
/// contexts.
pub(crate) fn synchronize(machine: &mut Machine) -> Answer {
    let context = machine.current()?;
    capture::refuse_in_context(machine, context)?;
    let device = machine.context(context)?.device;
    let done = machine.sim.device_synchronize(device);
    machine.judge(done)?;
    memory::after_wait(machine, device)
}

/// A context that must be one of this machine's.
pub(crate) fn named(machine: &mut Machine, context: Ptr<CUctx_st>) -> Answer<u16> {
    match machine.context(context.value()) {
        Ok(context) => Ok(context.device),
        Err(CONTEXT_IS_DESTROYED) => Err(CONTEXT_IS_DESTROYED),
        Err(_) => Err(INVALID_CONTEXT),
    }
}
