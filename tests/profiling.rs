//! What a pool records of what it is asked for.

use millpond::driver::sim::SimDriver;
use millpond::plan::{DevicePlan, Event, Profile, Recommendation};
use millpond::{Budget, Defragmentation, DeviceId, Movable, Planning, Pool, Profiling, Stream};
use millpond_simgpu::Sim;

const MIB: usize = 1 << 20;

fn pool(devices: u16, profiling: Option<Profiling>) -> Pool {
    let sim = Sim::builder().devices(devices).build().unwrap();
    let builder = Pool::builder(SimDriver::new(sim));
    profiling.into_iter().fold(builder, |builder, set| builder.profiling(set)).build().unwrap()
}

/// Large and small blocks, freed in the step, and one that lives on into the next.
fn step(pool: &Pool, stream: &Stream, wraps: &mut Option<millpond::Buffer<u8>>) {
    pool.begin_step();
    let a = stream.alloc::<u8>(8 * MIB).unwrap();
    let small = stream.alloc::<u8>(700).unwrap();
    drop(wraps.take());
    let b = stream.alloc::<u8>(4 * MIB + 1).unwrap();
    drop((a, small));
    let again = stream.alloc::<u8>(700).unwrap();
    drop(again);
    *wraps = Some(stream.alloc::<u8>(2 * MIB).unwrap());
    drop(b);
}

#[test]
fn every_allocation_and_free_is_recorded() {
    let pool = pool(2, Some(Profiling::default()));
    let [_, stream] = [(); 2].map(|()| pool.stream(DeviceId(1)).unwrap());
    // Before recording could be noticed: small blocks that threads would keep.
    for _ in 0..100 {
        drop(stream.alloc::<u8>(512).unwrap());
    }
    let mut wraps = None;
    (0..3).for_each(|_| step(&pool, &stream, &mut wraps));
    let address = pool.allocate(3000, &stream).unwrap();
    pool.free(address).unwrap();
    let recording = pool.recording();
    assert_eq!(recording.iter().map(|(device, _)| device.0).collect::<Vec<_>>(), [0, 1]);
    let marks = |events: &[Event]| events.iter().filter(|event| **event == Event::Step).count();
    assert_eq!(marks(recording[0].1.events()), recording[0].1.events().len());
    let events = recording[1].1.events();
    assert_eq!((marks(events), events.len()), (3, 200 + 3 * 11 - 1 + 2));

    let profile = &pool.profile()[1].1;
    assert_eq!((profile.requests, profile.steps), (100 + 15 + 1, 3));
    assert_eq!(profile.peak_live_bytes, 12 * MIB as u64 + 701);
    // The streams of a device are numbered in the order in which they were made.
    assert_eq!(profile.streams.iter().map(|s| (s.stream, s.requests)).next(), Some((1, 116)));
    assert_eq!(profile.lifetimes.next_step.blocks, 2);
    assert_eq!(profile.recurrence.unwrap().requests, 5.0 / 6.0);
    assert_eq!(profile.advice.recommendation, Recommendation::Plan);

    let plan = DevicePlan::of(DeviceId(1), &recording[1].1).unwrap();
    let places: Vec<_> = plan.requests().iter().map(|r| (r.stream, r.position, r.bytes)).collect();
    let mib = MIB as u64;
    assert_eq!(places, [(1, 0, 8 * mib), (1, 1, 4 * mib + 512), (1, 2, 2 * mib)]);
    assert_eq!(plan.peak_bytes(), 12 * mib + 512);
    // What was asked of the pool twice is the same.
    assert_eq!(pool.recording()[1].1, recording[1].1);
}

#[test]
fn recording_ends_where_it_should() {
    let steps = pool(1, Some(Profiling { steps: Some(2), ..Profiling::default() }));
    let stream = steps.stream(DeviceId(0)).unwrap();
    let mut wraps = None;
    (0..5).for_each(|_| step(&steps, &stream, &mut wraps));
    // The mark at which it ends is there.
    assert_eq!(steps.profile()[0].1.steps, 3);
    assert_eq!(steps.profile()[0].1.requests, 10);
    let before = steps.stats().hits;
    for _ in 0..1000 {
        drop(stream.alloc::<u8>(700).unwrap());
    }
    // Then threads keep blocks again.
    assert!(steps.stats().hits.thread >= before.thread + 900, "{:?}", steps.stats().hits);

    let events = pool(1, Some(Profiling { steps: None, events: 25 }));
    let stream = events.stream(DeviceId(0)).unwrap();
    let mut wraps = None;
    (0..5).for_each(|_| step(&events, &stream, &mut wraps));
    let recorded = &events.recording()[0].1;
    assert!(recorded.events().contains(&Event::Step));
    assert_eq!(recorded.events().len(), 25);
    (0..100).for_each(|_| _ = events.begin_step());
    assert_eq!(events.recording()[0].1.events().len(), 25, "steps are written down for ever");
}

