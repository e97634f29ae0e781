//! Forked children. A child that does what it should not may wait for ever for a lock that a thread
//! of the parent's held, so it is given a time.

use crate::support::Watched;
use crate::{CAPACITY, D0, MIB};
use millpond::driver::Driver;
use millpond::driver::sim::SimDriver;
use millpond::{Buffer, DeviceId, Error, Level, Pool, Stream};
use millpond_simgpu::Sim;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

const PANICKED: i32 = 99;
const HANGS: i32 = 1000;

/// Forks, and runs `body` in the child, which then ends at once, or as programs end. Answers the
/// child's exit status, 0 where all was well.
fn in_child(ends_at_once: bool, body: impl FnOnce() -> Result<(), i32>) -> i32 {
    // SAFETY: the child calls no more than the pool, the simulator and the allocator, which can do
    // that after a fork.
    let child = unsafe { libc::fork() };
    assert!(child >= 0, "fork");
    if child == 0 {
        let outcome = catch_unwind(AssertUnwindSafe(body)).unwrap_or(Err(PANICKED));
        let status = outcome.err().unwrap_or(0);
        // SAFETY: both end the process. `exit` first runs this thread's destructors.
        unsafe { if ends_at_once { libc::_exit(status) } else { libc::exit(status) } }
    }
    wait_for(child)
}

/// The exit status of a child.
fn wait_for(child: libc::pid_t) -> i32 {
    let start = Instant::now();
    loop {
        let mut status = 0;
        // SAFETY: the process is a child of ours that nobody else waits for.
        let ended = unsafe { libc::waitpid(child, &raw mut status, libc::WNOHANG) };
        if ended == child {
            assert!(libc::WIFEXITED(status), "the child ended by a signal: {status:#x}");
            return libc::WEXITSTATUS(status);
        }
        if start.elapsed() > Duration::from_secs(10) {
            // SAFETY: as above; it has not been waited for.
            unsafe { libc::kill(child, libc::SIGKILL) };
            // SAFETY: as above.
            unsafe { libc::waitpid(child, &raw mut status, 0) };
            return HANGS;
        }
        std::thread::sleep(Duration::from_micros(200));
    }
}

/// Runs `body` on a thread, without the standard library's part in that: the lock that it takes for
/// each new thread may be held in a child for good.
fn on_a_bare_thread<F: FnOnce() -> bool + Send>(body: F) -> bool {
    extern "C" fn start<F: FnOnce() -> bool>(work: *mut libc::c_void) -> *mut libc::c_void {
        // SAFETY: it is the caller's, which waits for this thread.
        let work = unsafe { &mut *work.cast::<(Option<F>, bool)>() };
        work.1 = work.0.take().is_some_and(|body| body());
        std::ptr::null_mut()
    }
    let mut work = (Some(body), false);
    let mut thread = std::mem::MaybeUninit::uninit();
    let argument = (&raw mut work).cast();
    // SAFETY: the thread gets what it expects, and is waited for while that lives.
    let made = unsafe {
        libc::pthread_create(thread.as_mut_ptr(), std::ptr::null(), start::<F>, argument) == 0
            && libc::pthread_join(thread.assume_init(), std::ptr::null_mut()) == 0
    };
    made && work.1
}

/// Fails a child with the line of the test that did not hold.
macro_rules! check {
    ($test:expr) => {
        if !$test {
            // A status has 8 bits: of a file this long they tell the line.
            return Err((line!() % 97 + 1) as i32);
        }
    };
}

struct Parent {
    sim: Sim,
    driver: Arc<Watched>,
    pool: Pool,
    stream: Stream,
}

impl Parent {
    fn new() -> Self {
        let sim = crate::sim();
        let driver = Watched::new(Arc::new(SimDriver::new(sim.clone())));
        let shared: Arc<dyn Driver> = Arc::<Watched>::clone(&driver);
        let pool = Pool::builder_shared(shared).build().unwrap();
        let stream = pool.stream(D0).unwrap();
        Self { sim, driver, pool, stream }
    }

