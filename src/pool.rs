//! The pool and its builder.

use crate::config::{Headroom, Rescue, Reuse, Settings, Watermarks};
use crate::core::{Core, Device, Enter, Handle};
use crate::driver::{Caught, DeviceId, Driver, StreamHandle};
use crate::error::{Error, OutOfMemory, Result};
use crate::fence::{Fences, Owner};
use crate::fork;
use crate::heap::{Addresses, Arena, Blocks, Gauge, Layout};
use crate::level::Level;
use crate::pin::Pin;
use crate::shard::Shards;
use crate::stats::{Counters, CrossStream, DeviceStats, Hits, Stats};
use crate::stream::Stream;
use crate::sync::{Arc, Mutex, Ordering, lock, on_each};
use std::fmt;
use std::time::Duration;

/// A memory pool over all devices of a driver.
///
/// Cheap to clone; clones are the same pool. It closes when the last `Pool` and [`Stream`] are gone;
/// buffers may outlive it, and the last of them gives the memory back to the driver.
#[derive(Clone)]
pub struct Pool(Handle);

/// Sets up a [`Pool`].
#[derive(Clone, Debug)]
pub struct Builder {
    driver: Arc<dyn Driver>,
    reuse: Reuse,
    headroom: Option<Headroom>,
    capacity: Option<u64>,
    capacities: Vec<(DeviceId, u64)>,
    share: Option<f64>,
    page_bytes: Option<u64>,
    watermarks: Option<Watermarks>,
    host_wait: Duration,
    peer_access: bool,
    peers: Vec<(DeviceId, Vec<DeviceId>)>,
    rescue: Option<Rescue>,
    /// The process that it was made in.
    process: u64,
}

impl Builder {
    /// When memory that one stream freed may serve another. Default: [`Reuse::Wait`].
    #[must_use]
    pub fn reuse(mut self, reuse: Reuse) -> Self {
        self.reuse = reuse;
        self
    }

    /// Most physical bytes to take from each device, rounded down to pages. Default: all it has.
    #[must_use]
    pub fn capacity(mut self, bytes: u64) -> Self {
        self.capacity = Some(bytes);
        self
    }

    /// Most physical bytes to take from one device; goes before [`Builder::capacity`].
    #[must_use]
    pub fn device_capacity(mut self, device: DeviceId, bytes: u64) -> Self {
        self.capacities.push((device, bytes));
        self
    }

    /// How much more than the most that was ever live a device may hold while idle pages could be
    /// moved to where they are needed. Moving costs driver calls, holding costs memory. Default:
    /// [`Headroom::Unbounded`] where a capacity is set, else [`Headroom::Automatic`]. Without virtual
    /// memory management nothing moves, and it is always [`Headroom::Unbounded`].
    #[must_use]
    pub fn headroom(mut self, headroom: Headroom) -> Self {
        self.headroom = Some(headroom);
        self
    }

    /// As [`Builder::capacity`], as a share of each device's memory, from 0 to 1.
    #[must_use]
    pub fn capacity_share(mut self, share: f64) -> Self {
        self.share = Some(if share.is_nan() { 1.0 } else { share.clamp(0.0, 1.0) });
        self
    }

    /// Bytes of a page, the unit in which memory is taken from the driver and moved, rounded up to
    /// a power of two, and to the driver's granularity. Larger pages take fewer driver calls to get and to move, and more
    /// memory: parts of a page cannot move. Without virtual memory management the sizes of plain
    /// allocations are multiples of it. Default: the granularity.
    #[must_use]
    pub fn page_bytes(mut self, bytes: u64) -> Self {
        self.page_bytes = Some(bytes);
        self
    }

    /// When a device holds more than `high` bytes, idle memory goes back to the driver until it
    /// holds `low`, as far as whole pages are idle and the work that used them is over. Looked at
    /// once in 64 misses of the caches; nothing waits. Without virtual memory management whole plain
    /// allocations go back, which waits for the device, and while it does not get done they stay.
    /// Default: idle memory is kept.
    #[must_use]
    pub fn watermarks(mut self, low: u64, high: u64) -> Self {
        self.watermarks = Some(Watermarks { low: low.min(high), high });
        self
    }

    /// Lets every device of the pool touch the memory of every other (copies and kernels across
    /// devices). Access is set page by page as memory is mapped, which costs driver time for each
    /// device; without virtual memory management once, when the pool is built. Default: off.
    #[must_use]
    pub fn peer_access(mut self, on: bool) -> Self {
        self.peer_access = on;
        self
    }

