//! Counting, pricing and failing of calls.

use millpond_simgpu::{Call, Costs, ErrorCode, Fault, Result, Sim};

const PAGE: u64 = 2 << 20;

/// Makes every kind of call once or more; the first failure ends it.
fn program(sim: &Sim) -> Result<()> {
    let stream = sim.stream_create(0)?;
    let other = sim.stream_create(1)?;
    let event = sim.event_create(0)?;
    sim.peer_access(1, 0)?;
    let address = sim.reserve(0, 2 * PAGE)?;
    let page = sim.page_create(0, PAGE)?;
    sim.map(address, PAGE, page)?;
    sim.map(address + PAGE, PAGE, page)?;
    sim.set_access(address, 2 * PAGE, &[0, 1])?;
    sim.memory_info(0)?;
    sim.launch(stream, &[])?;
    sim.fill(stream, address, PAGE, 1)?;
    sim.event_record(event, stream)?;
    sim.event_query(event)?;
    sim.stream_wait(other, event)?;
    sim.rendezvous(&[stream, other])?;
    let plain = sim.malloc(0, 512)?;
    sim.copy(other, plain, address, 512)?;
    sim.event_synchronize(event, None)?;
    sim.stream_synchronize(other)?;
    sim.free(plain)?;
    sim.unmap(address, 2 * PAGE)?;
    sim.page_release(page)?;
    sim.unreserve(address, 2 * PAGE)?;
    sim.event_destroy(event)?;
    sim.stream_destroy(other)?;
    sim.stream_destroy(stream)
}

#[test]
fn calls_are_counted_per_device() {
    let sim = Sim::builder().devices(2).build().unwrap();
    program(&sim).unwrap();
    assert!(sim.leaks().is_empty());
    let counts = sim.counters();
    for call in Call::ALL {
        let expected = match call {
            Call::StreamCreate
            | Call::StreamDestroy
            | Call::Map
            | Call::Sync
            | Call::Rendezvous => 2,
            _ => 1,
        };
        assert_eq!(counts.get(*call), expected, "{}", call.name());
    }
    assert_eq!(counts.total(), sim.total_calls());
    assert_eq!(counts.on(0, Call::StreamCreate), 1);
    assert_eq!(counts.on(1, Call::StreamWait), 1, "the waiting stream's");
    assert_eq!(counts.on(0, Call::StreamWait), 0);
    assert_eq!(counts.on(9, Call::StreamWait), 0);

    sim.malloc(1, 1).unwrap();
    let later = sim.counters();
    let since = &later - &counts;
    assert_eq!((since.total(), since.on(1, Call::Alloc)), (1, 1));
    assert_eq!((counts - later).total(), 0);
}

#[test]
fn calls_have_prices() {
    let sim = Sim::builder().devices(2).build().unwrap();
    let address = sim.reserve(0, 8 * PAGE).unwrap();
    assert_eq!(sim.host_ns(0), 19_000);
    let page = sim.page_create(0, 8 * PAGE).unwrap();
    assert_eq!(sim.host_ns(0), 49_000);
    sim.map(address, 8 * PAGE, page).unwrap();
    let before = sim.host_ns(0);
    assert_eq!(before, 50_500);
    sim.set_access(address, 8 * PAGE, &[0, 1]).unwrap();
    assert_eq!(sim.host_ns(0) - before, 24_000 + 2 * 8 * 9_400);
    let before = sim.host_ns(0);
    sim.unmap(address, 8 * PAGE).unwrap();
    sim.page_release(page).unwrap();
    assert_eq!(sim.host_ns(0) - before, 45_000);
    assert_eq!(sim.host_ns(1), 0);
    let plain = sim.malloc(1, 5).unwrap();
    sim.free(plain).unwrap();
    assert_eq!(sim.host_ns(1), 225_000);
    assert_eq!(sim.host_ns(7), 0);

    assert_eq!(Costs::slow_create().of(Call::Create), 193_000);
    let own = Costs::free().with(Call::Map, 7).with_access_unit(1);
    assert_eq!(own.of_set_access(PAGE + 1, 3), 6);
    let sim = Sim::builder().costs(own).build().unwrap();
    let address = sim.reserve(0, PAGE).unwrap();
    let page = sim.page_create(0, PAGE).unwrap();
    sim.map(address, PAGE, page).unwrap();
    assert_eq!(sim.host_ns(0), 7);
}

#[test]
fn each_kind_of_call_can_fail() {
    for call in Call::ALL {
        let sim = Sim::builder().devices(2).build().unwrap();
        sim.inject(Fault { call: *call, nth: 1, code: ErrorCode::Unknown, sticky: false });
        let error = program(&sim).unwrap_err();
        assert_eq!((error.call, error.code), (*call, ErrorCode::Unknown));
        assert!(error.to_string().contains("injected"), "{error}");
        assert!(!sim.clear_faults(), "it has come");
    }
}

