//! Plans at work: what recurs is served at its place, what differs as always, and no byte is two blocks'.

use millpond::driver::sim::SimDriver;
use millpond::plan::Plan;
use millpond::{
    Budget, Buffer, Builder, Defragmentation, DeviceId, Error, Level, Lifetime, Planning, Pool,
    Reuse, Stream,
};
use millpond_simgpu::{Completion, Sim, Touch};
use std::collections::BTreeMap;

const MIB: usize = 1 << 20;
const DEVICE: DeviceId = DeviceId(0);

fn sim() -> Sim {
    Sim::builder().devices(1).oracle(true).completion(Completion::Lag(5)).build().unwrap()
}

fn planned(sim: &Sim, planning: Planning) -> Pool {
    Pool::builder(SimDriver::new(sim.clone())).planned(planning).build().unwrap()
}

/// Blocks with their bytes, watched: each is written when it is had and read before it goes, and no two
/// share a byte.
struct Watched {
    sim: Sim,
    live: BTreeMap<u64, u64>,
}

impl Watched {
    fn new(sim: &Sim) -> Self {
        Self { sim: sim.clone(), live: BTreeMap::new() }
    }

    #[track_caller]
    fn alloc(&mut self, stream: &Stream, bytes: usize) -> Buffer<u8> {
        let buffer = stream.alloc::<u8>(bytes).unwrap();
        let (from, end) = (buffer.address(), buffer.address() + bytes as u64);
        let below = self.live.range(..end).next_back();
        assert!(below.is_none_or(|(_, &theirs)| theirs <= from), "two blocks share bytes");
        self.live.insert(from, end);
        let touch = Touch::write(from, bytes as u64);
        self.sim.launch(stream.handle().into(), &[touch]).unwrap();
        self.sim.tick();
        buffer
    }

    fn free(&mut self, stream: &Stream, buffer: Buffer<u8>) {
        let touch = Touch::read(buffer.address(), buffer.bytes());
        self.sim.launch(stream.handle().into(), &[touch]).unwrap();
        self.live.remove(&buffer.address()).unwrap();
        drop(buffer);
        self.sim.tick();
    }
}

/// A program of two streams, and its pool.
struct Program {
    sim: Sim,
    watched: Watched,
    /// What lives into the next step.
    wraps: Option<Buffer<u8>>,
    streams: [Stream; 2],
    pool: Pool,
}

impl Program {
    fn new(planning: Planning) -> Self {
        Self::with(|builder| builder.planned(planning))
    }

    fn with(set: impl FnOnce(Builder) -> Builder) -> Self {
        let sim = sim();
        let pool = set(Pool::builder(SimDriver::new(sim.clone()))).build().unwrap();
        let streams = [0; 2].map(|_| pool.stream(DEVICE).unwrap());
        Self { watched: Watched::new(&sim), sim, wraps: None, streams, pool }
    }

    /// A step: forward, backward, and a block that lives into the next step. Places of the plan overlap,
    /// also across streams.
    fn step(&mut self, scale: usize) {
        self.step_with(scale, &mut |_| false);
    }

    /// The same, but that a block stays where `keep` says so.
    fn step_with(&mut self, scale: usize, keep: &mut dyn FnMut(&mut Option<Buffer<u8>>) -> bool) {
        let Self { watched, wraps, streams: [a, b], pool, .. } = self;
        pool.begin_step();
        let kept: Vec<_> = (0..6).map(|n| watched.alloc(a, (n + 2) * scale * MIB)).collect();
        if let Some(old) = wraps.take() {
            watched.free(b, old);
        }
        for buffer in kept.into_iter().rev() {
            let work = watched.alloc(b, 3 * scale * MIB + 512);
            let small = watched.alloc(a, 700);
            let mut buffer = Some(buffer);
            if !keep(&mut buffer) {
                watched.free(a, buffer.unwrap());
            }
            watched.free(b, work);
            watched.free(a, small);
        }
        *wraps = Some(watched.alloc(b, 5 * scale * MIB));
    }

    fn steps(&mut self, count: usize) {
        (0..count).for_each(|_| self.step(1));
    }

    /// Requests served by plan so far.
    fn hits(&self) -> u64 {
        self.pool.stats().hits.planned
    }

