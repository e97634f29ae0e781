//! The race oracle at work behind the calls: what orders, what does not, and what is told.

use std::time::Duration;

use millpond_simgpu::{Completion, HazardKind, Sim, Touch};

const PAGE: u64 = 2 << 20;

fn sim(completion: Completion) -> Sim {
    Sim::builder().devices(2).oracle(true).completion(completion).build().unwrap()
}

/// Both ways of completion; what the oracle finds must not depend on it.
fn everywhere(test: impl Fn(&Sim)) {
    for completion in [Completion::Lag(0), Completion::Lag(7), Completion::Scheduled] {
        test(&sim(completion));
    }
}

fn kinds(sim: &Sim) -> Vec<HazardKind> {
    sim.hazards().iter().map(|hazard| hazard.kind()).collect()
}

fn mapped(sim: &Sim, pages: u64) -> u64 {
    let address = sim.reserve(0, pages * PAGE).unwrap();
    for at in 0..pages {
        let page = sim.page_create(0, PAGE).unwrap();
        sim.map(address + at * PAGE, PAGE, page).unwrap();
        sim.page_release(page).unwrap();
    }
    sim.set_access(address, pages * PAGE, &[0]).unwrap();
    address
}

#[test]
fn an_early_reuse_is_found_though_nothing_lags() {
    everywhere(|sim| {
        let [a, b] = [0; 2].map(|_| sim.stream_create(0).unwrap());
        let block = sim.malloc(0, 512).unwrap();
        let event = sim.event_create(0).unwrap();
        sim.launch(a, &[Touch::write(block, 512)]).unwrap();
        sim.event_record(event, a).unwrap();
        // Perhaps done, but nobody asked.
        sim.launch(b, &[Touch::write(block, 512)]).unwrap();
        assert_eq!(kinds(sim), [HazardKind::Unordered]);
    });
}

#[test]
fn what_the_host_learnt_orders() {
    everywhere(|sim| {
        let [a, b, c, d] = [0; 4].map(|_| sim.stream_create(0).unwrap());
        let block = sim.malloc(0, 512).unwrap();
        let event = sim.event_create(0).unwrap();
        let touch = [Touch::write(block, 512)];
        sim.launch(a, &touch).unwrap();
        sim.event_record(event, a).unwrap();
        while !sim.event_query(event).unwrap() {
            sim.tick();
        }
        sim.launch(b, &touch).unwrap();
        sim.event_record(event, b).unwrap();
        let timeout = Some(Duration::from_secs(1));
        assert!(sim.event_synchronize(event, timeout).unwrap());
        sim.launch(c, &touch).unwrap();
        sim.stream_synchronize(c).unwrap();
        sim.launch(d, &touch).unwrap();
        // The last stream's handle is gone before the host looks.
        sim.stream_destroy(d).unwrap();
        sim.device_synchronize(0).unwrap();
        sim.launch(a, &touch).unwrap();
        assert_eq!(sim.hazard_count(), 0, "{:?}", sim.hazards());
    });
}

#[test]
fn a_query_that_says_no_orders_nothing() {
    let sim = sim(Completion::Lag(1));
    let [a, b] = [0; 2].map(|_| sim.stream_create(0).unwrap());
    let block = sim.malloc(0, 512).unwrap();
    let event = sim.event_create(0).unwrap();
    sim.launch(a, &[Touch::write(block, 512)]).unwrap();
    sim.event_record(event, a).unwrap();
    assert!(!sim.event_query(event).unwrap());
    sim.tick();
    sim.launch(b, &[Touch::read(block, 512)]).unwrap();
    assert_eq!(kinds(&sim), [HazardKind::Unordered]);
}

#[test]
fn a_wait_orders_up_to_the_record_of_its_call() {
    everywhere(|sim| {
        let [a, b] = [0; 2].map(|_| sim.stream_create(0).unwrap());
        let block = sim.malloc(0, 1024).unwrap();
        let event = sim.event_create(0).unwrap();
        sim.launch(a, &[Touch::write(block, 512)]).unwrap();
        sim.event_record(event, a).unwrap();
        sim.stream_wait(b, event).unwrap();
        sim.launch(a, &[Touch::write(block + 512, 512)]).unwrap();
        sim.event_record(event, a).unwrap();
        sim.launch(b, &[Touch::read(block, 512)]).unwrap();
        assert_eq!(sim.hazard_count(), 0);
        sim.launch(b, &[Touch::read(block + 512, 512)]).unwrap();
        assert_eq!(kinds(sim), [HazardKind::Unordered]);
    });
}

