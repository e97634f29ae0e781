//! Streams and events as drivers have them, with completion by the clock.

use std::time::Duration;

use millpond_simgpu::{Completion, ErrorCode, Sim, SimError};

fn lagging(lag: u64) -> Sim {
    let builder = Sim::builder().devices(2);
    builder.completion(Completion::Lag(lag)).build().unwrap()
}

fn code<T>(answer: Result<T, SimError>) -> ErrorCode {
    match answer {
        Ok(_) => panic!("the call should have failed"),
        Err(error) => error.code,
    }
}

#[test]
fn an_unrecorded_event_is_done() {
    let sim = lagging(5);
    let stream = sim.stream_create(0).unwrap();
    let event = sim.event_create(0).unwrap();
    assert!(sim.event_query(event).unwrap());
    assert!(sim.event_synchronize(event, None).unwrap());
    sim.stream_wait(stream, event).unwrap();
    sim.event_record(event, stream).unwrap();
    assert!(!sim.event_query(event).unwrap());
}

#[test]
fn an_event_is_done_so_many_ticks_after_its_record() {
    let sim = lagging(3);
    let stream = sim.stream_create(0).unwrap();
    let event = sim.event_create(0).unwrap();
    sim.event_record(event, stream).unwrap();
    for _ in 0..3 {
        assert!(!sim.event_query(event).unwrap());
        sim.tick();
    }
    assert!(sim.event_query(event).unwrap());
    assert_eq!(sim.now(), 3);
}

#[test]
fn recording_again_replaces_the_record() {
    let sim = lagging(2);
    let stream = sim.stream_create(0).unwrap();
    let event = sim.event_create(0).unwrap();
    sim.event_record(event, stream).unwrap();
    sim.tick();
    sim.event_record(event, stream).unwrap();
    sim.tick();
    assert!(!sim.event_query(event).unwrap());
    sim.tick();
    assert!(sim.event_query(event).unwrap());
}

#[test]
fn without_lag_an_event_is_done_at_once() {
    let sim = lagging(0);
    let stream = sim.stream_create(0).unwrap();
    let event = sim.event_create(0).unwrap();
    sim.event_record(event, stream).unwrap();
    assert!(sim.event_query(event).unwrap());
}

#[test]
fn host_waits_take_the_clock_along() {
    let sim = lagging(7);
    let (a, b) = (sim.stream_create(0).unwrap(), sim.stream_create(0).unwrap());
    let far = sim.stream_create(1).unwrap();
    let events: Vec<_> = (0..3).map(|_| sim.event_create(0).unwrap()).collect();
    let far_event = sim.event_create(1).unwrap();
    sim.event_record(events[0], a).unwrap();
    sim.tick();
    sim.event_record(events[1], b).unwrap();
    assert!(sim.event_synchronize(events[0], None).unwrap());
    assert_eq!(sim.now(), 7);
    assert!(!sim.event_query(events[1]).unwrap());
    sim.stream_synchronize(b).unwrap();
    assert_eq!(sim.now(), 8);
    sim.event_record(events[2], a).unwrap();
    sim.event_record(far_event, far).unwrap();
    sim.stream_synchronize(b).unwrap();
    assert_eq!(sim.now(), 8, "stream a has no part in that");
    sim.stream_destroy(a).unwrap();
    sim.device_synchronize(0).unwrap();
    assert_eq!(sim.now(), 15, "the work of a destroyed stream has");
    assert!(sim.event_query(far_event).unwrap());
    // Waiting again does not take the clock back.
    assert!(sim.event_synchronize(events[0], None).unwrap());
    assert_eq!(sim.now(), 15);
}

