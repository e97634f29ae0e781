//! The pool, as users hold it.

use crate::builder::Builder;
use crate::config::{Bucket, Lifetime};
use crate::core::{Device, Enter, Handle};
use crate::defrag::Moved;
use crate::driver::{DeviceId, Driver, StreamHandle};
use crate::error::{Error, Result};
use crate::fence::Owner;
use crate::heap::Held;
use crate::level::Level;
use crate::pin::Pin;
use crate::plan::{Plan, Profile, Recording};
use crate::stats::{BucketStats, BuddyStats, Counters, CrossStream, DeviceStats, Hits, Stats};
use crate::stream::Stream;
use crate::sync::{Arc, Ordering, lock, on_each};
use std::fmt;

/// A memory pool over all devices of a driver.
///
/// Cheap to clone; clones are the same pool. It closes when the last `Pool` and [`Stream`] are gone;
/// buffers may outlive it, and the last of them gives the memory back to the driver.
#[derive(Clone)]
pub struct Pool(Handle);

impl Pool {
    pub(crate) fn of(core: Handle) -> Self {
        Self(core)
    }

    /// Starts setting up a pool over `driver`.
    pub fn builder(driver: impl Driver) -> Builder {
        Self::builder_shared(Arc::new(driver))
    }

    /// Starts setting up a pool over a driver that others use too.
    pub fn builder_shared(driver: Arc<dyn Driver>) -> Builder {
        Builder::new(driver)
    }

    /// A pool over `driver` with every setting at its default.
    ///
    /// # Errors
    /// As [`Builder::build`].
    pub fn new(driver: impl Driver) -> Result<Self> {
        Self::builder(driver).build()
    }

    /// Number of devices.
    pub fn device_count(&self) -> u16 {
        self.0.devices.len() as u16
    }

    /// Physical bytes of one device taken from the driver: [`crate::DeviceStats::reserved_bytes`] by
    /// itself. Lock-free.
    ///
    /// # Errors
    /// [`Error::NoSuchDevice`].
    pub fn reserved_bytes(&self, device: DeviceId) -> Result<u64> {
        Ok(self.0.device(device)?.gauge.reserved())
    }

    /// The driver that the pool was built over.
    pub fn driver(&self) -> &Arc<dyn Driver> {
        &self.0.driver.0
    }

    /// Creates a stream on a device. It is destroyed when its last clone is dropped; work it was
    /// given still runs.
    ///
    /// # Errors
    /// [`Error::NoSuchDevice`], [`Error::TooManyStreams`], [`Error::Forked`], or a driver error.
    pub fn stream(&self, device: DeviceId) -> Result<Stream> {
        self.0.check_process()?;
        Stream::create(&self.0, device)
    }

    /// Registers a stream of the caller's, which must stay valid until the last clone of the
    /// returned [`Stream`] is dropped. No work that touches the pool's memory may be submitted to it
    /// after that. Where the driver cannot tell, the pool takes your word for the device: of a stream
    /// that belongs to another, the driver will refuse to record events, so waits fail, and memory that
    /// was used on it serves it alone and does not go back to the driver.
    ///
    /// # Errors
    /// [`Error::NoSuchDevice`], [`Error::TooManyStreams`], [`Error::Forked`], or the driver's own where
    /// it can tell that the stream is not one of the device, or where it is the default stream of
    /// whichever thread uses it.
    pub fn register_stream(&self, device: DeviceId, handle: StreamHandle) -> Result<Stream> {
        self.register_as(device, handle, Owner::Caller)
    }

    pub(crate) fn register_as(
        &self,
        device: DeviceId,
        handle: StreamHandle,
        owner: Owner,
    ) -> Result<Stream> {
        self.0.check_process()?;
        let home = self.0.device(device)?;
        self.0.driver.check_stream(device, handle)?;
        Stream::register(self.0.clone(), home, handle, owner)
    }

    pub(crate) fn core(&self) -> &Handle {
        &self.0
    }

    /// Allocates at least `bytes` on `stream` and returns the device address. Work submitted to
    /// `stream` from now on may use it.
    ///
    /// # Errors
    /// As [`Stream::alloc`]; [`Error::ForeignStream`] when the stream belongs to another pool.
    #[inline]
    pub fn allocate(&self, bytes: u64, stream: &Stream) -> Result<u64> {
        self.allocate_as(bytes, stream, Lifetime::Transient)
    }

    /// As [`Pool::allocate`], for a block that is to live so long.
    ///
    /// # Errors
    /// As [`Pool::allocate`].
    #[inline]
    pub fn allocate_as(&self, bytes: u64, stream: &Stream, lifetime: Lifetime) -> Result<u64> {
        self.own(stream)?;
        let (home, id) = (stream.home(), stream.served_as());
        let grant = self.0.allocate_as(home, id, bytes, lifetime, Enter::Wait)?;
        grant.block.set_raw();
        Ok(grant.block.address())
    }

