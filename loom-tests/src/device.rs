//! A device of two pages and the pool's core over it, for models of the heap.

use crate::STACK_WORDS;
use crate::driver::ModelDriver;
use loom::sync::atomic::{AtomicU64, Ordering};
use millpond::StreamId;
use millpond::driver::{DeviceId, Driver, StreamHandle};
use millpond::internals::{
    Addresses, Arena, Blocks, Core, Denied, Device, Enter, Fence, Fences, Gauge, Grant, Handle,
    Hint, Layout, Movables, Owner, Request, Settings, Shards,
};
use millpond::{Error, Headroom, Reuse};
use std::sync::Arc;
use std::time::Duration;

/// A stream: its id and its driver's handle.
#[derive(Clone, Copy)]
pub struct Stream {
    /// Its id in the pool.
    pub id: StreamId,
    /// Its handle in the driver.
    pub handle: StreamHandle,
}

/// Lets other roles step in before an operation.
///
/// Loom keeps one last access of each atomic: a thread that loads it before it writes hides, by its
/// own load, what other threads have loaded before, and orders in which that matters go unexplored.
/// Operations that begin with a turn are tried in every order. It is relaxed: it orders nothing.
#[derive(Default)]
struct Turns(AtomicU64);

impl Turns {
    fn next(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// The fences of a pool over a model driver, with streams.
pub struct Streams {
    turns: Turns,
    /// The driver.
    pub driver: Arc<ModelDriver>,
    /// The fences.
    pub fences: Arc<Fences>,
}

impl Streams {
    /// Fences without a stream yet.
    pub fn new() -> Arc<Self> {
        let driver = Arc::new(ModelDriver::default());
        let fences = Arc::new(Fences::new(driver.clone()));
        Arc::new(Self { turns: Turns::default(), driver, fences })
    }

    /// A new stream, whose handle the pool destroys.
    pub fn open(&self) -> Stream {
        let handle = self.driver.create_stream(DeviceId(0)).expect("a stream");
        let id = self.fences.register(DeviceId(0), handle, Owner::Pool).expect("an id");
        Stream { id, handle }
    }

    /// Work on a stream, and the fence of all it was given up to then: what a free does.
    pub fn work(&self, on: Stream, work: u32) -> Fence {
        self.turns.next();
        self.driver.work(on.handle, work);
        self.fences.stamp(on.id)
    }

    /// Seals, wherever a seal is to be had.
    pub fn seal(&self, fence: Fence) -> bool {
        self.turns.next();
        self.fences.seal(fence).expect("the driver refuses nothing")
    }

    /// Asks once whether a fence has completed.
    pub fn poll(&self, fence: Fence) -> bool {
        self.turns.next();
        self.fences.poll(fence).expect("the driver refuses nothing")
    }

    /// Makes a stream wait for a fence.
    pub fn wait(&self, to: Stream, fence: Fence) -> bool {
        self.turns.next();
        self.fences.wait(to.id, fence).expect("the driver refuses nothing")
    }

    /// Checks what the pool believes about `work`, whose fence is `fence`: if it takes work given
    /// to `to` from now on as ordered after it, the driver agrees. Returns what the pool believes.
    #[track_caller]
    pub fn check_order(&self, to: Stream, from: Stream, work: u32, fence: Fence) -> bool {
        let believed = self.fences.ordered(to.id, fence);
        assert!(
            !believed || self.driver.ordered(from.handle, work, to.handle),
            "a stream claims an order it does not have"
        );
        believed
    }

    /// Checks that the pool takes `work`, whose fence is `fence`, as completed only if it is done.
    #[track_caller]
    pub fn check_completed(&self, from: Stream, work: u32, fence: Fence) -> bool {
        let believed = self.fences.completed(fence);
        assert!(
            !believed || self.driver.is_done(from.handle, work),
            "completed claims work that has not run"
        );
        believed
    }
}

/// A pool over the model's one device.
pub struct Pond {
    /// Its streams.
    pub streams: Arc<Streams>,
    /// Its core.
    pub core: Arc<Core>,
}

/// A page of memory; a block of one page is a large one.
pub const PAGE: u64 = ModelDriver::PAGE;

/// A block in a role's hands, free of borrows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Held {
    /// Its descriptor's index and tag.
    pub hint: Hint,
    /// Where it starts.
    pub address: u64,
}

impl Pond {
    /// A pool that may hold `pages` pages, in a large region of `span` pages. Counts as one of the
    /// model's threads: an arena under construction needs a larger stack than loom's.
    pub fn new(pages: u64, span: u64, reuse: Reuse) -> Arc<Self> {
        let build = move || Self::build(pages, span, reuse);
        let builder = loom::thread::Builder::new().stack_size(STACK_WORDS);
        builder.spawn(build).expect("a thread").join().expect("a pool")
    }