#[test]
fn a_timeout_of_zero_is_a_query() {
    let sim = lagging(7);
    let stream = sim.stream_create(0).unwrap();
    let event = sim.event_create(0).unwrap();
    sim.event_record(event, stream).unwrap();
    assert!(!sim.event_synchronize(event, Some(Duration::ZERO)).unwrap());
    assert_eq!(sim.now(), 0);
    let second = Some(Duration::from_secs(1));
    assert!(sim.event_synchronize(event, second).unwrap());
}

#[test]
fn handles_of_destroyed_streams_are_reused() {
    let sim = lagging(0);
    let streams: Vec<_> = (0..4).map(|_| sim.stream_create(0).unwrap()).collect();
    sim.stream_destroy(streams[2]).unwrap();
    sim.stream_destroy(streams[1]).unwrap();
    assert_eq!(code(sim.stream_destroy(streams[1])), ErrorCode::InvalidHandle);
    assert_eq!(sim.stream_create(1).unwrap(), streams[1]);
    assert_eq!(sim.stream_create(0).unwrap(), streams[2]);
    // The reused handle is a stream of the other device.
    let event = sim.event_create(1).unwrap();
    sim.event_record(event, streams[1]).unwrap();
}

#[test]
fn an_event_outlives_the_stream_it_was_recorded_on() {
    let sim = lagging(2);
    let stream = sim.stream_create(0).unwrap();
    let event = sim.event_create(0).unwrap();
    sim.event_record(event, stream).unwrap();
    sim.stream_destroy(stream).unwrap();
    assert!(!sim.event_query(event).unwrap());
    assert!(sim.event_synchronize(event, None).unwrap());
}

#[test]
fn bad_handles_are_errors() {
    let sim = lagging(0);
    let stream = sim.stream_create(0).unwrap();
    let event = sim.event_create(1).unwrap();
    let error = sim.event_record(event, stream).unwrap_err();
    assert_eq!(error.code, ErrorCode::InvalidHandle);
    assert!(error.to_string().contains("device 1"), "{error}");
    // A wait may cross devices.
    sim.stream_wait(stream, event).unwrap();
    for bad in [0, 999, u64::MAX] {
        let (no_stream, no_event) = (millpond_simgpu::Stream(bad), millpond_simgpu::Event(bad));
        assert_eq!(code(sim.event_record(event, no_stream)), ErrorCode::InvalidHandle);
        assert_eq!(code(sim.stream_wait(stream, no_event)), ErrorCode::InvalidHandle);
        assert_eq!(code(sim.event_query(no_event)), ErrorCode::InvalidHandle);
        assert_eq!(code(sim.event_destroy(no_event)), ErrorCode::InvalidHandle);
        assert_eq!(code(sim.hang(no_stream)), ErrorCode::InvalidHandle);
        assert_eq!(code(sim.launch(no_stream, &[])), ErrorCode::InvalidHandle);
    }
    assert_eq!(code(sim.stream_create(2)), ErrorCode::InvalidDevice);
    assert_eq!(code(sim.event_create(2)), ErrorCode::InvalidDevice);
    assert_eq!(code(sim.device_synchronize(2)), ErrorCode::InvalidDevice);
}