    fn end(self) {
        drop((self.wraps, self.streams));
        end(&self.sim, self.pool);
    }
}

fn end(sim: &Sim, pool: Pool) {
    pool.check_invariants_at(Level::Full);
    drop(pool);
    assert_eq!(sim.hazard_count(), 0, "{:?}", sim.hazards().first());
    assert!(sim.leaks().is_empty(), "{}", sim.leaks());
}

#[test]
fn what_recurs_is_served_by_plan() {
    let mut program = Program::new(Planning::default());
    let mut hits = Vec::new();
    for _ in 0..6 {
        let before = program.hits();
        program.step(1);
        hits.push(program.hits() - before);
        program.pool.check_invariants_at(Level::Full);
        let live: u64 = program.watched.live.iter().map(|(from, end)| end - from).sum();
        assert_eq!(program.pool.stats().devices[0].live_bytes, live);
    }
    // The first to wrap in the third step came before the plan.
    assert_eq!(hits, [0, 0, 13, 13, 13, 13]);
    assert_eq!(program.pool.plan().devices().len(), 1);
    assert!(program.pool.plan().devices()[0].ratio() <= 1.2);
    program.end();
}

#[test]
fn a_plan_in_hand_serves_from_the_first_step() {
    let mut plan = None;
    for round in 0..2 {
        let mut program = Program::new(Planning { plan, steps: 2 });
        program.steps(3);
        assert_eq!(program.hits(), 13 + 26 * round);
        plan = Some(program.pool.plan());
        program.end();
    }
}

/// The first step of a program sets it up, and asks for other blocks.
#[test]
fn a_plan_in_hand_outlives_a_first_step_of_other_shapes() {
    let mut plan = None;
    for hits in [13, 39] {
        let mut program = Program::new(Planning { plan, steps: 2 });
        program.step(3);
        let first = program.hits();
        program.steps(3);
        assert_eq!(program.hits() - first, hits);
        plan = Some(program.pool.plan());
        assert_eq!(program.pool.plan().devices().len(), 1);
        // Others for good end it.
        (0..2).for_each(|_| program.step(2));
        assert!(program.pool.plan().devices().is_empty());
        program.end();
    }
}

#[test]
fn other_shapes_are_planned_anew() {
    let mut program = Program::new(Planning::default());
    let mut ranges = Vec::new();
    for number in 0..12 {
        program.step(if number < 5 { 1 } else { 2 });
        program.pool.check_invariants_at(Level::Full);
        ranges.push(program.pool.plan().device(DEVICE).map(|plan| plan.bytes()));
    }
    let first = ranges[2].expect("a plan after two steps");
    assert!(
        ranges[..2].iter().all(Option::is_none) && ranges[2..5].iter().all(|r| *r == Some(first))
    );
    // The first step of other shapes ends it, and some steps later there is another.
    assert!(ranges[5..7].iter().all(Option::is_none), "{ranges:?}");
    let last = ranges.last().unwrap().expect("another plan");
    assert!(last > first && last <= 2 * first, "{ranges:?}");
    // The old range is idle: what the new one leaves can go back.
    (0..100).for_each(|_| program.sim.tick());
    let left = program.pool.trim(DEVICE, 0).unwrap();
    assert!(left < last + first, "{left} with a range of {last} bytes, and none of {first}");
    program.end();
}

#[test]
fn a_place_that_is_taken_is_nobody_elses() {
    let mut program = Program::new(Planning::default());
    program.steps(3);
    // The last block to be freed stays, longer than planned.
    let mut held = None;
    let (mut left, before) = (6, program.hits());
    program.step_with(1, &mut |buffer| {
        left -= 1;
        if left == 0 {
            held = buffer.take();
        }
        left == 0
    });
    assert_eq!(program.hits() - before, 13);
    let held = held.expect("the last");
    program.step(1);
    program.pool.check_invariants_at(Level::Full);
    let served = program.hits() - before - 13;
    assert!(served > 0 && served < 13, "{served} served");
    // It was freed late, and the pool ended before.
    let Program { sim, wraps, streams: [a, b], pool, .. } = program;
    drop((a, wraps));
    let address = held.address();
    drop(pool);
    assert!(!sim.leaks().is_empty(), "memory of a block that is held went back");
    assert_eq!(held.address(), address);
    drop(b);
    drop(held);
    assert_eq!(sim.hazard_count(), 0);
    assert!(sim.leaks().is_empty(), "{}", sim.leaks());
}

