//! Streams as queues: reproducible orders, waits, rendezvous, deadlock, contents.

use std::collections::BTreeSet;
use std::time::Duration;

use millpond_simgpu::{Completion, ErrorCode, Sim, Stream};

const SIZE: u64 = 4096;

fn scheduled(seed: u64) -> Sim {
    Sim::builder()
        .devices(2)
        .completion(Completion::Scheduled)
        .contents(true)
        .oracle(true)
        .seed(seed)
        .build()
        .unwrap()
}

/// Two streams write one block without order; says what ends up there and how queries answered.
fn race(seed: u64) -> (u64, Vec<bool>) {
    let sim = scheduled(seed);
    let streams = [0; 2].map(|_| sim.stream_create(0).unwrap());
    let block = sim.malloc(0, 8).unwrap();
    let event = sim.event_create(0).unwrap();
    let mut answers = Vec::new();
    for round in 0..4 {
        for (at, stream) in streams.iter().enumerate() {
            sim.fill(*stream, block, 8, round * 2 + at as u64).unwrap();
            sim.event_record(event, *stream).unwrap();
            answers.push(sim.event_query(event).unwrap());
        }
    }
    sim.device_synchronize(0).unwrap();
    let bytes = sim.read_bytes(streams[0], block, 8).unwrap();
    (u64::from_le_bytes(bytes.try_into().unwrap()), answers)
}

#[test]
fn a_seed_decides_the_order() {
    let runs: Vec<_> = (0..60).map(race).collect();
    for (seed, run) in runs.iter().enumerate() {
        assert_eq!(*run, race(seed as u64), "seed {seed}");
    }
    let ends: BTreeSet<_> = runs.iter().map(|run| run.0).collect();
    assert_eq!(ends, BTreeSet::from([6, 7]), "the last write of either");
    let answers: BTreeSet<_> = runs.iter().map(|run| run.1.clone()).collect();
    assert!(answers.len() > 10, "{} different runs", answers.len());
}

/// A chain over two devices: each link fills, checks, copies on, and waits only on streams.
fn chain(sim: &Sim, ordered: bool) {
    let streams: Vec<Stream> =
        (0..2).flat_map(|device| [0; 3].map(|_| sim.stream_create(device).unwrap())).collect();
    sim.peer_access(0, 1).unwrap();
    sim.peer_access(1, 0).unwrap();
    let blocks =
        [sim.malloc(0, SIZE).unwrap(), sim.malloc(1, SIZE).unwrap(), sim.malloc(1, SIZE).unwrap()];
    sim.fill(streams[0], blocks[0], SIZE, 0).unwrap();
    let events = [0, 1].map(|device| sim.event_create(device).unwrap());
    for link in 0..40u64 {
        let at = (link * 5 % 6) as usize;
        let next = ((link + 1) * 5 % 6) as usize;
        let (from, to) = (blocks[(link % 3) as usize], blocks[((link + 1) % 3) as usize]);
        let on = streams[at];
        sim.check_fill(on, from, SIZE, link).unwrap();
        sim.copy(on, to, from, SIZE).unwrap();
        sim.check_fill(on, to, SIZE, link).unwrap();
        sim.fill(on, to, SIZE, link + 1).unwrap();
        if ordered {
            // Recorded again and again: each wait keeps its own record.
            let event = events[at / 3];
            sim.event_record(event, on).unwrap();
            sim.stream_wait(streams[next], event).unwrap();
        }
    }
    for device in 0..2 {
        sim.device_synchronize(device).unwrap();
    }
}

#[test]
fn event_chains_order_work_across_devices() {
    for seed in 0..40 {
        let sim = scheduled(seed);
        chain(&sim, true);
        assert_eq!(
            (sim.content_mismatches(), sim.hazard_count()),
            (0, 0),
            "seed {seed}: {:?} {:?}",
            sim.mismatches(),
            sim.hazards()
        );
    }
}

#[test]
fn without_events_the_chain_breaks() {
    let mut broken = 0;
    for seed in 0..40 {
        let sim = scheduled(seed);
        chain(&sim, false);
        assert!(sim.hazard_count() > 0, "seed {seed}");
        broken += u32::from(sim.content_mismatches() > 0);
        if let Some(mismatch) = sim.mismatches().first() {
            assert!(mismatch.found.is_some());
        }
    }
    assert!(broken > 30, "only {broken} of 40 orders read wrong bytes");
}

