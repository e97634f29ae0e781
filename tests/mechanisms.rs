//! Each mechanism does what it says: what is kept, what goes back, and what is taken when.
#![cfg(feature = "sim")]

#[path = "support/mod.rs"]
mod support;

use millpond::driver::Driver;
use millpond::driver::sim::SimDriver;
use millpond::{
    Bucket, BucketLimit, Buckets, Budget, Buffer, Builder, Caching, Coalescing, Defragmentation,
    DeviceId, Error, Growth, Headroom, Level, Lifetime, LimitedBy, Merging, Movable, Pool,
    Preallocation, Recycling, Stats, Stream,
};
use millpond_simgpu::{Completion, Sim, Touch};
use std::sync::Arc;
use std::time::Duration;
use support::Watched;

const D0: DeviceId = DeviceId(0);
const MIB: u64 = 1 << 20;

struct Bench {
    driver: Arc<Watched>,
    pool: Pool,
    stream: Stream,
}

fn on(virtual_memory: bool, settings: impl FnOnce(Builder) -> Builder) -> Bench {
    let sim = Sim::builder().capacity(1 << 30).build().unwrap();
    let driver: Arc<dyn Driver> = Arc::new(match virtual_memory {
        true => SimDriver::new(sim),
        false => SimDriver::without_virtual_memory(sim),
    });
    let driver = Watched::new(driver);
    // Nothing has to give way for want of headroom.
    let builder = Pool::builder_shared(driver.clone()).headroom(Headroom::Unbounded);
    let pool = settings(builder).build().unwrap();
    let stream = pool.stream(D0).unwrap();
    Bench { driver, pool, stream }
}

impl Bench {
    fn get(&self, bytes: u64) -> millpond::Buffer {
        self.stream.alloc(bytes as usize).unwrap()
    }

    fn stats(&self) -> Stats {
        self.pool.stats()
    }

    fn reserved(&self) -> u64 {
        self.stats().devices[0].reserved_bytes
    }

    fn merging(&self) -> Merging {
        self.stats().devices[0].merging
    }

    fn cached(&self) -> [u64; 3] {
        self.stats().buckets.map(|bucket| bucket.cached_bytes)
    }

    /// Allocates blocks, then frees them in that order.
    fn free(&self, sizes: &[u64]) -> Vec<u64> {
        let blocks: Vec<_> = sizes.iter().map(|&bytes| self.get(bytes)).collect();
        blocks.iter().map(millpond::Buffer::address).collect()
    }

    fn calls_for_memory(&self) -> u64 {
        ["create_page", "map", "allocate", "release_page", "free"]
            .iter()
            .map(|call| self.driver.calls(call))
            .sum()
    }

    /// A miss: the arena looks at what was freed.
    fn look(&self) {
        drop(self.get(513 * MIB / 512));
    }
}

#[test]
fn a_fixed_pool_takes_all_at_once_and_says_why_there_is_no_more() {
    for virtual_memory in [true, false] {
        let bench =
            on(virtual_memory, |pool| pool.preallocation(Preallocation::Fixed { bytes: 65 * MIB }));
        assert_eq!(bench.reserved(), 66 * MIB, "whole pages");
        let calls = bench.calls_for_memory();
        let large = bench.get(40 * MIB);
        let Err(Error::OutOfMemory(report)) = bench.stream.alloc::<u8>(40 << 20) else {
            panic!("beyond the fixed size")
        };
        assert_eq!((report.limit, report.limited_by), (66 * MIB, LimitedBy::FixedSize));
        assert!(report.to_string().contains("fixed size"), "{report}");
        drop(large);
        assert_eq!(bench.pool.trim(D0, 0), Ok(66 * MIB), "nothing goes back");
        drop(bench.get(60 * MIB));
        if !virtual_memory {
            assert_eq!(bench.calls_for_memory(), calls, "no driver call after the first");
        }
    }
    // Of a device's memory there is no more than all.
    let growth = Growth { initial: u64::MAX, ..Growth::default() };
    for all in [Preallocation::Fixed { bytes: u64::MAX }, Preallocation::Growing(growth)] {
        for capacity in [u64::MAX, 1 << 40] {
            let bench = on(true, |pool| pool.capacity(capacity).preallocation(all));
            assert_eq!(bench.reserved(), 1 << 30, "{all:?} within {capacity}");
        }
    }
    let sim = Sim::builder().capacity(64 * MIB).build().unwrap();
    let other = SimDriver::new(sim.clone());
    let page = other.create_page(D0, 2 * MIB).unwrap();
    let fixed = Preallocation::Fixed { bytes: 64 * MIB };
    let refused = Pool::builder(SimDriver::new(sim.clone())).preallocation(fixed).build();
    assert!(matches!(refused, Err(Error::Driver(cause)) if cause.out_of_memory));
    other.release_page(D0, page).unwrap();
    drop(Pool::builder(SimDriver::new(sim.clone())).preallocation(fixed).build().unwrap());
    assert!(sim.leaks().is_empty(), "{}", sim.leaks());
}

