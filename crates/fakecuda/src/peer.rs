//! Access between devices.

use cudarc::driver::sys::{CUctx_st, CUresult};

use crate::error::{Answer, INVALID_CONTEXT, INVALID_DEVICE, INVALID_VALUE};
use crate::machine::Machine;
use crate::pointer::Ptr;

impl Machine {
    fn can_be_peers(&self, from: u16, to: u16) -> bool {
        self.peers && from != to
    }
}

pub(crate) fn can_access(machine: &mut Machine, out: Ptr<i32>, from: i32, to: i32) -> Answer {
    let (from, to) = (machine.device(from)?, machine.device(to)?);
    out.set(i32::from(machine.can_be_peers(from, to)))
}

/// Rank, access, native atomics, arrays: only access is there.
pub(crate) fn attribute(
    machine: &mut Machine,
    out: Ptr<i32>,
    attribute: u32,
    from: i32,
    to: i32,
) -> Answer {
    let (from, to) = (machine.device(from)?, machine.device(to)?);
    match attribute {
        _ if from == to => Err(INVALID_DEVICE),
        2 => out.set(i32::from(machine.can_be_peers(from, to))),
        1 | 3 | 4 => out.set(0),
        _ => Err(INVALID_VALUE),
    }
}

pub(crate) fn enable(machine: &mut Machine, peer: Ptr<CUctx_st>, flags: u32) -> Answer {
    let context = machine.current()?;
    let (from, to) = (machine.context(context)?.device, machine.context(peer.value())?.device);
    if flags != 0 {
        return Err(INVALID_VALUE);
    }
    if from == to {
        return Err(INVALID_DEVICE);
    }
    if !machine.can_be_peers(from, to) {
        return Err(CUresult::CUDA_ERROR_PEER_ACCESS_UNSUPPORTED);
    }
    let peers = machine.contexts.get_mut(context).map(|context| &mut context.peers);
    if !peers.ok_or(INVALID_CONTEXT)?.insert(peer.value()) {
        return Err(CUresult::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED);
    }
    let enabled = machine.sim.peer_access(from, to);
    machine.judge(enabled)
}

pub(crate) fn disable(machine: &mut Machine, peer: Ptr<CUctx_st>) -> Answer {
    let context = machine.current()?;
    let (from, to) = (machine.context(context)?.device, machine.context(peer.value())?.device);
    let peers = machine.contexts.get_mut(context).map(|context| &mut context.peers);
    if !peers.ok_or(INVALID_CONTEXT)?.remove(&peer.value()) {
        return Err(CUresult::CUDA_ERROR_PEER_ACCESS_NOT_ENABLED);
    }
    // The simulator knows devices only: another context of this one may still have access.
    let still = machine.contexts.iter().any(|(_, context)| {
        let to_device = |peer: &usize| machine.contexts.get(*peer).map(|peer| peer.device);
        context.device == from && context.peers.iter().any(|peer| to_device(peer) == Some(to))
    });
    if still {
        return Ok(());
    }
    let ended = machine.sim.peer_access_end(from, to);
    machine.judge(ended)
}
