//! The type-stable table: records appear once.
#![cfg(loom)]

use loom::sync::atomic::{AtomicU64, Ordering};
use loom_tests::{Outcomes, explore, role};
use millpond::internals::Table;
use std::sync::Arc;

/// Two threads create the same record while a third looks it up.
///
/// The bugs would be: each creator uses a record of its own; a reader sees a record before what is
/// in it.
#[test]
fn racing_creators() {
    static SEEN: Outcomes = Outcomes::new();
    explore("racing_creators", || {
        let table: Arc<Table<AtomicU64>> = Arc::new(Table::new(8));
        let creators = [1, 10].map(|by| {
            let on = table.clone();
            role(move || {
                let record = on.get_or_create(3).unwrap();
                record.fetch_add(by, Ordering::Relaxed);
                std::ptr::from_ref(record) as usize
            })
        });
        let on = table.clone();
        let reader = role(move || on.get(3).map(|record| record.load(Ordering::Relaxed)));
        let [a, b] = creators.map(|creator| creator.join().unwrap());
        assert_eq!(a, b, "two creators use two records");
        let seen = reader.join().unwrap();
        SEEN.reached(seen.map_or(0, |sum| if sum == 11 { 2 } else { 1 }));
        let record = table.get(3).unwrap();
        assert_eq!(record.load(Ordering::Relaxed), 11, "what a creator wrote is lost");
    });
    SEEN.assert_all(3);
}
