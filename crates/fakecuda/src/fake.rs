//! The machine of a test: put in place, looked at, made to fail, taken away.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};

use cudarc::driver::sys::{CUevent, CUresult, CUstream};
use millpond_simgpu::{BuildError, Builder, Event, Leaks, Sim, Stream};

use crate::entry;
use crate::error::INVALID_HANDLE;
use crate::load::{LoadError, load};
use crate::machine::Machine;
use crate::table::Function;

/// Held by the test whose machine is in place.
static TURN: Mutex<()> = Mutex::new(());

/// Tells machines apart. Relaxed: drawn under [`TURN`], or once for the environment's.
static GENERATION: AtomicUsize = AtomicUsize::new(1);

pub(crate) fn next_generation() -> usize {
    GENERATION.fetch_add(1, Relaxed)
}

/// What kind of machine.
#[derive(Clone, Debug)]
pub struct Config {
    /// The simulation: devices, capacity, contents, oracle, completion, seed.
    pub machine: Builder,
    /// Whether devices have memory pools (`cuMemAllocAsync`); they do by default.
    pub memory_pools: bool,
    /// Whether devices can be peers; they can by default.
    pub peers: bool,
    /// Whether devices say that they have virtual memory management; they do by default.
    pub virtual_memory: bool,
}

impl Default for Config {
    fn default() -> Self {
        Self::from(Sim::builder().contents(true).oracle(true))
    }
}

impl From<Builder> for Config {
    fn from(machine: Builder) -> Self {
        Self { machine, memory_pools: true, peers: true, virtual_memory: true }
    }
}

/// Why no machine was put in place.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StartError {
    /// The shared library was not loaded.
    Load(LoadError),
    /// The simulation's configuration contradicts itself.
    Build(BuildError),
}

impl std::fmt::Display for StartError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Load(error) => error.fmt(f),
            Self::Build(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for StartError {}

/// The driver has no function of this name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownFunction(pub String);

impl std::fmt::Display for UnknownFunction {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "fakecuda has no function {}", self.0)
    }
}

impl std::error::Error for UnknownFunction {}

/// Puts a fresh machine in place, once the test whose turn it is has dropped its own.
///
/// # Errors
///
/// Where the shared library is not loaded, as in front of a real driver, and where the simulation's
/// configuration contradicts itself.
pub fn start(config: impl Into<Config>) -> Result<Fake, StartError> {
    let config = config.into();
    load().map_err(StartError::Load)?;
    let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let sim = config.machine.shared_addresses(true).build().map_err(StartError::Build)?;
    let mut machine =
        Machine::new(sim.clone(), next_generation(), config.memory_pools, config.peers);
    machine.virtual_memory = config.virtual_memory;
    entry::reset_calls();
    *entry::machine() = Some(Box::new(machine));
    Ok(Fake { sim, _turn: turn })
}

/// The machine in place. Its end takes it away: handles that are left are of no use to the next one,
/// and until there is one every call answers `CUDA_ERROR_DEINITIALIZED`.
#[derive(Debug)]
pub struct Fake {
    sim: Sim,
    _turn: MutexGuard<'static, ()>,
}

impl Drop for Fake {
    fn drop(&mut self) {
        let machine = entry::machine().take();
        // Outside the lock: what is dropped with it is the program's too.
        drop(machine);
    }
}

impl Fake {
    fn with<R>(&self, f: impl FnOnce(&mut Machine) -> R) -> Option<R> {
        entry::machine().as_mut().map(|machine| f(machine))
    }

    /// The simulation: hazards, leaks, counters, hangs.
    pub fn sim(&self) -> &Sim {
        &self.sim
    }

    /// The simulated stream behind a handle. Default streams are those of the context that is current
    /// to the calling thread.
    ///
    /// # Errors
    ///
    /// As the driver's functions answer for it.
    pub fn stream(&self, stream: CUstream) -> Result<Stream, CUresult> {
        let found = self.with(|machine| {
            // One that was created is known by its handle, whatever context is current.
            if let Some(created) = machine.streams.get(stream as usize) {
                return Ok(created.sim);
            }
            let stream = machine.stream_by_value(stream as usize)?;
            Ok(machine.stream_state(stream)?.sim)
        });
        found.unwrap_or(Err(CUresult::CUDA_ERROR_DEINITIALIZED))
    }