#[test]
fn a_wait_keeps_the_record_of_its_call() {
    for seed in 0..20 {
        let sim = scheduled(seed);
        let [first, stuck, waiter] = [0; 3].map(|_| sim.stream_create(0).unwrap());
        let event = sim.event_create(0).unwrap();
        sim.event_record(event, first).unwrap();
        sim.stream_wait(waiter, event).unwrap();
        sim.hang(stuck).unwrap();
        sim.event_record(event, stuck).unwrap();
        // The waiter is behind the first record only, which the event has forgotten.
        sim.stream_synchronize(waiter).unwrap();
        sim.event_destroy(event).unwrap();
        sim.unhang_all();
        sim.device_synchronize(0).unwrap();
    }
}

#[test]
fn work_of_a_destroyed_stream_still_runs() {
    for seed in 0..20 {
        let sim = scheduled(seed);
        let stream = sim.stream_create(0).unwrap();
        let block = sim.malloc(0, SIZE).unwrap();
        for round in 0..20 {
            sim.fill(stream, block, SIZE, round).unwrap();
        }
        sim.stream_destroy(stream).unwrap();
        let next = sim.stream_create(0).unwrap();
        assert_eq!(next, stream);
        sim.device_synchronize(0).unwrap();
        sim.check_fill(next, block, SIZE, 19).unwrap();
        sim.stream_synchronize(next).unwrap();
        assert_eq!((sim.content_mismatches(), sim.hazard_count()), (0, 0));
    }
}

#[test]
fn a_rendezvous_is_all_or_none() {
    for seed in 0..20 {
        let sim = scheduled(seed);
        let streams = [0, 0, 1].map(|device| sim.stream_create(device).unwrap());
        sim.peer_access(0, 1).unwrap();
        sim.peer_access(1, 0).unwrap();
        let blocks = [0, 0, 1].map(|device| sim.malloc(device, SIZE).unwrap());
        for round in 0..6 {
            for (stream, block) in streams.iter().zip(blocks) {
                sim.fill(*stream, block, SIZE, round).unwrap();
            }
            sim.rendezvous(&streams).unwrap();
            for (at, stream) in streams.iter().enumerate() {
                let neighbour = blocks[(at + 1) % 3];
                sim.check_fill(*stream, neighbour, SIZE, round).unwrap();
            }
            sim.rendezvous(&streams).unwrap();
        }
        for stream in streams {
            sim.stream_synchronize(stream).unwrap();
        }
        assert_eq!((sim.content_mismatches(), sim.hazard_count()), (0, 0));
    }
}

#[test]
fn a_rendezvous_waits_for_the_last_stream() {
    let sim = scheduled(3);
    let streams = [0; 2].map(|_| sim.stream_create(0).unwrap());
    let event = sim.event_create(0).unwrap();
    sim.hang(streams[1]).unwrap();
    sim.rendezvous(&streams).unwrap();
    sim.event_record(event, streams[0]).unwrap();
    let timeout = Some(Duration::from_secs(1));
    assert!(!sim.event_synchronize(event, timeout).unwrap());
    sim.unhang(streams[1]).unwrap();
    assert!(sim.event_synchronize(event, timeout).unwrap());
}

#[test]
fn collectives_in_different_orders_deadlock() {
    for seed in 0..10 {
        let sim = scheduled(seed);
        let [a, b] = [0, 1].map(|device| sim.stream_create(device).unwrap());
        let (one, two) = (sim.meeting(2), sim.meeting(2));
        sim.join(a, &one).unwrap();
        sim.join(b, &two).unwrap();
        let event = sim.event_create(0).unwrap();
        sim.join(a, &two).unwrap();
        sim.join(b, &one).unwrap();
        sim.event_record(event, a).unwrap();
        let error = sim.stream_synchronize(a).unwrap_err();
        assert_eq!(error.code, ErrorCode::Deadlock);
        assert!(error.message.contains("waits for a rendezvous (3"), "{error}");
        // Nothing hangs, so not even a timeout makes this anything but an error.
        let timeout = Some(Duration::from_secs(1));
        let error = sim.event_synchronize(event, timeout).unwrap_err();
        assert_eq!(error.code, ErrorCode::Deadlock);
        assert!(!sim.event_query(event).unwrap());
    }
}

