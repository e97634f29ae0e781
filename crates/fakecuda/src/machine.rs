//! The machine: a simulation, and what the driver's functions know on top of it.

use std::collections::BTreeMap;

use cudarc::driver::sys::CUresult;
use millpond_simgpu::{ErrorCode, Sim};

use crate::capture::Capture;
use crate::context::Context;
use crate::error::{self, Answer, CONTEXT_IS_DESTROYED, INVALID_CONTEXT, INVALID_HANDLE};
use crate::event::Event;
use crate::fault::Faults;
use crate::graph::{Exec, Graph, GraphNode};
use crate::handles::{Fate, Handles, Kind};
use crate::host_function::HostFunctions;
use crate::host_memory::HostMemory;
use crate::module::{Module, NamedFunction};
use crate::pool::Pool;
use crate::stream::Stream;
use crate::thread;

/// Bits of a device's ordinal.
const ORDINAL_BITS: u32 = 10;

/// All that the driver's functions share.
pub(crate) struct Machine {
    pub sim: Sim,
    /// Told apart from machines before and after it.
    pub generation: usize,
    /// Whether devices have memory pools.
    pub memory_pools: bool,
    /// Whether devices can be peers.
    pub peers: bool,
    /// Whether devices have virtual memory management.
    pub virtual_memory: bool,
    pub initialised: bool,
    pub shut_down: bool,
    pub faults: Faults,
    pub contexts: Handles<Context>,
    /// By device.
    pub primary: Vec<Option<usize>>,
    pub streams: Handles<Stream>,
    pub events: Handles<Event>,
    pub pools: Handles<Pool>,
    /// The pool of each device by default, and the one that is current.
    pub device_pools: Vec<(usize, usize)>,
    /// What pools gave out: the pool and the bytes, by address.
    pub pooled: BTreeMap<u64, (usize, u64)>,
    /// Plain allocations, with their contexts.
    pub allocations: BTreeMap<u64, usize>,
    pub host_memory: HostMemory,
    pub host_functions: HostFunctions,
    /// Captures that have begun, by their number.
    pub captures: BTreeMap<u64, Capture>,
    pub next_id: u64,
    pub graphs: Handles<Graph>,
    pub graph_nodes: Handles<GraphNode>,
    pub execs: Handles<Exec>,
    pub modules: Handles<Module>,
    pub functions: Handles<NamedFunction>,
    /// Misuse seen.
    pub violations: Vec<String>,
    /// What contexts still had at their end.
    pub abandoned: Vec<String>,
}

impl Machine {
    pub(crate) fn new(sim: Sim, generation: usize, memory_pools: bool, peers: bool) -> Self {
        let devices = usize::from(sim.device_count());
        let mut pools = Handles::new(Kind::Pool, generation);
        let device_pools = (0..sim.device_count())
            .map(|device| {
                let pool = pools.insert(Pool::new(device));
                (pool, pool)
            })
            .collect();
        Self {
            sim,
            generation,
            memory_pools,
            peers,
            virtual_memory: true,
            initialised: false,
            shut_down: false,
            faults: Faults::default(),
            contexts: Handles::new(Kind::Context, generation),
            primary: vec![None; devices],
            streams: Handles::new(Kind::Stream, generation),
            events: Handles::new(Kind::Event, generation),
            pools,
            device_pools,
            pooled: BTreeMap::new(),
            allocations: BTreeMap::new(),
            host_memory: HostMemory::default(),
            host_functions: HostFunctions::default(),
            captures: BTreeMap::new(),
            next_id: 1,
            graphs: Handles::new(Kind::Graph, generation),
            graph_nodes: Handles::new(Kind::GraphNode, generation),
            execs: Handles::new(Kind::GraphExec, generation),
            modules: Handles::new(Kind::Module, generation),
            functions: Handles::new(Kind::Function, generation),
            violations: Vec::new(),
            abandoned: Vec::new(),
        }
    }

    /// Notes misuse that a real driver would punish, or not even notice.
    pub(crate) fn violation(&mut self, what: String) {
        self.violations.push(what);
    }

    /// Takes a simulated call's result for the driver's; misuse of memory is noted.
    pub(crate) fn judge<T>(&mut self, result: millpond_simgpu::Result<T>) -> Answer<T> {
        result.map_err(|error| {
            let misuse = matches!(error.code, ErrorCode::InvalidValue | ErrorCode::InvalidHandle);
            if misuse && !error.message.ends_with("injected failure") {
                self.violation(error.to_string());
            }
            error::code(&error)
        })
    }

    /// A number that was not given out before.
    pub(crate) fn fresh_id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id - 1
    }

    /// The device of an ordinal, or of what `cuDeviceGet` made of one.
    pub(crate) fn device(&self, given: i32) -> Answer<u16> {
        let (tag, ordinal) = (given >> ORDINAL_BITS, given & ((1 << ORDINAL_BITS) - 1));
        let ours = tag == 0 || given & !((1 << ORDINAL_BITS) - 1) == self.device_tag();
        let device = u16::try_from(ordinal).ok().filter(|device| *device < self.sim.device_count());
        device.filter(|_| ours).ok_or(error::INVALID_DEVICE)
    }

    /// A device as `cuDeviceGet` answers it: an ordinal, and which machine it is of. A real driver's
    /// are ordinals; here what a program does after its machine's end must not reach the next one.
    pub(crate) fn device_handle(&self, device: u16) -> i32 {
        self.device_tag() | i32::from(device)
    }

    fn device_tag(&self) -> i32 {
        ((self.generation & 0xf_ffff) as i32) << ORDINAL_BITS
    }

    /// The current context, which must be one of this machine's and alive.
    pub(crate) fn current(&self) -> Answer<usize> {
        let context = thread::current().ok_or(INVALID_CONTEXT)?;
        self.context(context)?;
        Ok(context)
    }

    /// A context by its handle.
    pub(crate) fn context(&self, handle: usize) -> Answer<&Context> {
        match self.contexts.get(handle) {
            Some(context) if context.gone => Err(CONTEXT_IS_DESTROYED),
            Some(context) => Ok(context),
            None if self.contexts.fate(handle) == Fate::Destroyed => Err(CONTEXT_IS_DESTROYED),
            None => Err(INVALID_CONTEXT),
        }
    }

    /// The current context's device.
    pub(crate) fn current_device(&self) -> Answer<u16> {
        Ok(self.context(self.current()?)?.device)
    }

    /// How many simulated streams of a device no program created: default streams, and what graphs use
    /// within.
    pub(crate) fn own_streams(&self, device: u16) -> usize {
        let of = |context| self.contexts.get(context).is_some_and(|c: &Context| c.device == device);
        let streams = self.streams.iter().filter(|(_, stream)| stream.is_default());
        streams.filter(|(_, stream)| of(stream.context)).count() + self.lanes(device)
    }

    /// Why a handle is not valid. What was destroyed, or never was, would crash a real driver.
    pub(crate) fn no_handle(&mut self, what: &str, handle: usize, fate: Fate) -> CUresult {
        let why = match fate {
            Fate::Null => return INVALID_HANDLE,
            Fate::Destroyed => "was destroyed",
            Fate::EarlierMachine => "is of an earlier machine",
            Fate::Never => "was never given out",
        };
        self.violation(format!("{what} {handle:#x} {why}"));
        INVALID_HANDLE
    }
}