#[test]
fn a_reused_handle_is_another_stream() {
    everywhere(|sim| {
        let a = sim.stream_create(0).unwrap();
        let block = sim.malloc(0, 512).unwrap();
        let key = sim.stream_key(a).unwrap();
        sim.launch(a, &[Touch::write(block, 512)]).unwrap();
        sim.stream_destroy(a).unwrap();
        let b = sim.stream_create(0).unwrap();
        assert_eq!(a, b);
        assert_ne!(sim.stream_key(b).unwrap(), key);
        sim.launch(b, &[Touch::write(block, 512)]).unwrap();
        assert_eq!(kinds(sim), [HazardKind::Unordered]);
    });
}

#[test]
fn aliases_are_the_same_bytes() {
    everywhere(|sim| {
        let [a, b] = [0; 2].map(|_| sim.stream_create(0).unwrap());
        let address = sim.reserve(0, 2 * PAGE).unwrap();
        let page = sim.page_create(0, PAGE).unwrap();
        sim.map(address, PAGE, page).unwrap();
        sim.map(address + PAGE, PAGE, page).unwrap();
        sim.set_access(address, 2 * PAGE, &[0]).unwrap();
        sim.launch(a, &[Touch::write(address + 100, 100)]).unwrap();
        sim.launch(b, &[Touch::write(address + PAGE, 100)]).unwrap();
        assert_eq!(sim.hazard_count(), 0);
        sim.launch(b, &[Touch::write(address + PAGE + 199, 1)]).unwrap();
        assert_eq!(kinds(sim), [HazardKind::Unordered]);
    });
}

#[test]
fn unmapping_in_flight_is_a_hazard() {
    everywhere(|sim| {
        let stream = sim.stream_create(0).unwrap();
        let event = sim.event_create(0).unwrap();
        let address = mapped(sim, 3);
        sim.launch(stream, &[Touch::write(address, PAGE)]).unwrap();
        sim.event_record(event, stream).unwrap();
        assert!(sim.event_synchronize(event, None).unwrap());
        sim.unmap(address, PAGE).unwrap();
        assert_eq!(sim.hazard_count(), 0);
        sim.launch(stream, &[Touch::write(address + PAGE, PAGE)]).unwrap();
        sim.unmap(address + PAGE, 2 * PAGE).unwrap();
        // The mapping went, and with it the page, which had been released.
        let in_flight = [HazardKind::InFlight; 2];
        assert_eq!(kinds(sim), in_flight);
        assert_eq!(sim.memory_info(0).unwrap().0, 80 << 30);
    });
}

#[test]
fn a_zombie_mapping_may_go_while_the_new_one_is_in_use() {
    everywhere(|sim| {
        let stream = sim.stream_create(0).unwrap();
        let address = sim.reserve(0, 2 * PAGE).unwrap();
        let page = sim.page_create(0, PAGE).unwrap();
        sim.map(address, PAGE, page).unwrap();
        sim.set_access(address, PAGE, &[0]).unwrap();
        sim.launch(stream, &[Touch::write(address, PAGE)]).unwrap();
        sim.map(address + PAGE, PAGE, page).unwrap();
        sim.set_access(address + PAGE, PAGE, &[0]).unwrap();
        let event = sim.event_create(0).unwrap();
        sim.event_record(event, stream).unwrap();
        sim.launch(stream, &[Touch::read(address + PAGE, PAGE)]).unwrap();
        assert!(sim.event_synchronize(event, None).unwrap());
        sim.unmap(address, PAGE).unwrap();
        assert_eq!(sim.hazard_count(), 0, "{:?}", sim.hazards());
    });
}

#[test]
fn freeing_waits_for_its_device_only() {
    everywhere(|sim| {
        let [near, far] = [0, 1].map(|device| sim.stream_create(device).unwrap());
        sim.peer_access(1, 0).unwrap();
        let block = sim.malloc(0, 512).unwrap();
        sim.launch(near, &[Touch::write(block, 512)]).unwrap();
        sim.free(block).unwrap();
        assert_eq!(sim.hazard_count(), 0);
        let block = sim.malloc(0, 512).unwrap();
        sim.launch(far, &[Touch::write(block, 512)]).unwrap();
        sim.free(block).unwrap();
        assert_eq!(kinds(sim), [HazardKind::InFlight]);
    });
}

