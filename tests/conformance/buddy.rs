//! The buddy system: blocks that live for long, in chunks of their own.

use crate::machine::{Block, D0, MIB, Machine, Need, Rig, refusal, reserved};
use millpond::{Buddy, BuddyStats, Error, Lifetime, Pool, Result, Reuse, Stream};

/// A small block, one of many units, and one beyond the small sizes.
const SIZES: [u64; 4] = [700, 40_000, 900_000, 1_100_000];

fn try_long<M: Machine>(rig: &Rig<M>, stream: &Stream, bytes: u64) -> Result<Block> {
    rig.try_get_as(stream, bytes, Lifetime::Persistent)
}

#[track_caller]
fn long<M: Machine>(rig: &Rig<M>, stream: &Stream, bytes: u64) -> Block {
    try_long(rig, stream, bytes).unwrap()
}

fn buddy(pool: &Pool) -> BuddyStats {
    pool.stats().devices[0].buddy
}

/// Where a block lies: from its first byte up to the one after its last.
fn range(block: &Block) -> (u64, u64) {
    (block.address(), block.address() + block.buffer.granted_bytes())
}

/// Lasting blocks are aligned, disjoint, near each other, and counted; others are no part of it.
pub fn lasting_blocks_are_kept_together<M: Machine>(make: impl Fn(u16, u64) -> M) {
    let rig = Rig::new(make, 1, 64 * MIB);
    rig.needs(Need::OnDemand);
    let pool = rig.pool();
    let stream = pool.stream(D0).unwrap();
    let mut held = Vec::new();
    let (mut asked, mut between) = (0, Vec::new());
    for round in 0..8 {
        for bytes in SIZES {
            let bytes = bytes + round * 1000;
            held.push(long(&rig, &stream, bytes));
            asked += bytes;
            between.push(rig.get(&stream, bytes));
        }
    }
    let stats = buddy(&pool);
    assert_eq!(stats.live_bytes, asked);
    assert_eq!(pool.stats().devices[0].live_bytes, 2 * asked);
    let granted: u64 = held.iter().map(|block| block.buffer.granted_bytes()).sum();
    assert_eq!(stats.granted_bytes, granted);
    assert!(granted * 100 <= asked * 103, "{granted} bytes for {asked}");
    assert!(stats.chunk_bytes >= granted && stats.chunk_bytes <= reserved(&pool), "{stats:?}");
    let chunks = u64::from(stats.chunks);
    assert!(chunks > 1 && chunks <= granted / MIB + 1, "{stats:?}");
    let mut ranges: Vec<_> = held.iter().chain(&between).map(range).collect();
    ranges.sort_unstable();
    assert!(ranges.iter().all(|(start, _)| start % 512 == 0));
    assert!(ranges.windows(2).all(|pair| pair[0].1 <= pair[1].0), "blocks overlap");
    pool.check_invariants_at(millpond::Level::Full);
    between.into_iter().chain(held).for_each(|block| rig.free(&stream, block));
    assert_eq!(buddy(&pool).live_bytes, 0);
    drop(stream);
    rig.done(pool);
}

/// A lasting block that is freed is its stream's again at once; another stream gets the memory when the
/// work is over.
pub fn lasting_memory_moves_when_its_work_is_over<M: Machine>(make: impl Fn(u16, u64) -> M) {
    let rig = Rig::new(make, 1, 64 * MIB);
    rig.needs(Need::Caches);
    let pool = rig.builder().reuse(Reuse::Completed).build().unwrap();
    let [home, other] = [(); 2].map(|()| pool.stream(D0).unwrap());
    for bytes in SIZES {
        // The stream's cache makes itself ready for a size.
        (0..2).for_each(|_| rig.free(&home, long(&rig, &home, bytes)));
        let block = long(&rig, &home, bytes);
        let was = block.address();
        rig.free(&home, block);
        let block = long(&rig, &home, bytes);
        assert_eq!(block.address(), was, "not its stream's at once");
        rig.machine.hold(home.handle());
        rig.free(&home, block);
        let theirs: Vec<_> = (0..3).map(|_| long(&rig, &other, bytes)).collect();
        let apart = theirs.iter().map(range).all(|(start, end)| was < start || was >= end);
        assert!(apart, "given away while it is worked on");
        rig.machine.let_go(home.handle());
        theirs.into_iter().for_each(|block| rig.free(&other, block));
        rig.settle(&[&home], &other);
        rig.settle(&[&other], &home);
    }
    drop((home, other));
    rig.done(pool);
}

