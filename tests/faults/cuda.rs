//! The simulator by way of CUDA's functions, each of which fails.

use crate::ground::{Ground, devices};
use crate::rig::{Setup, cases};
use crate::support::slow;
use fakecuda::Fake;
use millpond::driver::cuda::CudaDriver;
use millpond::driver::cuda::cudarc::driver::sys::{
    self, CUcontext, CUresult, CUstream, CUstreamCaptureMode,
};
use millpond::driver::{Driver, StreamHandle};
use millpond::{DeviceId, Level, Pool, Reuse};
use millpond_simgpu::{ErrorCode, Leaks, Sim, Stream};
use std::cell::RefCell;
use std::ptr;
use std::sync::Arc;

const STRICT: CUstreamCaptureMode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL;

/// Devices behind CUDA's functions. Only these fail, not what the program does to the simulator.
pub struct Cuda {
    driver: Arc<CudaDriver>,
    /// The context that is current to the thread.
    current: CUcontext,
    /// Calls before the pool's first.
    before: Vec<(&'static str, u64)>,
    /// Captures that the pool spoilt.
    spoilt: RefCell<Vec<String>>,
    // Goes after what stands on it.
    fake: Fake,
}

impl Cuda {
    pub fn new(setup: Setup, current: bool) -> Self {
        // The driver relies on virtual memory only where pages keep bytes.
        let fake = fakecuda::start(devices(setup).contents(true)).unwrap();
        let driver = CudaDriver::all().unwrap();
        let driver = if setup.plain { driver.without_virtual_memory() } else { driver };
        let current = if current { driver.contexts()[0].cu_ctx() } else { ptr::null_mut() };
        // Whatever an earlier run left to this thread.
        set_current(current);
        capture_mode(STRICT);
        let before = counts(&fake);
        Self { driver: Arc::new(driver), current, before, spoilt: RefCell::default(), fake }
    }
}

fn set_current(context: CUcontext) {
    // SAFETY: null, or a context that is alive.
    unsafe { sys::cuCtxSetCurrent(context).result() }.ok();
}

fn current() -> CUcontext {
    let mut context = ptr::null_mut();
    // SAFETY: stores to a place of ours.
    unsafe { sys::cuCtxGetCurrent(&raw mut context).result() }.unwrap();
    context
}

/// Sets the thread's capture mode; says what it was.
fn capture_mode(mut mode: CUstreamCaptureMode) -> CUstreamCaptureMode {
    // SAFETY: exchanges the mode with one in a place of ours.
    unsafe { sys::cuThreadExchangeStreamCaptureMode(&raw mut mode).result() }.ok();
    mode
}

fn stream(handle: StreamHandle) -> CUstream {
    ptr::with_exposed_provenance_mut(handle.0 as usize)
}

/// Calls of the functions that may fail: those that name errors do not.
fn counts(fake: &Fake) -> Vec<(&'static str, u64)> {
    let functions = fakecuda::covered().iter().filter(|name| !name.starts_with("cuGetError"));
    functions.map(|name| (*name, fake.calls(name))).collect()
}

fn cuda(code: ErrorCode) -> CUresult {
    match code {
        ErrorCode::OutOfMemory => CUresult::CUDA_ERROR_OUT_OF_MEMORY,
        ErrorCode::NotReady => CUresult::CUDA_ERROR_NOT_READY,
        ErrorCode::LaunchFailed => CUresult::CUDA_ERROR_LAUNCH_FAILED,
        ErrorCode::IllegalAddress => CUresult::CUDA_ERROR_ILLEGAL_ADDRESS,
        ErrorCode::InvalidHandle => CUresult::CUDA_ERROR_INVALID_HANDLE,
        ErrorCode::InvalidValue => CUresult::CUDA_ERROR_INVALID_VALUE,
        ErrorCode::Deinitialized => CUresult::CUDA_ERROR_DEINITIALIZED,
        ErrorCode::ContextDestroyed => CUresult::CUDA_ERROR_CONTEXT_IS_DESTROYED,
        ErrorCode::Unknown => CUresult::CUDA_ERROR_UNKNOWN,
        other => panic!("{other} is not one of the codes that are tried"),
    }
}

impl Ground for Cuda {
    fn driver(&self) -> Arc<dyn Driver> {
        Arc::<CudaDriver>::clone(&self.driver)
    }

    fn sim(&self) -> Sim {
        self.fake.sim().clone()
    }

    fn stream(&self, handle: StreamHandle) -> Stream {
        self.fake.stream(stream(handle)).unwrap()
    }