const COMPACT: Defragmentation = Defragmentation::Compaction { budget: Budget::Unlimited };

#[test]
fn a_gap_of_a_fixed_pool_gives_nothing_back() {
    for virtual_memory in [true, false] {
        let fixed = Preallocation::Fixed { bytes: 64 * MIB };
        let bench = on(virtual_memory, |pool| pool.preallocation(fixed).defragmentation(COMPACT));
        let calls = bench.calls_for_memory();
        drop(bench.stream.alloc_movable::<u8>(8 << 20).unwrap());
        for _ in 0..3 {
            bench.pool.begin_step();
            bench.pool.step_gap(&bench.stream).unwrap();
        }
        assert_eq!(bench.reserved(), 64 * MIB, "what was fixed has gone back");
        assert_eq!(bench.calls_for_memory(), calls);
    }
}

#[test]
fn blocks_move_among_those_of_their_kind() {
    for virtual_memory in [true, false] {
        let bench = on(virtual_memory, |pool| pool.defragmentation(COMPACT).stitching(false));
        let (pool, stream) = (&bench.pool, &bench.stream);
        // Idle memory of small blocks, and holes too small for the large ones between them.
        let small = bench.free(&[600_000; 60]);
        let few: Vec<Movable> = (0..3).map(|_| stream.alloc_movable(600_000).unwrap()).collect();
        few.iter().for_each(|block| drop(block.pin(stream).unwrap()));
        pool.begin_step();
        let both = (0..16).map(|_| {
            let block: Movable = stream.alloc_movable(3 << 19).unwrap();
            drop(block.pin(stream).unwrap());
            (block, bench.get(MIB))
        });
        let (blocks, between): (Vec<Movable>, Vec<_>) = both.collect();
        drop(between);
        let theirs = |at: u64| small.iter().any(|&start| (start..start + 600_000).contains(&at));
        for _ in 0..3 {
            pool.step_gap(stream).unwrap();
            let addresses = blocks.iter().map(|block| block.pin(stream).unwrap().address());
            let strayed = addresses.filter(|&at| theirs(at)).count();
            assert_eq!(strayed, 0, "large blocks where small ones are (pages: {virtual_memory})");
        }
    }
}

#[test]
fn a_growing_pool_grows_by_its_factor_and_moves_nothing() {
    for virtual_memory in [true, false] {
        let growth = Growth { initial: 16 * MIB, factor: 2.0, headroom: 0.0 };
        let bench = on(virtual_memory, |pool| pool.preallocation(Preallocation::Growing(growth)));
        assert_eq!(bench.reserved(), 16 * MIB);
        let mut held = Vec::new();
        let (mut grown, mut reserved) = (0, bench.reserved());
        for _ in 0..64 {
            held.push((bench.get(8 * MIB), 0));
            let (buffer, address) = held.last_mut().unwrap();
            *address = buffer.address();
            let now = bench.reserved();
            if now > reserved {
                assert!(now >= 2 * reserved, "{reserved} to {now}");
                (grown, reserved) = (grown + 1, now);
            }
        }
        assert!((4..=6).contains(&grown), "grew {grown} times");
        assert!(held.iter().all(|(buffer, address)| buffer.address() == *address));
    }
    let growth = Growth { initial: 0, factor: 1.0, headroom: 0.2 };
    let bench = on(true, |pool| pool.preallocation(Preallocation::Growing(growth)));
    let _held = bench.get(100 * MIB);
    assert_eq!(bench.reserved(), 120 * MIB);
}

