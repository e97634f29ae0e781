//! Movable blocks: what moves and what stays, and that nobody sees it but by the address.

use crate::machine::{D0, MIB, Machine, Need, Rig, reserved};
use crate::support::Rng;
use millpond::{
    Budget, Builder, Defragmentation, Error, Generations, Level, Movable, Moved, Pool, StepTiming,
    Stream,
};
use std::sync::Arc;
use std::time::Duration;

const ALL: Defragmentation = Defragmentation::Compaction { budget: Budget::Unlimited };

/// A movable block with a label of its own written all over it.
struct Thing {
    block: Movable,
    label: u64,
}

struct Yard<M> {
    rig: Rig<M>,
    labels: u64,
}

impl<M: Machine> Yard<M> {
    /// On a device of 12 pages, or two segments.
    fn new(make: impl Fn(u16, u64) -> M) -> Self {
        Self { rig: Rig::new(make, 1, 24 * MIB), labels: 1_000_000 }
    }

    /// Of such blocks 16 take 10 pages or one segment; whole pages lie behind none.
    fn bytes(&self) -> u64 {
        self.rig.page * 5 / 8
    }

    fn builder(&self) -> Builder {
        // Half a page takes a millisecond, and a step a second.
        let bytes_per_second = 1000 * self.rig.page / 2;
        let timing = StepTiming::Given { step: Duration::from_secs(1), bytes_per_second };
        self.rig.builder().defragmentation(ALL).step_timing(timing)
    }

    fn get(&mut self, stream: &Stream, bytes: u64) -> Thing {
        let block = stream.alloc_movable::<u8>(bytes as usize).unwrap();
        self.labels += 1;
        let thing = Thing { block, label: self.labels };
        let pin = thing.block.pin(stream).unwrap();
        self.rig.machine.write(stream.handle(), pin.address(), bytes, thing.label);
        drop(pin);
        thing
    }

    /// Reads all of it on a stream; returns where it was.
    fn read(&self, stream: &Stream, thing: &Thing) -> u64 {
        let pin = thing.block.pin(stream).unwrap();
        self.rig.machine.read(stream.handle(), pin.address(), pin.bytes(), thing.label);
        pin.address()
    }

    /// A gap once all work is over, and the pool could learn that it is: from the events that the first
    /// gap, which moves nothing in flight, records.
    fn gap(&self, pool: &Pool, stream: &Stream) -> Moved {
        let first = pool.step_gap(stream).unwrap();
        self.rig.machine.pass_time();
        let second = pool.step_gap(stream).unwrap();
        pool.check_invariants_at(Level::Full);
        let mut both = second;
        both.blocks += first.blocks;
        both.bytes += first.bytes;
        both.returned_bytes += first.returned_bytes;
        both
    }

    fn done(self, pool: Pool) {
        self.rig.done(pool);
    }
}

/// Blocks that leave holes as large as themselves between them, over the whole device; every other one
/// is gone.
fn checkerboard<M: Machine>(yard: &mut Yard<M>, stream: &Stream, count: usize) -> Vec<Thing> {
    let bytes = yard.bytes();
    let things: Vec<Thing> = (0..count).map(|_| yard.get(stream, bytes)).collect();
    let mut kept = Vec::new();
    for (number, thing) in things.into_iter().enumerate() {
        if number.is_multiple_of(2) { kept.push(thing) } else { _ = yard.read(stream, &thing) }
    }
    kept
}

/// A request as large as all holes together is served from them after a gap, without new memory.
pub fn holes_become_one<M: Machine>(make: impl Fn(u16, u64) -> M) {
    let mut yard = Yard::new(make);
    yard.rig.needs(Need::Extents);
    let pool = yard.builder().capacity(16 * yard.bytes()).build().unwrap();
    let [s, t] = [0; 2].map(|_| pool.stream(D0).unwrap());
    pool.begin_step();
    let (bytes, kept) = (yard.bytes(), checkerboard(&mut yard, &s, 16));
    let before = reserved(&pool);
    let moved = yard.gap(&pool, &s);
    assert!((1..=6).contains(&moved.blocks), "{moved:?}");
    assert_eq!(moved.bytes, moved.blocks * bytes);
    assert_eq!(pool.stats().devices[0].moves.bytes, moved.bytes);
    let calls = ["allocate", "create_page"].map(|name| yard.rig.driver.calls(name));
    // Where memory comes in pages, parts of one may be left over.
    let left = if yard.rig.moves { yard.rig.page } else { 0 };
    let large = yard.rig.get(&s, 8 * bytes - left);
    assert!(reserved(&pool) <= before, "new memory");
    assert_eq!(calls, ["allocate", "create_page"].map(|name| yard.rig.driver.calls(name)));
    yard.rig.free(&s, large);
    // What was moved is as it was, on its own stream and on one that knows nothing of the copy.
    t.wait(&s).unwrap();
    kept.iter().for_each(|thing| _ = yard.read(&s, thing));
    kept.iter().for_each(|thing| _ = yard.read(&t, thing));
    drop((kept, s, t));
    yard.done(pool);
}