/// A chunk that one stream got while its earlier work on that memory goes on: another that takes some of it
/// is made to wait.
pub fn a_chunk_waits_for_what_was_there_before<M: Machine>(make: impl Fn(u16, u64) -> M) {
    let rig = Rig::new(make, 1, 8 * MIB);
    let pool = rig.pool();
    let [home, other] = [(); 2].map(|()| pool.stream(D0).unwrap());
    for _ in 0..3 {
        rig.touch(&home, 8 * MIB);
        let blocks = [&home, &other, &other].map(|stream| (stream, long(&rig, stream, 40_000)));
        // A second where the first is not known to be idle yet.
        assert!((1..=2).contains(&buddy(&pool).chunks), "not the chunk that is meant");
        blocks.into_iter().for_each(|(stream, block)| rig.free(stream, block));
    }
    drop((home, other));
    rig.done(pool);
}

/// Streams take and free lasting blocks of all sizes, use each other's, and free by address: nothing races.
pub fn lasting_blocks_of_many_streams<M: Machine>(make: impl Fn(u16, u64) -> M) {
    let rig = Rig::new(make, 1, 64 * MIB);
    let pool = rig.pool();
    let streams = [(); 3].map(|()| pool.stream(D0).unwrap());
    let mut held: Vec<(usize, Block)> = Vec::new();
    for round in 0..240usize {
        let home = &streams[round % 3];
        let bytes = SIZES[round / 3 % 4] + (round as u64 * 7919) % 5000;
        let block = long(&rig, home, bytes);
        if round.is_multiple_of(4) {
            let user = &streams[(round + 1) % 3];
            block.buffer.record_use(user).unwrap();
            rig.use_on(user, home, &block);
        }
        held.push((round % 3, block));
        if held.len() > 24 {
            let (of, block) = held.swap_remove(round * 31 % 24);
            rig.read(&streams[of], &block);
            if round.is_multiple_of(3) {
                let address = block.buffer.into_address();
                pool.free(address).unwrap();
                assert!(matches!(
                    pool.free(address),
                    Err(Error::NotAllocated { .. } | Error::UnknownAddress { .. })
                ));
            } else {
                drop(block);
            }
        }
        if round.is_multiple_of(40) {
            rig.machine.pass_time();
            pool.check_invariants_at(millpond::Level::Full);
        }
    }
    held.into_iter().for_each(|(of, block)| rig.free(&streams[of], block));
    drop(streams);
    rig.done(pool);
}

/// Addresses in a chunk are known as far as blocks start there.
pub fn addresses_in_a_chunk<M: Machine>(make: impl Fn(u16, u64) -> M) {
    let rig = Rig::new(make, 1, 64 * MIB);
    rig.needs(Need::OnDemand);
    let pool = rig.pool();
    let stream = pool.stream(D0).unwrap();
    let first = pool.allocate_as(5000, &stream, Lifetime::Persistent).unwrap();
    let second = pool.allocate_as(5000, &stream, Lifetime::Persistent).unwrap();
    assert!(matches!(pool.free(first + 512), Err(Error::UnknownAddress { .. })));
    pool.last_use(first, &stream).unwrap();
    let pin = pool.pin(second).unwrap();
    pool.free(first).unwrap();
    assert!(matches!(pool.free(first), Err(Error::NotAllocated { .. })));
    pool.free(second).unwrap();
    // Where chunks end nothing is known.
    drop(pin);
    rig.trim_idle(&pool, D0, 0);
    assert_eq!((buddy(&pool).chunks, reserved(&pool)), (0, 0));
    for address in [first, second] {
        assert!(matches!(pool.free(address), Err(Error::UnknownAddress { .. })));
    }
    let again = pool.allocate(5000, &stream).unwrap();
    pool.free(again).unwrap();
    drop(stream);
    rig.done(pool);
}

