//! Memory calls: what drivers allow, refuse and account for.

use millpond_simgpu::{BuildError, ErrorCode, Page, Sim, SimError, Touch};

const PAGE: u64 = 2 << 20;

fn sim() -> Sim {
    Sim::builder().devices(2).capacity(8 * PAGE).build().unwrap()
}

fn refused<T>(answer: Result<T, SimError>, code: ErrorCode, words: &str) {
    let error = answer.map(drop).expect_err("the call should have failed");
    assert_eq!(error.code, code, "{error}");
    assert!(error.to_string().contains(words), "{error}");
}

fn used(sim: &Sim, device: u16) -> u64 {
    let (free, total) = sim.memory_info(device).unwrap();
    total - free
}

#[test]
fn addresses_tell_their_device_and_are_reused() {
    let sim = sim();
    let (a, b) = (sim.reserve(0, 4 * PAGE).unwrap(), sim.reserve(1, PAGE).unwrap());
    assert!(a > 0 && a % PAGE == 0);
    assert_eq!(sim.device_of(a), Some(0));
    assert_eq!(sim.device_of(b), Some(1));
    assert_eq!(sim.device_of(0), None);
    assert_eq!(sim.device_of(u64::MAX), None);
    sim.unreserve(a, 4 * PAGE).unwrap();
    assert_eq!(sim.reserve(0, PAGE).unwrap(), a);
    let plain = sim.malloc(1, 1000).unwrap();
    assert_eq!(sim.device_of(plain), Some(1));
}

#[test]
fn reservations_are_whole() {
    let sim = sim();
    let address = sim.reserve(0, 2 * PAGE).unwrap();
    refused(sim.reserve(0, PAGE + 1), ErrorCode::InvalidValue, "granularity");
    refused(sim.reserve(0, 0), ErrorCode::InvalidValue, "granularity");
    refused(sim.reserve(0, 1 << 60), ErrorCode::OutOfMemory, "address space");
    refused(sim.reserve(2, PAGE), ErrorCode::InvalidDevice, "device 2");
    refused(sim.unreserve(address, PAGE), ErrorCode::InvalidValue, "whole");
    refused(sim.unreserve(address + PAGE, PAGE), ErrorCode::InvalidValue, "whole");
    refused(sim.unreserve(7, PAGE), ErrorCode::InvalidValue, "no device's");
    let page = sim.page_create(0, PAGE).unwrap();
    sim.map(address + PAGE, PAGE, page).unwrap();
    refused(sim.unreserve(address, 2 * PAGE), ErrorCode::InvalidValue, "still");
    sim.unmap(address + PAGE, PAGE).unwrap();
    sim.unreserve(address, 2 * PAGE).unwrap();
}

#[test]
fn pages_are_mapped_whole_in_one_reservation_of_their_device() {
    let sim = sim();
    let address = sim.reserve(0, 4 * PAGE).unwrap();
    let next = sim.reserve(0, 4 * PAGE).unwrap();
    assert_eq!(next, address + 4 * PAGE);
    let elsewhere = sim.reserve(1, 4 * PAGE).unwrap();
    let page = sim.page_create(0, 2 * PAGE).unwrap();
    let invalid = ErrorCode::InvalidValue;
    refused(sim.map(address, PAGE, page), invalid, "whole");
    refused(sim.map(address + 512, 2 * PAGE, page), invalid, "multiple");
    refused(sim.map(address + 3 * PAGE, 2 * PAGE, page), invalid, "one reservation");
    refused(sim.map(next + 4 * PAGE, 2 * PAGE, page), invalid, "one reservation");
    refused(sim.map(elsewhere, 2 * PAGE, page), invalid, "device 0");
    refused(sim.map(address, PAGE, Page(99)), ErrorCode::InvalidHandle, "page 99");
    sim.map(address + PAGE, 2 * PAGE, page).unwrap();
    for at in [address, address + PAGE, address + 2 * PAGE] {
        refused(sim.map(at, 2 * PAGE, page), invalid, "overlaps");
    }
    refused(sim.page_create(0, PAGE / 2), invalid, "multiple of the granularity");
}