    /// Frees the block that starts at `address`. All work that touches it must have been submitted.
    /// Lock-free.
    ///
    /// # Errors
    /// [`Error::UnknownAddress`] when no block starts there, [`Error::NotAllocated`] when it was
    /// freed before. Neither changes anything. Of two threads that free an address at once one is
    /// told; but an address that was given out again is its new owner's. Freeing an address while
    /// another thread records a use of it, or drops its [`crate::Buffer`], is a race in the caller's
    /// program. Once a buffer's block is freed, the buffer owns nothing, and its drop does nothing;
    /// the pool's host memory then stays for good, since the buffer may outlive all else. In a forked
    /// child a free says what it would say, and gives nothing back.
    #[inline]
    pub fn free(&self, address: u64) -> Result<()> {
        self.0.free_address(address)
    }

    /// Says that work on `stream` uses the block at `address` until its free: the memory is not
    /// given to another stream before that work has run.
    ///
    /// # Errors
    /// As [`Pool::free`], and [`Error::ForeignStream`], [`Error::Forked`].
    pub fn record_use(&self, address: u64, stream: &Stream) -> Result<()> {
        self.0.check_process()?;
        self.own(stream)?;
        let (_, grant, _) = self.0.live_at(address)?;
        self.0.record_use(grant.block, stream.served_as());
        Ok(())
    }

    /// Says that the work `stream` has been given so far is its last that touches the block at
    /// `address`.
    ///
    /// # Errors
    /// As [`Pool::record_use`].
    pub fn last_use(&self, address: u64, stream: &Stream) -> Result<()> {
        self.0.check_process()?;
        self.own(stream)?;
        let (_, grant, _) = self.0.live_at(address)?;
        self.0.last_use(grant.block, stream.served_as());
        Ok(())
    }

    /// Pins the memory of the live block at `address` where it is: see [`Pin`].
    ///
    /// # Errors
    /// As [`Pool::free`], and [`Error::Forked`].
    pub fn pin(&self, address: u64) -> Result<Pin> {
        self.0.check_process()?;
        let device = Arc::clone(self.0.device(self.0.live_at(address)?.0.id)?);
        // Under the arena's lock: should the block be freed meanwhile, its pages stay all the same.
        let mut arena = lock(&device.arena);
        let (_, grant, _) = self.0.live_at(address)?;
        let bytes = grant.block.size();
        arena.pin(address, bytes, true);
        drop(arena);
        Ok(Pin::new(self.0.clone(), device, address, bytes))
    }

    fn own(&self, stream: &Stream) -> Result<()> {
        if stream.is_of(&self.0) {
            Ok(())
        } else {
            Err(Error::ForeignStream { stream: stream.id() })
        }
    }

    /// What each device has been asked for so far, in order, if the pool was built with
    /// [`Builder::profiling`]; nothing otherwise, and in a forked child.
    #[must_use]
    pub fn recording(&self) -> Vec<(DeviceId, Recording)> {
        if self.0.is_forked() {
            return Vec::new();
        }
        let of = |device: &Arc<Device>| Some((device.id, self.0.recording(device)?));
        self.0.devices.iter().filter_map(of).collect()
    }

    /// [`Pool::recording`] in figures, with what suits the program.
    #[must_use]
    pub fn profile(&self) -> Vec<(DeviceId, Profile)> {
        let recordings = self.recording();
        on_each(&recordings, |(device, recording)| (*device, Profile::of(recording)))
    }

    /// The plans that requests are served by now, or will be once the first comes: see
    /// [`Builder::planned`]. Another pool can begin with it. Takes a lock of each device.
    #[must_use]
    pub fn plan(&self) -> Plan {
        if self.0.is_forked() {
            return Plan::default();
        }
        self.0.planners().filter_map(|(_, planner)| planner.plan()).collect()
    }

    /// Says that a step of the program begins, one turn of what it does again and again: training's
    /// forward, backward and optimizer, or a batch served. What counts in steps counts these. Returns
    /// the step's number, from 1.
    ///
    /// Lock-free with every setting at its default. Where freed blocks wait, those that have waited too
    /// long go back, unless another thread is in the arena, which is not waited for; a planned pool may
    /// plan ([`Builder::planned`]), which takes locks, and up to some tens of milliseconds.
    pub fn begin_step(&self) -> u64 {
        self.0.begin_step()
    }

    /// A gap in a step of the program: between its parts, when little is in use, as after backward and
    /// before the optimizer. The one place where [`Movable`](crate::Movable) blocks of the stream's
    /// device move, as [`Builder::defragmentation`] says: by copies on `stream`, which run after what it
    /// was given. Those that are pinned stay, and those that work may still use, and all of them where
    /// the driver has failed to answer about `stream`. Then, with [`Builder::stitching`], idle pages come
    /// together by mapping them anew, at most 256 of them; and idle memory beyond what the last step had in
    /// use at once goes back to the driver, as far as the work is over; none of a fixed size's. Nothing is waited for, but for a moment, without virtual memory management, a
    /// device whose plain allocations are to go. Misses on the device wait meanwhile; hits, frees and
    /// pins of other blocks go on.
    ///
    /// # Errors
    /// [`Error::ForeignStream`], [`Error::Capturing`], [`Error::Forked`], [`Error::TooManyBlocks`], or a
    /// driver error; what was moved before it has been moved, and nothing is lost.
    pub fn step_gap(&self, stream: &Stream) -> Result<Moved> {
        self.0.check_process()?;
        self.own(stream)?;
        stream.check_capture()?;
        self.0.step_gap(stream.home(), stream.id())
    }