#[test]
fn touching_what_is_not_there_is_a_hazard_and_the_run_goes_on() {
    everywhere(|sim| {
        let [near, far] = [0, 1].map(|device| sim.stream_create(device).unwrap());
        let address = mapped(sim, 1);
        let plain = sim.malloc(0, 512).unwrap();
        sim.launch(far, &[Touch::write(address, 10)]).unwrap();
        sim.launch(far, &[Touch::write(plain, 10)]).unwrap();
        sim.unmap(address, PAGE).unwrap();
        sim.free(plain).unwrap();
        sim.launch(near, &[Touch::write(address, 10)]).unwrap();
        sim.launch(near, &[Touch::write(plain, 10)]).unwrap();
        assert_eq!(
            kinds(sim),
            [HazardKind::NoAccess, HazardKind::NoAccess, HazardKind::Unmapped, HazardKind::Freed]
        );
        sim.device_synchronize(0).unwrap();
        assert_eq!(sim.device_faults(), 0, "such work is not run");
    });
}

#[test]
fn labels_tell_stale_content() {
    everywhere(|sim| {
        let stream = sim.stream_create(0).unwrap();
        let block = sim.malloc(0, 1024).unwrap();
        sim.launch(stream, &[Touch::write(block, 512).label(1)]).unwrap();
        sim.launch(stream, &[Touch::read(block, 512).label(1)]).unwrap();
        sim.launch(stream, &[Touch::write(block + 256, 512).label(2)]).unwrap();
        assert_eq!(sim.hazard_count(), 0);
        sim.launch(stream, &[Touch::read(block, 512).label(1)]).unwrap();
        assert_eq!(kinds(sim), [HazardKind::StaleContent]);
        sim.launch(stream, &[Touch::read(block + 768, 1)]).unwrap();
        assert_eq!(sim.hazards()[1].kind(), HazardKind::NeverWritten);
        assert_eq!(sim.hazard_count(), 2);
    });
}

#[test]
fn a_rendezvous_orders_its_streams() {
    everywhere(|sim| {
        let streams = [0, 0, 1].map(|device| sim.stream_create(device).unwrap());
        let block = sim.malloc(0, 512).unwrap();
        let touch = [Touch::write(block, 512)];
        sim.launch(streams[0], &touch).unwrap();
        sim.rendezvous(&streams[..2]).unwrap();
        sim.launch(streams[1], &touch).unwrap();
        assert_eq!(sim.hazard_count(), 0);
        sim.launch(streams[0], &touch).unwrap();
        assert_eq!(kinds(sim), [HazardKind::Unordered]);
    });
}

/// A copy takes the labels along, piece by piece, over pages that are no neighbours, and leaves its
/// source's as they are; where there was none there is none.
#[test]
fn labels_follow_copies() {
    everywhere(|sim| {
        let stream = sim.stream_create(0).unwrap();
        let (from, to) = (mapped(sim, 2), mapped(sim, 3));
        let start = from + PAGE - 1000;
        for (at, len, label) in
            [(start, 600, Some(1)), (start + 600, 900, Some(2)), (start + 1500, 500, None)]
        {
            let write = Touch::write(at, len);
            let write = label.map_or(write, |label| write.label(label));
            sim.launch(stream, &[write]).unwrap();
        }
        sim.copy(stream, to + 2 * PAGE - 700, start, 2000).unwrap();
        for at in [to + 2 * PAGE - 700, start] {
            sim.launch(stream, &[Touch::read(at, 600).label(1)]).unwrap();
            sim.launch(stream, &[Touch::read(at + 600, 900).label(2)]).unwrap();
        }
        assert_eq!(kinds(sim), []);
        // One byte further there is another's, and behind that nobody's.
        sim.launch(stream, &[Touch::read(to + 2 * PAGE - 700, 601).label(1)]).unwrap();
        sim.launch(stream, &[Touch::read(to + 2 * PAGE + 800, 500).label(2)]).unwrap();
        assert_eq!(kinds(sim), [HazardKind::StaleContent; 2]);
    });
}
