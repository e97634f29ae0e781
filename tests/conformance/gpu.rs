//! Real GPUs: whatever driver the machine has, with real asynchrony and no oracle.
//!
//! A write is a fill with the label, a read copies samples of the range to pinned host memory as work of
//! the stream; they are compared when somebody asks for hazards. A stream is held up by a wait for a
//! word in pinned memory, and where the driver has no such thing by a host function, which blocks no
//! other stream, since nobody else here uses any. Streams may share a hardware queue, in which one that
//! is held up holds up others: set `CUDA_DEVICE_MAX_CONNECTIONS=32`, as `scripts/gpu-check` does.
//!
//! There is one device memory, that of the machine: cases about a device of a given size, of its own
//! refusals, or of more devices than there are, are skipped. What is given back is counted call by call,
//! since free memory is everybody's.
//!
//! `MILLPOND_CUDA_LIBRARY` names a library to take for the driver.

use crate::machine::{Machine, Need, skip};
use crate::support::Watched;
use millpond::driver::cuda::CudaDriver;
use millpond::driver::cuda::cudarc::driver::CudaContext;
use millpond::driver::cuda::cudarc::driver::sys::{self, CUresult, CUstream};
use millpond::driver::{Driver, StreamHandle};
use std::ffi::{CStr, CString, c_void};
use std::ptr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// What the work of a case takes, but for that which is held up.
const A_WHILE: Duration = Duration::from_millis(10);
/// Bytes of a sample.
const SAMPLE: u64 = 64;
/// Where samples are taken: at both ends of each of these, the first and the last being shorter.
const STRETCH: u64 = 2 << 20;
/// At most so many stretches are looked at: the rest of a larger block is passed over.
const STRETCHES: u64 = 32;
/// Bytes of pinned memory.
const ARENA: usize = 64 << 20;
/// The words at its start by which streams are held up.
const GATES: usize = 1024;

/// What outlives the machines: contexts are dear to make.
struct Shared {
    contexts: Vec<Arc<CudaContext>>,
    /// The address of the pinned memory.
    arena: usize,
}

/// Held by the machine that is there.
static TURN: Mutex<()> = Mutex::new(());

/// The devices, or why there are none.
fn shared() -> &'static Result<Shared, String> {
    static SHARED: OnceLock<Result<Shared, String>> = OnceLock::new();
    SHARED.get_or_init(|| {
        open_library()?;
        let driver = CudaDriver::all().map_err(|error| error.to_string())?;
        let contexts = driver.contexts().to_vec();
        contexts[0].bind_to_thread().map_err(|error| error.to_string())?;
        let mut arena = ptr::null_mut();
        // SAFETY: stores to a place of ours. The memory is never freed.
        let pinned =
            unsafe { sys::cuMemHostAlloc(&raw mut arena, ARENA, sys::CU_MEMHOSTALLOC_PORTABLE) };
        pinned.result().map_err(|error| error.to_string())?;
        Ok(Shared { contexts, arena: arena.expose_provenance() })
    })
}

/// Opens the library that the environment names, if it does, for as long as the process lives. Without
/// that, refuses the driver in software that other tests of the process may have put in place.
fn open_library() -> Result<(), String> {
    let open = |name: &CStr| {
        // SAFETY: a driver's initialisers may run, as whoever set the variable says, too.
        let library = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW) };
        (!library.is_null()).then_some(library)
    };
    let Ok(path) = std::env::var("MILLPOND_CUDA_LIBRARY") else {
        // SAFETY: the symbol is only looked for.
        let marked =
            |library| unsafe { !libc::dlsym(library, c"fakecuda_install".as_ptr()).is_null() };
        return match open(c"libcuda.so").is_some_and(marked) {
            true => Err("the driver is one in software, of other tests".into()),
            false => Ok(()),
        };
    };
    let name = CString::new(path.clone()).map_err(|error| error.to_string())?;
    open(&name).map(drop).ok_or_else(|| format!("{path} cannot be opened"))
}

/// A sample on its way to the host.
struct Sample {
    /// Offset in the arena; in words.
    at: usize,
    words: usize,
    want: u32,
    address: u64,
}

#[derive(Default)]
struct Work {
    samples: Vec<Sample>,
    /// Words of the arena in use.
    used: usize,
    /// Streams that are held up, with their gates.
    held: Vec<(u64, usize)>,
    gates: usize,
    found: Vec<String>,
}

/// The GPUs of the machine.
pub struct Gpu {
    driver: Arc<Watched>,
    contexts: Vec<Arc<CudaContext>>,
    arena: usize,
    work: Mutex<Work>,
    _turn: MutexGuard<'static, ()>,
}

/// What no label's fill leaves behind.
const NOTHING: u32 = 0x5eed_0000;

/// The word that a label is filled in by: never what an empty sample holds.
fn word(label: u64) -> u32 {
    (label as u32).wrapping_mul(0x9e37_79b1) | 1
}

fn stream(handle: StreamHandle) -> CUstream {
    ptr::with_exposed_provenance_mut(handle.0 as usize)
}