#[test]
fn a_range_makes_room_for_what_is_not_planned() {
    // Where blocks may move it is counted what large ones take, and checked.
    for mode in [Defragmentation::Off, Defragmentation::Compaction { budget: Budget::Unlimited }] {
        let mut program =
            Program::with(|builder| builder.planned(Planning::default()).defragmentation(mode));
        program.steps(4);
        let reserved = |program: &Program| program.pool.reserved_bytes(DEVICE).unwrap();
        let (before, hits) = (reserved(&program), program.hits());
        for round in 0..3 {
            // A block of the plan's is still held.
            let large = program.watched.alloc(&program.streams[0], 20 * MIB);
            program.pool.check_invariants_at(Level::Full);
            let more = reserved(&program).saturating_sub(before);
            assert!(more <= 2 * MIB as u64, "{more} more in round {round}");
            assert_eq!(program.pool.plan().devices().len(), 1, "the plan is over");
            program.watched.free(&program.streams[0], large);
            program.steps(4);
            program.pool.check_invariants_at(Level::Full);
            // One step without, and in the next what wraps comes from before.
            assert!(program.hits() >= hits + 38 * (round + 1));
        }
        program.end();
    }
}

#[test]
fn idle_bytes_of_a_range_avert_out_of_memory() {
    let sim = sim();
    let builder = Pool::builder(SimDriver::new(sim.clone())).capacity(40 * MIB as u64);
    let pool = builder.planned(Planning::default()).build().unwrap();
    let stream = pool.stream(DEVICE).unwrap();
    let mut held = None;
    for _ in 0..4 {
        pool.begin_step();
        drop(held.take());
        drop(stream.alloc::<u8>(28 * MIB).unwrap());
        held = Some(stream.alloc::<u8>(3 * MIB).unwrap());
    }
    assert!(pool.stats().hits.planned > 0);
    // Small ones, more than there is memory outside of the range.
    let small: Vec<_> = (0..300).map(|_| stream.alloc::<u8>(100 << 10).unwrap()).collect();
    pool.check_invariants_at(Level::Full);
    drop((small, held, stream));
    end(&sim, pool);
}

#[test]
fn a_place_is_freed_by_its_address_after_its_plan() {
    let sim = sim();
    let pool = planned(&sim, Planning::default());
    let stream = pool.stream(DEVICE).unwrap();
    let mut held: Vec<u64> = Vec::new();
    for number in 0..4 {
        pool.begin_step();
        // The first begins where the range does, as does the one that is freed at once.
        let gone = pool.allocate(4 * MIB as u64, &stream).unwrap();
        pool.free(gone).unwrap();
        let own = [6, 2, 3].map(|mib| pool.allocate(mib * MIB as u64, &stream).unwrap());
        if number < 3 {
            own.into_iter().for_each(|address| pool.free(address).unwrap());
        } else {
            held.extend(own);
        }
    }
    assert!(pool.stats().hits.planned >= 4);
    let large = pool.allocate(100 * MIB as u64, &stream).unwrap();
    pool.check_invariants_at(Level::Full);
    for &address in &held {
        assert_eq!(pool.stats().devices[0].live_bytes % 512, 0);
        pool.free(address).unwrap();
        assert!(pool.free(address).is_err(), "freed twice");
        pool.check_invariants_at(Level::Full);
    }
    pool.free(large).unwrap();
    assert_eq!(pool.stats().devices[0].live_bytes, 0);
    drop(stream);
    end(&sim, pool);
}

#[test]
fn addresses_lead_to_the_place_that_is_live() {
    let sim = sim();
    let pool = planned(&sim, Planning::default());
    let stream = pool.stream(DEVICE).unwrap();
    // Places of several sizes that begin where the range does.
    let sizes = [4 * MIB as u64, 2 * MIB as u64, 6 * MIB as u64];
    for number in 0..5 {
        pool.begin_step();
        for bytes in sizes {
            let address = pool.allocate(bytes, &stream).unwrap();
            pool.check_invariants_at(Level::Full);
            pool.record_use(address, &stream).unwrap();
            pool.pin(address).unwrap();
            pool.free(address).unwrap();
            assert!(pool.free(address).is_err(), "freed twice");
            assert!(pool.free(address + 512).is_err());
        }
        assert_eq!(pool.stats().hits.planned, 3 * u64::max(number, 1) - 3);
    }
    let plan = pool.plan();
    assert!(plan.devices()[0].requests().iter().all(|request| request.offset == 0));
    drop(stream);
    end(&sim, pool);
}

