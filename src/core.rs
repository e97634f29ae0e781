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

use crate::block::{Descriptor, Fence, Hint, State, StreamId, Word};
use crate::cache::thread::{Entry, ThreadCache};
use crate::cache::{HintCache, Probe};
use crate::config::{Reuse, Settings};
use crate::driver::{DeviceId, Driver};
use crate::error::{Error, OutOfMemory, Result};
use crate::fence::{Asked, Fences};
use crate::heap::{Arena, Blocks, Denied, Gauge, Request};
use crate::lease::{self, Lease};
use crate::shard::Shards;
use crate::size::{self, QUANTUM};
use crate::stats::{Counters, bump};
use crate::sync::{Arc, AtomicBool, AtomicI64, AtomicU64, Mutex, MutexGuard, Ordering, lock};
use crate::table::Table;
use crossbeam_epoch as epoch;
use std::sync::{TryLockError, Weak};

/// One device's part of the pool.
pub struct Device {
    pub id: DeviceId,
    pub blocks: Arc<Blocks>,
    pub arena: Mutex<Arena>,
    pub shards: Shards,
    pub gauge: Arc<Gauge>,
    pub limit: u64,
}

/// Everything that streams, buffers and threads share.
pub struct Core {
    pub driver: Arc<dyn Driver>,
    pub fences: Arc<Fences>,
    pub devices: Box<[Arc<Device>]>,
    caches: Table<HintCache>,
    pub settings: Settings,
    /// Every thread cache ever leased, and those that no thread holds now.
    leases: Mutex<Leases>,
    /// Counts of threads whose local storage is gone.
    strays: Counters,
    /// Pools and streams that users hold; the last one closes the core.
    handles: AtomicU64,
    closed: AtomicBool,
    /// Late frees to come until it is worth looking whether any block is still held.
    late: AtomicI64,
    /// Keeps a closed core alive while blocks are held.
    anchor: Mutex<Option<Arc<Core>>>,
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

impl Core {
    pub fn new(
        driver: Arc<dyn Driver>,
        fences: Arc<Fences>,
        devices: Box<[Arc<Device>]>,
        settings: Settings,
    ) -> Arc<Self> {
        Arc::new_cyclic(|me| Self {
            driver,
            fences,
            devices,
            caches: Table::new(1 << 16),
            settings,
            leases: Mutex::new(Leases::default()),
            strays: Counters::default(),
            handles: AtomicU64::new(0),
            closed: AtomicBool::new(false),
            late: AtomicI64::new(0),
            anchor: Mutex::new(None),
            me: Weak::clone(me),
        })
    }

    /// A new reference to this core.
    pub fn share(&self) -> Arc<Self> {
        self.me.upgrade().expect("a core that is in use")
    }

    pub fn device(&self, id: DeviceId) -> Result<&Arc<Device>> {
        self.devices
            .get(usize::from(id.0))
            .ok_or(Error::NoSuchDevice { device: id, count: self.devices.len() as u16 })
    }

    /// The device whose reservation holds `address`.
    pub fn device_at(&self, address: u64) -> Option<&Device> {
        self.devices.iter().map(|device| &**device).find(|device| device.blocks.contains(address))
    }

    fn stream_cache(&self, stream: StreamId) -> Option<&HintCache> {
        self.caches.get(u32::from(stream.get()))
    }

    // ----- allocation -----