#[test]
fn without_reuse_every_request_is_the_heaps() {
    let bench = on(true, |pool| pool.caching(Caching::Off));
    for bytes in [512, 100_000, 4 * MIB] {
        let first = bench.free(&[bytes])[0];
        assert_eq!(bench.free(&[bytes])[0], first, "best fit finds it again");
    }
    let stats = bench.stats();
    assert_eq!((stats.hits.thread, stats.hits.stream, stats.hits.shard), (0, 0, 0));
    assert_eq!(stats.hits.heap, 6);
    assert!(stats.buckets.iter().all(|bucket| bucket.hits == 0));
    assert!(stats.devices[0].merging.merges > 0);
}

#[test]
fn simple_reuse_keeps_blocks_whole_and_lets_the_oldest_go() {
    let limit = 40 * MIB;
    let bench = on(true, |pool| pool.caching(Caching::Simple { limit }));
    let at = bench.free(&[8 * MIB, 12 * MIB, 16 * MIB]);
    // A smaller request leaves them alone, although each would do.
    let small = bench.get(6 * MIB);
    assert!(!at.contains(&small.address()));
    assert_eq!(bench.cached(), [0, 36 * MIB, 0]);
    assert_eq!(bench.merging().recycled_blocks, 0);
    // Used again, the first is the last to go.
    assert_eq!(bench.get(8 * MIB).address(), at[0]);
    drop(bench.get(10 * MIB));
    bench.look();
    let merging = bench.merging();
    assert_eq!((merging.recycled_blocks, merging.recycled_bytes), (1, 12 * MIB), "the second");
    assert_eq!(bench.get(16 * MIB).address(), at[2]);
    assert_eq!(bench.get(8 * MIB).address(), at[0]);
}

#[test]
fn buckets_have_limits_and_slack_of_their_own() {
    let limit = |bytes, slack| BucketLimit { bytes, slack };
    let buckets = Buckets {
        small: limit(MIB, 0.0),
        medium: limit(64 * MIB, 0.25),
        large: limit(300 * MIB, 0.0),
    };
    let bench = on(true, |pool| pool.caching(Caching::Bucketed(buckets)));
    let medium = bench.free(&[20 * MIB])[0];
    let other = bench.get(15 * MIB);
    assert_ne!(other.address(), medium, "a quarter more at most");
    let little_less = bench.get(16 * MIB);
    assert_eq!((little_less.address(), little_less.granted_bytes()), (medium, 20 * MIB));
    assert_eq!(bench.stats().devices[0].live_bytes, 31 * MIB);
    drop((other, little_less));
    // Each bucket keeps to its own limit.
    drop(bench.free(&[200 * MIB]));
    drop(bench.free(&[768 << 10, 800 << 10]));
    bench.look();
    let [small, medium, large] = bench.cached();
    assert!(small <= MIB && medium <= 64 * MIB && large == 200 * MIB, "{:?}", bench.cached());
    let stats = bench.stats();
    let medium = stats.buckets[Bucket::Medium as usize];
    assert_eq!((medium.bucket, medium.requests, medium.hits), (Bucket::Medium, 4, 1));
    assert_eq!(medium.hit_rate(), 0.25);
    bench.pool.check_invariants();
}

/// What waits in the pool after steps in which blocks were freed.
fn waiting(delay: Recycling, sizes: &[u64], steps: u64) -> (u64, Merging) {
    let bench = on(true, |pool| pool.recycling(delay));
    // A second device's worth of live memory, so that shares are of something.
    let _live = bench.get(100 * MIB);
    bench.free(sizes);
    bench.look();
    (0..steps).for_each(|_| _ = bench.pool.begin_step());
    let all = bench.cached().iter().sum::<u64>();
    (all.saturating_sub(513 * MIB / 512), bench.merging())
}