    /// As [`Pond::new`], in a thread that has such a stack already.
    pub fn build(pages: u64, span: u64, reuse: Reuse) -> Arc<Self> {
        let streams = Streams::new();
        let driver: Arc<dyn Driver> = streams.driver.clone();
        let layout = Layout {
            page_bytes: PAGE,
            addresses: Addresses::Reserved { small: PAGE, large: span * PAGE },
            limit: pages * PAGE,
        };
        let base = driver.reserve(DeviceId(0), 0).expect("address space");
        let blocks = Arc::new(Blocks::new(base, PAGE + span * PAGE));
        let gauge = Arc::new(Gauge::default());
        let settings = Settings {
            reuse,
            headroom: Headroom::Share(0.0),
            host_wait: Duration::ZERO,
            ..Settings::default()
        };
        let arena = Arena::new(
            driver.clone(),
            DeviceId(0),
            blocks.clone(),
            streams.fences.clone(),
            gauge.clone(),
            layout,
            settings,
        )
        .expect("descriptors for two regions");
        let device = Device {
            id: DeviceId(0),
            blocks,
            arena: loom::sync::Mutex::new(arena),
            shards: Shards::default(),
            gauge,
            movables: Movables::default(),
            limit: layout.limit,
            reservation: Some((base, 0)),
            recorder: None,
            planner: None,
        };
        let devices = Box::new([Arc::new(device)]);
        let core = Core::new(driver, streams.fences.clone(), devices, &settings, None);
        Arc::new(Self { streams, core })
    }

    /// A stream with a cache.
    pub fn open(&self) -> Stream {
        let stream = self.streams.open();
        self.core.open_stream(stream.id);
        stream
    }

    fn device(&self) -> &Device {
        &self.core.devices[0]
    }

    /// The device's descriptors.
    pub fn blocks(&self) -> &Blocks {
        &self.device().blocks
    }

    fn held(&self, hint: Hint) -> Held {
        Held { hint, address: self.blocks().at(hint.index()).address() }
    }

    /// Allocates through all layers. `None` when there is no memory.
    pub fn allocate(&self, on: Stream, bytes: u64) -> Option<Held> {
        self.streams.turns.next();
        match self.core.allocate(self.device(), on.id, bytes, Enter::Wait) {
            Ok(grant) => Some(self.held(grant.hint)),
            Err(Error::OutOfMemory(_)) => None,
            Err(error) => panic!("{error}"),
        }
    }

    /// Allocates from the heap, past all caches. `None` when there is no memory.
    pub fn allocate_in_arena(&self, on: Stream, bytes: u64) -> Option<Held> {
        self.streams.turns.next();
        let mut arena = self.device().arena.lock().expect("nothing panicked in it");
        match arena.allocate(Request { stream: on.id, bytes, requested: bytes }) {
            Ok((index, word)) => Some(self.held(word.hint(index))),
            Err(Denied::OutOfMemory { .. }) => None,
            Err(denied) => panic!("{denied:?}"),
        }
    }

    /// A plan's range in the heap, with its places: the range's descriptor, and theirs.
    pub fn lay_out(&self, on: Stream, bytes: u64, places: &[(u64, u64)]) -> (u32, Vec<u32>) {
        let request = Request { stream: on.id, bytes, requested: bytes };
        let mut arena = self.device().arena.lock().expect("nothing panicked in it");
        arena.lay_out(request, places).expect("memory for a range")
    }

    /// Hands a place of a range to a user, as the plan's holder.
    pub fn claim_place(&self, index: u32, on: Stream) -> Held {
        let block = self.blocks().at(index);
        block.reset_fences(on.id);
        self.held(block.hand_out().hint(index))
    }

    /// Ends a range whose bytes were last used by `last`.
    pub fn dissolve(&self, range: u32, places: &[u32], last: Stream) {
        self.streams.turns.next();
        let stamp = self.streams.fences.stamp(last.id);
        let mut arena = self.device().arena.lock().expect("nothing panicked in it");
        assert!(arena.dissolve(range, places, false, |_| vec![stamp]), "descriptors");
    }

    /// Claims the block that a hint leads to.
    pub fn claim(&self, hint: Hint) -> Option<Held> {
        self.streams.turns.next();
        Some(self.held(self.blocks().at(hint.index()).claim(hint)?))
    }

    /// Frees a block.
    pub fn free(&self, held: Held) {
        self.streams.turns.next();
        let block = self.blocks().at(held.hint.index());
        self.core.free(self.device(), Grant { block, hint: held.hint });
    }

    /// Records that another stream uses a block until its free.
    pub fn record_use(&self, held: Held, on: Stream) {
        self.streams.turns.next();
        self.core.record_use(self.blocks().at(held.hint.index()), on.id);
    }

    /// Says that what a stream was given so far is its last that uses a block.
    pub fn last_use(&self, held: Held, on: Stream) {
        self.streams.turns.next();
        self.core.last_use(self.blocks().at(held.hint.index()), on.id);
    }

    /// Frees by address. False when the address is not allocated.
    pub fn free_address(&self, address: u64) -> bool {
        self.core.free_address(address).is_ok()
    }

    /// A user's share in the pool, the last of which closes it.
    pub fn share(&self) -> Handle {
        Handle::new(self.core.clone())
    }

    /// How many thread caches there are.
    pub fn thread_caches(&self) -> usize {
        let mut counters = 0;
        self.core.for_each_counters(|_| counters += 1);
        // One set of counters is that of the threads without a cache.
        counters - 1
    }

    /// Checks the heap's invariants.
    pub fn check_invariants(&self) {
        self.device().arena.lock().expect("nothing panicked in it").check_invariants();
    }
}
