//! What a stream is given: done at once, or written down in a capture and done at each launch.

use std::sync::{Arc, Weak};

use millpond_simgpu::{DeviceBytes, Touch};

use crate::capture;
use crate::error::Answer;
use crate::host_function::HostFunction;
use crate::host_memory::Block;
use crate::machine::Machine;

/// What a kernel does to the bytes of device memory.
pub(crate) type Run = Arc<dyn Fn(&mut DeviceBytes<'_>) + Send + Sync>;

/// A piece of work.
#[derive(Clone)]
pub(crate) enum Op {
    /// Repeats the eight bytes of `pattern`.
    Fill { address: u64, len: u64, pattern: u64 },
    /// Copies between devices' memories, each range seen by a device of its own.
    Copy { to: (u16, u64), from: (u16, u64), len: u64 },
    /// Writes bytes that were the host's.
    Write { address: u64, data: Arc<[u8]> },
    /// Copies to pinned host memory when the stream comes to it.
    ToPinned { block: Weak<Block>, at: usize, address: u64, len: usize },
    /// Copies from pinned host memory when the stream comes to it.
    FromPinned { block: Weak<Block>, at: usize, address: u64, len: usize },
    /// A kernel.
    Kernel { touches: Vec<Touch>, run: Run },
    /// A function of the host's.
    Host(HostFunction),
}

impl Op {
    /// The kind of a graph's node, in the driver's numbering.
    pub(crate) fn node_type(&self) -> u32 {
        match self {
            Self::Kernel { .. } => 0,
            Self::Copy { .. }
            | Self::Write { .. }
            | Self::ToPinned { .. }
            | Self::FromPinned { .. } => 1,
            Self::Fill { .. } => 2,
            Self::Host(_) => 3,
        }
    }
}

impl Machine {
    /// Gives a stream a piece of work.
    pub(crate) fn submit(&mut self, stream: usize, op: Op) -> Answer {
        if capture::append(self, stream, &op)? {
            return Ok(());
        }
        self.order(stream)?;
        let on = self.stream_state(stream)?.sim;
        self.run(on, &op)
    }

    /// Gives a simulated stream a piece of work.
    pub(crate) fn run(&mut self, on: millpond_simgpu::Stream, op: &Op) -> Answer {
        let sim = &self.sim;
        let done = match op {
            Op::Fill { address, len, pattern } => sim.fill(on, *address, *len, *pattern),
            Op::Copy { to, from, len } => sim.copy_between(on, *to, *from, *len),
            Op::Write { address, data } => sim.write_bytes(on, *address, data),
            Op::ToPinned { block, at, address, len } => {
                let (at, address, len) = (*at, *address, *len as u64);
                let block = self.pinned(block)?;
                let run = move |bytes: &mut DeviceBytes<'_>| {
                    block.write(at, &bytes.read(address, len));
                };
                self.sim.compute(on, &[Touch::read(address, len)], Arc::new(run))
            }
            Op::FromPinned { block, at, address, len } => {
                let (at, address, len) = (*at, *address, *len);
                let block = self.pinned(block)?;
                let run = move |bytes: &mut DeviceBytes<'_>| {
                    bytes.write(address, &block.read(at, len));
                };
                self.sim.compute(on, &[Touch::write(address, len as u64)], Arc::new(run))
            }
            Op::Kernel { touches, run } => sim.compute(on, touches, Arc::clone(run)),
            Op::Host(function) => {
                let call = sim.host_call(on);
                let call = self.judge(call)?;
                self.host_functions.add(call, *function);
                Ok(())
            }
        };
        self.judge(done)
    }
}
