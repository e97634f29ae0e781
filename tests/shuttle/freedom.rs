//! What is lock-free, and what is not: one thread is stopped for good at every step of an operation,
//! in every operation there is, and the others go on.
//!
//! | test | the victim is stopped in | the others do |
//! |---|---|---|
//! | `a_victim_in_*` | what ARCHITECTURE.md lists as lock-free | anything at all |
//! | `a_victim_with_locks_in_*` | what takes locks | what is lock-free |
//! | `a_miss_may_wait` | a miss | misses: they are held up, and the search notices |
//!
//! A call of the simulated driver is one step, and so is all of a host epoch's own business
//! (`crossbeam-epoch` does not run on shuttle's atomics): a victim is stopped while it is inside an
//! epoch, not while it enters or leaves one.

use crate::starve::{Crowd, Meeting, Prepared, Role, starve};
use crate::yard::PAGE;
use millpond::driver::sim::SimDriver;
use millpond::{Buffer, DeviceId, Error, Lifetime, Pool, Stream};
use millpond_simgpu::{Completion, Sim};
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::Duration;

const SMALL: usize = 700;
const PAGES: u64 = 64;
/// A pool, and streams of one device.
struct Ground {
    sim: Sim,
    pool: Pool,
    /// The victim's, the others', and four that only use blocks.
    victims: Stream,
    theirs: Stream,
    users: [Stream; 4],
    /// Keeps a chunk, in which blocks have started at each of the next units.
    lasting: Buffer,
    /// Blocks that the heap had handed out before the victim began, and those that it may since.
    heap_hits: AtomicU64,
    misses: AtomicU64,
}

impl Meeting for Ground {
    fn new() -> Self {
        let sim = Sim::builder()
            .capacity(PAGES * PAGE)
            .granularity(PAGE)
            .completion(Completion::Lag(0))
            .build()
            .expect("a simulator");
        let patience = Duration::from_secs(3600);
        let pool = Pool::builder(SimDriver::new(sim.clone())).host_wait(patience).build();
        let pool = pool.expect("a pool");
        let stream = || pool.stream(DeviceId(0)).expect("a stream");
        let [victims, theirs] = [(); 2].map(|()| stream());
        let users = [(); 4].map(|()| stream());
        let [heap_hits, misses] = [0; 2].map(AtomicU64::new);
        let mut held: Vec<_> = (0..12).map(|_| get_lasting(&users[0], SMALL)).collect();
        let lasting = held.pop().expect("there are twelve");
        drop(held);
        // What is over goes back into the tree.
        pool.trim(DeviceId(0), u64::MAX).expect("a driver that works");
        Self { sim, pool, victims, theirs, users, lasting, heap_hits, misses }
    }

    fn before(&self) {
        self.heap_hits.store(self.pool.stats().hits.heap, SeqCst);
    }

    fn after(&self) {
        let hits = self.pool.stats().hits.heap - self.heap_hits.load(SeqCst);
        assert!(hits <= self.misses.load(SeqCst), "hits of the caches went to the heap: {hits}");
        assert!(!self.lasting.is_empty());
        self.pool.check_invariants();
    }
}

impl Ground {
    /// So many requests of a role may be served by the heap.
    fn may_miss(&self, times: u64) {
        self.misses.fetch_add(times, SeqCst);
    }
}

fn get(stream: &Stream, bytes: usize) -> Buffer {
    stream.alloc(bytes).expect("memory")
}

/// Allocates if that needs no lock that another thread holds.
fn try_get(stream: &Stream, bytes: usize) -> Option<Buffer> {
    match stream.try_alloc(bytes) {
        Ok(buffer) => Some(buffer),
        Err(Error::Busy { .. } | Error::OutOfMemory(_)) => None,
        Err(error) => panic!("{error}"),
    }
}

/// A role's preparation: the blocks that it frees when all have allocated theirs, and its act.
type Ready = Prepared<Ground>;

fn ready(held: Vec<Buffer>, act: impl FnOnce(&Ground) + 'static) -> Ready {
    Prepared { settle: Box::new(|| drop(held)), act: Box::new(act) }
}

/// Blocks that will lie in the caches of the calling thread and of the stream once they are dropped.
fn warm(stream: &Stream, sizes: &[usize]) -> Vec<Buffer> {
    let take = || sizes.iter().map(|&bytes| get(stream, bytes)).collect();
    let first: Vec<_> = take();
    drop(first);
    take()
}