/// Memory that becomes idle goes back, down to what was in use at once, and no further.
pub fn idle_memory_goes_back<M: Machine>(make: impl Fn(u16, u64) -> M) {
    let mut yard = Yard { rig: Rig::new(make, 1, 256 * MIB), labels: 1 };
    yard.rig.needs(Need::OnDemand);
    let pool = yard.builder().build().unwrap();
    let s = pool.stream(D0).unwrap();
    pool.begin_step();
    let kept = checkerboard(&mut yard, &s, 64);
    let full = reserved(&pool);
    // The step's peak was all of it: nothing to give back yet.
    yard.gap(&pool, &s);
    assert_eq!(reserved(&pool), full);
    let mut last = Moved::default();
    for _ in 0..3 {
        pool.begin_step();
        yard.rig.machine.pass_time();
        last = yard.gap(&pool, &s);
    }
    let live = 32 * yard.bytes();
    // Small blocks' memory stays for small blocks.
    let large = yard.bytes() >= MIB;
    let most = if large { live + live / 8 + yard.rig.page } else { full };
    assert!((live..=most).contains(&reserved(&pool)), "{} of {full}: {last:?}", reserved(&pool));
    kept.iter().for_each(|thing| _ = yard.read(&s, thing));
    drop((kept, s));
    yard.done(pool);
}

/// What is pinned stays: by a guard, by a pin of its memory, and when work that used it is not over.
pub fn what_is_in_use_stays<M: Machine>(make: impl Fn(u16, u64) -> M) {
    let mut yard = Yard::new(make);
    yard.rig.needs(Need::Extents);
    let pool = yard.builder().build().unwrap();
    let [s, busy] = [0; 2].map(|_| pool.stream(D0).unwrap());
    let kept = checkerboard(&mut yard, &s, 16);
    yard.rig.settle(&[&s], &busy);
    yard.rig.machine.hold(busy.handle());
    let pins: Vec<_> = kept[..3].iter().map(|thing| thing.block.pin(&s).unwrap()).collect();
    let addresses: Vec<u64> = kept[3..6].iter().map(|thing| yard.read(&s, thing)).collect();
    let held: Vec<_> = addresses.iter().map(|&address| pool.pin(address).unwrap()).collect();
    let in_flight: Vec<u64> = kept[6..].iter().map(|thing| yard.read(&busy, thing)).collect();
    assert_eq!(yard.gap(&pool, &s).blocks, 0, "what is in use has moved");
    for (pin, thing) in pins.iter().zip(&kept) {
        assert_eq!(pin.address(), yard.read(&s, thing));
    }
    for (thing, at) in kept[3..6].iter().zip(&addresses) {
        assert_eq!(yard.read(&s, thing), *at);
    }
    yard.rig.assert_quiet();
    drop((pins, held));
    // Those are free to move now; the busy stream's are not.
    assert!(yard.gap(&pool, &s).blocks > 0);
    for (thing, at) in kept[6..].iter().zip(&in_flight) {
        assert_eq!(yard.read(&s, thing), *at, "moved under work in flight");
    }
    yard.rig.machine.let_go(busy.handle());
    yard.rig.machine.pass_time();
    kept.iter().for_each(|thing| _ = yard.read(&s, thing));
    drop((kept, s, busy));
    yard.done(pool);
}