#[track_caller]
fn must(code: CUresult) {
    assert_eq!(code, CUresult::CUDA_SUCCESS);
}

impl Gpu {
    pub fn new(virtual_memory: bool, devices: u16) -> Self {
        let shared = shared().as_ref().unwrap_or_else(|why| skip(why));
        if usize::from(devices) > shared.contexts.len() {
            skip(&format!("{} devices where {devices} are needed", shared.contexts.len()));
        }
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let contexts = shared.contexts[..usize::from(devices)].to_vec();
        let driver = CudaDriver::new(contexts.iter().cloned()).unwrap();
        if let Some(why) = driver.fallback(crate::machine::D0).filter(|_| virtual_memory) {
            skip(&format!("no virtual memory: {why}"));
        }
        let driver = if virtual_memory { driver } else { driver.without_virtual_memory() };
        let work = Mutex::new(Work { used: GATES, ..Work::default() });
        let driver = Watched::new(Arc::new(driver));
        Self { driver, contexts, arena: shared.arena, work, _turn: turn }
    }

    fn work(&self) -> MutexGuard<'_, Work> {
        self.work.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A word of the arena, which the device writes to as well, and the host only through this.
    fn word(&self, at: usize) -> &'static AtomicU32 {
        let word = ptr::with_exposed_provenance::<AtomicU32>(self.arena + 4 * at);
        // SAFETY: in the arena (whoever takes words checks it), which is never freed, and aligned.
        unsafe { &*word }
    }

    /// Makes the first device current: copies, fills and waits go by their streams' devices.
    fn bind(&self) {
        self.contexts[0].bind_to_thread().unwrap();
    }

    /// Waits for all that the devices have been given; for a while where a stream is held up.
    fn finish(&self, held: bool) {
        if held {
            let start = Instant::now();
            self.bind();
            // Questions, since a driver in software needs calls to go on.
            for _ in 0..2000 {
                let (mut free, mut total) = (0, 0);
                // SAFETY: stores to places of ours.
                must(unsafe { sys::cuMemGetInfo_v2(&raw mut free, &raw mut total) });
                if start.elapsed() > 2 * A_WHILE {
                    break;
                }
            }
            return std::thread::sleep(A_WHILE.saturating_sub(start.elapsed()));
        }
        for context in &self.contexts {
            context.bind_to_thread().unwrap();
            // SAFETY: the call has no arguments.
            must(unsafe { sys::cuCtxSynchronize() });
        }
    }

    /// Compares what has arrived; all of it, unless a stream is held up.
    fn compare(&self, work: &mut Work) {
        let held = !work.held.is_empty();
        self.finish(held);
        let mut found = Vec::new();
        work.samples.retain(|sample| {
            let there: Vec<u32> = (0..sample.words)
                // Relaxed: the wait orders what the device wrote, and where there is none each word
                // stands for itself.
                .map(|word| self.word(sample.at + word).load(Ordering::Relaxed))
                .collect();
            if held && there.contains(&NOTHING) {
                return true;
            }
            if let Some(place) = there.iter().position(|word| *word != sample.want) {
                let (address, want) = (sample.address + 4 * place as u64, sample.want);
                found.push(format!(
                    "{:#x} at {address:#x} where {want:#x} was written",
                    there[place]
                ));
            }
            false
        });
        work.found.append(&mut found);
        if work.samples.is_empty() {
            work.used = GATES;
        }
    }

    /// Where samples of a range begin.
    fn places(address: u64, bytes: u64) -> Vec<(u64, u64)> {
        if bytes <= 2 * SAMPLE {
            return vec![(address, bytes / 4 * 4)];
        }
        let end = (address + bytes) / 4 * 4;
        let mut places = vec![(address, SAMPLE), (end - SAMPLE, SAMPLE)];
        let borders = (1..STRETCHES).map(|n| address / STRETCH * STRETCH + n * STRETCH);
        for border in borders.take_while(|border| border + SAMPLE <= end) {
            places.extend([(border - SAMPLE).max(address), border].map(|at| (at, SAMPLE)));
        }
        places
    }
}

impl Machine for Gpu {
    fn driver(&self) -> Arc<dyn Driver> {
        Arc::<Watched>::clone(&self.driver)
    }