/// A block that will wait in the shards for the stream that used it last; its own stream knows that
/// it runs after that, or will have to ask.
fn shard(ground: &Ground, stream: &Stream, known: bool) -> Vec<Buffer> {
    let user = &ground.users[0];
    let held = warm(stream, &[SHARDED]);
    held[0].last_use(user).expect("a stream of the pool");
    if known {
        stream.wait(user).expect("an order");
    }
    held
}

fn get_lasting(stream: &Stream, bytes: usize) -> Buffer {
    stream.alloc_as(bytes, Lifetime::Persistent).expect("memory")
}

const LARGE: usize = PAGE as usize + 5000;
const SHARDED: usize = 3 * PAGE as usize;

// What the others do.

/// Hits in the thread cache.
fn small_hits(ground: &Ground) -> Ready {
    ready(warm(&ground.theirs, &[SMALL, SMALL]), |ground| {
        (0..3).for_each(|_| drop([SMALL; 2].map(|bytes| get(&ground.theirs, bytes))))
    })
}

/// Hits in the stream cache and the shards. A miss of anyone may merge their blocks with others.
fn large_hits(ground: &Ground) -> Ready {
    let mut held = warm(&ground.theirs, &[LARGE]);
    held.append(&mut shard(ground, &ground.theirs, true));
    ready(held, |ground| {
        (0..3).for_each(|_| drop(get(&ground.theirs, LARGE)));
        drop(get(&ground.theirs, SHARDED));
    })
}

/// The same where a victim may claim what is cached: without waiting.
fn tries(ground: &Ground) -> Ready {
    ground.may_miss(6);
    ready(warm(&ground.theirs, &[SMALL, SMALL, LARGE]), |ground| {
        for _ in 0..2 {
            drop([SMALL, LARGE, SMALL].map(|bytes| try_get(&ground.theirs, bytes)));
        }
    })
}

/// On the victim's stream, where both meet in the same bins.
fn meets(ground: &Ground) -> Ready {
    ground.may_miss(4);
    ready(warm(&ground.victims, &[SMALL, LARGE]), |ground| {
        for _ in 0..2 {
            drop([SMALL, LARGE].map(|bytes| try_get(&ground.victims, bytes)));
        }
    })
}

/// Frees of every kind, with uses, by address, of blocks of the victim's stream.
fn frees(ground: &Ground) -> Ready {
    let sizes = [SMALL, LARGE, SMALL, LARGE, SMALL, LARGE];
    let [used, used_large, plain, plain_large, raw, raw_large] =
        sizes.map(|bytes| get(&ground.victims, bytes));
    for user in &ground.users {
        used_large.record_use(user).expect("a stream of the pool");
    }
    let addresses = [raw, raw_large].map(Buffer::into_address);
    ready(vec![], move |ground| {
        used.record_use(&ground.users[0]).expect("a stream of the pool");
        used.last_use(&ground.users[1]).expect("a stream of the pool");
        drop((used, used_large, plain, plain_large));
        for address in addresses {
            // Once: by now the address may be the victim's, in the middle of its call.
            ground.pool.free(address).expect("a live block");
        }
    })
}

/// Misses, with tables that are replaced, and everything that takes locks.
fn anything(ground: &Ground) -> Ready {
    ground.may_miss(u64::MAX / 2);
    ready(vec![], |ground| {
        let held: Vec<_> = (1..12).map(|n| get(&ground.theirs, n * 1500)).collect();
        drop(held);
        let stream = ground.pool.stream(DeviceId(0)).expect("a stream");
        drop(get(&stream, LARGE));
        drop(stream);
        ground.sim.tick();
        ground.pool.trim(DeviceId(0), 0).expect("a driver that works");
        drop(ground.pool.stats());
        let pinned = get(&ground.theirs, SMALL).into_address();
        drop(ground.pool.pin(pinned).expect("a live block"));
        ground.pool.free(pinned).expect("a live block");
    })
}

/// Lasting blocks: hits in the trees, or, where the victim has what they would take, misses.
fn lasting_hits(ground: &Ground) -> Ready {
    ground.may_miss(1);
    ready(vec![], |ground| {
        (0..2).for_each(|_| drop([SMALL; 2].map(|bytes| get_lasting(&ground.theirs, bytes))));
    })
}

fn misses(ground: &Ground) -> Ready {
    ground.may_miss(u64::MAX / 2);
    ready(vec![], |ground| drop(get(&ground.theirs, 5 * PAGE as usize)))
}

/// Steps that the others may take, together: several times what they take unhindered.
const ALLOWED: usize = 10_000;

/// What is lock-free whatever happens elsewhere.
static LOCK_FREE: Crowd<Ground> =
    Crowd { roles: &[small_hits, tries, meets, frees], orders: 2, allowed: ALLOWED };