    /// Lets these devices, and no others, touch the memory of one device; goes before
    /// [`Builder::peer_access`], which then decides for the other devices.
    #[must_use]
    pub fn device_peers(mut self, device: DeviceId, peers: &[DeviceId]) -> Self {
        self.peers.push((device, peers.to_vec()));
        self
    }

    /// What to do before an allocation fails for want of memory: `rescue` is told where the memory
    /// is, and answers whether it made room; then the allocation starts over. It is called on the
    /// allocating thread, which holds no lock of the pool: it may free, trim, and ask for figures.
    /// It goes on being called until it answers false, and for its own allocations too.
    #[must_use]
    pub fn on_out_of_memory(
        mut self,
        rescue: impl Fn(&OutOfMemory) -> bool + Send + Sync + 'static,
    ) -> Self {
        self.rescue = Some(Rescue(Arc::new(rescue)));
        self
    }

    /// How long an allocation may wait on the host for work in flight before it reports
    /// out-of-memory. Default: one second.
    #[must_use]
    pub fn host_wait(mut self, timeout: Duration) -> Self {
        // Nobody waits longer, and deadlines stay within what the clock can say.
        self.host_wait = timeout.min(Duration::from_secs(1 << 32));
        self
    }

    /// Builds the pool: reserves address space on every device that has virtual memory management,
    /// seven times its memory, and takes no memory yet.
    ///
    /// # Errors
    /// [`Error::Driver`] when a device cannot be asked, has no address space left, or cannot be touched
    /// by one that was to; [`Error::NoSuchDevice`] when [`Builder::device_peers`] named one;
    /// [`Error::Forked`] when the process has forked since the builder got its driver.
    pub fn build(self) -> Result<Pool> {
        if self.process != fork::generation() {
            return Err(Error::Forked);
        }
        let fences = Arc::new(Fences::new(Arc::clone(&self.driver)));
        let driver = Caught(Arc::clone(&self.driver));
        let count = self.driver.device_count();
        let ids: Vec<DeviceId> = (0..count).map(DeviceId).collect();
        let mut named = self.peers.iter().flat_map(|(of, peers)| peers.iter().chain([of]));
        if let Some(&device) = named.find(|device| device.0 >= count) {
            return Err(Error::NoSuchDevice { device, count });
        }
        let built = on_each(&ids, |&id| self.device(&driver, id, &fences));
        let mut devices = Vec::with_capacity(built.len());
        let mut failure = None;
        for device in built {
            match device {
                Ok(device) => devices.push(device),
                Err(error) => failure = Some(error),
            }
        }
        if let Some(error) = failure {
            for device in devices {
                if let Some((address, bytes)) = device.reservation {
                    let _ = driver.unreserve(device.id, address, bytes);
                }
            }
            return Err(error);
        }
        let devices = devices.into_iter().map(Arc::new).collect();
        let core = Core::new(self.driver, fences, devices, self.reuse, self.rescue);
        Ok(Pool(Handle::new(core)))
    }

    /// The devices that may touch one's memory, itself among them.
    fn access(&self, id: DeviceId) -> Box<[DeviceId]> {
        let named = self.peers.iter().rev().find(|(device, _)| *device == id);
        let mut access: Vec<DeviceId> = match named {
            Some((_, peers)) => peers.clone(),
            None if self.peer_access => (0..self.driver.device_count()).map(DeviceId).collect(),
            None => Vec::new(),
        };
        access.push(id);
        access.sort_unstable();
        access.dedup();
        access.into()
    }