#[test]
fn each_call_can_fail_and_has_no_effect_then() {
    let clean = Sim::builder().devices(2).build().unwrap();
    program(&clean).unwrap();
    let calls = clean.total_calls();
    for nth in 1..=calls {
        let sim = Sim::builder().devices(2).build().unwrap();
        sim.inject_any(nth, ErrorCode::LaunchFailed);
        assert_eq!(program(&sim).unwrap_err().code, ErrorCode::LaunchFailed);
        assert_eq!(sim.total_calls(), nth);
    }
    let sim = Sim::builder().devices(2).build().unwrap();
    sim.inject_any(calls + 1, ErrorCode::LaunchFailed);
    program(&sim).unwrap();
    assert!(sim.clear_faults(), "it was still to come");
    sim.malloc(0, 1).unwrap();
}

#[test]
fn every_call_can_fail_from_some_moment_on() {
    let sim = Sim::builder().devices(2).build().unwrap();
    sim.inject_all(3, ErrorCode::NotReady);
    let outcome = |device| sim.malloc(device, 1).map_err(|error| error.code);
    assert!(outcome(0).is_ok() && outcome(1).is_ok());
    for device in [0, 1, 0] {
        assert_eq!(outcome(device), Err(ErrorCode::NotReady));
    }
    assert_eq!(sim.memory_info(0).unwrap_err().code, ErrorCode::NotReady);
    assert!(sim.clear_faults());
    program(&sim).unwrap();
}

#[test]
fn a_context_goes_and_the_other_devices_do_not_notice() {
    let sim = Sim::builder().devices(2).build().unwrap();
    let [stream, other] = [0, 1].map(|device| sim.stream_create(device).unwrap());
    let [event, theirs] = [0, 1].map(|device| sim.event_create(device).unwrap());
    sim.event_record(event, stream).unwrap();
    let plain = sim.malloc(0, 1).unwrap();
    sim.destroy_context(0);
    sim.destroy_context(7);
    // Not a fault that can be cleared.
    assert!(!sim.clear_faults());
    let code = |answer: Result<()>| answer.unwrap_err().code;
    let expected = ErrorCode::ContextDestroyed;
    assert_eq!(expected.number(), 709);
    assert_eq!(code(sim.event_record(event, stream)), expected);
    assert_eq!(code(sim.event_query(event).map(drop)), expected);
    assert_eq!(code(sim.malloc(0, 1).map(drop)), expected);
    assert_eq!(code(sim.free(plain)), expected);
    assert_eq!(code(sim.reserve(0, PAGE).map(drop)), expected);
    assert_eq!(code(sim.stream_destroy(stream)), expected);
    assert_eq!(code(sim.stream_wait(other, event)), expected);
    assert_eq!(code(sim.stream_wait(stream, theirs)), expected);
    sim.event_record(theirs, other).unwrap();
    assert!(sim.event_query(theirs).unwrap());
    sim.free(sim.malloc(1, 1).unwrap()).unwrap();
    sim.event_destroy(theirs).unwrap();
    sim.stream_destroy(other).unwrap();
    let leaks = sim.leaks_of(0);
    assert_eq!((leaks.streams, leaks.events, leaks.allocations), (1, 1, 1), "{leaks}");
    assert!(sim.leaks_of(1).is_empty() && sim.leaks_of(2).is_empty());
    assert_eq!(sim.leaks(), leaks);
}

#[test]
fn the_nth_call_fails_once_or_from_then_on() {
    let sim = Sim::builder().build().unwrap();
    let fault = Fault { call: Call::Create, nth: 3, code: ErrorCode::OutOfMemory, sticky: false };
    sim.inject(fault);
    let outcome = |n: usize| -> Vec<bool> {
        (0..n)
            .map(|_| {
                sim.malloc(0, 1).unwrap();
                sim.page_create(0, PAGE).is_ok()
            })
            .collect()
    };
    assert_eq!(outcome(5), [true, true, false, true, true]);
    assert_eq!(sim.memory_info(0).unwrap().1, 80 << 30);
    sim.inject(Fault { sticky: true, ..fault });
    assert_eq!(outcome(5), [true, true, false, false, false]);
    assert!(sim.clear_faults());
    assert_eq!(outcome(2), [true, true]);
}

#[test]
fn after_shutdown_every_call_says_so() {
    let sim = Sim::builder().build().unwrap();
    let stream = sim.stream_create(0).unwrap();
    let event = sim.event_create(0).unwrap();
    sim.shutdown();
    sim.clear_faults();
    let code = |answer: Result<()>| answer.unwrap_err().code;
    let expected = ErrorCode::Deinitialized;
    assert_eq!(code(sim.event_record(event, stream)), expected);
    assert_eq!(code(sim.event_query(event).map(drop)), expected);
    assert_eq!(code(sim.malloc(0, 1).map(drop)), expected);
    assert_eq!(code(sim.stream_destroy(stream)), expected);
    assert_eq!(expected.number(), 4);
}