#[test]
fn ranges_with_holes_or_parts_are_refused() {
    let sim = sim();
    let address = sim.reserve(0, 6 * PAGE).unwrap();
    let (large, small) = (sim.page_create(0, 2 * PAGE).unwrap(), sim.page_create(0, PAGE).unwrap());
    // Large, small, hole, small again, hole, hole.
    sim.map(address, 2 * PAGE, large).unwrap();
    sim.map(address + 2 * PAGE, PAGE, small).unwrap();
    sim.map(address + 4 * PAGE, PAGE, small).unwrap();
    let invalid = ErrorCode::InvalidValue;
    for (start, pages, words) in [
        (0, 1, "ends inside"),
        (1, 1, "none starts"),
        (1, 2, "none starts"),
        (2, 2, "none starts"),
        (2, 3, "none starts"),
        (3, 1, "none starts"),
        (3, 2, "none starts"),
        (0, 0, "0 bytes"),
    ] {
        let (start, bytes) = (address + start * PAGE, pages * PAGE);
        refused(sim.set_access(start, bytes, &[0]), invalid, words);
        refused(sim.unmap(start, bytes), invalid, words);
    }
    refused(sim.set_access(address, u64::MAX, &[0]), invalid, "0x100000000000");
    refused(sim.unmap(1, PAGE), invalid, "no device's");
    refused(sim.set_access(address, 3 * PAGE, &[0, 2]), ErrorCode::InvalidDevice, "device 2");
    sim.set_access(address, 3 * PAGE, &[1, 0]).unwrap();
    sim.unmap(address, 3 * PAGE).unwrap();
    sim.unmap(address + 4 * PAGE, PAGE).unwrap();
    refused(sim.unmap(address, 3 * PAGE), invalid, "none starts");
}

#[test]
fn memory_is_in_use_until_released_and_unmapped() {
    let sim = sim();
    let address = sim.reserve(0, 4 * PAGE).unwrap();
    let page = sim.page_create(0, 2 * PAGE).unwrap();
    assert_eq!(used(&sim, 0), 2 * PAGE);
    sim.map(address, 2 * PAGE, page).unwrap();
    sim.map(address + 2 * PAGE, 2 * PAGE, page).unwrap();
    assert_eq!(used(&sim, 0), 2 * PAGE, "two mappings of one memory");
    sim.page_release(page).unwrap();
    refused(sim.page_release(page), ErrorCode::InvalidHandle, "released");
    refused(sim.map(address, 2 * PAGE, page), ErrorCode::InvalidHandle, "released");
    sim.unmap(address, 2 * PAGE).unwrap();
    assert_eq!(used(&sim, 0), 2 * PAGE, "one mapping is left");
    sim.unmap(address + 2 * PAGE, 2 * PAGE).unwrap();
    assert_eq!(used(&sim, 0), 0);
    sim.unreserve(address, 4 * PAGE).unwrap();
    assert!(sim.leaks().is_empty());
}

#[test]
fn capacity_is_shared_by_pages_and_plain_allocations() {
    let sim = sim();
    let page = sim.page_create(0, 6 * PAGE).unwrap();
    let plain = sim.malloc(0, 2 * PAGE - 100).unwrap();
    let oom = ErrorCode::OutOfMemory;
    refused(sim.malloc(0, 1), oom, "512 bytes asked for, 0 free");
    refused(sim.page_create(0, PAGE), oom, "device 0");
    assert_eq!(oom.number(), 2);
    sim.page_create(1, 8 * PAGE).unwrap();
    sim.page_release(page).unwrap();
    assert_eq!(used(&sim, 0), 2 * PAGE);
    sim.free(plain).unwrap();
    assert_eq!(used(&sim, 0), 0);
    refused(sim.free(plain), ErrorCode::InvalidValue, "no plain allocation");
    refused(sim.malloc(0, 0), ErrorCode::InvalidValue, "0 bytes");
    refused(sim.malloc(0, u64::MAX), ErrorCode::InvalidValue, "bytes");
}

