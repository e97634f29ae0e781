//! The pool's core: one allocation and one free, from layer to layer.
//!
//! ```text
//! allocate   thread cache → stream cache → shards (known order) → shards (asking) → arena
//! free       stamp → Cached → thread cache | stream cache | shards, and a note to the arena
//! ```
//!
//! Lock-free: a hit in the thread cache, the stream cache, or the shards by a known order; every
//! free. Not: a thread's first call (it leases a cache), a hit that asks the driver, and a miss,
//! which enters the arena.

mod allocate;
mod apart;
mod at_plan;
mod check;
mod free;
mod life;

use apart::chunk_key;
pub use life::Handle;

use crate::block::{Descriptor, Hint, StreamId};
use crate::cache::HintCache;
use crate::cache::thread::ThreadCache;
use crate::config::{Kept, Rescue, Reuse, Settings};
use crate::defrag::Movables;
use crate::driver::{Caught, DeviceId, Driver};
use crate::error::{Error, Result};
use crate::fence::Fences;
use crate::fork;
use crate::heap::{Arena, Blocks, Gauge};
use crate::plan::Recording;
use crate::planned::{self, Planner};
use crate::recorder::Recorder;
use crate::shard::Shards;
use crate::stats::Counters;
use crate::sync::{Arc, AtomicBool, AtomicI64, AtomicU64, Mutex, MutexGuard, Ordering, lock};
use crate::table::Table;
use std::sync::{TryLockError, Weak};

/// One device's part of the pool.
pub struct Device {
    pub id: DeviceId,
    pub blocks: Arc<Blocks>,
    pub arena: Mutex<Arena>,
    pub shards: Shards,
    pub gauge: Arc<Gauge>,
    pub movables: Movables,
    pub limit: u64,
    /// Address and bytes of the driver's reservation, where there is one.
    pub reservation: Option<(u64, u64)>,
    /// Where what is asked of it is written down.
    pub recorder: Option<Recorder>,
    /// Places what recurs in advance.
    pub planner: Option<Planner>,
}

impl Device {
    /// A block is the one of another hint from now on: for what is written down of it.
    pub fn moved(&self, from: Hint, to: Hint) {
        if let Some(recorder) = &self.recorder {
            recorder.moved(from, to);
        }
        if let Some(planner) = &self.planner {
            planner.moved(self.blocks.at(to.index()), from, to);
        }
    }
}

/// Everything that streams, buffers and threads share.
pub struct Core {
    pub driver: Caught,
    pub fences: Arc<Fences>,
    pub devices: Box<[Arc<Device>]>,
    caches: Table<HintCache>,
    pub reuse: Reuse,
    /// Every free leaves a note, and no thread keeps bins.
    notes_all: bool,
    /// Nothing is filed in caches.
    uncached: bool,
    /// Called when a device is out of memory.
    rescue: Option<Rescue>,
    /// Every thread cache ever leased, and those that no thread holds now.
    leases: Mutex<Leases>,
    /// Counts of threads whose local storage is gone.
    strays: Counters,
    /// Pools and streams that users hold; the last one closes the core.
    handles: AtomicU64,
    closed: AtomicBool,
    /// Steps of the program that have begun.
    steps: AtomicU64,
    /// Late frees to come until it is worth looking whether any block is still held.
    late: AtomicI64,
    /// The process that built it.
    process: u64,
    /// Keeps a closed core alive while blocks are held.
    anchor: Mutex<Option<Arc<Core>>>,
    /// Buffers that own nothing may still point here: the core stays for good.
    stays: AtomicBool,
    me: Weak<Core>,
}

#[derive(Default)]
struct Leases {
    all: Vec<Arc<ThreadCache>>,
    idle: Vec<Arc<ThreadCache>>,
}

/// A block in a user's hands: its descriptor and the hint that its next free makes good.
#[derive(Clone, Copy)]
pub struct Grant<'c> {
    pub block: &'c Descriptor,
    pub hint: Hint,
}

/// Whether a miss waits for the arena.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Enter {
    Wait,
    Try,
}

impl Enter {
    /// Takes a lock so; none where somebody else has it and is not waited for.
    pub fn lock<T>(self, mutex: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
        match self {
            Self::Wait => Some(lock(mutex)),
            Self::Try => match mutex.try_lock() {
                Ok(guard) => Some(guard),
                Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
                Err(TryLockError::WouldBlock) => None,
            },
        }
    }
}

impl Core {
    pub fn new(
        driver: Arc<dyn Driver>,
        fences: Arc<Fences>,
        devices: Box<[Arc<Device>]>,
        settings: &Settings,
        rescue: Option<Rescue>,
    ) -> Arc<Self> {
        Arc::new_cyclic(|me| Self {
            driver: Caught(driver),
            fences,
            devices,
            caches: Table::new(1 << 16),
            reuse: settings.reuse,
            notes_all: settings.kept() != Kept::Hints,
            uncached: settings.kept() == Kept::Nothing,
            rescue,
            leases: Mutex::new(Leases::default()),
            strays: Counters::default(),
            handles: AtomicU64::new(0),
            closed: AtomicBool::new(false),
            steps: AtomicU64::new(0),
            late: AtomicI64::new(0),
            process: fork::generation(),
            anchor: Mutex::new(None),
            stays: AtomicBool::new(false),
            me: Weak::clone(me),
        })
    }

