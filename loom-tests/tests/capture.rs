//! Streams that capture: the pool leaves them alone, and graphs keep their memory.
#![cfg(loom)]

use loom_tests::device::Streams;
use loom_tests::{Outcomes, explore, role};

/// A capture begins while one thread seals the stream and another makes it wait.
///
/// The bugs would be: an event recorded, or a wait submitted, after the driver was told to capture: it
/// becomes part of the graph, and the event is never done, or done too early; stamps that were made
/// before the capture and count as completed without a seal after it.
#[test]
fn capture_against_a_seal_and_a_wait() {
    static SEEN: Outcomes = Outcomes::new();
    explore("capture_against_a_seal_and_a_wait", || {
        let streams = Streams::new();
        let (s, other) = (streams.open(), streams.open());
        let (fence, foreign) = (streams.work(s, 1), streams.work(other, 2));
        assert!(streams.seal(foreign));
        let on = streams.clone();
        let capture = role(move || {
            assert!(on.fences.begin_capture(s.id));
            assert!(!on.fences.begin_capture(s.id));
            on.driver.capture(s.handle, true);
            on.driver.capture(s.handle, false);
            on.fences.end_capture(s.id);
        });
        let on = streams.clone();
        let seal = role(move || SEEN.reached(u32::from(on.seal(fence))));
        let on = streams.clone();
        let wait = role(move || {
            let waits = on.wait(s, foreign);
            assert_eq!(waits, on.check_order(s, other, 2, foreign), "a wait, and no order");
            SEEN.reached(2 + u32::from(waits));
        });
        for role in [capture, seal, wait] {
            role.join().unwrap();
        }
        assert!(!streams.fences.is_capturing(millpond::driver::DeviceId(0)));
        assert!(streams.seal(fence), "no seal after a capture");
        streams.driver.run(other.handle);
        streams.driver.run(s.handle);
        assert!(streams.poll(fence) && streams.check_completed(s, 1, fence));
    });
    SEEN.assert_all(4);
}

/// A graph's memory ends while a stream that launches it is sealed and asked about.
///
/// The bug would be: the memory counts as free before the last launch has run.
#[test]
fn graph_memory_against_its_last_launch() {
    static SEEN: Outcomes = Outcomes::new();
    explore("graph_memory_against_its_last_launch", || {
        let streams = Streams::new();
        let (launcher, memory) = (streams.open(), streams.open());
        streams.fences.devote_to_graph(memory.id);
        let freed = streams.fences.stamp(memory.id);
        let launched = streams.work(launcher, 1);
        let on = streams.clone();
        let end = role(move || on.fences.retire(memory.id));
        let on = streams.clone();
        let device = role(move || {
            on.driver.run(memory.handle);
            on.driver.run(launcher.handle);
            on.driver.run(memory.handle);
        });
        let on = streams.clone();
        let ask = role(move || {
            SEEN.reached_if(0, on.seal(launched) && on.poll(launched));
            if on.seal(freed) && on.poll(freed) {
                assert!(
                    on.driver.is_done(launcher.handle, 1),
                    "a graph's memory is free too early"
                );
                SEEN.reached(1);
            }
        });
        for role in [end, device, ask] {
            role.join().unwrap();
        }
        streams.driver.run(launcher.handle);
        streams.driver.run(memory.handle);
        assert!(streams.seal(freed) && streams.poll(freed), "a graph's memory is never free");
        assert!(streams.driver.is_destroyed(memory.handle));
        SEEN.reached(2);
    });
    SEEN.assert_all(3);
}