#[test]
fn delayed_recycling_keeps_to_its_bounds() {
    const MANY: [u64; 8] = [2 * MIB; 8];
    let loose = Recycling {
        threshold: u64::MAX,
        low: 1.0,
        high: 1.0,
        fragmentation: 1.0,
        batch: 1,
        ..Recycling::default()
    };
    assert_eq!(waiting(loose, &MANY, 0).0, 16 * MIB, "nothing is exceeded");
    let threshold = Recycling { threshold: 2 * MIB, ..loose };
    assert_eq!(waiting(threshold, &[MIB, 3 * MIB, 2 * MIB], 0).0, 3 * MIB);
    let watermarks = Recycling { low: 0.05, high: 0.1, ..loose };
    let (left, merging) = waiting(watermarks, &MANY, 0);
    assert!((2 * MIB..=6 * MIB).contains(&left), "{left} bytes wait");
    assert_eq!(merging.recycled_bytes, 16 * MIB - left);
    assert!(merging.passes > 0 && merging.pass_ns > 0);
    let count = Recycling { blocks: 3, ..loose };
    assert!(waiting(count, &MANY, 0).0 <= 6 * MIB);
    let aged = Recycling { steps: 2, ..loose };
    assert_eq!(waiting(aged, &MANY, 2).0, 16 * MIB);
    assert!(waiting(aged, &MANY, 3).1.recycled_blocks >= 8, "past its age at a step's beginning");
    let batch = Recycling { batch: 100, ..aged };
    assert_eq!(waiting(batch, &MANY, 3).1.recycled_blocks, 0, "no batch");
    let clock = Recycling { age: Duration::ZERO, ..loose };
    assert!(waiting(clock, &MANY, 1).1.recycled_blocks >= 8);
}

#[test]
fn what_waits_is_used_again_at_its_own_size() {
    let bench = on(true, |pool| pool.recycling(Recycling::default()));
    let _live = bench.get(100 * MIB);
    let at = bench.free(&[2 * MIB, 3 * MIB]);
    assert_eq!(bench.get(2 * MIB).address(), at[0]);
    let off = on(true, |pool| pool.recycling(Recycling::default()).caching(Caching::Off));
    let _live = off.get(100 * MIB);
    let at = off.free(&[2 * MIB, 3 * MIB]);
    assert_ne!(off.get(2 * MIB).address(), at[0], "it waits, and that is all");
}

#[test]
fn coalescing_is_at_once_or_in_batches() {
    const PIECES: [u64; 16] = [2 * MIB; 16];
    let at_once = on(true, |pool| pool.coalescing(Coalescing::Immediate));
    at_once.free(&PIECES);
    at_once.look();
    let merging = at_once.merging();
    assert!(merging.merges >= 15, "{merging:?}");
    assert!(at_once.cached()[1] <= 2 * MIB, "all but the last block is one extent");

    let batches = Coalescing::Batched { frees: 16, fragmentation: 1.0 };
    let batched = on(true, |pool| pool.coalescing(batches));
    let all = batched.free(&PIECES[..15]);
    batched.look();
    assert_eq!(batched.merging().passes, 0);
    let (left, piece) = (28 * MIB, 513 * MIB / 512);
    assert_eq!(batched.cached()[1], left + piece, "each as it was, but for one that was cut");
    batched.free(&[5 * MIB]);
    batched.look();
    assert!(batched.merging().merges >= 14 && batched.merging().passes > 0);
    let whole = batched.get(30 * MIB);
    assert!(all.contains(&whole.address()), "one extent of the fifteen");
}

#[test]
fn without_stitching_pages_stay_while_there_are_others() {
    for stitching in [true, false] {
        let bench = on(true, |pool| pool.stitching(stitching).headroom(Headroom::Share(0.0)));
        // Every second page is free, and no hole is large enough.
        let mut held: Vec<_> = (0..32).map(|_| bench.get(2 * MIB)).collect();
        let mut index = 0;
        held.retain(|_| {
            index += 1;
            index % 2 == 0
        });
        let before = bench.reserved();
        let _large = bench.get(8 * MIB);
        assert_eq!(bench.reserved() > before, !stitching);
    }
}

/// What steps have in use counts blocks where they lie: lasting ones beside the chunks, and others that
/// the last resort takes from one.
#[test]
fn large_blocks_count_where_they_lie() {
    let blocks = |capacity: u64, kinds: [Lifetime; 2]| {
        let bench = on(true, |pool| {
            let all = Defragmentation::Compaction { budget: Budget::Unlimited };
            pool.capacity(capacity).defragmentation(all)
        });
        let held = kinds.map(|kind| bench.stream.alloc_as::<u8>(MIB as usize, kind).unwrap());
        bench.pool.check_invariants_at(Level::Full);
        drop(held);
        bench.pool.check_invariants_at(Level::Full);
        bench.pool.stats().devices[0].buddy.chunks
    };
    assert_eq!(blocks(2 * MIB, [Lifetime::Persistent; 2]), 0);
    assert_eq!(blocks(4 * MIB, [Lifetime::Persistent, Lifetime::Transient]), 1);
}