/// Idle chunks go back when others need the memory, and when it is asked for; those in use stay.
pub fn idle_chunks_go_back<M: Machine>(make: impl Fn(u16, u64) -> M) {
    let rig = Rig::new(make, 1, 32 * MIB);
    rig.needs(Need::OnDemand);
    let pool = rig.pool();
    let [stream, other] = [(); 2].map(|()| pool.stream(D0).unwrap());
    let blocks: Vec<_> = (0..12).map(|_| long(&rig, &stream, 900_000)).collect();
    let kept = long(&rig, &stream, 1_500_000);
    let held = buddy(&pool);
    assert!(held.chunk_bytes >= 12 * MIB, "{held:?}");
    blocks.into_iter().for_each(|block| rig.free(&stream, block));
    rig.settle(&[&stream], &other);
    // All but the chunk of the block that is kept.
    let large = rig.get(&stream, if rig.moves { 24 * MIB } else { 12 * MIB });
    assert!(buddy(&pool).chunk_bytes < held.chunk_bytes, "nothing went back");
    rig.free(&stream, large);
    rig.trim_idle(&pool, D0, 0);
    let left = buddy(&pool);
    assert_eq!((left.chunks, left.live_bytes), (1, 1_500_000));
    assert!(reserved(&pool) <= left.chunk_bytes.max(20 * MIB), "{}", reserved(&pool));
    rig.free(&stream, kept);
    rig.trim_idle(&pool, D0, 0);
    assert_eq!((buddy(&pool), reserved(&pool)), (BuddyStats::default(), 0));
    drop((stream, other));
    rig.done(pool);
}

/// Out of memory, and who holds it, with lasting blocks: until nothing is left for them either.
pub fn lasting_blocks_fill_the_device<M: Machine>(make: impl Fn(u16, u64) -> M) {
    let rig = Rig::new(make, 1, 32 * MIB);
    let pool = rig.pool();
    let [stream, other] = [(); 2].map(|()| pool.stream(D0).unwrap());
    let mut held = Vec::new();
    let report = loop {
        match try_long(&rig, &stream, 300_000) {
            Ok(block) => held.push(block),
            refused => break refusal(refused.map(drop)),
        }
    };
    let asked = held.len() as u64 * 300_000;
    assert_eq!(report.live, asked);
    assert_eq!((report.held.len(), report.held[0].bytes), (1, asked));
    assert!(asked > report.reserved * 8 / 10, "{asked} bytes of {}", report.reserved);
    // Others may have what is left in the chunks, once that is all there is.
    let small = rig.get(&other, 4000);
    rig.free(&other, small);
    // Freed and in flight: waited for.
    held.drain(..8).for_each(|block| rig.free(&stream, block));
    let again: Vec<_> = (0..8).map(|_| long(&rig, &other, 300_000)).collect();
    again.into_iter().for_each(|block| rig.free(&other, block));
    held.into_iter().for_each(|block| rig.free(&stream, block));
    let all = rig.get(&other, 20 * MIB);
    rig.free(&other, all);
    drop((stream, other));
    rig.done(pool);
}

/// Lasting blocks outlive their stream and their pool, and are freed by other threads.
pub fn lasting_blocks_outlive_the_pool<M: Machine>(make: impl Fn(u16, u64) -> M) {
    let rig = Rig::new(make, 1, 32 * MIB);
    let pool = rig.pool();
    let stream = pool.stream(D0).unwrap();
    let blocks: Vec<_> = SIZES.iter().map(|&bytes| long(&rig, &stream, bytes)).collect();
    blocks.iter().for_each(|block| rig.read(&stream, block));
    drop(stream);
    drop(pool);
    std::thread::scope(|scope| {
        for block in blocks {
            scope.spawn(|| drop(block));
        }
    });
    rig.assert_quiet();
    rig.assert_nothing_leaked();
}