/// Plain blocks never move, nor does anything without a setting that says so.
pub fn plain_blocks_stay<M: Machine>(make: impl Fn(u16, u64) -> M) {
    let mut yard = Yard::new(make);
    yard.rig.needs(Need::Still);
    let pool = yard.builder().build().unwrap();
    let s = pool.stream(D0).unwrap();
    let mut blocks: Vec<_> = (0..16).map(|_| yard.rig.get(&s, yard.bytes())).collect();
    for at in (1..16).rev().step_by(2) {
        yard.rig.free(&s, blocks.swap_remove(at));
    }
    let addresses: Vec<u64> = blocks.iter().map(|block| block.address()).collect();
    assert_eq!(yard.gap(&pool, &s).blocks, 0);
    assert_eq!(yard.rig.driver.calls("copy"), 0);
    for (block, at) in blocks.into_iter().zip(addresses) {
        assert_eq!(block.address(), at);
        yard.rig.free(&s, block);
    }
    drop((s, pool));
    let pool = yard.rig.pool();
    let s = pool.stream(D0).unwrap();
    let kept = checkerboard(&mut yard, &s, 16);
    assert_eq!(yard.gap(&pool, &s), Moved::default());
    drop((kept, s));
    yard.done(pool);
}

/// The stream of a pin runs after the copy, also when the copy is not over, and another stream's work.
pub fn pins_wait_for_the_copy<M: Machine>(make: impl Fn(u16, u64) -> M) {
    let mut yard = Yard::new(make);
    yard.rig.needs(Need::Extents);
    let pool = yard.builder().build().unwrap();
    let [s, mover, user] = [0; 3].map(|_| pool.stream(D0).unwrap());
    let kept = checkerboard(&mut yard, &s, 16);
    yard.rig.settle(&[&s], &user);
    mover.wait(&s).unwrap();
    assert!(yard.rig.gets_done(&mover));
    // The copies are given to a stream that is held up.
    yard.rig.machine.hold(mover.handle());
    let moved = pool.step_gap(&mover).unwrap();
    assert!(moved.blocks > 0, "{moved:?}");
    let waits = yard.rig.driver.calls("wait");
    for thing in &kept {
        // Writes over it: neither before the copy reads the old place, nor before it writes the new one.
        let pin = thing.block.pin(&user).unwrap();
        yard.rig.machine.read(user.handle(), pin.address(), pin.bytes(), thing.label);
        yard.rig.machine.write(user.handle(), pin.address(), pin.bytes(), thing.label);
        yard.rig.machine.read(user.handle(), pin.address(), pin.bytes(), thing.label);
    }
    assert!(yard.rig.driver.calls("wait") > waits, "nobody waited");
    // Where they were is not given to others before the copies have read it.
    let blocks: Vec<_> = (0..3).filter_map(|_| yard.rig.try_get(&s, yard.bytes()).ok()).collect();
    blocks.into_iter().for_each(|block| yard.rig.free(&s, block));
    yard.rig.machine.let_go(mover.handle());
    yard.rig.machine.pass_time();
    yard.rig.order(&user, &s);
    kept.iter().for_each(|thing| _ = yard.read(&s, thing));
    drop((kept, s, mover, user));
    yard.done(pool);
}

/// Where blocks were moved by a stream that captures since, or that is gone, others have them all the same.
pub fn the_movers_stream_captures_or_goes<M: Machine>(make: impl Fn(u16, u64) -> M) {
    for captures in [true, false] {
        let mut yard = Yard::new(&make);
        yard.rig.needs(Need::Extents);
        let pool = yard.builder().build().unwrap();
        let [s, mover, user] = [0; 3].map(|_| pool.stream(D0).unwrap());
        let kept = checkerboard(&mut yard, &s, 16);
        yard.rig.settle(&[&s], &user);
        mover.wait(&s).unwrap();
        assert!(yard.rig.gets_done(&mover));
        assert!(pool.step_gap(&mover).unwrap().blocks > 0);
        let memory = pool.graph_memory().unwrap();
        // The capture has a handle of its own.
        let capture = captures.then(|| memory.capture(&mover).unwrap());
        drop(mover);
        kept.iter().for_each(|thing| _ = yard.read(&user, thing));
        drop((capture, memory, kept, s, user));
        yard.done(pool);
    }
}

