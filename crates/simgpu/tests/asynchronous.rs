//! Allocation in stream order, host functions, work that computes, and what an address is.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use millpond_simgpu::{Builder, Completion, ErrorCode, HazardKind, Sim, Touch};

const MIB: u64 = 1 << 20;
const PAGE: u64 = 2 * MIB;

fn both() -> [Builder; 2] {
    let machine = || Sim::builder().devices(2).oracle(true).contents(true);
    [machine(), machine().completion(Completion::Scheduled).seed(3)]
}

fn kinds(sim: &Sim) -> Vec<HazardKind> {
    sim.hazards().iter().map(|hazard| hazard.kind()).collect()
}

#[test]
fn memory_lives_between_its_two_points() {
    for machine in both() {
        let sim = machine.build().unwrap();
        let (a, b) = (sim.stream_create(0).unwrap(), sim.stream_create(0).unwrap());
        let block = sim.malloc_async(0, 4096, a).unwrap();
        sim.fill(a, block, 4096, 7).unwrap();
        sim.free_async(block, a).unwrap();
        assert_eq!(kinds(&sim), []);
        sim.launch(a, &[Touch::read(block, 8)]).unwrap();
        assert_eq!(kinds(&sim), [HazardKind::Freed], "after the free, on the same stream");

        let block = sim.malloc_async(0, 4096, a).unwrap();
        sim.launch(b, &[Touch::write(block, 8)]).unwrap();
        assert_eq!(kinds(&sim)[1..], [HazardKind::Unordered], "not after the allocation");
        sim.free_async(block, a).unwrap();
        assert_eq!(kinds(&sim)[2..], [HazardKind::Unordered], "not before the free");
        sim.device_synchronize(0).unwrap();
        assert_eq!(sim.memory_info(0).unwrap(), (80 << 30, 80 << 30));
        assert_eq!(sim.device_faults(), 0);
    }
}

#[test]
fn a_fresh_block_was_never_written() {
    let sim = Sim::builder().oracle(true).build().unwrap();
    let stream = sim.stream_create(0).unwrap();
    let block = sim.malloc_async(0, 4096, stream).unwrap();
    sim.launch(stream, &[Touch::read(block, 4096)]).unwrap();
    assert_eq!(kinds(&sim), [HazardKind::NeverWritten]);
}

#[test]
fn work_before_the_free_still_finds_the_memory() {
    let builder = Sim::builder().contents(true).completion(Completion::Scheduled);
    for seed in 0..20 {
        let sim = builder.clone().seed(seed).build().unwrap();
        let (a, b) = (sim.stream_create(0).unwrap(), sim.stream_create(0).unwrap());
        let kept = sim.malloc(0, 64).unwrap();
        for round in 0..10 {
            let block = sim.malloc_async(0, 64, a).unwrap();
            sim.fill(a, block, 64, round).unwrap();
            sim.copy(a, kept, block, 64).unwrap();
            sim.free_async(block, a).unwrap();
            assert!(sim.launch(b, &[Touch::read(block, 8)]).is_err());
        }
        assert_eq!(sim.read_bytes(a, kept, 1).unwrap(), [9]);
        assert_eq!((sim.device_faults(), sim.dying_bytes(0)), (0, 0));
    }
}

#[test]
fn frees_that_are_on_their_way_are_waited_for() {
    let builder = Sim::builder().capacity(PAGE).completion(Completion::Scheduled);
    for seed in 0..20 {
        let sim = builder.clone().seed(seed).build().unwrap();
        let stream = sim.stream_create(0).unwrap();
        for _ in 0..10 {
            let block = sim.malloc_async(0, PAGE, stream).unwrap();
            sim.free_async(block, stream).unwrap();
        }
        sim.stream_synchronize(stream).unwrap();
        sim.hang(stream).unwrap();
        let block = sim.malloc_async(0, PAGE / 2, stream).unwrap();
        sim.free_async(block, stream).unwrap();
        let error = sim.malloc_async(0, PAGE, stream).unwrap_err();
        assert_eq!(error.code, ErrorCode::OutOfMemory, "behind a stream that hangs");
    }
}

#[test]
fn idle_bytes_are_used_and_not_leaked() {
    let sim = Sim::builder().capacity(4 * PAGE).build().unwrap();
    sim.set_idle_bytes(0, 3 * PAGE).unwrap();
    assert_eq!(sim.memory_info(0).unwrap().0, PAGE);
    assert!(sim.leaks().is_empty());
    assert_eq!(sim.malloc(0, 2 * PAGE).unwrap_err().code, ErrorCode::OutOfMemory);
    let block = sim.malloc(0, PAGE).unwrap();
    assert_eq!(sim.set_idle_bytes(0, 4 * PAGE).unwrap_err().code, ErrorCode::OutOfMemory);
    sim.set_idle_bytes(0, 0).unwrap();
    sim.free(block).unwrap();
    assert_eq!(sim.memory_info(0).unwrap().0, 4 * PAGE);
    assert!(sim.set_idle_bytes(1, 0).is_err());
}

