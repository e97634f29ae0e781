//! Bytes of device memory, with completion by the clock.

use millpond_simgpu::{ErrorCode, Sim};

const PAGE: u64 = 2 << 20;

fn sim() -> Sim {
    Sim::builder().devices(2).contents(true).build().unwrap()
}

#[test]
fn fills_repeat_their_pattern_and_checks_find_what_differs() {
    let sim = sim();
    let stream = sim.stream_create(0).unwrap();
    let block = sim.malloc(0, 64).unwrap();
    let pattern = u64::from_le_bytes(*b"millpond");
    sim.fill(stream, block, 61, pattern).unwrap();
    let bytes = sim.read_bytes(stream, block, 64).unwrap();
    assert_eq!(&bytes[..10], b"millpondmi");
    assert_eq!(&bytes[56..], b"millp\0\0\0");
    sim.check_fill(stream, block, 61, pattern).unwrap();
    assert_eq!(sim.content_mismatches(), 0);
    sim.write_bytes(stream, block + 13, b"?").unwrap();
    sim.check_fill(stream, block, 61, pattern).unwrap();
    sim.check_fill(stream, block + 16, 45, pattern).unwrap();
    assert_eq!(sim.content_mismatches(), 1);
    let mismatch = sim.mismatches()[0];
    assert_eq!(mismatch.address, block + 13);
    assert_eq!((mismatch.expected, mismatch.found, mismatch.pattern), (b'o', Some(b'?'), pattern));
}

#[test]
fn two_mappings_of_a_page_are_the_same_bytes() {
    let sim = sim();
    let stream = sim.stream_create(0).unwrap();
    let address = sim.reserve(0, 3 * PAGE).unwrap();
    let pages = [0; 2].map(|_| sim.page_create(0, PAGE).unwrap());
    // Page 0, page 1, page 0 again.
    for (at, page) in [(0, 0), (1, 1), (2, 0)] {
        sim.map(address + at * PAGE, PAGE, pages[page]).unwrap();
    }
    sim.set_access(address, 3 * PAGE, &[0]).unwrap();
    sim.fill(stream, address, 2 * PAGE, 7).unwrap();
    sim.check_fill(stream, address + 2 * PAGE, PAGE, 7).unwrap();
    // Across the border of two pages, out of step with the pattern.
    let border = address + PAGE - 3;
    sim.fill(stream, border, 10, 0x0102_0304_0506_0708).unwrap();
    assert_eq!(sim.read_bytes(stream, border, 10).unwrap(), [8, 7, 6, 5, 4, 3, 2, 1, 8, 7]);
    let alias = sim.read_bytes(stream, address + 3 * PAGE - 3, 3).unwrap();
    assert_eq!(alias, [8, 7, 6]);
    sim.check_fill(stream, border, 10, 0x0102_0304_0506_0708).unwrap();
    assert_eq!(sim.content_mismatches(), 0);
}

#[test]
fn bytes_follow_a_page_to_its_new_address() {
    let sim = sim();
    let stream = sim.stream_create(0).unwrap();
    let address = sim.reserve(0, 2 * PAGE).unwrap();
    let page = sim.page_create(0, PAGE).unwrap();
    sim.map(address, PAGE, page).unwrap();
    sim.set_access(address, PAGE, &[0]).unwrap();
    sim.fill(stream, address, PAGE, 11).unwrap();
    sim.map(address + PAGE, PAGE, page).unwrap();
    sim.set_access(address + PAGE, PAGE, &[0]).unwrap();
    sim.page_release(page).unwrap();
    sim.unmap(address, PAGE).unwrap();
    sim.check_fill(stream, address + PAGE, PAGE, 11).unwrap();
    assert_eq!(sim.content_mismatches(), 0);
}

#[test]
fn copies_cross_devices_where_both_ends_are_accessible() {
    let sim = sim();
    let streams = [0, 1].map(|device| sim.stream_create(device).unwrap());
    let blocks = [0, 1].map(|device| sim.malloc(device, 4096).unwrap());
    sim.fill(streams[0], blocks[0], 4096, 99).unwrap();
    let error = sim.copy(streams[0], blocks[1], blocks[0], 4096).unwrap_err();
    assert_eq!(error.code, ErrorCode::InvalidValue);
    assert!(error.message.contains("no access"), "{error}");
    sim.peer_access(0, 1).unwrap();
    sim.copy(streams[0], blocks[1], blocks[0], 4096).unwrap();
    sim.check_fill(streams[1], blocks[1], 4096, 99).unwrap();
    sim.copy(streams[1], blocks[1] + 8, blocks[1], 4000).unwrap();
    sim.check_fill(streams[1], blocks[1], 4008, 99).unwrap();
    assert_eq!(sim.content_mismatches(), 0);
    let error = sim.read_bytes(streams[1], blocks[0], 8).unwrap_err();
    assert_eq!(error.code, ErrorCode::InvalidValue);
    let error = sim.read_bytes(streams[1], blocks[1], 1 << 60).unwrap_err();
    assert_eq!(error.code, ErrorCode::InvalidValue);
}

#[test]
fn memory_taken_anew_does_not_hold_old_bytes() {
    let sim = sim();
    let stream = sim.stream_create(0).unwrap();
    let block = sim.malloc(0, 512).unwrap();
    sim.fill(stream, block, 512, u64::MAX).unwrap();
    sim.free(block).unwrap();
    assert_eq!(sim.malloc(0, 512).unwrap(), block);
    assert_eq!(sim.read_bytes(stream, block, 512).unwrap(), [0; 512]);
}

#[test]
fn without_contents_there_are_none() {
    let sim = Sim::builder().build().unwrap();
    let stream = sim.stream_create(0).unwrap();
    let block = sim.malloc(0, 40 << 30).unwrap();
    sim.fill(stream, block, 40 << 30, 1).unwrap();
    sim.check_fill(stream, block, 40 << 30, 2).unwrap();
    sim.write_bytes(stream, block, b"bytes").unwrap();
    sim.copy(stream, block, block + 100, 100).unwrap();
    assert_eq!(sim.content_mismatches(), 0);
    let error = sim.read_bytes(stream, block, 5).unwrap_err();
    assert_eq!(error.code, ErrorCode::NotSupported);
}