/// No more is copied than the budget says, and what is left is said.
pub fn budgets_are_kept<M: Machine>(make: impl Fn(u16, u64) -> M) {
    for (budget, most) in [
        (Budget::Bytes(2), 2),
        (Budget::Time(Duration::from_millis(2)), 2),
        (Budget::Share(0.003), 3),
        (Budget::Bytes(0), 0),
    ] {
        let mut yard = Yard::new(&make);
        yard.rig.needs(Need::Extents);
        // In megabytes, where pages have two.
        let unit = yard.rig.page / 2;
        let most = most * unit;
        let budget = match budget {
            Budget::Bytes(units) => Budget::Bytes(units * unit),
            other => other,
        };
        let how = Defragmentation::Compaction { budget };
        let pool = yard.builder().defragmentation(how).build().unwrap();
        let s = pool.stream(D0).unwrap();
        pool.begin_step();
        let kept = checkerboard(&mut yard, &s, 16);
        // What the first gap asks about need not be over.
        let first = pool.step_gap(&s).unwrap();
        yard.rig.machine.pass_time();
        pool.begin_step();
        let second = pool.step_gap(&s).unwrap();
        assert!(first.bytes.max(second.bytes) <= most, "{budget:?}: {first:?}, {second:?}");
        let moved = if first.left_blocks > 0 { first } else { second };
        assert!(moved.left_blocks > 0 && moved.left_bytes > 0, "{budget:?}: {moved:?}");
        assert!(moved.bytes > 0 || most == 0, "{budget:?}: {moved:?}");
        assert_eq!(moved.time.as_micros() as u64, moved.bytes * 1000 / unit);
        if matches!(budget, Budget::Share(_)) {
            // It is the step's, however many gaps there are.
            yard.rig.machine.pass_time();
            assert!(second.bytes + pool.step_gap(&s).unwrap().bytes <= most);
        }
        kept.iter().for_each(|thing| _ = yard.read(&s, thing));
        drop((kept, s));
        yard.done(pool);
    }
}

/// Young blocks move at every gap, old ones at theirs.
pub fn generations_take_turns<M: Machine>(make: impl Fn(u16, u64) -> M) {
    let mut yard = Yard::new(make);
    yard.rig.needs(Need::Extents);
    let how = Defragmentation::Generational(Generations::default().every(8).share(1.0));
    let pool = yard.builder().defragmentation(how).build().unwrap();
    let s = pool.stream(D0).unwrap();
    let gap = |yard: &Yard<M>| {
        yard.rig.machine.pass_time();
        pool.begin_step();
        pool.step_gap(&s).unwrap().blocks
    };
    // They become old as they survive: nothing is to be moved as long as all of them are there.
    let bytes = yard.bytes();
    let things: Vec<Thing> = (0..16).map(|_| yard.get(&s, bytes)).collect();
    assert_eq!([gap(&yard), gap(&yard), gap(&yard)], [0, 0, 0]);
    let mut kept: Vec<Thing> = things.into_iter().step_by(2).collect();
    assert_eq!(
        [gap(&yard), gap(&yard), gap(&yard), gap(&yard)],
        [0, 0, 0, 0],
        "moved before its turn"
    );
    assert!(gap(&yard) > 0, "the eighth gap is the old ones'");
    // Young ones do not wait.
    let young: Vec<Thing> = (0..8).map(|_| yard.get(&s, bytes)).collect();
    kept.truncate(3);
    kept.extend(young.into_iter().step_by(2));
    assert!(gap(&yard) + gap(&yard) > 0, "young blocks wait");
    kept.iter().for_each(|thing| _ = yard.read(&s, thing));
    drop((kept, s));
    yard.done(pool);
}

/// Handles are dropped by another thread at every moment of a gap.
pub fn dropped_while_moving<M: Machine>(make: impl Fn(u16, u64) -> M) {
    for nth in 0..2 {
        let mut yard = Yard::new(&make);
        yard.rig.needs(Need::Extents);
        let pool = yard.builder().build().unwrap();
        let s = pool.stream(D0).unwrap();
        let kept = checkerboard(&mut yard, &s, 16);
        // Every other block goes in the course of the first copy, the one that is copied perhaps among
        // them.
        let (late, mut kept): (Vec<_>, Vec<_>) =
            kept.into_iter().enumerate().partition(|(number, _)| number % 2 == nth % 2);
        let late: Vec<Movable> = late.into_iter().map(|(_, thing)| thing.block).collect();
        yard.rig.driver.during("copy", move || drop(late));
        let moved = yard.gap(&pool, &s);
        assert!(!yard.rig.driver.is_armed(), "nothing was copied");
        assert!(moved.blocks > 0, "{moved:?}");
        pool.check_invariants_at(Level::Full);
        kept.drain(..).for_each(|(_, thing)| _ = yard.read(&s, &thing));
        assert_eq!(pool.stats().devices[0].live_bytes, 0);
        // All of it is there again.
        yard.rig.machine.pass_time();
        drop(yard.rig.get(&s, 20 * MIB));
        drop(s);
        yard.done(pool);
    }
}