    /// Another step of the program begins; returns its number.
    pub fn begin_step(&self) -> u64 {
        // Relaxed: a number, ordered with nothing.
        let step = self.steps.fetch_add(1, Ordering::Relaxed) + 1;
        if self.is_forked() {
            // Other threads' pushes to the recorders' queues will never end.
            return step;
        }
        for device in &self.devices {
            device.gauge.set_step(step);
            if let Some(recorder) = &device.recorder {
                recorder.step(step);
            }
            if self.notes_all
                // A thread that is in the arena looks at ages itself.
                && let Some(mut arena) = Enter::Try.lock(&device.arena)
            {
                arena.begin_step();
            }
        }
        if self.devices.iter().any(|device| device.planner.is_some()) {
            self.plan_step(step);
        }
        step
    }

    /// The number of the step that began last; 0 before the first.
    pub fn step(&self) -> u64 {
        self.steps.load(Ordering::Relaxed)
    }

    /// What a device has been asked for, if that is recorded. Its streams are numbered in the order in
    /// which they were made.
    pub fn recording(&self, device: &Device) -> Option<Recording> {
        let recorder = device.recorder.as_ref()?;
        let ids: Vec<u32> = planned::streams(&self.fences, device.id).collect();
        Some(recorder.recording(|id| ids.binary_search(&id).unwrap_or_else(|at| at) as u32))
    }

    /// A new reference to this core.
    pub fn share(&self) -> Arc<Self> {
        self.me.upgrade().expect("a core that is in use")
    }

    /// Whether this process is a forked child of the one that built the pool: no lock may be taken,
    /// and the driver not called.
    #[inline]
    pub fn is_forked(&self) -> bool {
        self.process != fork::generation()
    }

    /// Refuses in a forked child.
    #[inline]
    pub fn check_process(&self) -> Result<()> {
        if self.is_forked() { Err(Error::Forked) } else { Ok(()) }
    }

    /// Makes the core stay for good: in a forked child, where its end would call the driver's.
    pub fn leak(&self) {
        std::mem::forget(self.me.upgrade());
    }

    /// A buffer's block was freed by its address. The buffer does not count any more, and may outlive
    /// everything that does: the core's host memory is never freed.
    #[cold]
    #[inline(never)]
    pub fn stay(&self) {
        // Relaxed: the caller's share in the core lasts until after this.
        if !self.stays.swap(true, Ordering::Relaxed) {
            std::mem::forget(self.share());
        }
    }

    pub fn device(&self, id: DeviceId) -> Result<&Arc<Device>> {
        self.devices
            .get(usize::from(id.0))
            .ok_or(Error::NoSuchDevice { device: id, count: self.devices.len() as u16 })
    }

    /// The device whose reservation holds `address`.
    #[inline]
    pub fn device_at(&self, address: u64) -> Option<&Device> {
        self.devices.iter().map(|device| &**device).find(|device| device.blocks.contains(address))
    }

    fn stream_cache(&self, stream: StreamId) -> Option<&HintCache> {
        self.caches.get(u32::from(stream.get()))
    }

    /// Makes the stream's cache; its table comes with its first miss.
    pub fn open_stream(&self, stream: StreamId) {
        self.caches.get_or_create(u32::from(stream.get()));
    }

    /// Ends a stream: its cache is dropped (hints only), its last seal recorded.
    pub fn close_stream(&self, stream: StreamId) {
        if let Some(cache) = self.stream_cache(stream) {
            cache.clear();
        }
        self.fences.retire(stream);
    }

    pub fn lease(&self) -> Arc<ThreadCache> {
        let mut leases = lock(&self.leases);
        leases.idle.pop().unwrap_or_else(|| {
            let cache = Arc::new(ThreadCache::new());
            leases.all.push(Arc::clone(&cache));
            cache
        })
    }

    pub fn give_back(&self, cache: Arc<ThreadCache>) {
        lock(&self.leases).idle.push(cache);
    }

    /// Calls `each` with the counters of every thread there ever was.
    pub fn for_each_counters(&self, mut each: impl FnMut(&Counters)) {
        let leases = lock(&self.leases);
        leases.all.iter().for_each(|cache| each(&cache.counters));
        each(&self.strays);
    }

    /// Host memory of caches, tables, fences and arenas, in bytes.
    pub fn bookkeeping(&self) -> u64 {
        let streams: u64 = self.caches.records().map(HintCache::bytes).sum();
        let leases: u64 = lock(&self.leases).all.iter().map(|cache| cache.bytes()).sum();
        let devices: u64 = self
            .devices
            .iter()
            .map(|device| {
                device.blocks.bookkeeping()
                    + device.shards.bytes()
                    + device.recorder.as_ref().map_or(0, Recorder::bytes)
                    + device.movables.bytes()
                    + device.planner.as_ref().map_or(0, Planner::bytes)
                    + lock(&device.arena).bookkeeping()
            })
            .sum();
        streams + leases + devices + self.caches.bytes() + self.fences.bytes()
    }
}
