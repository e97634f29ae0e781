//! Host functions: run by a thread of the crate's own when their stream comes to them, in the order
//! of their submission.
//!
//! The thread runs them without the machine's lock, and they may block: work behind one waits on the
//! simulated device, and calls that wait for that work wait for the function. A device makes progress
//! by itself; so where a program makes no call for a while, the thread runs the stream up to the
//! function.

use std::collections::VecDeque;
use std::ffi::c_void;
use std::sync::{Once, PoisonError};
use std::time::Duration;

use cudarc::driver::sys::{CUhostFn, CUresult, CUstream, CUstream_st, CUstreamCallback};
use millpond_simgpu::HostCall;

use crate::entry::{self, PROGRESS};
use crate::error::{Answer, INVALID_VALUE};
use crate::machine::Machine;
use crate::op::Op;
use crate::pointer::Ptr;
use crate::{capture, thread};

/// How long a program may make no call before its device goes on by itself.
const PATIENCE: Duration = Duration::from_millis(10);

/// A function and what it is given. Addresses are kept as numbers: they are the program's, which says
/// by submitting them that another thread may have them.
#[derive(Clone, Copy, Debug)]
pub(crate) enum HostFunction {
    Function(unsafe extern "C" fn(*mut c_void), usize),
    Callback(unsafe extern "C" fn(CUstream, CUresult, *mut c_void), usize, usize),
}

impl HostFunction {
    fn run(self) {
        // SAFETY: the program gave the function and its argument to be run once its stream has come
        // to it, which it has. It runs once for each submission or launch.
        unsafe {
            match self {
                Self::Function(function, argument) => function(argument as *mut c_void),
                Self::Callback(callback, stream, argument) => {
                    let (stream, argument) = (stream as CUstream, argument as *mut c_void);
                    callback(stream, CUresult::CUDA_SUCCESS, argument);
                }
            }
        }
    }
}

/// A function that has not returned yet.
#[derive(Debug)]
struct Job {
    number: u64,
    call: HostCall,
    function: HostFunction,
    running: bool,
}

/// All of them, in the order of submission.
#[derive(Debug, Default)]
pub(crate) struct HostFunctions {
    next: u64,
    jobs: VecDeque<Job>,
}

impl HostFunctions {
    pub(crate) fn is_empty(&self) -> bool {
        self.jobs.is_empty()
    }

    pub(crate) fn add(&mut self, call: HostCall, function: HostFunction) {
        static WORKER: Once = Once::new();
        WORKER.call_once(|| {
            std::thread::Builder::new().name("fakecuda".into()).spawn(work).ok();
        });
        self.next += 1;
        self.jobs.push_back(Job { number: self.next, call, function, running: false });
    }
}

/// The thread.
fn work() {
    thread::enter_callbacks();
    let mut push = false;
    let mut guard = entry::machine();
    loop {
        let generation = guard.as_ref().map(|machine| machine.generation);
        match guard.as_mut().and_then(|machine| machine.next_host_function(push)) {
            Some((number, function)) => {
                drop(guard);
                function.run();
                guard = entry::machine();
                if let Some(machine) = guard.as_mut()
                    && Some(machine.generation) == generation
                {
                    machine.host_function_returned(number);
                }
                PROGRESS.notify_all();
                push = false;
            }
            None => {
                let waiting = guard.as_ref().is_some_and(|m| !m.host_functions.is_empty());
                let patience = if waiting { PATIENCE } else { Duration::from_secs(3600) };
                let woken = PROGRESS.wait_timeout(guard, patience);
                let (back, timeout) = woken.unwrap_or_else(PoisonError::into_inner);
                (guard, push) = (back, timeout.timed_out());
            }
        }
    }
}

impl Machine {
    /// The first function whose stream has come to it.
    fn next_host_function(&mut self, push: bool) -> Option<(u64, HostFunction)> {
        let sim = &self.sim;
        let jobs = &mut self.host_functions.jobs;
        let due = jobs.iter_mut().find(|job| !job.running && sim.host_call_due(&job.call, push));
        due.map(|job| {
            job.running = true;
            (job.number, job.function)
        })
    }

    /// Whether a function runs, or could: work that waits for one goes on some time.
    pub(crate) fn host_functions_go_on(&self) -> bool {
        let mut jobs = self.host_functions.jobs.iter();
        jobs.any(|job| job.running || self.sim.host_call_due(&job.call, true))
    }

    fn host_function_returned(&mut self, number: u64) {
        let jobs = &mut self.host_functions.jobs;
        if let Some(at) = jobs.iter().position(|job| job.number == number)
            && let Some(job) = jobs.remove(at)
        {
            self.sim.host_call_end(&job.call);
        }
    }
}

pub(crate) fn launch(
    machine: &mut Machine,
    stream: Ptr<CUstream_st>,
    function: CUhostFn,
    argument: Ptr<c_void>,
) -> Answer {
    let stream = machine.stream(stream)?;
    let function = function.ok_or(INVALID_VALUE)?;
    machine.submit(stream, Op::Host(HostFunction::Function(function, argument.value())))
}

pub(crate) fn add_callback(
    machine: &mut Machine,
    stream: Ptr<CUstream_st>,
    callback: CUstreamCallback,
    argument: Ptr<c_void>,
    flags: u32,
) -> Answer {
    let given = stream.value();
    let stream = machine.stream(stream)?;
    let callback = callback.filter(|_| flags == 0).ok_or(INVALID_VALUE)?;
    // Callbacks cannot be captured, unlike host functions.
    capture::refuse_on(machine, stream)?;
    let function = HostFunction::Callback(callback, given, argument.value());
    machine.submit(stream, Op::Host(function))
}