/// Threads pin, use and drop blocks of their own while another has gap after gap.
pub fn threads_pin_while_blocks_move<M: Machine>(make: impl Fn(u16, u64) -> M) {
    let yard = Yard { rig: Rig::new(make, 1, 128 * MIB), labels: 1 };
    let pool = yard.builder().build().unwrap();
    let (yard, moved) = (&yard, std::sync::atomic::AtomicU64::new(0));
    std::thread::scope(|scope| {
        for seed in 0..3 {
            let (pool, moved) = (&pool, &moved);
            scope.spawn(move || {
                let mut rng = Rng::new(seed);
                let streams = [0; 2].map(|_| pool.stream(D0).unwrap());
                let mut things: Vec<Thing> = Vec::new();
                for round in 0..120 {
                    let (from, to) = (&streams[round % 2], &streams[(round + 1) % 2]);
                    if things.len() < 8 {
                        let bytes = [600_000, 1_500_000, 3_000_000][rng.below(3) as usize];
                        let block = from.alloc_movable::<u8>(bytes as usize).unwrap();
                        let label = (seed << 32) + round as u64 + 1;
                        let pin = block.pin(from).unwrap();
                        yard.rig.machine.write(from.handle(), pin.address(), bytes, label);
                        drop(pin);
                        things.push(Thing { block, label });
                    }
                    // Whatever is used next on the other stream was used on this one.
                    to.wait(from).unwrap();
                    let at = rng.below(things.len() as u64) as usize;
                    yard.read(to, &things[at]);
                    if rng.below(3) == 0 {
                        things.swap_remove(rng.below(things.len() as u64) as usize);
                    }
                    if round % 10 == seed as usize {
                        yard.rig.machine.pass_time();
                        let gap = pool.step_gap(to).unwrap();
                        moved.fetch_add(gap.blocks, std::sync::atomic::Ordering::Relaxed);
                    }
                }
            });
        }
    });
    pool.check_invariants_at(Level::Full);
    yard.rig.assert_quiet();
    drop(pool);
    yard.rig.assert_nothing_leaked();
}

/// Threads pin the same blocks at once, each on a stream of its own, and drop them whoever is last, while
/// others have gaps, hits, misses, frees and trims.
pub fn threads_share_blocks_that_move<M: Machine>(make: impl Fn(u16, u64) -> M) {
    let mut yard = Yard { rig: Rig::new(make, 1, 128 * MIB), labels: 1 };
    let pool = yard.builder().build().unwrap();
    let writer = pool.stream(D0).unwrap();
    let sizes = [5000, 600_000, 1_500_000, 3_000_000];
    let things: Vec<Arc<Thing>> =
        (0..24).map(|n| Arc::new(yard.get(&writer, sizes[n % sizes.len()]))).collect();
    let (yard, pool, writer) = (&yard, &pool, &writer);
    std::thread::scope(|scope| {
        for seed in 0..4 {
            let mut things = things.clone();
            scope.spawn(move || {
                let mut rng = Rng::new(seed);
                let stream = pool.stream(D0).unwrap();
                stream.wait(writer).unwrap();
                let mut own = Vec::new();
                while !things.is_empty() {
                    for _ in 0..4 {
                        yard.read(&stream, &things[rng.below(things.len() as u64) as usize]);
                    }
                    own.push(yard.rig.get(&stream, sizes[rng.below(4) as usize]));
                    if own.len() > 5 {
                        yard.rig.free(&stream, own.swap_remove(rng.below(5) as usize));
                    }
                    match rng.below(6) {
                        0 => _ = things.swap_remove(rng.below(things.len() as u64) as usize),
                        1 => {
                            yard.rig.machine.pass_time();
                            pool.begin_step();
                            pool.step_gap(&stream).unwrap();
                        }
                        2 if seed == 0 => _ = pool.trim(D0, 0).unwrap(),
                        _ => {}
                    }
                }
                own.into_iter().for_each(|block| yard.rig.free(&stream, block));
            });
        }
        drop(things);
    });
    pool.check_invariants_at(Level::Full);
    assert_eq!(pool.stats().devices[0].live_bytes, 0);
    yard.rig.assert_quiet();
}