    fn calls(&self) -> Vec<(&'static str, u64)> {
        let now = counts(&self.fake);
        now.iter().zip(&self.before).map(|(now, before)| (now.0, now.1 - before.1)).collect()
    }

    fn fail_any(&self, nth: u64, code: ErrorCode) {
        self.fake.fail_any(nth, cuda(code));
    }

    fn fail_all(&self, nth: u64, code: ErrorCode) {
        self.fake.fail_all(nth, cuda(code));
    }

    fn fail(&self, call: &str, nth: u64, code: ErrorCode, sticky: bool) {
        match sticky {
            true => self.fake.fail_from(call, nth, cuda(code)).unwrap(),
            false => self.fake.fail(call, nth, cuda(code)).unwrap(),
        }
    }

    fn clear_faults(&self) {
        self.fake.clear_faults();
    }

    fn leaks_of(&self, device: u16) -> Leaks {
        self.fake.leaks_of(device)
    }

    /// Violations, captures that were spoilt, and what the calling thread was not given back.
    fn misuse(&self) -> Vec<String> {
        let mut found = [self.fake.violations(), self.spoilt.borrow().clone()].concat();
        let failed = self.fake.failed();
        if !failed.contains(&"cuCtxSetCurrent") && current() != self.current {
            found.push("another context is current than before".into());
        }
        if !failed.contains(&"cuThreadExchangeStreamCaptureMode") && capture_mode(STRICT) != STRICT
        {
            found.push("the thread's capture mode is another than before".into());
        }
        found
    }

    fn begin_capture(&self, handle: StreamHandle) -> bool {
        set_current(self.driver.contexts()[0].cu_ctx());
        // SAFETY: the stream is alive.
        let begun = unsafe { sys::cuStreamBeginCapture_v2(stream(handle), STRICT) };
        set_current(self.current);
        begun == CUresult::CUDA_SUCCESS
    }

    fn end_capture(&self, handle: StreamHandle) {
        loop {
            let failed = self.fake.failed().len();
            set_current(self.driver.contexts()[0].cu_ctx());
            let mut graph = ptr::null_mut();
            // SAFETY: the stream captures since `begin_capture`, on this thread.
            match unsafe { sys::cuStreamEndCapture(stream(handle), &raw mut graph) } {
                CUresult::CUDA_SUCCESS => {
                    // SAFETY: the graph is ours.
                    unsafe { sys::cuGraphDestroy(graph).result() }.ok();
                    break;
                }
                code if self.fake.failed().len() == failed => {
                    self.spoilt.borrow_mut().push(format!("a capture ended with {code:?}"));
                    break;
                }
                _ => self.clear_faults(),
            }
        }
        set_current(self.current);
    }
}

/// The driver is made while calls fail, once and from then on: it says so, or does without what failed.
/// What it tried memory with is given up in order.
#[test]
fn the_driver_is_made_while_calls_fail() {
    let setups = [Setup::lag(0, Reuse::Wait), Setup::scheduled(Reuse::Wait)];
    for (setup, lasts) in setups.into_iter().flat_map(|setup| [(setup, false), (setup, true)]) {
        let start = || fakecuda::start(devices(setup).contents(true)).unwrap();
        let clean = start();
        drop(CudaDriver::all().unwrap());
        let calls: u64 = counts(&clean).iter().map(|(_, calls)| calls).sum();
        drop(clean);
        assert!(calls > 40, "{calls} calls");
        for (n, code) in cases(setup.cuda(false), calls, 1, 0).step_by(if slow() { 1 } else { 4 }) {
            let what = format!("call {n}: {code}, and so on: {lasts}, {setup:?}");
            let fake = start();
            match lasts {
                true => fake.fail_all(n, cuda(code)),
                false => fake.fail_any(n, cuda(code)),
            }
            let made = CudaDriver::all();
            fake.clear_faults();
            match made {
                Ok(driver) => {
                    let pool = Pool::new(driver).unwrap();
                    let stream = pool.stream(DeviceId(0)).unwrap();
                    drop(stream.alloc::<u8>(3 << 20).unwrap());
                    pool.check_invariants_at(Level::Full);
                }
                Err(error) => assert!(error.code == code.number() || lasts, "{what}: {error}"),
            }
            assert_eq!(fake.violations(), Vec::<String>::new(), "{what}");
            assert_eq!(fake.sim().hazards(), [], "{what}");
            let leaks = fake.leaks();
            assert_eq!((leaks.streams, leaks.events), (0, 0), "{what}: {leaks}");
        }
    }
}