#[test]
fn nothing_is_recorded_unasked() {
    let pool = pool(1, None);
    let stream = pool.stream(DeviceId(0)).unwrap();
    let mut wraps = None;
    step(&pool, &stream, &mut wraps);
    assert!(pool.recording().is_empty() && pool.profile().is_empty());
}

#[test]
fn threads_record_side_by_side() {
    let pool = pool(1, Some(Profiling::default()));
    // All of them first: the number of one that ended may be another's.
    let streams = [(); 4].map(|()| pool.stream(DeviceId(0)).unwrap());
    std::thread::scope(|scope| {
        for stream in &streams {
            scope.spawn(move || {
                for n in 0..500_usize {
                    let bytes = if n % 3 == 0 { 2 * MIB } else { 512 * (1 + n % 5) };
                    drop(stream.alloc::<u8>(bytes).unwrap());
                }
            });
        }
    });
    let profile = &pool.profile()[0].1;
    assert_eq!((profile.requests, profile.operations), (2000, 4000));
    let requests: Vec<_> = profile.streams.iter().map(|stream| stream.requests).collect();
    assert_eq!(requests, [500; 4]);
    assert_eq!(profile.lifetimes.never.blocks, 0);
}

/// Steps of movable blocks, of which those that live on are moved in the midst of them.
fn steps_with_moves(pool: &Pool, stream: &Stream, bytes: usize) -> u64 {
    let mut moved = 0;
    for _ in 0..4 {
        pool.begin_step();
        let blocks: Vec<Movable> = (0..16).map(|_| stream.alloc_movable(bytes).unwrap()).collect();
        blocks.iter().for_each(|block| drop(block.pin(stream).unwrap()));
        let mut kept: Vec<Movable> = blocks.into_iter().step_by(2).collect();
        // More than once.
        for number in [4, 2] {
            moved += pool.step_gap(stream).unwrap().blocks;
            kept.truncate(number);
        }
        drop(kept);
    }
    moved
}

#[test]
fn a_block_that_moves_is_one_block() {
    let sim = Sim::builder().build().unwrap();
    let pool = Pool::builder(SimDriver::new(sim))
        .defragmentation(Defragmentation::Compaction { budget: Budget::Unlimited })
        .profiling(Profiling::default())
        .build()
        .unwrap();
    let stream = pool.stream(DeviceId(0)).unwrap();
    // Asked for in the midst, and at the end.
    assert!(steps_with_moves(&pool, &stream, 5 * MIB / 4) > 0);
    let _ = pool.recording();
    assert!(steps_with_moves(&pool, &stream, 5 * MIB / 4) > 0);
    let recording = &pool.recording()[0].1;
    let profile = Profile::of(recording);
    assert_eq!(profile.requests, 8 * 16);
    assert_eq!(profile.peak_live_bytes, 16 * 5 * MIB as u64 / 4, "moved blocks live for ever");
    let mut names = std::collections::HashSet::new();
    for event in recording.events() {
        match *event {
            Event::Alloc { block, .. } => assert!(names.insert(block)),
            Event::Free { block } => assert!(names.remove(&block), "a free of none"),
            Event::Step => {}
        }
    }
    assert!(names.is_empty(), "{} were never freed", names.len());
}

#[test]
fn a_plan_knows_blocks_that_have_moved() {
    // The smaller ones have size classes.
    for bytes in [5 * MIB / 4, 3 * MIB / 4] {
        let sim = Sim::builder().build().unwrap();
        let pool = Pool::builder(SimDriver::new(sim))
            .defragmentation(Defragmentation::Compaction { budget: Budget::Unlimited })
            .planned(Planning::default())
            .build()
            .unwrap();
        let stream = pool.stream(DeviceId(0)).unwrap();
        assert!(steps_with_moves(&pool, &stream, bytes) > 0, "{bytes} bytes");
        let plan = pool.plan();
        let plan = plan.device(DeviceId(0)).expect("steps that recur");
        assert_eq!(plan.bytes(), 16 * bytes as u64, "moved blocks live for ever");
    }
}