/// Hits in all layers. Only the first order here and below: had others been there before it, the
/// victim might have missed, and would hold the arena.
static HITS: Crowd<Ground> =
    Crowd { roles: &[small_hits, large_hits, frees], orders: 1, allowed: ALLOWED };
/// Everything that a pool can do.
static ANYTHING: Crowd<Ground> = Crowd { roles: &[anything, frees], orders: 1, allowed: ALLOWED };
/// Lasting blocks. (Their misses enter the arena, so that these are held up by a victim that has it.)
static LASTING: Crowd<Ground> =
    Crowd { roles: &[lasting_hits, lasting_hits, frees], orders: 1, allowed: ALLOWED };
/// Against a victim that claims what others have cached: hits may be misses.
static WITHOUT_WAITING: Crowd<Ground> =
    Crowd { roles: &[tries, meets, frees], orders: 1, allowed: ALLOWED };
static MISSES: Crowd<Ground> = Crowd { roles: &[misses], orders: 1, allowed: ALLOWED };

// The victims.

fn thread_hit(ground: &Ground) -> Ready {
    ready(warm(&ground.victims, &[SMALL]), |ground| drop(get(&ground.victims, SMALL)))
}

fn stream_hit(ground: &Ground) -> Ready {
    ready(warm(&ground.victims, &[SHARDED]), |ground| drop(get(&ground.victims, SHARDED)))
}

/// The order is known: a wait of its own told it.
fn shard_hit(ground: &Ground) -> Ready {
    let held = shard(ground, &ground.victims, true);
    ready(held, |ground| drop(get(&ground.victims, SHARDED)))
}

/// Seals the stream in the way, and asks about it.
fn hit_that_asks(ground: &Ground) -> Ready {
    let held = shard(ground, &ground.victims, false);
    ready(held, |ground| drop(get(&ground.victims, SHARDED)))
}

/// In the tree of a chunk, at a start that a block has had before.
fn tree_hit(ground: &Ground) -> Ready {
    // Its thread has a lease.
    drop(get(&ground.victims, SMALL));
    ready(vec![], |ground| drop(get_lasting(&ground.victims, SMALL)))
}

fn free_of_a_lasting_block(ground: &Ground) -> Ready {
    let block = get_lasting(&ground.victims, SMALL);
    ready(vec![], |_| drop(block))
}

fn free_of_a_small_block(ground: &Ground) -> Ready {
    let mut held = warm(&ground.victims, &[SMALL, SMALL]);
    let block = held.pop();
    ready(held, |_| drop(block))
}

/// Has no cache for the size: the block goes to the stream's.
fn free_of_a_block_in_passing(ground: &Ground) -> Ready {
    let address = get(&ground.theirs, 3 * SMALL).into_address();
    ready(vec![], move |ground| ground.pool.free(address).expect("a live block"))
}

fn free_of_a_large_block(ground: &Ground) -> Ready {
    let block = get(&ground.victims, LARGE);
    ready(vec![], |_| drop(block))
}

fn free_with_uses(ground: &Ground) -> Ready {
    let blocks = [SMALL, LARGE].map(|bytes| get(&ground.victims, bytes));
    for (block, user) in
        blocks.iter().flat_map(|block| [(block, &ground.users[0]), (block, &ground.users[1])])
    {
        block.record_use(user).expect("a stream of the pool");
    }
    ready(vec![], |_| drop(blocks))
}

fn free_by_address(ground: &Ground) -> Ready {
    let addresses = [SMALL, LARGE].map(|bytes| get(&ground.victims, bytes).into_address());
    ready(vec![], move |ground| {
        addresses.into_iter().for_each(|address| ground.pool.free(address).expect("a live block"));
    })
}

fn uses(ground: &Ground) -> Ready {
    let block = get(&ground.victims, LARGE);
    ready(vec![], move |ground| {
        for user in &ground.users[..2] {
            block.record_use(user).expect("a stream of the pool");
            block.last_use(user).expect("a stream of the pool");
        }
        ground.pool.record_use(block.address(), &ground.users[0]).expect("a live block");
    })
}

fn stream_wait(_: &Ground) -> Ready {
    ready(vec![], |ground| ground.victims.wait(&ground.users[0]).expect("an order"))
}

fn miss(_: &Ground) -> Ready {
    ready(vec![], |ground| drop(get(&ground.victims, 5 * PAGE as usize)))
}

/// All memory is asked for, in one piece, and more than there is.
fn out_of_memory(ground: &Ground) -> Ready {
    ground.may_miss(2);
    ready(vec![], |ground| {
        drop(try_get(&ground.victims, (PAGES * PAGE) as usize));
        drop(try_get(&ground.victims, (PAGES * PAGE / 2) as usize));
    })
}