#[test]
fn a_hang_stops_what_is_not_done_and_what_comes_after_it() {
    let sim = lagging(2);
    let (stuck, waiter) = (sim.stream_create(0).unwrap(), sim.stream_create(1).unwrap());
    let [done, pending, later] = [0; 3].map(|_| sim.event_create(0).unwrap());
    let [before, after] = [0; 2].map(|_| sim.event_create(1).unwrap());
    sim.event_record(done, stuck).unwrap();
    sim.tick();
    sim.tick();
    sim.event_record(pending, stuck).unwrap();
    sim.hang(stuck).unwrap();
    sim.hang(stuck).unwrap();
    sim.event_record(later, stuck).unwrap();
    sim.event_record(before, waiter).unwrap();
    sim.stream_wait(waiter, later).unwrap();
    sim.event_record(after, waiter).unwrap();
    for _ in 0..10 {
        sim.tick();
    }
    assert!(sim.event_query(done).unwrap());
    assert!(sim.event_query(before).unwrap());
    for event in [pending, later, after] {
        assert!(!sim.event_query(event).unwrap());
        assert_eq!(code(sim.event_synchronize(event, None)), ErrorCode::Deadlock);
    }
    assert_eq!(code(sim.stream_synchronize(stuck)), ErrorCode::Deadlock);
    assert_eq!(code(sim.stream_synchronize(waiter)), ErrorCode::Deadlock);
    assert_eq!(code(sim.device_synchronize(1)), ErrorCode::Deadlock);

    let before = sim.host_ns(0);
    let timeout = Duration::from_millis(3);
    assert!(!sim.event_synchronize(later, Some(timeout)).unwrap());
    assert!(sim.host_ns(0) - before >= 3_000_000);

    sim.unhang(stuck).unwrap();
    assert!(!sim.event_query(later).unwrap());
    sim.tick();
    sim.tick();
    for event in [pending, later, after] {
        assert!(sim.event_query(event).unwrap());
    }
    sim.device_synchronize(1).unwrap();
}

#[test]
fn a_destroyed_stream_can_keep_its_device_busy() {
    let sim = lagging(0);
    let stream = sim.stream_create(0).unwrap();
    let block = sim.malloc(0, 512).unwrap();
    sim.hang(stream).unwrap();
    sim.stream_destroy(stream).unwrap();
    assert_eq!(code(sim.device_synchronize(0)), ErrorCode::Deadlock);
    assert_eq!(code(sim.free(block)), ErrorCode::Deadlock);
    sim.device_synchronize(1).unwrap();
    sim.unhang_all();
    sim.free(block).unwrap();

    // A stream that waits for one that hangs does so too.
    let (stuck, waiter) = (sim.stream_create(0).unwrap(), sim.stream_create(1).unwrap());
    let event = sim.event_create(0).unwrap();
    sim.hang(stuck).unwrap();
    sim.event_record(event, stuck).unwrap();
    sim.stream_wait(waiter, event).unwrap();
    sim.stream_destroy(waiter).unwrap();
    assert_eq!(code(sim.device_synchronize(1)), ErrorCode::Deadlock);
    sim.unhang(stuck).unwrap();
    sim.device_synchronize(1).unwrap();
}

#[test]
fn a_rendezvous_with_a_stream_that_hangs_hangs() {
    let sim = lagging(0);
    let streams = [0; 3].map(|_| sim.stream_create(0).unwrap());
    let event = sim.event_create(0).unwrap();
    sim.hang(streams[0]).unwrap();
    sim.rendezvous(&streams[..2]).unwrap();
    sim.event_record(event, streams[2]).unwrap();
    assert!(sim.event_query(event).unwrap());
    sim.event_record(event, streams[1]).unwrap();
    assert!(!sim.event_query(event).unwrap());
    sim.unhang(streams[0]).unwrap();
    assert!(sim.event_query(event).unwrap());
    let twice = [streams[0], streams[0]];
    assert_eq!(code(sim.rendezvous(&twice)), ErrorCode::InvalidValue);
    sim.rendezvous(&[]).unwrap();
    let meeting = sim.meeting(1);
    assert_eq!(code(sim.join(streams[0], &meeting)), ErrorCode::NotSupported);
}

#[test]
fn many_threads_record_and_query() {
    let sim = lagging(1);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..200 {
                    let stream = sim.stream_create(0).unwrap();
                    let event = sim.event_create(0).unwrap();
                    sim.event_record(event, stream).unwrap();
                    sim.tick();
                    assert!(sim.event_query(event).unwrap());
                    sim.stream_destroy(stream).unwrap();
                    sim.event_destroy(event).unwrap();
                }
            });
        }
    });
    assert!(sim.leaks().is_empty());
    assert_eq!(sim.counters().total(), 4 * 200 * 6);
}