#[test]
fn a_late_event_under_a_collective_deadlocks() {
    let sim = scheduled(1);
    let [a, b] = [0; 2].map(|_| sim.stream_create(0).unwrap());
    let event = sim.event_create(0).unwrap();
    let collective = sim.meeting(2);
    sim.join(a, &collective).unwrap();
    sim.event_record(event, a).unwrap();
    sim.stream_wait(b, event).unwrap();
    let error = sim.stream_synchronize(b).unwrap_err();
    assert!(error.message.contains("have yet to join"), "{error}");
    sim.join(b, &collective).unwrap();
    let error = sim.device_synchronize(0).unwrap_err();
    assert_eq!(error.code, ErrorCode::Deadlock);
    let again = sim.join(b, &collective).unwrap_err();
    assert_eq!(again.code, ErrorCode::InvalidValue);
}

#[test]
fn parts_of_a_meeting_order_work() {
    for seed in 0..20 {
        let sim = scheduled(seed);
        let [a, b] = [0; 2].map(|_| sim.stream_create(0).unwrap());
        let block = sim.malloc(0, SIZE).unwrap();
        let meeting = sim.meeting(2);
        sim.fill(a, block, SIZE, 5).unwrap();
        sim.join(a, &meeting).unwrap();
        sim.join(b, &meeting).unwrap();
        sim.check_fill(b, block, SIZE, 5).unwrap();
        sim.device_synchronize(0).unwrap();
        assert_eq!((sim.content_mismatches(), sim.hazard_count()), (0, 0));
    }
}

#[test]
fn a_hang_times_out_and_can_end() {
    let sim = scheduled(9);
    let [stuck, free] = [0; 2].map(|_| sim.stream_create(0).unwrap());
    let [behind, beside] = [0; 2].map(|_| sim.event_create(0).unwrap());
    sim.hang(stuck).unwrap();
    sim.event_record(behind, stuck).unwrap();
    sim.event_record(beside, free).unwrap();
    assert!(sim.event_synchronize(beside, None).unwrap());
    let timeout = Some(Duration::from_micros(50));
    let before = sim.host_ns(0);
    assert!(!sim.event_synchronize(behind, timeout).unwrap());
    assert_eq!(sim.host_ns(0) - before, 60_000);
    let error = sim.event_synchronize(behind, None).unwrap_err();
    assert_eq!(error.code, ErrorCode::Deadlock);
    assert!(error.message.contains("hangs"), "{error}");
    let error = sim.device_synchronize(0).unwrap_err();
    assert_eq!(error.code, ErrorCode::Deadlock);
    sim.unhang(stuck).unwrap();
    sim.device_synchronize(0).unwrap();
    assert!(sim.event_query(behind).unwrap());
}

#[test]
fn work_that_runs_after_an_unmap_finds_nothing() {
    let page_bytes = 2 << 20;
    let sim = scheduled(4);
    let stream = sim.stream_create(0).unwrap();
    let address = sim.reserve(0, page_bytes).unwrap();
    let page = sim.page_create(0, page_bytes).unwrap();
    sim.map(address, page_bytes, page).unwrap();
    sim.set_access(address, page_bytes, &[0]).unwrap();
    sim.hang(stream).unwrap();
    sim.fill(stream, address, 64, 1).unwrap();
    sim.launch(stream, &[millpond_simgpu::Touch::write(address, 64)]).unwrap();
    sim.check_fill(stream, address, 64, 1).unwrap();
    sim.unmap(address, page_bytes).unwrap();
    sim.page_release(page).unwrap();
    sim.unhang(stream).unwrap();
    sim.stream_synchronize(stream).unwrap();
    assert_eq!(sim.device_faults(), 3);
    assert_eq!(sim.mismatches()[0].found, None);
    assert!(sim.hazard_count() > 0);
}
