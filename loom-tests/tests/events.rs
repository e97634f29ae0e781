//! The stack of free events.
#![cfg(loom)]

use loom_tests::driver::ModelDriver;
use loom_tests::{Outcomes, explore, role};
use millpond::driver::DeviceId;
use millpond::internals::Events;
use std::sync::Arc;

/// One thread takes an event; another takes two and gives the first back, so that the same row is
/// on top with another below it (ABA).
///
/// The bug would be: the first thread's take succeeds with the link it read before, and puts an
/// event on top that the other thread has taken.
#[test]
fn event_on_top_again() {
    static SEEN: Outcomes = Outcomes::new();
    explore("event_on_top_again", || {
        let driver = Arc::new(ModelDriver::default());
        let events = Arc::new(Events::new(DeviceId(0)));
        let take = |events: &Events, driver: &ModelDriver| {
            events.take(driver).expect("the driver refuses nothing").expect("an event")
        };
        let made = [(); 3].map(|()| take(&events, &driver));
        made.into_iter().rev().for_each(|event| events.give(event));

        let (on, with) = (events.clone(), driver.clone());
        let one = role(move || take(&on, &with));
        let (on, with) = (events.clone(), driver.clone());
        let two = role(move || {
            let (first, second) = (take(&on, &with), take(&on, &with));
            on.give(first);
            (first, second)
        });
        let one = one.join().unwrap();
        let (first, second) = two.join().unwrap();
        SEEN.reached(u32::from(one == first));
        let rest = [(); 2].map(|()| take(&events, &driver));
        let mut held = [one, second, rest[0], rest[1]];
        held.sort_unstable();
        let distinct = held.windows(2).all(|pair| pair[0] != pair[1]);
        assert!(distinct, "an event was taken twice: {held:?}");
    });
    SEEN.assert_all(2);
}