const PAGE: usize = 2 << 20;

/// Forty pages of idle memory, of which ten in the middle went to a request that was stitched: an island of
/// 14. All of it was written by `stream`.
fn leave_an_island(sim: &Sim, pool: &Pool, stream: &Stream) -> Buffer<u8> {
    let alloc = |pages: usize| {
        let block = stream.alloc::<u8>(pages * PAGE).unwrap();
        let touch = Touch::write(block.address(), block.bytes());
        sim.launch(stream.handle().into(), &[touch]).unwrap();
        block
    };
    let (whole, still) = (alloc(40), alloc(1));
    drop(whole);
    let [low, middle, high] = [20, 10, 10].map(alloc);
    drop(middle);
    let island = alloc(14);
    assert_eq!(pool.stats().devices[0].ladder.moved, 1, "it was stitched");
    drop((low, high, island));
    still
}

/// Stitching leaves islands of idle pages, which a step gap brings together again: without copies, and
/// without memory from the driver.
#[test]
fn idle_pages_come_together_at_a_gap() {
    let mut joined = 0;
    let mut largest_that_fits = |defragmentation| {
        let sim = Sim::builder().devices(1).oracle(true).build().unwrap();
        let builder = Pool::builder(SimDriver::new(sim.clone())).defragmentation(defragmentation);
        let pool = builder.headroom(Headroom::Share(0.0)).build().unwrap();
        let stream = pool.stream(DeviceId(0)).unwrap();
        let still = leave_an_island(&sim, &pool, &stream);
        let reserved = pool.reserved_bytes(DeviceId(0)).unwrap();
        let gap = pool.step_gap(&stream).unwrap();
        assert_eq!((gap.blocks, gap.returned_bytes), (0, 0), "{gap:?}");
        joined = gap.joined_bytes;
        pool.check_invariants_at(Level::Full);
        assert_eq!(pool.reserved_bytes(DeviceId(0)).unwrap(), reserved);
        // As it fits, without another page behind it.
        let fits = |pages: &usize| {
            let before = pool.stats().devices[0].ladder;
            drop(stream.alloc::<u8>(*pages * PAGE).unwrap());
            let ladder = pool.stats().devices[0].ladder;
            (ladder.moved, ladder.created) == (before.moved, before.created)
        };
        let largest = (1..=40).take_while(fits).last().unwrap();
        drop((still, stream));
        pool.check_invariants_at(Level::Full);
        drop(pool);
        assert_eq!(sim.hazard_count(), 0);
        assert!(sim.leaks().is_empty(), "{}", sim.leaks());
        largest
    };
    let budget = Budget::Bytes(0);
    let without = largest_that_fits(Defragmentation::Off);
    let with = largest_that_fits(Defragmentation::Compaction { budget });
    assert_eq!((without, with, joined), (20, 40, 10 * PAGE as u64));
}

/// Work that used the pages is still to run when they come together: others wait for it.
#[test]
fn what_has_come_together_waits_for_its_work() {
    let sim = Sim::builder().oracle(true).completion(Completion::Lag(1_000_000)).build().unwrap();
    let builder = Pool::builder(SimDriver::new(sim.clone()));
    let mode = Defragmentation::Compaction { budget: Budget::Bytes(0) };
    let pool = builder.headroom(Headroom::Share(0.0)).defragmentation(mode).build().unwrap();
    let [s, t] = [0; 2].map(|_| pool.stream(DeviceId(0)).unwrap());
    let still = leave_an_island(&sim, &pool, &s);
    assert_eq!(pool.step_gap(&s).unwrap().joined_bytes, 10 * PAGE as u64);
    let block = t.alloc::<u8>(40 * PAGE).unwrap();
    let touch = Touch::write(block.address(), block.bytes());
    sim.launch(t.handle().into(), &[touch]).unwrap();
    assert_eq!(sim.hazard_count(), 0, "it raced: {:?}", sim.hazards().first());
    assert!(pool.stats().devices[0].ladder.waited > 0, "{:?}", pool.stats().devices[0].ladder);
    drop((block, still, s, t));
    pool.check_invariants_at(Level::Full);
}