    /// Allocates `bytes` on `stream` of `device`. A hit in the thread cache ends here.
    #[inline(always)]
    pub fn allocate<'c>(
        &'c self,
        device: &'c Device,
        stream: StreamId,
        bytes: u64,
        enter: Enter,
    ) -> Result<Grant<'c>> {
        if bytes.wrapping_sub(1) < size::SMALL_MAX
            && let Some(cache) = lease::last(self)
            // SAFETY: this thread holds the lease, and no other borrow of its sets is alive here.
            && let Some(set) = unsafe { cache.set(stream) }
        {
            while let Some(Entry { hint, block }) = set.pop(size::class_of(bytes)) {
                // SAFETY: descriptors are type-stable as long as the core.
                let block = unsafe { &*block };
                if let Some(hint) = block.claim(hint) {
                    block.set_requested_small(bytes);
                    bump(&cache.counters.thread_hits, 1);
                    return Ok(Grant { block, hint });
                }
            }
        }
        self.allocate_shared(device, stream, bytes, enter)
    }

    #[cold]
    #[inline(never)]
    fn allocate_shared<'c>(
        &'c self,
        device: &'c Device,
        stream: StreamId,
        bytes: u64,
        enter: Enter,
    ) -> Result<Grant<'c>> {
        if bytes == 0 {
            return Err(Error::ZeroSize);
        }
        if bytes > size::REQUEST_MAX {
            return Err(Error::TooLarge { bytes, max: size::REQUEST_MAX });
        }
        let granted = size::granted(bytes);
        let key = granted / QUANTUM;
        let lease = lease::get(self);
        if let (Some(cache), true) = (lease, size::is_small(bytes)) {
            self.want(cache, stream, size::class_of(bytes));
        }
        let (grant, layer) = match self.from_caches(lease, device, stream, key)? {
            Some(found) => found,
            None => {
                let request = Request { stream, bytes: granted, requested: bytes };
                (self.from_arena(device, request, enter)?, Layer::Heap)
            }
        };
        grant.block.set_requested(bytes);
        match lease {
            Some(cache) => bump(layer.counter(&cache.counters), 1),
            None => {
                layer.counter(&self.strays).fetch_add(1, Ordering::Relaxed);
            }
        }
        Ok(grant)
    }

    /// The thread asked for a small size: it keeps bins for it from now on.
    fn want(&self, cache: &ThreadCache, stream: StreamId, class: usize) {
        let evict = |other: StreamId, class: usize, hint: Hint| {
            // Only blocks of the evicted stream's own device are in its bins.
            if let (Some(cache), Ok(home)) =
                (self.stream_cache(other), self.device(self.fences.device(other)))
            {
                let key = size::class_bytes(class) / QUANTUM;
                cache.put(key, hint, |hint| home.blocks.is_stale(hint), &epoch::pin());
            }
        };
        // SAFETY: this thread holds the lease; `evict` touches no thread cache.
        if let Some(set) = unsafe { cache.adopt(stream, self.fences.stream(stream), evict) } {
            set.want(class);
        }
    }

    /// A block of exactly this size from the stream's cache or the shards.
    fn from_caches<'c>(
        &'c self,
        lease: Option<&Lease>,
        device: &'c Device,
        stream: StreamId,
        key: u64,
    ) -> Result<Option<(Grant<'c>, Layer)>> {
        let guard = lease::pin(lease);
        let blocks = &*device.blocks;
        let own = |hint: Hint| {
            let block = blocks.at(hint.index());
            match block.claim(hint) {
                Some(hint) => Probe::Taken(Grant { block, hint }),
                None => Probe::Stale,
            }
        };
        let cache = self.stream_cache(stream);
        if let Some(grant) = cache.and_then(|cache| cache.take(key, own, &guard)) {
            return Ok(Some((grant, Layer::Stream)));
        }

        // From the shards: the fences are read first and count if the claim succeeds.
        let mut refused = false;
        let claim = |hint: Hint, usable: &mut dyn FnMut(&Descriptor) -> bool| {
            let block = blocks.at(hint.index());
            if blocks.is_stale(hint) {
                return Probe::Stale;
            }
            if !usable(block) {
                return Probe::Keep;
            }
            match block.claim(hint) {
                Some(hint) => {
                    block.reset_fences(stream);
                    Probe::Taken(Grant { block, hint })
                }
                None => Probe::Stale,
            }
        };
        let known = |hint| {
            claim(hint, &mut |block| {
                let usable = block.all_fences(|fence| self.fences.ordered(stream, fence));
                refused |= !usable;
                usable
            })
        };
        if let Some(grant) = device.shards.take(stream, key, known, &guard) {
            return Ok(Some((grant, Layer::Shard)));
        }
        if refused && self.settings.reuse != Reuse::SameStream {
            let mut asked = Asked::default();
            let mut failure = None;
            let ask = |hint| {
                claim(hint, &mut |block| {
                    block.all_fences(|fence| {
                        self.fences.ordered(stream, fence)
                            || asked.ask(&self.fences, fence).unwrap_or_else(|error| {
                                failure = Some(error);
                                false
                            })
                    })
                })
            };
            if let Some(grant) = device.shards.take(stream, key, ask, &guard) {
                return Ok(Some((grant, Layer::Shard)));
            }
            if let Some(error) = failure {
                return Err(error.into());
            }
        }
        // A miss: the time to make room where hints were lost.
        let stale = |hint| blocks.is_stale(hint);
        if let Some(cache) = cache {
            cache.make_room(stale, &guard);
        }
        device.shards.make_room(stream, stale, &guard);
        Ok(None)
    }

    fn from_arena<'c>(
        &'c self,
        device: &'c Device,
        request: Request,
        enter: Enter,
    ) -> Result<Grant<'c>> {
        let mut arena = self.enter(device, enter)?;
        let outcome = arena.allocate(request);
        drop(arena);
        match outcome {
            Ok((index, word)) => {
                Ok(Grant { block: device.blocks.at(index), hint: word.hint(index) })
            }
            Err(Denied::Driver(error)) => Err(error.into()),
            Err(Denied::Descriptors) => Err(Error::TooManyBlocks { device: device.id }),
            Err(Denied::OutOfMemory { largest_free, free }) => {
                Err(Error::OutOfMemory(Box::new(OutOfMemory {
                    device: device.id,
                    stream: request.stream,
                    requested: request.requested,
                    live: self.live_bytes(device),
                    reserved: device.gauge.reserved(),
                    limit: device.limit,
                    free,
                    largest_free,
                })))
            }
        }
    }

    fn enter<'c>(&self, device: &'c Device, enter: Enter) -> Result<MutexGuard<'c, Arena>> {
        match enter {
            Enter::Wait => Ok(lock(&device.arena)),
            Enter::Try => match device.arena.try_lock() {
                Ok(arena) => Ok(arena),
                Err(TryLockError::Poisoned(poisoned)) => Ok(poisoned.into_inner()),
                Err(TryLockError::WouldBlock) => Err(Error::Busy { device: device.id }),
            },
        }
    }

    /// Requested bytes of the blocks that users hold on a device. Walks the arena.
    pub fn live_bytes(&self, device: &Device) -> u64 {
        lock(&device.arena).live_bytes()
    }

    // ----- free -----

    /// Frees a block that its owner holds live and gives up. A small block of a stream that this
    /// thread keeps bins for ends here. Lock-free.
    #[inline(always)]
    pub fn free(&self, device: &Device, grant: Grant<'_>) {
        let owned = Word::live(grant.hint);
        if grant.block.word() == owned && self.free_to_thread(grant, owned) {
            return;
        }
        self.free_shared(device, grant);
    }

    /// The free's short way, for a block without flags that the caller owns.
    #[inline(always)]
    fn free_to_thread(&self, Grant { block, hint }: Grant<'_>, owned: Word) -> bool {
        if let Some(class) = block.class()
            && let Some(cache) = lease::last(self)
            // SAFETY: this thread holds the lease, and no other borrow of its sets is alive here.
            && let Some(set) = unsafe { cache.set(block.stream()) }
            && !self.closed.load(Ordering::Relaxed)
            // The hint is filed before it is good; only this thread looks there.
            && set.push(class, Entry { hint, block })
        {
            // SAFETY: the record is type-stable and lives as long as the core.
            block.stamp_own(unsafe { &*set.fence() }.stamp(block.stream()));
            block.release(owned);
            return true;
        }
        false
    }

    #[cold]
    #[inline(never)]
    fn free_shared(&self, device: &Device, grant: Grant<'_>) {
        // A thread without a lease keeps the core alive by itself until it is through.
        let lease = lease::get(self);
        let _alive = lease.is_none().then(|| self.share());
        let Grant { block, hint } = grant;
        let (stream, bytes) = (block.stream(), block.size());
        let mut word = block.word();
        let uses = word.has(Word::USES);
        if uses {
            block.stamp_open(|stream| self.fences.stamp(stream));
        } else {
            block.stamp_own(self.fences.stamp(stream));
        }
        // A large block is in the arena's index, or goes there by a note: exactly one is pushed
        // for each time the flag is set.
        let large = !size::is_small(bytes);
        loop {
            let flags = if large { Word::INDEXED } else { 0 };
            let cached = word.with_state(State::Cached).without(Word::USES).with(flags);
            match block.exchange(word, cached) {
                Ok(()) => break,
                Err(found) => word = found,
            }
        }
        if large && !word.has(Word::INDEXED) {
            device.blocks.note(hint.index());
        }
        if self.closed.load(Ordering::Acquire) {
            self.settle_late_free();
            return;
        }
        let own = !uses && !self.fences.has_ended(stream);
        self.file(lease, device, Grant { block, hint }, stream, own);
    }

    /// Files the hint of a block that was just freed.
    fn file(
        &self,
        lease: Option<&Lease>,
        device: &Device,
        Grant { block, hint }: Grant<'_>,
        stream: StreamId,
        own: bool,
    ) {
        let guard = lease::pin(lease);
        let bytes = block.size();
        let key = bytes / QUANTUM;
        let cache = if own { self.stream_cache(stream) } else { None };
        if !size::is_small(bytes) {
            let _ = cache.is_some_and(|cache| cache.put_over(key, hint, &guard))
                || device.shards.put_over(stream, key, hint, &guard);
            return;
        }
        let stale = |hint| device.blocks.is_stale(hint);
        if cache.is_some_and(|cache| cache.put(key, hint, stale, &guard))
            || device.shards.put(stream, key, hint, stale, &guard)
        {
            return;
        }
        // No room for a small block's hint: the arena gets a note instead, unless somebody has
        // found the block already.
        let word = block.word();
        if word.matches(hint)
            && word.state() == State::Cached
            && !word.has(Word::INDEXED)
            && block.exchange(word, word.with(Word::INDEXED)).is_ok()
        {
            device.blocks.note(hint.index());
        }
    }

    /// A use on another stream, until the free.
    pub fn record_use(&self, block: &Descriptor, stream: StreamId) {
        if block.stream() != stream {
            block.begin_uses();
            block.record_use(Fence::open(stream));
        }
    }

    /// A use that ends with what the stream has been given so far.
    pub fn last_use(&self, block: &Descriptor, stream: StreamId) {
        block.begin_uses();
        block.record_use(self.fences.stamp(stream));
    }

    /// Frees by address: claims the block first, so that of two frees one is told.
    #[inline]
    pub fn free_address(&self, address: u64) -> Result<()> {
        let (device, grant, mut word) = self.live_at(address)?;
        // Only flags can move while the block stays live under this tag, and at most twice.
        while let Err(found) = grant.block.exchange(word, word.with_state(State::Claimed)) {
            if !found.matches(grant.hint) || found.state() != State::Live {
                return Err(Error::NotAllocated { address });
            }
            word = found;
        }
        let plain = word == Word::live(grant.hint);
        if !(plain && self.free_to_thread(grant, word)) {
            self.free_shared(device, grant);
        }
        Ok(())
    }

    /// The live block that starts at `address`.
    #[inline]
    pub fn live_at(&self, address: u64) -> Result<(&Device, Grant<'_>, Word)> {
        let device = self.device_at(address).ok_or(Error::UnknownAddress { address })?;
        let (index, block, word) =
            device.blocks.find(address).ok_or(Error::UnknownAddress { address })?;
        match word.state() {
            State::Live => Ok((device, Grant { block, hint: word.hint(index) }, word)),
            State::Cached | State::Claimed => Err(Error::NotAllocated { address }),
            State::Spare | State::Free | State::Hole => Err(Error::UnknownAddress { address }),
        }
    }

    // ----- streams -----

    /// Makes the stream's cache; its table comes with its first miss.
    pub fn open_stream(&self, stream: StreamId) -> bool {
        self.caches.get_or_create(u32::from(stream.get())).is_some()
    }

    /// Ends a stream: its cache is dropped (hints only), its last seal recorded.
    pub fn close_stream(&self, stream: StreamId) {
        if let Some(cache) = self.stream_cache(stream) {
            cache.clear();
        }
        self.fences.retire(stream);
    }

    // ----- leases -----

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
                    + lock(&device.arena).bookkeeping()
            })
            .sum();
        streams + leases + devices + self.caches.bytes() + self.fences.bytes()
    }

    // ----- end of life -----

    pub fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    fn add_handle(&self) {
        self.handles.fetch_add(1, Ordering::Relaxed);
    }

    fn drop_handle(&self) {
        if self.handles.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.close();
        }
    }

    /// The last handle is gone: nobody allocates any more. When no block is held the memory goes
    /// back to the driver now; else the last late free gives it back.
    fn close(&self) {
        *lock(&self.anchor) = Some(self.share());
        self.closed.store(true, Ordering::SeqCst);
        self.give_back_if_idle();
    }

    /// A block was freed after its pool had closed. Looking whether it was the last takes a walk
    /// over all extents, so it is done each time that half of those seen last have gone.
    fn settle_late_free(&self) {
        let late = self.late.fetch_sub(1, Ordering::AcqRel);
        if late <= 1 {
            self.give_back_if_idle();
        }
    }

    /// Gives all memory back to the driver if the pool is closed and no block is held. A free that
    /// did not see the pool close is not lost: its thread looks again when it ends its lease.
    pub fn give_back_if_idle(&self) {
        let mut anchor = lock(&self.anchor);
        if anchor.is_none() {
            return;
        }
        let live: u64 = self.devices.iter().map(|device| lock(&device.arena).live_blocks()).sum();
        if live > 0 {
            self.late.store(live.div_ceil(2) as i64, Ordering::Release);
            return;
        }
        use rayon::prelude::*;
        self.devices.par_iter().for_each(|device| {
            if lock(&device.arena).empty() {
                let (base, bytes) = (device.blocks.base(), device.blocks.reservation());
                // Refused only by a driver that is going away, and the reservation with it.
                let _ = self.driver.unreserve(device.id, base, bytes);
            }
        });
        self.fences.destroy();
        // Callers keep the core alive by a handle, a lease or a reference of their own.
        let last = anchor.take();
        drop(anchor);
        drop(last);
    }
}

/// A user's share in the core: pools and streams hold one.
pub(crate) struct Handle(Arc<Core>);

impl Handle {
    pub fn new(core: Arc<Core>) -> Self {
        core.add_handle();
        Self(core)
    }
}

impl Clone for Handle {
    fn clone(&self) -> Self {
        Self::new(Arc::clone(&self.0))
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.0.drop_handle();
    }
}

impl std::ops::Deref for Handle {
    type Target = Core;

    #[inline]
    fn deref(&self) -> &Core {
        &self.0
    }
}

/// Where an allocation was served.
#[derive(Clone, Copy)]
enum Layer {
    Stream,
    Shard,
    Heap,
}

impl Layer {
    fn counter(self, counters: &Counters) -> &AtomicU64 {
        match self {
            Self::Stream => &counters.stream_hits,
            Self::Shard => &counters.shard_hits,
            Self::Heap => &counters.heap_hits,
        }
    }
}
