//! One allocation, from layer to layer.

use super::{Core, Device, Enter, Grant};
use crate::block::{Descriptor, Hint, StreamId, Word};
use crate::cache::Probe;
use crate::cache::thread::Entry;
use crate::config::{Bucket, Lifetime, Reuse};
use crate::error::{Error, Result};
use crate::fence::Asked;
use crate::heap::{Arena, Denied, Held, Request, Rung};
use crate::lease::{self, Lease};
use crate::plan;
use crate::recorder::Recorder;
use crate::size::{self, QUANTUM};
use crate::stats::{Counters, bump};
use crate::sync::{AtomicU64, MutexGuard, Ordering, lock};

/// A way in which the arena serves a request.
type Serve = fn(&mut Arena, Request) -> std::result::Result<(u32, Word), Denied>;

impl Core {
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
        self.allocate_shared(device, stream, bytes, Lifetime::Transient, enter)
    }

    #[cold]
    #[inline(never)]
    pub(super) fn allocate_shared<'c>(
        &'c self,
        device: &'c Device,
        stream: StreamId,
        bytes: u64,
        lifetime: Lifetime,
        enter: Enter,
    ) -> Result<Grant<'c>> {
        self.check_process()?;
        if bytes == 0 {
            return Err(Error::ZeroSize);
        }
        if bytes > size::REQUEST_MAX {
            return Err(Error::TooLarge { bytes, max: size::REQUEST_MAX });
        }
        let lease = lease::get(self);
        let chunked = self.chunked(device, stream, bytes, lifetime);
        let granted = chunked.unwrap_or(size::granted(bytes));
        let request = Request { stream, bytes: granted, requested: bytes };
        let (grant, layer) = match chunked {
            Some(_) => self.find_apart(lease, device, request, enter)?,
            None => self.find_extent(lease, device, request, enter)?,
        };
        grant.block.set_requested(bytes);
        // A place in a plan's range counts once the range has ended, whoever sees to that.
        let counts = device.movables.are_on() && !matches!(layer, Layer::Planned);
        if counts && grant.block.is_large_extent() {
            device.gauge.large_taken(grant.block.size());
        }
        if let Some(recorder) = &device.recorder {
            recorder.allocated(grant.hint, stream, bytes);
        }
        self.count(lease, layer, bytes);
        Ok(grant)
    }

    /// A block that is an extent of the heap's, or a place in a plan's range.
    fn find_extent<'c>(
        &'c self,
        lease: Option<&Lease>,
        device: &'c Device,
        request: Request,
        enter: Enter,
    ) -> Result<(Grant<'c>, Layer)> {
        let Request { stream, bytes: granted, requested: bytes } = request;
        // What may be planned is not a thread's: it is to be counted.
        let a_threads = size::is_small(bytes) && !(device.planner.is_some() && plan::counts(bytes));
        if let (Some(cache), true) = (lease, a_threads && !self.notes_all)
            && !device.recorder.as_ref().is_some_and(Recorder::is_on)
        {
            self.want(cache, stream, size::class_of(bytes));
        }
        let planned = match &device.planner {
            Some(planner) => self.find_planned(planner, device, stream, bytes, enter),
            None => None,
        };
        let planned = planned.map(|grant| (grant, Layer::Planned));
        let found = planned.or_else(|| self.find_cached(lease, device, stream, granted / QUANTUM));
        let (grant, layer) = match found {
            Some(found) => found,
            None => {
                match size::is_small(bytes) {
                    false => _ = self.make_room(device, enter, bytes),
                    // No thread keeps it, so that its stream does.
                    true if !a_threads => self.prepare_cache(lease, stream),
                    true => {}
                }
                (self.take_from_arena(device, request, enter, Arena::allocate)?, Layer::Heap)
            }
        };
        if let Some(planner) = &device.planner {
            planner.allocated(grant.hint, stream, bytes);
        }
        Ok((grant, layer))
    }

    fn prepare_cache(&self, lease: Option<&Lease>, stream: StreamId) {
        if let Some(cache) = self.stream_cache(stream) {
            cache.prepare(&lease::pin(lease));
        }
    }

    /// A request was served by a layer.
    fn count(&self, lease: Option<&Lease>, layer: Layer, bytes: u64) {
        let bucket = Bucket::of(bytes) as usize;
        let counters = lease.map_or(&self.strays, |cache| &cache.counters);
        let cached = matches!(layer, Layer::Stream | Layer::Shard);
        let counts = [
            Some(layer.counter(counters)),
            Some(&counters.requests[bucket]),
            cached.then(|| &counters.cache_hits[bucket]),
        ];
        for counter in counts.into_iter().flatten() {
            match lease {
                Some(_) => bump(counter, 1),
                None => {
                    counter.fetch_add(1, Ordering::Relaxed);
                }
            }
        }
    }

    /// The thread asked for a small size: it keeps bins for it from now on.
    fn want(&self, lease: &Lease, stream: StreamId, class: usize) {
        let guard = lease::pin(Some(lease));
        let evict = |other: StreamId, class: usize, hint: Hint| {
            // Only blocks of the evicted stream's own device are in its bins.
            if let (Some(cache), Ok(home)) =
                (self.stream_cache(other), self.device(self.fences.device(other)))
            {
                let key = size::class_bytes(class) / QUANTUM;
                cache.put(key, hint, |hint| home.blocks.is_stale(hint), &guard);
            }
        };
        // SAFETY: this thread holds the lease; `evict` touches no thread cache.
        if let Some(set) = unsafe { lease.adopt(stream, self.fences.stream(stream), evict) } {
            set.want(class);
        }
    }

    /// A block of exactly this size from the stream's cache or the shards.
    pub(super) fn find_cached<'c>(
        &'c self,
        lease: Option<&Lease>,
        device: &'c Device,
        stream: StreamId,
        key: u64,
    ) -> Option<(Grant<'c>, Layer)> {
        if self.uncached {
            return None;
        }
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
            return Some((grant, Layer::Stream));
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
                    if !block.all_fences(|fence| fence.stream() == stream) {
                        device.gauge.count_cross_hit();
                    }
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
            return Some((grant, Layer::Shard));
        }
        if refused && self.reuse != Reuse::SameStream {
            let mut asked = Asked::default();
            let ask = |hint| {
                claim(hint, &mut |block| {
                    block.all_fences(|fence| {
                        self.fences.ordered(stream, fence) || asked.ask(&self.fences, fence)
                    })
                })
            };
            if let Some(grant) = device.shards.take(stream, key, ask, &guard) {
                return Some((grant, Layer::Shard));
            }
        }
        // A miss: the time to make room where hints were lost.
        let stale = |hint| blocks.is_stale(hint);
        if let Some(cache) = cache {
            cache.make_room(stale, &guard);
        }
        device.shards.make_room(stream, stale, &guard);
        None
    }

    /// Serves a miss by one of the arena's ways.
    pub(super) fn take_from_arena<'c>(
        &'c self,
        device: &'c Device,
        request: Request,
        enter: Enter,
        serve: Serve,
    ) -> Result<Grant<'c>> {
        loop {
            // The callback may come back in a child.
            self.check_process()?;
            let mut arena = self.enter(device, enter)?;
            let outcome = serve(&mut arena, request);
            drop(arena);
            let report = match outcome {
                Ok((index, word)) => {
                    return Ok(Grant { block: device.blocks.at(index), hint: word.hint(index) });
                }
                Err(Denied::Driver(error)) => return Err(error.into()),
                Err(Denied::Descriptors) => return Err(Error::TooManyBlocks { device: device.id }),
                Err(Denied::OutOfMemory(report)) => report,
            };
            // What a plan's range has left is idle memory, too.
            if request.bytes <= device.limit && self.make_room(device, enter, u64::MAX) {
                continue;
            }
            // Without the arena's lock: the callback may free, and allocate elsewhere.
            match &self.rescue {
                Some(rescue) if rescue.0(&report) => device.gauge.count(Rung::Callback),
                _ => {
                    device.gauge.count(Rung::Refused);
                    return Err(Error::OutOfMemory(report));
                }
            }
        }
    }

    pub(super) fn enter<'c>(
        &self,
        device: &'c Device,
        enter: Enter,
    ) -> Result<MutexGuard<'c, Arena>> {
        enter.lock(&device.arena).ok_or(Error::Busy { device: device.id })
    }

    /// What users hold of a device, and what lies in caches. Walks the arena.
    pub fn held(&self, device: &Device) -> Held {
        lock(&device.arena).held()
    }
}

/// Where an allocation was served.
#[derive(Clone, Copy)]
pub(super) enum Layer {
    Stream,
    Shard,
    Buddy,
    Planned,
    Heap,
}

impl Layer {
    fn counter(self, counters: &Counters) -> &AtomicU64 {
        match self {
            Self::Stream => &counters.stream_hits,
            Self::Shard => &counters.shard_hits,
            Self::Buddy => &counters.buddy_hits,
            Self::Planned => &counters.planned_hits,
            Self::Heap => &counters.heap_hits,
        }
    }
}