    /// Gives idle memory of one device back to the driver until at most `target` bytes are reserved,
    /// as far as whole pages are idle and the work that used them is over. Gives nothing back while a
    /// stream of the device captures. Without virtual memory management it is whole plain allocations
    /// that go back, once all of the device's work is over, which is waited for as long as
    /// [`Builder::host_wait`] says. A plan's range goes too, but for the places that are held, and comes back
    /// with the plan: with its next request, or some steps later where places were held. Returns the bytes still reserved.
    ///
    /// # Errors
    /// [`Error::NoSuchDevice`], [`Error::Forked`], or a driver error: what was not given back stays
    /// usable.
    pub fn trim(&self, device: DeviceId, target: u64) -> Result<u64> {
        self.0.check_process()?;
        let device = self.0.device(device)?;
        lock(&device.arena).trim(target)?;
        // What a plan's range has left, only where more is wanted.
        if device.gauge.reserved() > target
            && device.planner.as_ref().is_some_and(|planner| planner.trim(device))
        {
            lock(&device.arena).trim(target)?;
        }
        Ok(device.gauge.reserved())
    }

    /// Trims every device to `target` bytes, in parallel.
    ///
    /// # Errors
    /// The first driver error, after every device was tried.
    pub fn trim_all(&self, target: u64) -> Result<()> {
        let results = on_each(&self.0.devices, |device| self.trim(device.id, target));
        results.into_iter().try_for_each(|result| result.map(drop))
    }

    /// What the pool holds and how it was used. In a forked child what takes a lock to find out is
    /// left at 0: live bytes, hits, and the pool's own tables.
    pub fn stats(&self) -> Stats {
        let core = &*self.0;
        let forked = core.is_forked();
        let mut hits = Hits::default();
        let mut buckets =
            Bucket::ALL.map(|bucket| BucketStats { bucket, requests: 0, hits: 0, cached_bytes: 0 });
        let add = |counters: &Counters| {
            let thread = counters.thread_hits.load(Ordering::Relaxed);
            hits.thread += thread;
            for bucket in &mut buckets {
                let at = bucket.bucket as usize;
                // All of a thread's bins are of small blocks.
                let thread = if bucket.bucket == Bucket::Small { thread } else { 0 };
                bucket.requests += thread + counters.requests[at].load(Ordering::Relaxed);
                bucket.hits += thread + counters.cache_hits[at].load(Ordering::Relaxed);
            }
            hits.stream += counters.stream_hits.load(Ordering::Relaxed);
            hits.shard += counters.shard_hits.load(Ordering::Relaxed);
            hits.buddy += counters.buddy_hits.load(Ordering::Relaxed);
            hits.planned += counters.planned_hits.load(Ordering::Relaxed);
            hits.heap += counters.heap_hits.load(Ordering::Relaxed);
        };
        if !forked {
            core.for_each_counters(add);
        }
        let held = on_each(&core.devices, |device| match forked {
            true => Held::default(),
            false => core.held(device),
        });
        for bucket in &mut buckets {
            let at = bucket.bucket as usize;
            bucket.cached_bytes = held.iter().map(|held| held.cached[at]).sum();
            bucket.hits +=
                core.devices.iter().map(|device| device.gauge.reused(bucket.bucket)).sum::<u64>();
        }
        let devices = core.devices.iter().zip(&held).map(|(device, held)| DeviceStats {
            device: device.id,
            live_bytes: held.live,
            reserved_bytes: device.gauge.reserved(),
            peak_reserved_bytes: device.gauge.peak(),
            limit_bytes: device.limit,
            ladder: device.gauge.ladder(),
            merging: device.gauge.merging(),
            moves: device.gauge.moves(),
            buddy: if forked { BuddyStats::default() } else { lock(&device.arena).buddy_stats() },
        });
        let devices = devices.collect();
        let cross_stream = CrossStream {
            hits: core.devices.iter().map(|device| device.gauge.cross_hits()).sum(),
            waits: core.fences.waits(),
        };
        Stats {
            devices,
            hits,
            buckets,
            cross_stream,
            bookkeeping_bytes: if forked { 0 } else { core.bookkeeping() },
            steps: core.step(),
            poisoned_streams: core.fences.poisonings(),
        }
    }

    /// Checks every invariant of the heaps; panics with what is wrong. For tests: it walks all
    /// extents under the arenas' locks.
    #[doc(hidden)]
    pub fn check_invariants(&self) {
        self.check_invariants_at(Level::Heap);
    }

    /// Checks the pool's invariants as thoroughly as `level` says; panics with what is wrong. For
    /// tests.
    #[doc(hidden)]
    pub fn check_invariants_at(&self, level: Level) {
        self.0.check(level);
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool")
            .field("driver", &self.0.driver.name())
            .field("devices", &self.0.devices.len())
            .finish_non_exhaustive()
    }
}