#[test]
fn a_host_function_holds_up_what_is_behind_it() {
    for machine in both() {
        let sim = machine.build().unwrap();
        let (a, b) = (sim.stream_create(0).unwrap(), sim.stream_create(0).unwrap());
        let block = sim.malloc(0, 4096).unwrap();
        sim.fill(a, block, 4096, 1).unwrap();
        let first = sim.host_call(a).unwrap();
        let second = sim.host_call(a).unwrap();
        let event = sim.event_create(0).unwrap();
        sim.event_record(event, a).unwrap();
        sim.stream_wait(b, event).unwrap();
        assert!(sim.host_call_due(&first, true));
        // Its beginning tells the host that what is before it is done.
        let c = sim.stream_create(0).unwrap();
        sim.launch(c, &[Touch::write(block, 8)]).unwrap();
        assert_eq!(kinds(&sim), []);
        assert!(!sim.host_call_due(&second, true), "behind the first");
        assert_eq!(sim.event_query(event), Ok(false));
        assert_eq!(sim.stream_query(b), Ok(false));
        assert_eq!(sim.stream_synchronize(b).unwrap_err().code, ErrorCode::Deadlock);
        sim.host_call_end(&first);
        assert!(sim.host_call_due(&second, true));
        assert_eq!(sim.event_query(event), Ok(false));
        sim.host_call_end(&second);
        assert_eq!(sim.event_synchronize(event, None), Ok(true));
        sim.device_synchronize(0).unwrap();
        assert_eq!(sim.stream_query(b), Ok(true));
    }
}

#[test]
fn work_computes_when_the_stream_comes_to_it() {
    for machine in both() {
        let sim = machine.build().unwrap();
        let stream = sim.stream_create(0).unwrap();
        let block = sim.malloc(0, 16).unwrap();
        sim.write_bytes(stream, block, &[1, 2, 3]).unwrap();
        let runs = Arc::new(AtomicU64::new(0));
        let count = Arc::clone(&runs);
        let touches = [Touch::read(block, 3), Touch::write(block + 8, 3)];
        let double = move |bytes: &mut millpond_simgpu::DeviceBytes<'_>| {
            let doubled: Vec<u8> = bytes.read(block, 3).iter().map(|byte| byte * 2).collect();
            bytes.write(block + 8, &doubled);
            count.fetch_add(1, Relaxed);
        };
        sim.compute(stream, &touches, Arc::new(double)).unwrap();
        assert_eq!(sim.read_bytes(stream, block + 8, 3).unwrap(), [2, 4, 6]);
        assert_eq!(runs.load(Relaxed), 1);
        assert_eq!((sim.device_faults(), kinds(&sim)), (0, vec![]));
        sim.compute(stream, &[], Arc::new(|bytes| drop(bytes.read(8, 8)))).unwrap();
        sim.stream_synchronize(stream).unwrap();
        assert_eq!(sim.device_faults(), 1, "nothing is there");
    }
}

#[test]
fn copies_between_devices_that_are_no_peers() {
    let sim = Sim::builder().devices(2).contents(true).build().unwrap();
    let stream = sim.stream_create(0).unwrap();
    let (here, there) = (sim.malloc(0, 8).unwrap(), sim.malloc(1, 8).unwrap());
    sim.fill(stream, here, 8, 5).unwrap();
    assert!(sim.copy(stream, there, here, 8).is_err(), "no access");
    sim.copy_between(stream, (1, there), (0, here), 8).unwrap();
    assert!(sim.copy_between(stream, (0, there), (0, here), 8).is_err());
    assert!(sim.copy_between(stream, (2, there), (0, here), 8).is_err());
    sim.peer_access(0, 1).unwrap();
    sim.copy(stream, there, here, 8).unwrap();
    sim.peer_access_end(0, 1).unwrap();
    assert!(sim.copy(stream, there, here, 8).is_err(), "access was taken back");
}