    /// What a thread holds that has used the pool well: its bins are warm.
    fn held(&self) -> Held {
        let other = self.pool.stream(DeviceId(1)).unwrap();
        drop((0..4).map(|_| self.stream.alloc::<u8>(900).unwrap()).collect::<Vec<_>>());
        let buffers = [900, 900, 50_000, 3 << 20].map(|bytes| self.stream.alloc(bytes).unwrap());
        buffers[1].record_use(&other).unwrap();
        let pin = self.pool.pin(buffers[3].address()).unwrap();
        let raw = [900, 3 * MIB].map(|bytes| self.pool.allocate(bytes, &self.stream).unwrap());
        Held { buffers, raw, pin, other, pool: self.pool.clone(), stream: self.stream.clone() }
    }

    fn done(self) {
        self.pool.check_invariants_at(Level::Full);
        let whole = self.stream.alloc::<u8>(CAPACITY as usize);
        assert!(whole.is_ok(), "{whole:?}");
        drop((whole, self.stream, self.pool));
        assert_eq!(self.sim.hazard_count(), 0);
        assert!(self.sim.leaks().is_empty(), "{}", self.sim.leaks());
    }
}

struct Held {
    buffers: [Buffer; 4],
    raw: [u64; 2],
    pin: millpond::Pin,
    other: Stream,
    pool: Pool,
    stream: Stream,
}

impl Held {
    /// All that a child may try with what it inherited.
    fn try_everything(self, driver: &Watched) -> Result<(), i32> {
        let calls = driver.total();
        let Self { buffers, raw, pin, other, pool, stream } = self;
        let forked = Error::Forked;
        check!(stream.alloc::<u8>(900).is_err_and(|error| error == forked));
        check!(stream.try_alloc::<u8>(900).is_err_and(|error| error == forked));
        check!(stream.alloc::<u8>(3 << 20).is_err_and(|error| error == forked));
        check!(pool.allocate(1, &stream) == Err(Error::Forked));
        check!(pool.stream(D0).is_err_and(|error| error == forked));
        check!(pool.register_stream(D0, stream.handle()).is_err_and(|error| error == forked));
        check!(stream.wait(&other) == Err(Error::Forked));
        check!(buffers[0].record_use(&other) == Err(Error::Forked));
        check!(buffers[0].last_use(&other) == Err(Error::Forked));
        check!(pool.record_use(raw[0], &other) == Err(Error::Forked));
        check!(pool.last_use(raw[0], &other) == Err(Error::Forked));
        check!(pool.pin(raw[1]).is_err_and(|error| error == forked));
        check!(pool.trim(D0, 0) == Err(Error::Forked));
        check!(pool.trim_all(0) == Err(Error::Forked));
        check!(forked.to_string().contains("child"));
        // What needs no lock is still known.
        let stats = pool.stats();
        check!(stats.devices[0].reserved_bytes > 0 && stats.devices[0].live_bytes == 0);
        check!(buffers[3].granted_bytes() == 3 * MIB && stream.id() != other.id());
        check!(!format!("{pool:?} {stream:?} {pin:?} {buffers:?}").is_empty());
        for address in raw {
            check!(pool.free(address) == Ok(()));
            check!(pool.free(address) == Err(Error::NotAllocated { address }));
        }
        let [first, second, rest @ ..] = buffers;
        drop(first);
        // On another thread of the child's.
        check!(on_a_bare_thread(move || {
            let refused = stream.alloc::<u8>(900).is_err();
            drop((second, stream));
            refused
        }));
        drop((pin, other, pool, rest));
        check!(driver.total() == calls);
        Ok(())
    }
}

/// Works with the pool in every way that takes a lock or calls the driver, until told to stop.
fn hammer(parent: &Parent, stop: &AtomicBool) {
    while !stop.load(Ordering::Relaxed) {
        let stream = parent.pool.stream(D0).unwrap();
        let held = [900, 50_000, 3 << 20].map(|bytes| stream.alloc::<u8>(bytes));
        let _ = stream.wait(&parent.stream);
        drop((held, stream));
        std::thread::scope(|scope| {
            // A thread that comes and goes: leases are made and given back.
            scope.spawn(|| drop(parent.stream.alloc::<u8>(900)));
        });
        (0..20).for_each(|_| drop(parent.pool.stats()));
        let _ = parent.pool.trim_all(0);
    }
}