#[test]
fn work_reaches_only_what_its_device_may_touch() {
    let sim = sim();
    let near = sim.stream_create(0).unwrap();
    let far = sim.stream_create(1).unwrap();
    let address = sim.reserve(0, 2 * PAGE).unwrap();
    let page = sim.page_create(0, PAGE).unwrap();
    let touch = [Touch::write(address, PAGE)];
    let invalid = ErrorCode::InvalidValue;
    refused(sim.launch(near, &touch), invalid, "nothing is mapped");
    sim.map(address, PAGE, page).unwrap();
    refused(sim.launch(near, &touch), invalid, "no access");
    sim.peer_access(1, 0).unwrap();
    sim.set_access(address, PAGE, &[0]).unwrap();
    sim.launch(near, &touch).unwrap();
    // Peer access is about plain allocations.
    refused(sim.launch(far, &touch), invalid, "no access");
    sim.set_access(address, PAGE, &[1]).unwrap();
    sim.launch(far, &touch).unwrap();
    sim.launch(near, &touch).unwrap();
    let over = [Touch::read(address, PAGE + 1)];
    refused(sim.launch(near, &over), invalid, "nothing is mapped");
    let wild = [Touch::read(u64::MAX - 3, 100)];
    refused(sim.launch(near, &wild), invalid, "nothing is mapped");
    sim.launch(near, &[Touch::write(7, 0)]).unwrap();

    let plain = sim.malloc(1, 512).unwrap();
    let touch = [Touch::write(plain, 512)];
    sim.launch(far, &touch).unwrap();
    refused(sim.launch(near, &touch), invalid, "no access");
    sim.peer_access(0, 1).unwrap();
    sim.launch(near, &touch).unwrap();
    sim.free(plain).unwrap();
    refused(sim.launch(near, &touch), invalid, "nothing is allocated");
}

#[test]
fn unmapping_does_not_wait() {
    let sim = sim();
    let stream = sim.stream_create(0).unwrap();
    let address = sim.reserve(0, PAGE).unwrap();
    let page = sim.page_create(0, PAGE).unwrap();
    sim.map(address, PAGE, page).unwrap();
    sim.set_access(address, PAGE, &[0]).unwrap();
    sim.hang(stream).unwrap();
    sim.launch(stream, &[Touch::write(address, PAGE)]).unwrap();
    sim.unmap(address, PAGE).unwrap();
    sim.page_release(page).unwrap();
}

#[test]
fn leaks_are_told() {
    let sim = sim();
    assert!(sim.leaks().is_empty());
    let address = sim.reserve(0, PAGE).unwrap();
    let page = sim.page_create(0, PAGE).unwrap();
    sim.map(address, PAGE, page).unwrap();
    sim.page_release(page).unwrap();
    sim.malloc(1, 700).unwrap();
    sim.stream_create(0).unwrap();
    sim.event_create(0).unwrap();
    let leaks = sim.leaks();
    assert_eq!(
        leaks.to_string(),
        format!(
            "1 pages, 1 mappings, 1 reservations, 1 allocations ({} bytes), 1 streams, 1 events",
            PAGE + 1024
        )
    );
    assert!(!leaks.is_empty());
}

#[test]
fn configurations_are_checked() {
    let build = |builder: millpond_simgpu::Builder| builder.build().map(drop).unwrap_err();
    assert_eq!(build(Sim::builder().devices(0)), BuildError::NoDevices);
    assert_eq!(build(Sim::builder().capacities(vec![])), BuildError::NoDevices);
    assert_eq!(build(Sim::builder().granularity(3)), BuildError::Granularity(3));
    assert_eq!(build(Sim::builder().granularity(0)), BuildError::Granularity(0));
    let narrow = build(Sim::builder().address_space(1 << 30));
    assert!(narrow.to_string().contains("smaller"), "{narrow}");
    let wide = build(Sim::builder().devices(1000).address_space(1 << 60));
    assert!(wide.to_string().contains("63 bits"), "{wide}");
    let odd = build(Sim::builder().address_space((1 << 40) + 1));
    assert!(odd.to_string().contains("granularity"), "{odd}");
    assert!(matches!(
        build(Sim::builder().capacities(vec![1; 70_000])),
        BuildError::TooManyDevices(70_000)
    ));

    let sim = Sim::builder().capacities(vec![PAGE, 3 * PAGE]).build().unwrap();
    assert_eq!(sim.device_count(), 2);
    assert_eq!(sim.memory_info(0).unwrap(), (PAGE, PAGE));
    assert_eq!(sim.memory_info(1).unwrap(), (3 * PAGE, 3 * PAGE));
    let many = Sim::builder().devices(1023).build().unwrap();
    assert_eq!(many.device_of(many.reserve(1022, PAGE).unwrap()), Some(1022));
}