#[test]
fn a_stream_is_busy_as_long_as_its_records_would_be() {
    let sim = Sim::builder().completion(Completion::Lag(2)).oracle(true).build().unwrap();
    let (a, b) = (sim.stream_create(0).unwrap(), sim.stream_create(0).unwrap());
    let block = sim.malloc(0, 8).unwrap();
    assert_eq!(sim.stream_query(a), Ok(true));
    sim.fill(a, block, 8, 0).unwrap();
    let event = sim.event_create(0).unwrap();
    sim.event_record(event, a).unwrap();
    sim.tick();
    sim.stream_wait(b, event).unwrap();
    assert_eq!((sim.stream_query(a), sim.stream_query(b)), (Ok(false), Ok(false)));
    sim.launch(b, &[Touch::read(block, 8)]).unwrap();
    sim.tick();
    assert_eq!((sim.stream_query(a), sim.stream_query(b)), (Ok(true), Ok(false)));
    sim.tick();
    assert_eq!(sim.stream_query(b), Ok(true), "of which the host learns:");
    sim.launch(a, &[Touch::write(block, 8)]).unwrap();
    assert_eq!(kinds(&sim), []);
    sim.stream_synchronize(a).unwrap();
    assert_eq!(sim.stream_query(a), Ok(true));
}

#[test]
fn a_page_is_retained_through_its_mapping() {
    let sim = Sim::builder().build().unwrap();
    let (at, page) = (sim.reserve(0, PAGE).unwrap(), sim.page_create(0, PAGE).unwrap());
    assert!(sim.page_retain(at).is_err(), "nothing is mapped");
    sim.map(at, PAGE, page).unwrap();
    sim.page_release(page).unwrap();
    assert!(sim.page_release(page).is_err(), "released");
    assert_eq!(sim.page_retain(at + 5), Ok(page));
    assert_eq!(sim.page_retain(at), Ok(page));
    sim.unmap(at, PAGE).unwrap();
    sim.page_release(page).unwrap();
    assert_eq!(sim.leaks().pages, 1, "one more");
    sim.page_release(page).unwrap();
    assert_eq!(sim.leaks().pages, 0);
    assert!(sim.page_release(page).is_err());
}

#[test]
fn access_is_taken_away_and_asked_for() {
    let sim = Sim::builder().devices(2).build().unwrap();
    let (at, page) = (sim.reserve(0, 2 * PAGE).unwrap(), sim.page_create(0, PAGE).unwrap());
    let stream = sim.stream_create(0).unwrap();
    assert_eq!(sim.has_access(at, 0), None);
    sim.map(at, PAGE, page).unwrap();
    sim.set_access(at, PAGE, &[0, 1]).unwrap();
    assert_eq!((sim.has_access(at, 0), sim.has_access(at, 1)), (Some(true), Some(true)));
    sim.launch(stream, &[Touch::write(at, 8)]).unwrap();
    sim.drop_access(at, PAGE, &[0]).unwrap();
    assert_eq!((sim.has_access(at, 0), sim.has_access(at, 1)), (Some(false), Some(true)));
    assert!(sim.launch(stream, &[Touch::write(at, 8)]).is_err());
    assert!(sim.drop_access(at, 2 * PAGE, &[0]).is_err(), "a hole");
    assert_eq!(sim.memory_at(at + 9), Some((0, at, PAGE)));
    assert_eq!(sim.memory_at(at + PAGE), None);
    let block = sim.malloc(1, 1000).unwrap();
    assert_eq!(sim.memory_at(block + 1023), Some((1, block, 1024)));
    assert_eq!(sim.memory_at(block + 1024), None);
}

#[test]
fn addresses_belong_to_a_device_unless_they_are_shared() {
    for shared in [false, true] {
        let builder = Sim::builder().devices(2).shared_addresses(shared).oracle(true);
        let sim = builder.build().unwrap();
        let (at, page) = (sim.reserve(0, PAGE).unwrap(), sim.page_create(1, PAGE).unwrap());
        assert_eq!(sim.map(at, PAGE, page).is_ok(), shared);
        if shared {
            sim.set_access(at, PAGE, &[1]).unwrap();
            let stream = sim.stream_create(1).unwrap();
            sim.launch(stream, &[Touch::write(at, 8)]).unwrap();
            assert_eq!(sim.memory_at(at), Some((1, at, PAGE)), "it is device 1's memory");
            assert_eq!(sim.leaks_of(1).bytes, PAGE);
            sim.stream_synchronize(stream).unwrap();
            sim.unmap(at, PAGE).unwrap();
            assert_eq!(kinds(&sim), []);
        }
    }
}

#[test]
fn reservations_are_aligned_as_asked() {
    let sim = Sim::builder().build().unwrap();
    let plain = sim.reserve(0, PAGE).unwrap();
    let aligned = sim.reserve_aligned(0, PAGE, 64 * PAGE).unwrap();
    assert!(aligned.is_multiple_of(64 * PAGE) && aligned != plain);
    assert!(sim.reserve_aligned(0, PAGE, 3).is_err());
    assert!(sim.reserve_aligned(0, PAGE, 0).is_err());
}