    fn device(&self, driver: &Caught, id: DeviceId, fences: &Arc<Fences>) -> Result<Device> {
        let info = driver.device(id)?;
        // At most the device's memory, of which there is to be a page at least.
        let largest = 1 << info.memory_bytes.max(1).ilog2();
        let page_bytes = self.page_bytes.unwrap_or(0).min(largest).next_power_of_two();
        let page_bytes = page_bytes.max(info.granularity);
        let asked = self
            .capacities
            .iter()
            .rev()
            .find_map(|&(device, bytes)| (device == id).then_some(bytes))
            .or(self.capacity)
            .or(self.share.map(|share| (info.memory_bytes as f64 * share) as u64));
        let headroom = match (self.headroom, asked) {
            // Nothing moves there, so nothing is gained by keeping to less.
            _ if !info.virtual_memory => Headroom::Unbounded,
            (Some(headroom), _) => headroom,
            (None, Some(_)) => Headroom::Unbounded,
            (None, None) => Headroom::Automatic,
        };
        let settings = Settings {
            reuse: self.reuse,
            headroom,
            watermarks: self.watermarks,
            host_wait: self.host_wait,
        };
        let limit = asked.unwrap_or(info.memory_bytes) / page_bytes * page_bytes;
        let access = self.access(id);
        let (addresses, reservation, blocks) = if info.virtual_memory {
            // Address space is cheap: enough that holes never force a move, nor the places that pages
            // have left and that work in flight may still use. Small blocks alone may fill the device.
            let span = info.memory_bytes.next_multiple_of(page_bytes);
            let (small, large) = (span * 2, span * 5);
            // Pages larger than the granularity are aligned all the same.
            let reserved = small + large + page_bytes - info.granularity;
            let reservation = driver.reserve(id, reserved)?;
            let blocks = Blocks::new(reservation.next_multiple_of(page_bytes), small + large);
            (Addresses::Reserved { small, large }, Some((reservation, reserved)), blocks)
        } else {
            for &peer in access.iter().filter(|&&peer| peer != id) {
                driver.enable_peer(id, peer)?;
            }
            (Addresses::Drivers, None, Blocks::anywhere())
        };
        let layout = Layout { page_bytes, addresses, limit };
        let blocks = Arc::new(blocks);
        let gauge = Arc::new(Gauge::default());
        let mut arena = Arena::new(
            Arc::clone(&self.driver),
            id,
            Arc::clone(&blocks),
            Arc::clone(fences),
            Arc::clone(&gauge),
            layout,
            settings,
        )
        .ok_or(Error::TooManyBlocks { device: id })?;
        arena.set_access(access);
        Ok(Device {
            id,
            blocks,
            arena: Mutex::new(arena),
            shards: Shards::default(),
            gauge,
            limit,
            reservation,
        })
    }
}

impl Pool {
    /// Starts setting up a pool over `driver`.
    pub fn builder(driver: impl Driver) -> Builder {
        Self::builder_shared(Arc::new(driver))
    }

    /// Starts setting up a pool over a driver that others use too.
    pub fn builder_shared(driver: Arc<dyn Driver>) -> Builder {
        fork::watch();
        Builder {
            driver,
            reuse: Reuse::default(),
            headroom: None,
            capacity: None,
            capacities: Vec::new(),
            share: None,
            page_bytes: None,
            watermarks: None,
            host_wait: Duration::from_secs(1),
            peer_access: false,
            peers: Vec::new(),
            rescue: None,
            process: fork::generation(),
        }
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
        self.own(stream)?;
        let grant = self.0.allocate(stream.home(), stream.served_as(), bytes, Enter::Wait)?;
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

    /// Gives idle memory of one device back to the driver until at most `target` bytes are reserved,
    /// as far as whole pages are idle and the work that used them is over. Gives nothing back while a
    /// stream of the device captures. Without virtual memory management it is whole plain allocations
    /// that go back, once all of the device's work is over, which is waited for as long as
    /// [`Builder::host_wait`] says. Returns the bytes still reserved.
    ///
    /// # Errors
    /// [`Error::NoSuchDevice`], [`Error::Forked`], or a driver error: what was not given back stays
    /// usable.
    pub fn trim(&self, device: DeviceId, target: u64) -> Result<u64> {
        self.0.check_process()?;
        let device = self.0.device(device)?;
        lock(&device.arena).trim(target)?;
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
        let add = |counters: &Counters| {
            hits.thread += counters.thread_hits.load(Ordering::Relaxed);
            hits.stream += counters.stream_hits.load(Ordering::Relaxed);
            hits.shard += counters.shard_hits.load(Ordering::Relaxed);
            hits.heap += counters.heap_hits.load(Ordering::Relaxed);
        };
        if !forked {
            core.for_each_counters(add);
        }
        let devices = on_each(&core.devices, |device| DeviceStats {
            device: device.id,
            live_bytes: if forked { 0 } else { core.live_bytes(device) },
            reserved_bytes: device.gauge.reserved(),
            peak_reserved_bytes: device.gauge.peak(),
            limit_bytes: device.limit,
            ladder: device.gauge.ladder(),
        });
        let cross_stream = CrossStream {
            hits: core.devices.iter().map(|device| device.gauge.cross_hits()).sum(),
            waits: core.fences.waits(),
        };
        Stats {
            devices,
            hits,
            cross_stream,
            bookkeeping_bytes: if forked { 0 } else { core.bookkeeping() },
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