    fn lacks(&self, need: Need) -> Option<&'static str> {
        match need {
            Need::OwnDevice => Some("the device has its own size, and others use it"),
            Need::Faults => Some("work that touches what it may not ends its context"),
            Need::Neighbours => Some("allocations lie where the driver pleases"),
            Need::OnDemand
            | Need::Stitching
            | Need::Open
            | Need::Caches
            | Need::Extents
            | Need::Still => None,
        }
    }

    fn write(&self, handle: StreamHandle, address: u64, bytes: u64, label: u64) {
        let (to, word, end) = (stream(handle), word(label), address + bytes);
        self.bind();
        // Words where there are whole ones, and the bytes before and after them.
        let first = address.next_multiple_of(4).min(end);
        let words = (end - first) / 4;
        // SAFETY: the range is the pool's, and the stream alive, as the suite sees to.
        unsafe {
            if words > 0 {
                must(sys::cuMemsetD32Async(first, word, words as usize, to));
            }
            for at in (address..first).chain(first + 4 * words..end) {
                must(sys::cuMemsetD8Async(at, word.to_le_bytes()[at as usize % 4], 1, to));
            }
        }
    }

    fn read(&self, handle: StreamHandle, address: u64, bytes: u64, label: u64) {
        self.bind();
        let mut work = self.work();
        for (from, bytes) in Self::places(address, bytes) {
            let words = bytes as usize / 4;
            if 4 * (work.used + words) > ARENA {
                assert!(work.held.is_empty(), "pinned memory for samples is full");
                self.compare(&mut work);
                self.bind();
            }
            let at = work.used;
            work.used += words;
            for word in at..at + words {
                // Relaxed: the submission below orders it before the device's write.
                self.word(word).store(NOTHING, Ordering::Relaxed);
            }
            work.samples.push(Sample { at, words, want: word(label), address: from });
            let to = ptr::with_exposed_provenance_mut::<c_void>(self.arena + 4 * at);
            // SAFETY: the samples' words are in the arena and nobody else's; the range is as for `write`.
            must(unsafe { sys::cuMemcpyDtoHAsync_v2(to, from, 4 * words, stream(handle)) });
        }
    }

    fn pass_time(&self) {
        let held = !self.work().held.is_empty();
        self.finish(held);
    }

    fn holds_work(&self) -> bool {
        false
    }

    fn hold(&self, handle: StreamHandle) {
        self.bind();
        let mut work = self.work();
        let gate = work.gates;
        work.gates += 1;
        assert!(work.gates <= GATES, "more streams are held up than there are gates");
        // Relaxed: the submission orders it.
        self.word(gate).store(0, Ordering::Relaxed);
        let (to, address) = (stream(handle), self.arena + 4 * gate);
        let at_least = sys::CUstreamWaitValue_flags::CU_STREAM_WAIT_VALUE_GEQ as u32;
        // SAFETY: the word is in the arena; pinned memory has its address on the device too.
        match unsafe { sys::cuStreamWaitValue32_v2(to, address as u64, 1, at_least) } {
            CUresult::CUDA_SUCCESS => {}
            // SAFETY: the word lives on; the function calls no driver.
            _ => match unsafe {
                sys::cuLaunchHostFunc(to, Some(wait), ptr::with_exposed_provenance_mut(address))
            } {
                CUresult::CUDA_SUCCESS => {}
                code => skip(&format!("streams cannot be held up: {code:?}")),
            },
        }
        work.held.push((handle.0, gate));
    }

    fn let_go(&self, handle: StreamHandle) {
        let held = &mut self.work().held;
        // It may go on already.
        if let Some(place) = held.iter().position(|(stream, _)| *stream == handle.0) {
            // Release pairs with the acquire in `wait`.
            self.word(held.swap_remove(place).1).store(1, Ordering::Release);
        }
    }

    fn hazards(&self) -> Vec<String> {
        let mut work = self.work();
        self.compare(&mut work);
        work.found.clone()
    }

    fn leaks(&self) -> Option<String> {
        const PAIRS: [(&str, &str); 5] = [
            ("create_stream", "destroy_stream"),
            ("create_event", "destroy_event"),
            ("create_page", "release_page"),
            // Addresses go back only where nothing is mapped.
            ("reserve", "unreserve"),
            ("allocate", "free"),
        ];
        let failed = self.driver.failed();
        let done = |name: &str| {
            self.driver.calls(name) - failed.iter().filter(|(call, _)| *call == name).count() as u64
        };
        let left = PAIRS.iter().filter(|(take, give)| done(take) != done(give));
        let left: Vec<_> = left
            .map(|(take, give)| format!("{} {take}, {} {give}", done(take), done(give)))
            .collect();
        (!left.is_empty()).then(|| left.join("; "))
    }
}

/// Holds a stream up until its word is not 0.
unsafe extern "C" fn wait(word: *mut c_void) {
    // SAFETY: a word of the arena, which is never freed.
    let word = unsafe { &*word.cast::<AtomicU32>() };
    // Acquire pairs with the release in `let_go`.
    while word.load(Ordering::Acquire) == 0 {
        std::thread::sleep(Duration::from_micros(100));
    }
}

impl Drop for Gpu {
    /// Whatever is held up goes on: what comes after must not wait for it.
    fn drop(&mut self) {
        let gates: Vec<usize> = self.work().held.iter().map(|(_, gate)| *gate).collect();
        gates.into_iter().for_each(|gate| self.word(gate).store(1, Ordering::Release));
        self.contexts.iter().for_each(|context| {
            // SAFETY: the call has no arguments.
            let _ = context.bind_to_thread().map(|()| unsafe { sys::cuCtxSynchronize() });
        });
    }
}