/// Children of a process whose threads are in the middle of everything.
#[test]
fn children_leak_quietly() {
    let parent = Parent::new();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        (0..3).for_each(|_| drop(scope.spawn(|| hammer(&parent, &stop))));
        for round in 0..100 {
            let held = parent.held();
            let raw = held.raw;
            let held = std::cell::Cell::new(Some(held));
            let status = in_child(round % 2 == 0, || {
                held.take().map_or(Err(1), |held| held.try_everything(&parent.driver))
            });
            if status != 0 {
                stop.store(true, Ordering::Relaxed);
            }
            assert_eq!(status, 0, "round {round}: what failed is in a line of this number mod 97");
            raw.into_iter().for_each(|address| parent.pool.free(address).unwrap());
        }
        stop.store(true, Ordering::Relaxed);
    });
    parent.done();
}

/// The list of the threads' caches is locked at some of these forks; the end of the child's thread,
/// which has one of them, does not ask for it.
#[test]
fn the_end_of_a_thread_in_a_child() {
    const THREADS: usize = 400;
    let parent = Parent::new();
    let all = std::sync::Barrier::new(THREADS);
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            // Each with a cache of its own, so that going through the list takes a while.
            let small = std::thread::Builder::new().stack_size(128 << 10);
            let work = || {
                drop(parent.stream.alloc::<u8>(900).unwrap());
                all.wait();
            };
            drop(small.spawn_scoped(scope, work).unwrap());
        }
    });
    drop(parent.stream.alloc::<u8>(900).unwrap());
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    drop(parent.pool.stats());
                }
            });
        }
        let wrong = (0..60).map(|_| in_child(false, || Ok(()))).find(|&status| status != 0);
        stop.store(true, Ordering::Relaxed);
        assert_eq!(wrong, None);
    });
    parent.done();
}

/// A child that is born inside a call of the driver's: the arena's lock is held there, for good.
#[test]
fn born_inside_the_arena() {
    for call in ["create_page", "map", "create_stream", "query"] {
        let parent = Parent::new();
        let held = parent.held();
        let raw = held.raw;
        let held = Arc::new(Mutex::new(Some(held)));
        let status = Arc::new(AtomicI32::new(-1));
        let (theirs, driver, answer) =
            (Arc::clone(&held), Arc::clone(&parent.driver), Arc::clone(&status));
        parent.driver.during(call, move || {
            let status = in_child(true, || {
                let held = theirs.lock().ok().and_then(|mut held| held.take());
                held.map_or(Err(1), |held| held.try_everything(&driver))
            });
            answer.store(status, Ordering::Relaxed);
        });
        drop(parent.stream.alloc::<u8>(20 << 20).unwrap());
        let other = parent.pool.stream(D0).unwrap();
        drop(other.alloc::<u8>(CAPACITY as usize / 2).unwrap());
        assert_eq!(status.load(Ordering::Relaxed), 0, "during {call}");
        raw.into_iter().for_each(|address| parent.pool.free(address).unwrap());
        drop((held, other));
        parent.done();
    }
}

/// A callback that comes back in a child as well: the allocation ends there, without the arena.
#[test]
fn born_inside_the_callback() {
    let sim = Sim::builder().capacity(8 * MIB).build().unwrap();
    let driver = Watched::new(Arc::new(SimDriver::new(sim.clone())));
    let shared: Arc<dyn Driver> = Arc::<Watched>::clone(&driver);
    // -1 before the fork, then what it answered: 0 in the child.
    let forked = Arc::new(AtomicI32::new(-1));
    let answer = Arc::clone(&forked);
    let pool = Pool::builder_shared(shared)
        .on_out_of_memory(move |_| {
            if answer.load(Ordering::Relaxed) != -1 {
                return false;
            }
            // SAFETY: as in `in_child`.
            answer.store(unsafe { libc::fork() }, Ordering::Relaxed);
            true
        })
        .build()
        .unwrap();
    let stream = pool.stream(D0).unwrap();
    let calls = driver.total();
    let outcome = stream.alloc::<u8>(9 << 20);
    let child = forked.load(Ordering::Relaxed);
    if child == 0 {
        let quiet = matches!(outcome, Err(Error::Forked)) && driver.total() == calls;
        // SAFETY: ends the process.
        unsafe { libc::_exit(if quiet { 0 } else { 1 }) }
    }
    assert!(matches!(outcome, Err(Error::OutOfMemory(_))));
    assert_eq!(wait_for(child), 0);
    drop((stream, pool));
    assert!(sim.leaks().is_empty());
}

