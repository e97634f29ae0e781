//! What a program runs on: simulated devices, the pool as the settings have it, and threads.

use crate::program::SETTINGS;
use millpond::driver::sim::SimDriver;
use millpond::{Headroom, Pool, Reuse, Stream};
use millpond_simgpu::{Completion, Sim};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::Duration;

pub const MIB: u64 = 1 << 20;
/// Memory of each of the two devices.
pub const CAPACITY: u64 = 24 * MIB;

pub struct Machine {
    pub sim: Sim,
    pub pool: Pool,
    /// No request needs more than this of a device that nobody holds memory of.
    pub usable: u64,
    /// How often the user's last resort was called.
    pub rescues: Arc<AtomicU64>,
    pub patient: bool,
    pub end: u64,
    thread: Long,
}

impl Machine {
    pub fn new(settings: &[u64; SETTINGS.len()]) -> Self {
        let &[reuse, headroom, capacity, page, marks, lag, seed, rescue, peers, end] = settings;
        let granularity = if page % 4 == 1 || page % 4 == 2 { 64 << 10 } else { 2 * MIB };
        let completion = match lag % 6 {
            0 | 5 => Completion::Scheduled,
            1 => Completion::Lag(0),
            2 => Completion::Lag(3),
            3 => Completion::Lag(60),
            _ => Completion::Lag(1),
        };
        let sim = Sim::builder()
            .devices(2)
            .capacity(CAPACITY)
            .granularity(granularity)
            .completion(completion)
            .seed(seed)
            .oracle(true)
            .build()
            .unwrap();
        let patient = end % 8 < 6;
        // No wait takes wall time here, but a busy machine may take it from anybody.
        let wait = if patient { Duration::from_secs(10) } else { Duration::ZERO };
        let mut builder = Pool::builder(SimDriver::new(sim.clone()))
            .reuse([Reuse::Wait, Reuse::Completed, Reuse::SameStream][(reuse % 3) as usize])
            .host_wait(wait)
            .peer_access(peers % 2 == 1);
        builder = match headroom % 8 {
            1 => builder.headroom(Headroom::Automatic),
            2 => builder.headroom(Headroom::Share(0.02)),
            3 => builder.headroom(Headroom::Share(f64::NAN)),
            4 => builder.headroom(Headroom::Share(3.0)),
            5 => builder.headroom(Headroom::Unbounded),
            6 => builder.headroom(Headroom::Share(-1.0)),
            _ => builder,
        };
        builder = match capacity % 16 {
            10 => builder.capacity(0),
            11 => builder.capacity(2 * MIB),
            12 => builder.capacity(5 * MIB),
            13 => builder.capacity(10 * MIB),
            14 => builder.capacity(2 * CAPACITY),
            15 => builder.capacity_share(0.5),
            _ => builder,
        };
        builder = match page % 4 {
            2 => builder.page_bytes(MIB),
            3 => builder.page_bytes(3 * MIB),
            _ => builder,
        };
        builder = match marks % 4 {
            2 => builder.watermarks(4 * MIB, 12 * MIB),
            3 => builder.watermarks(0, 0),
            _ => builder,
        };
        let rescues = Arc::new(AtomicU64::new(0));
        if rescue % 3 == 2 {
            let called = Arc::clone(&rescues);
            builder = builder.on_out_of_memory(move |_| {
                called.fetch_add(1, Relaxed);
                false
            });
        }
        let pool = builder.build().unwrap();
        let usable = pool.stats().devices[0].limit_bytes.min(CAPACITY);
        Self { sim, pool, usable, rescues, patient, end, thread: Long::new() }
    }

    /// Runs `f` on a thread, and waits for it: 1 is one of its own, 2 one that lives as long as the
    /// program, any other this one.
    pub fn on<R: Send + 'static>(&self, thread: u64, f: impl FnOnce() -> R + Send + 'static) -> R {
        match thread {
            1 => std::thread::spawn(f).join().unwrap_or_else(|panic| resume_unwind(panic)),
            2 => self.thread.run(f),
            _ => f(),
        }
    }

    /// The thread ends, the pool is closed, in the order that the settings ask for.
    pub fn close(self) -> Sim {
        let Self { sim, pool, thread, end, .. } = self;
        if end % 2 == 0 {
            drop(thread);
            drop(pool);
        } else {
            drop(pool);
            drop(thread);
        }
        sim
    }
}

/// A stream of a pool that has nothing to do with the program's.
pub fn foreign() -> &'static Stream {
    static FOREIGN: OnceLock<Stream> = OnceLock::new();
    FOREIGN.get_or_init(|| {
        let sim = Sim::builder().capacity(CAPACITY).build().unwrap();
        let pool = Pool::new(SimDriver::new(sim)).unwrap();
        pool.stream(millpond::DeviceId(0)).unwrap()
    })
}

type Job = Box<dyn FnOnce() + Send>;

/// A thread that lives on from call to call.
struct Long {
    jobs: Option<Sender<Job>>,
    thread: Option<JoinHandle<()>>,
}

impl Long {
    fn new() -> Self {
        let (jobs, inbox) = channel::<Job>();
        let thread = std::thread::spawn(move || inbox.into_iter().for_each(|job| job()));
        Self { jobs: Some(jobs), thread: Some(thread) }
    }

    fn run<R: Send + 'static>(&self, f: impl FnOnce() -> R + Send + 'static) -> R {
        let (answer, answered) = channel();
        let job = move || {
            // Somebody waits for it.
            let _ = answer.send(catch_unwind(AssertUnwindSafe(f)));
        };
        let sent = self.jobs.as_ref().map(|jobs| jobs.send(Box::new(job)));
        assert!(matches!(sent, Some(Ok(()))), "the thread is there until it is dropped");
        answered.recv().unwrap().unwrap_or_else(|panic| resume_unwind(panic))
    }
}

impl Drop for Long {
    fn drop(&mut self) {
        drop(self.jobs.take());
        if let Some(thread) = self.thread.take() {
            // Its jobs catch their panics.
            let _ = thread.join();
        }
    }
}