#[test]
fn policies_are_kept() {
    for (reuse, waits) in
        [(Reuse::SameStream, false), (Reuse::Completed, false), (Reuse::Wait, true)]
    {
        // Completion is out of reach: only a wait, or other memory, serves another stream.
        let sim =
            Sim::builder().oracle(true).completion(Completion::Lag(1_000_000)).build().unwrap();
        let pool = Pool::builder(SimDriver::new(sim.clone())).reuse(reuse);
        let pool = pool.planned(Planning::default()).build().unwrap();
        let (a, b) = (pool.stream(DEVICE).unwrap(), pool.stream(DEVICE).unwrap());
        let mut watched = Watched::new(&sim);
        for _ in 0..4 {
            pool.begin_step();
            for stream in [&a, &b] {
                let buffer = watched.alloc(stream, 8 * MIB);
                watched.free(stream, buffer);
            }
        }
        let stats = pool.stats();
        assert_eq!(stats.cross_stream.waits > 0, waits, "{reuse:?}");
        assert_eq!(stats.hits.planned, if waits { 4 } else { 1 }, "{reuse:?}");
        assert_eq!(sim.hazard_count(), 0, "{reuse:?}");
        pool.check_invariants_at(Level::Full);
    }
}

#[test]
fn threads_share_a_plan() {
    let sim = Sim::builder().devices(1).oracle(true).build().unwrap();
    let pool = planned(&sim, Planning::default());
    let streams = [(); 4].map(|()| pool.stream(DEVICE).unwrap());
    for _ in 0..8 {
        pool.begin_step();
        std::thread::scope(|scope| {
            for (number, stream) in streams.iter().enumerate() {
                let sim = &sim;
                scope.spawn(move || {
                    for n in 0..40_usize {
                        let bytes = (1 + (n * 7 + number) % 5) * MIB + 512;
                        let buffer = stream.alloc::<u8>(bytes).unwrap();
                        let touch = Touch::write(buffer.address(), bytes as u64);
                        sim.launch(stream.handle().into(), &[touch]).unwrap();
                    }
                });
            }
        });
        pool.check_invariants_at(Level::Full);
    }
    assert!(pool.stats().hits.planned > 0);
    drop(streams);
    end(&sim, pool);
}

#[test]
fn a_plan_too_large_for_the_device_is_dropped() {
    let mut program = Program::new(Planning::default());
    program.steps(3);
    let plan = program.pool.plan();
    program.end();

    let sim = sim();
    let builder = Pool::builder(SimDriver::new(sim.clone())).capacity(16 << 20);
    let pool = builder.planned(Planning { plan: Some(plan), steps: 2 }).build().unwrap();
    let stream = pool.stream(DEVICE).unwrap();
    for _ in 0..3 {
        pool.begin_step();
        drop(stream.alloc::<u8>(2 * MIB).unwrap());
    }
    assert_eq!(pool.stats().hits.planned, 0);
    assert!(pool.plan().devices().is_empty());
    drop(stream);
    end(&sim, pool);
}

/// A pool of so many bytes, with steps of one block of `bytes` that have been planned, and a stream.
fn small_pool(sim: &Sim, capacity: u64, bytes: usize) -> (Pool, Stream) {
    let builder = Pool::builder(SimDriver::new(sim.clone())).capacity(capacity);
    let pool = builder.planned(Planning::default()).build().unwrap();
    let stream = pool.stream(DEVICE).unwrap();
    for _ in 0..4 {
        pool.begin_step();
        drop(stream.alloc::<u8>(bytes).unwrap());
    }
    assert_eq!(pool.stats().hits.planned, 2);
    (pool, stream)
}