/// What may not be asked for is refused, and changes nothing.
pub fn refusals<M: Machine>(make: impl Fn(u16, u64) -> M) {
    let mut yard = Yard::new(make);
    yard.rig.needs(Need::OnDemand);
    let (pool, other) = (yard.builder().build().unwrap(), yard.rig.pool());
    let [s, theirs] = [&pool, &other].map(|pool| pool.stream(D0).unwrap());
    assert!(matches!(s.alloc_movable::<u8>(0), Err(Error::ZeroSize)));
    assert!(matches!(pool.step_gap(&theirs), Err(Error::ForeignStream { .. })));
    let thing = yard.get(&s, 5000);
    assert!(matches!(thing.block.pin(&theirs), Err(Error::ForeignStream { .. })));
    let memory = pool.graph_memory().unwrap();
    let capture = memory.capture(&s).unwrap();
    assert!(matches!(thing.block.pin(&s), Err(Error::Capturing { .. })));
    assert!(matches!(s.alloc_movable::<u8>(9), Err(Error::Capturing { .. })));
    assert!(matches!(pool.step_gap(&s), Err(Error::Capturing { .. })));
    drop((capture, memory));
    // Freed behind its back: it owns nothing any more, and says so.
    let address = yard.read(&s, &thing);
    pool.free(address).unwrap();
    assert!(matches!(thing.block.pin(&s), Err(Error::NotAllocated { .. })));
    yard.gap(&pool, &s);
    drop((thing, s, theirs, other));
    yard.rig.assert_quiet();
    pool.check_invariants_at(Level::Full);
}

/// Blocks outlive their stream and their pool; the last of them gives the memory back.
pub fn outliving_the_pool<M: Machine>(make: impl Fn(u16, u64) -> M) {
    let mut yard = Yard::new(make);
    let pool = yard.builder().build().unwrap();
    let s = pool.stream(D0).unwrap();
    let kept = checkerboard(&mut yard, &s, 8);
    yard.gap(&pool, &s);
    drop((s, pool));
    drop(kept);
    yard.rig.assert_quiet();
    yard.rig.assert_nothing_leaked();
}

/// Blocks are freed into the caches like others, and found there again.
pub fn freed_blocks_are_found_again<M: Machine>(make: impl Fn(u16, u64) -> M) {
    let mut yard = Yard::new(make);
    yard.rig.needs(Need::Caches);
    let pool = yard.builder().build().unwrap();
    let [s, t] = [0; 2].map(|_| pool.stream(D0).unwrap());
    for bytes in [3000, 3 * MIB] {
        let thing = yard.get(&s, bytes);
        let at = yard.read(&s, &thing);
        drop(thing);
        assert_eq!(yard.rig.touch(&s, bytes), at, "its own stream's, at once");
        let thing = yard.get(&s, bytes);
        t.wait(&s).unwrap();
        yard.read(&t, &thing);
        drop(thing);
        yard.rig.touch(&s, bytes);
    }
    let hits = pool.stats().hits;
    assert!(hits.thread + hits.stream >= 2, "{hits:?}");
    drop((s, t));
    yard.done(pool);
}

/// The rate is learnt from events that nobody waits for, and no budget is spent before a step is timed.
pub fn time_is_measured_without_waiting<M: Machine>(make: impl Fn(u16, u64) -> M) {
    let mut yard = Yard::new(make);
    yard.rig.needs(Need::Extents);
    yard.rig.needs(Need::OwnDevice);
    let how = Defragmentation::Generational(Generations::default().share(1.0));
    let builder = yard.rig.builder().defragmentation(how);
    let pool = builder.build().unwrap();
    let s = pool.stream(D0).unwrap();
    pool.begin_step();
    let kept = checkerboard(&mut yard, &s, 16);
    let first = pool.step_gap(&s).unwrap();
    assert_eq!(first.blocks, 0, "{first:?}");
    yard.rig.machine.pass_time();
    std::thread::sleep(Duration::from_millis(2));
    pool.begin_step();
    // 2 ms, at half a terabyte a second.
    let second = pool.step_gap(&s).unwrap();
    assert!(second.blocks > 0 && second.time > Duration::ZERO, "{second:?}");
    assert_eq!(yard.rig.driver.calls("synchronize"), 0);
    kept.iter().for_each(|thing| _ = yard.read(&s, thing));
    drop((kept, s));
    yard.done(pool);
}