    /// The simulated event behind a handle.
    ///
    /// # Errors
    ///
    /// Where there is none.
    pub fn event(&self, event: CUevent) -> Result<Event, CUresult> {
        let found = self.with(|machine| machine.events.get(event as usize).map(|event| event.sim));
        found.flatten().ok_or(INVALID_HANDLE)
    }

    /// Misuse seen so far, which a real driver would punish or not even notice: destroyed handles,
    /// unmapping what is not mapped, releasing twice. Races are the simulation's to tell.
    pub fn violations(&self) -> Vec<String> {
        self.with(|machine| machine.violations.clone()).unwrap_or_default()
    }

    /// What contexts still had when they ended, one line for each that had anything.
    pub fn abandoned(&self) -> Vec<String> {
        self.with(|machine| machine.abandoned.clone()).unwrap_or_default()
    }

    /// What the program has not given back. Default streams and what graphs use within do not count.
    pub fn leaks(&self) -> Leaks {
        (0..self.sim.device_count()).map(|device| self.leaks_of(device)).sum()
    }

    /// The same of one device.
    pub fn leaks_of(&self, device: u16) -> Leaks {
        let own = self.with(|machine| machine.own_streams(device));
        let leaks = self.sim.leaks_of(device);
        Leaks { streams: leaks.streams - own.unwrap_or(0).min(leaks.streams), ..leaks }
    }

    /// How often a function was called; 0 for one that there is not.
    pub fn calls(&self, function: &str) -> u64 {
        Function::named(function).map_or(0, entry::calls)
    }

    /// Lets the `nth` call of any function from now on fail; 1 is the next. As with all failures, the
    /// call then has no effect.
    pub fn fail_any(&self, nth: u64, code: CUresult) {
        self.with(|machine| machine.faults.add(None, nth, code, false));
    }

    /// Lets every call fail from the `nth` from now on.
    pub fn fail_all(&self, nth: u64, code: CUresult) {
        self.with(|machine| machine.faults.add(None, nth, code, true));
    }

    /// Lets the `nth` call of a function from now on fail.
    ///
    /// # Errors
    ///
    /// Where the driver has no such function.
    pub fn fail(&self, function: &str, nth: u64, code: CUresult) -> Result<(), UnknownFunction> {
        self.fail_named(function, nth, code, false)
    }

    /// Lets every call of a function fail from the `nth` from now on.
    ///
    /// # Errors
    ///
    /// Where the driver has no such function.
    pub fn fail_from(
        &self,
        function: &str,
        nth: u64,
        code: CUresult,
    ) -> Result<(), UnknownFunction> {
        self.fail_named(function, nth, code, true)
    }

    fn fail_named(
        &self,
        function: &str,
        nth: u64,
        code: CUresult,
        sticky: bool,
    ) -> Result<(), UnknownFunction> {
        let named = Function::named(function);
        let named = named.ok_or_else(|| UnknownFunction(function.to_string()))?;
        self.with(|machine| machine.faults.add(Some(named), nth, code, sticky));
        Ok(())
    }

    /// Forgets failures; says whether any was still to come (lasting ones always are).
    pub fn clear_faults(&self) -> bool {
        self.with(|machine| machine.faults.clear()).unwrap_or(false)
    }

    /// The functions whose calls failed on request, in order.
    pub fn failed(&self) -> Vec<&'static str> {
        let names = |machine: &mut Machine| {
            machine.faults.struck.iter().map(|function| function.name()).collect()
        };
        self.with(names).unwrap_or_default()
    }

    /// Shuts the driver down, as the end of a process does before its last destructors: all functions
    /// but those that name errors answer `CUDA_ERROR_DEINITIALIZED`.
    pub fn shutdown(&self) {
        self.with(|machine| machine.shut_down = true);
    }

    /// Destroys a device's contexts under their users, as another library in the process may do: what
    /// needs them answers `CUDA_ERROR_CONTEXT_IS_DESTROYED`, now and for good.
    pub fn destroy_context(&self, device: u16) {
        self.with(|machine| machine.destroy_contexts_of(device));
    }
}