/// While nobody holds a place of it a range is idle memory, for those who need it and for the driver.
#[test]
fn an_idle_range_is_nobodys_loss() {
    let sim = sim();
    let (pool, stream) = small_pool(&sim, 32 << 20, 20 * MIB);
    assert_eq!(pool.trim(DEVICE, 20 << 20), Ok(20 << 20), "more went than was to");
    pool.trim(DEVICE, 0).unwrap();
    (0..10).for_each(|_| sim.tick());
    assert_eq!(pool.trim(DEVICE, 0), Ok(0), "a range that nobody holds a place of");
    drop(stream.alloc::<u8>(20 * MIB).unwrap());
    pool.begin_step();
    drop(stream.alloc::<u8>(20 * MIB).unwrap());
    assert_eq!(pool.stats().hits.planned, 3, "the plan is as good as before");
    drop(stream.alloc::<u8>(30 * MIB).unwrap());
    pool.check_invariants_at(Level::Full);
    // Some steps later it has a range again.
    for _ in 0..4 {
        pool.begin_step();
        drop(stream.alloc::<u8>(20 * MIB).unwrap());
    }
    assert!(pool.stats().hits.planned > 3);
    // One whose place is held makes room for what there is room for.
    pool.begin_step();
    let held = stream.alloc::<u8>(20 * MIB).unwrap();
    assert!(matches!(stream.alloc::<u8>(30 * MIB), Err(Error::OutOfMemory(_))));
    let other = stream.alloc::<u8>(12 * MIB).unwrap();
    pool.check_invariants_at(Level::Full);
    drop((held, other));
    drop(stream.alloc::<u8>(30 * MIB).unwrap());
    drop(stream);
    end(&sim, pool);
}

/// A range is an extent: not a part of a chunk, when there is no other memory.
#[test]
fn a_range_is_not_in_a_chunk() {
    let sim = sim();
    let builder = Pool::builder(SimDriver::new(sim.clone())).capacity(10 << 20);
    let pool = builder.planned(Planning::default()).build().unwrap();
    let stream = pool.stream(DEVICE).unwrap();
    let lasting = stream.alloc_as::<u8>(MIB, Lifetime::Persistent).unwrap();
    assert_eq!(pool.stats().devices[0].buddy.chunks, 1);
    let other = pool.stream(DEVICE).unwrap();
    for number in 0..4 {
        pool.begin_step();
        // Where the plan would have its range.
        let others = (number >= 2).then(|| other.alloc::<u8>(6 * MIB).unwrap());
        for _ in 0..8 {
            let first = stream.alloc::<u8>(2 * MIB).unwrap();
            pool.check_invariants_at(Level::Full);
            drop(first);
        }
        drop(others);
        pool.check_invariants_at(Level::Full);
    }
    assert_eq!(pool.stats().hits.planned, 0, "there was memory for a range");
    assert!(pool.stats().devices[0].ladder.gathered > 0);
    drop(lasting);
    drop((stream, other));
    pool.trim(DEVICE, 0).unwrap();
    end(&sim, pool);
}

/// The address of a range leads to the place that starts there, or to nothing.
#[cfg(feature = "serde")]
#[test]
fn a_range_is_nobodys_to_free() {
    let path = std::env::temp_dir().join(format!("millpond-range-{}.json", std::process::id()));
    let request =
        r#"{"stream":0,"position":0,"bytes":4194304,"offset":4194304,"first":0,"last":0}"#;
    let device = format!(r#"{{"device":0,"bytes":8388608,"slots":1,"requests":[{request}]}}"#);
    std::fs::write(&path, format!(r#"{{"version":1,"devices":[{device}]}}"#)).unwrap();
    let plan = Plan::load(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    let sim = sim();
    let pool = planned(&sim, Planning { plan: Some(plan), steps: 2 });
    let stream = pool.stream(DEVICE).unwrap();
    pool.begin_step();
    let block = stream.alloc::<u8>(4 * MIB).unwrap();
    assert_eq!(pool.stats().hits.planned, 1);
    let range = block.address() - 4 * MIB as u64;
    assert_eq!(pool.free(range), Err(Error::UnknownAddress { address: range }));
    assert!(pool.record_use(range, &stream).is_err() && pool.pin(range).is_err());
    pool.check_invariants_at(Level::Full);
    drop((block, stream));
    end(&sim, pool);
}