/// Without the buddy system lasting blocks are as others; with it for everything so are the rest, up to
/// half a chunk.
pub fn who_is_served_from_chunks<M: Machine>(make: impl Fn(u16, u64) -> M) {
    for (mode, lasting, passing) in [
        (Buddy::Off, false, false),
        (Buddy::LongLived, true, false),
        (Buddy::Everything, true, true),
    ] {
        let rig = Rig::new(&make, 1, 64 * MIB);
        rig.needs(Need::OnDemand);
        let pool = rig.builder().buddy(mode).build().unwrap();
        let stream = pool.stream(D0).unwrap();
        for bytes in SIZES {
            let block = long(&rig, &stream, bytes);
            assert_eq!(buddy(&pool).live_bytes, if lasting { bytes } else { 0 }, "{mode:?}");
            rig.free(&stream, block);
            let block = rig.get(&stream, bytes);
            assert_eq!(buddy(&pool).live_bytes, if passing { bytes } else { 0 }, "{mode:?}");
            rig.free(&stream, block);
        }
        let large = long(&rig, &stream, 20 * MIB);
        assert_eq!(buddy(&pool).live_bytes, 0, "more than half a chunk");
        rig.free(&stream, large);
        drop(stream);
        rig.done(pool);
    }
}

/// Everything from the buddy system, under work of three streams: nothing races, nothing is lost, and a
/// graph's memory is its own.
pub fn everything_from_chunks<M: Machine>(make: impl Fn(u16, u64) -> M) {
    let rig = Rig::new(make, 1, 64 * MIB);
    let pool = rig.builder().buddy(Buddy::Everything).build().unwrap();
    let streams = [(); 3].map(|()| pool.stream(D0).unwrap());
    let mut held: Vec<(usize, Block)> = Vec::new();
    let mut random = 0x2545_f491_u64;
    for round in 0..400 {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        let of = (random % 3) as usize;
        let bytes = 1 + (random >> 8) % (1 << (10 + (random >> 40) % 12));
        held.push((of, rig.get(&streams[of], bytes)));
        if held.len() > 20 {
            let (of, block) = held.swap_remove((random >> 50) as usize % 20);
            if random.is_multiple_of(5) {
                let user = &streams[(of + 1) % 3];
                block.buffer.record_use(user).unwrap();
                rig.use_on(user, &streams[of], &block);
            }
            rig.free(&streams[of], block);
        }
        if round % 50 == 0 {
            rig.machine.pass_time();
            pool.check_invariants_at(millpond::Level::Full);
        }
    }
    let stats = pool.stats();
    assert!(stats.hits.buddy > 0, "no tree served anybody: {stats:?}");
    let live: u64 = held.iter().map(|(_, block)| block.buffer.bytes()).sum();
    assert_eq!(stats.devices[0].live_bytes, live);
    held.into_iter().for_each(|(of, block)| rig.free(&streams[of], block));
    let memory = pool.graph_memory().unwrap();
    let capture = memory.capture(&streams[0]).unwrap();
    let before = buddy(&pool).live_bytes;
    let own = streams[0].alloc_as::<u8>(3000, Lifetime::Persistent).unwrap();
    assert_eq!(buddy(&pool).live_bytes, before, "a graph's memory in a chunk");
    drop(own);
    drop((capture, memory));
    drop(streams);
    rig.done(pool);
}

/// Threads that take and free lasting blocks of few sizes at once.
pub fn lasting_blocks_of_many_threads<M: Machine>(make: impl Fn(u16, u64) -> M) {
    let rig = Rig::new(make, 1, 64 * MIB);
    let pool = rig.pool();
    let streams = [(); 4].map(|()| pool.stream(D0).unwrap());
    std::thread::scope(|scope| {
        for stream in &streams {
            let rig = &rig;
            scope.spawn(move || {
                let mut held = Vec::new();
                for round in 0..150u64 {
                    held.push(long(rig, stream, 2000 + round % 7 * 30_000));
                    if held.len() > 12 {
                        let block = held.swap_remove(round as usize * 7 % 12);
                        rig.free(stream, block);
                    }
                }
                held.into_iter().for_each(|block| rig.free(stream, block));
            });
        }
    });
    drop(streams);
    rig.done(pool);
}