fn trim(_: &Ground) -> Ready {
    ready(vec![], |ground| ground.pool.trim_all(0).expect("a driver that works"))
}

fn figures(_: &Ground) -> Ready {
    ready(vec![], |ground| drop(ground.pool.stats()))
}

fn pin(ground: &Ground) -> Ready {
    let block = get(&ground.victims, LARGE);
    ready(vec![], move |ground| drop(ground.pool.pin(block.address()).expect("a live block")))
}

fn end_of_a_stream(ground: &Ground) -> Ready {
    let stream = ground.pool.stream(DeviceId(0)).expect("a stream");
    drop(get(&stream, LARGE));
    ready(vec![], |_| drop(stream))
}

fn start_of_a_stream(_: &Ground) -> Ready {
    ready(vec![], |ground| drop(ground.pool.stream(DeviceId(0)).expect("a stream")))
}

/// A thread's first call leases a cache, and misses. (The victim's end, which gives it back, is beyond
/// what it is stopped in.)
fn first_call(_: &Ground) -> Ready {
    ready(vec![], |ground| drop(try_get(&ground.victims, SMALL)))
}

/// Stops `victim` at every step among each of the crowds; none is held up.
fn frees_others(name: &str, victim: Role<Ground>, crowds: &[&'static Crowd<Ground>]) {
    for crowd in crowds {
        let found = starve(name, victim, crowd);
        assert!(found.steps > 0, "{name} has no step to be stopped at");
        assert!(found.held_up.is_empty(), "{name} holds others up: {found:?}");
    }
}

macro_rules! victims {
    ($($test:ident: $victim:ident, $crowds:expr;)*) => {
        $(#[test]
        fn $test() {
            frees_others(stringify!($victim), $victim, &$crowds);
        })*
    };
}

victims! {
    a_victim_in_a_thread_hit: thread_hit, [&LOCK_FREE, &HITS, &ANYTHING];
    a_victim_in_a_stream_hit: stream_hit, [&LOCK_FREE, &HITS, &ANYTHING];
    a_victim_in_a_shard_hit: shard_hit, [&LOCK_FREE, &HITS, &ANYTHING];
    a_victim_in_a_hit_that_asks: hit_that_asks, [&LOCK_FREE, &HITS, &ANYTHING];
    a_victim_in_a_tree_hit: tree_hit, [&LASTING];
    a_victim_in_a_free_of_a_lasting_block: free_of_a_lasting_block, [&LOCK_FREE, &HITS, &ANYTHING, &LASTING];
    a_victim_in_a_free_of_a_small_block: free_of_a_small_block, [&LOCK_FREE, &HITS, &ANYTHING];
    a_victim_in_a_free_of_a_block_in_passing: free_of_a_block_in_passing, [&LOCK_FREE, &HITS, &ANYTHING];
    a_victim_in_a_free_of_a_large_block: free_of_a_large_block, [&LOCK_FREE, &HITS, &ANYTHING];
    a_victim_in_a_free_with_uses: free_with_uses, [&LOCK_FREE, &HITS, &ANYTHING];
    a_victim_in_a_free_by_address: free_by_address, [&LOCK_FREE, &HITS, &ANYTHING];
    a_victim_in_uses: uses, [&LOCK_FREE, &HITS, &ANYTHING];
    a_victim_in_a_stream_wait: stream_wait, [&LOCK_FREE, &HITS, &ANYTHING];
    a_victim_with_locks_in_a_miss: miss, [&LOCK_FREE];
    a_victim_with_locks_out_of_memory: out_of_memory, [&WITHOUT_WAITING];
    a_victim_with_locks_in_a_trim: trim, [&WITHOUT_WAITING];
    a_victim_with_locks_in_figures: figures, [&LOCK_FREE];
    a_victim_with_locks_in_a_pin: pin, [&LOCK_FREE];
    a_victim_with_locks_at_the_end_of_a_stream: end_of_a_stream, [&LOCK_FREE];
    a_victim_with_locks_at_the_start_of_a_stream: start_of_a_stream, [&LOCK_FREE];
    a_victim_with_locks_in_a_first_call: first_call, [&LOCK_FREE];
}

/// A miss is not lock-free: the arena is one thread's at a time. The search sees it.
#[test]
fn a_miss_may_wait() {
    let found = starve("miss, met by a miss", miss, &MISSES);
    assert!(!found.held_up.is_empty(), "nobody waited: {found:?}");
    assert!(found.held_up.len() < found.steps, "a miss waits at every step: {found:?}");
}
