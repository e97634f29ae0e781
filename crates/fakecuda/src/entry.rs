//! What every driver function passes: counting, faults, the machine's lock, and no panic through.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use cudarc::driver::sys::CUresult;

use crate::error::Answer;
use crate::machine::Machine;
use crate::table::Function;
use crate::{environment, thread};

/// The machine, if one is in place.
static MACHINE: Mutex<Option<Box<Machine>>> = Mutex::new(None);

/// Told when a call may have brought host functions on, and when one has returned.
pub(crate) static PROGRESS: Condvar = Condvar::new();

/// Whether machines are put in place by [`start`](crate::start), and not by the environment. Relaxed:
/// set before the first call can come here through the shared library, which orders the two.
pub(crate) static HOSTED: AtomicBool = AtomicBool::new(false);

/// Calls so far, by function. Relaxed: counts order nothing.
static COUNTS: [AtomicU64; Function::COUNT] = [const { AtomicU64::new(0) }; Function::COUNT];

/// The machine, locked. A panic in a driver function is caught and told of; it poisons nothing.
pub(crate) fn machine() -> MutexGuard<'static, Option<Box<Machine>>> {
    MACHINE.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) fn calls(function: Function) -> u64 {
    COUNTS[function as usize].load(Relaxed)
}

pub(crate) fn reset_calls() {
    for count in &COUNTS {
        count.store(0, Relaxed);
    }
}

/// A function that needs no machine: it answers also before the initialisation and after the end.
pub(crate) fn without_machine(function: Function, body: impl FnOnce() -> Answer) -> CUresult {
    COUNTS[function as usize].fetch_add(1, Relaxed);
    let answer = catch_unwind(AssertUnwindSafe(body));
    result(answer.unwrap_or(Err(CUresult::CUDA_ERROR_UNKNOWN)))
}

/// A function that the crate does not have.
pub(crate) fn refuse(function: Function) -> CUresult {
    enter(function, |_| Err(CUresult::CUDA_ERROR_NOT_SUPPORTED))
}

/// Any other function. `body` may be run again, after a host function has returned for which it would
/// otherwise wait for ever.
pub(crate) fn enter(function: Function, mut body: impl FnMut(&mut Machine) -> Answer) -> CUresult {
    COUNTS[function as usize].fetch_add(1, Relaxed);
    let answer = catch_unwind(AssertUnwindSafe(|| call(function, &mut body)));
    result(answer.unwrap_or_else(|_| {
        if let Some(machine) = machine().as_mut() {
            machine.violation(format!("{} panicked", function.name()));
        }
        Err(CUresult::CUDA_ERROR_UNKNOWN)
    }))
}

fn result(answer: Answer) -> CUresult {
    answer.err().unwrap_or(CUresult::CUDA_SUCCESS)
}

fn call(function: Function, body: &mut dyn FnMut(&mut Machine) -> Answer) -> Answer {
    let mut guard = machine();
    if guard.is_none() && !HOSTED.load(Relaxed) {
        *guard = Some(environment::machine());
    }
    let Some(machine) = guard.as_mut() else {
        return Err(CUresult::CUDA_ERROR_DEINITIALIZED);
    };
    if thread::in_callback() {
        machine.violation(format!("{} called by a host function", function.name()));
        return Err(CUresult::CUDA_ERROR_NOT_PERMITTED);
    }
    if machine.shut_down {
        return Err(CUresult::CUDA_ERROR_DEINITIALIZED);
    }
    if let Some(code) = machine.faults.strike(function) {
        return Err(code);
    }
    if !machine.initialised && function != Function::cuInit {
        return Err(CUresult::CUDA_ERROR_NOT_INITIALIZED);
    }
    let generation = machine.generation;
    loop {
        let machine = match guard.as_mut() {
            Some(machine) if machine.generation == generation => machine,
            // The machine was replaced while the call waited.
            _ => return Err(CUresult::CUDA_ERROR_DEINITIALIZED),
        };
        let answer = body(machine);
        if machine.host_functions.is_empty() {
            return answer;
        }
        PROGRESS.notify_all();
        let stuck = answer == Err(CUresult::CUDA_ERROR_LAUNCH_TIMEOUT);
        if !stuck || !machine.host_functions_go_on() {
            return answer;
        }
        // The wait is for a host function, which runs while the lock is free.
        let waited = PROGRESS.wait_timeout(guard, Duration::from_millis(50));
        guard = waited.unwrap_or_else(PoisonError::into_inner).0;
    }
}