/// All of a life of a pool, over a driver made in this process.
fn live() -> Result<(), i32> {
    let Ok(sim) = Sim::builder().devices(2).capacity(CAPACITY).oracle(true).build() else {
        return Err(2);
    };
    let driver = SimDriver::new(sim.clone());
    let Ok(pool) = Pool::new(driver) else { return Err(3) };
    let (Ok(s), Ok(t)) = (pool.stream(D0), pool.stream(DeviceId(1))) else { return Err(4) };
    for _ in 0..100 {
        let held = [900, 50_000, 3 << 20].map(|bytes| s.alloc::<u8>(bytes));
        check!(held.iter().all(Result::is_ok));
        check!(t.wait(&s).is_ok() && t.alloc::<u8>(5 << 20).is_ok());
    }
    check!(pool.stats().hits.thread > 100 && pool.stats().devices[1].reserved_bytes > 0);
    pool.check_invariants_at(Level::Full);
    check!(pool.trim_all(0).is_ok());
    drop((s, t, pool));
    check!(sim.leaks().is_empty() && sim.hazard_count() == 0);
    Ok(())
}

/// A child builds a pool of its own beside the one it inherited, and its child again.
#[test]
fn a_child_has_a_pool_of_its_own() {
    let parent = Parent::new();
    assert_eq!(live(), Ok(()));
    let shared: Arc<dyn Driver> = Arc::<Watched>::clone(&parent.driver);
    let builder = Pool::builder_shared(shared);
    let held = std::cell::Cell::new(Some(parent.held()));
    let calls = parent.driver.total();
    let status = in_child(false, || {
        // Begun in the parent, over a driver that is the parent's.
        check!(matches!(builder.clone().build(), Err(Error::Forked)));
        live()?;
        check!(held.take().is_some_and(|held| held.try_everything(&parent.driver) == Ok(())));
        live()?;
        let sim = Sim::builder().capacity(CAPACITY).build().map_err(|_| 5)?;
        let own = Pool::new(SimDriver::new(sim)).map_err(|_| 6)?;
        let stream = own.stream(D0).map_err(|_| 7)?;
        let block = stream.alloc::<u8>(900).map_err(|_| 8)?;
        let grandchild = in_child(false, || {
            check!(matches!(stream.alloc::<u8>(900), Err(Error::Forked)));
            check!(matches!(own.trim(D0, 0), Err(Error::Forked)));
            live()
        });
        check!(grandchild == 0);
        drop(block);
        check!(stream.alloc::<u8>(900).is_ok());
        Ok(())
    });
    assert_eq!(status, 0);
    assert_eq!(parent.driver.total(), calls);
    drop(builder.build().unwrap());
    if let Some(held) = held.take() {
        held.raw.into_iter().for_each(|address| parent.pool.free(address).unwrap());
    }
    parent.done();
}

/// The child drops the last handles of a pool of which nothing is held: nothing goes back.
#[test]
fn the_last_handle_in_a_child() {
    for stream_first in [false, true] {
        let parent = Parent::new();
        drop(parent.stream.alloc::<u8>(3 << 20).unwrap());
        let parent = std::cell::Cell::new(Some(parent));
        let status = in_child(false, || {
            let Some(Parent { driver, pool, stream, .. }) = parent.take() else { return Err(1) };
            let calls = driver.total();
            if stream_first {
                drop((stream, pool))
            } else {
                drop((pool, stream))
            }
            check!(driver.total() == calls);
            Ok(())
        });
        assert_eq!(status, 0, "the last handle calls the driver in a child");
        parent.take().into_iter().for_each(Parent::done);
    }
}

/// The pool was closed before the fork, and buffers of it are left.
#[test]
fn what_is_left_of_a_closed_pool() {
    let parent = Parent::new();
    let late = [900, 3 << 20].map(|bytes| parent.stream.alloc::<u8>(bytes).unwrap());
    let Parent { sim, driver, pool, stream } = parent;
    drop((pool, stream));
    let late = std::cell::Cell::new(Some(late));
    let calls = driver.total();
    let status = in_child(false, || {
        drop(late.take());
        // Leases of closed pools end when another is made.
        live()?;
        check!(driver.total() == calls);
        Ok(())
    });
    assert_eq!(status, 0, "a late free calls the driver in a child");
    assert!(sim.leaks().bytes > 0, "a child has freed its parent's blocks");
    drop(late);
    assert!(sim.leaks().is_empty(), "{}", sim.leaks());
}
