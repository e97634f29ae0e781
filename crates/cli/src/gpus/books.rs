//! What was taken from a driver and has not been given back.

use millpond::DeviceId;
use millpond::driver::PageHandle;
use serde::Serialize;
use std::collections::{BTreeMap, HashMap};
use std::fmt;

/// What a driver has handed out. Addresses are of one space, whatever the device.
#[derive(Debug, Default)]
pub(super) struct Books {
    streams: usize,
    events: usize,
    /// Bytes by address.
    reservations: HashMap<u64, u64>,
    mappings: BTreeMap<u64, u64>,
    plain: HashMap<u64, u64>,
    /// Bytes by device and handle.
    pages: HashMap<(u16, u64), u64>,
}

impl Books {
    pub fn stream(&mut self) {
        self.streams += 1;
    }

    pub fn stream_back(&mut self) {
        self.streams = self.streams.saturating_sub(1);
    }

    pub fn event(&mut self) {
        self.events += 1;
    }

    pub fn event_back(&mut self) {
        self.events = self.events.saturating_sub(1);
    }

    pub fn reservation(&mut self, address: u64, bytes: u64) {
        self.reservations.insert(address, bytes);
    }

    pub fn reservation_back(&mut self, address: u64) {
        self.reservations.remove(&address);
    }

    pub fn page(&mut self, device: DeviceId, page: PageHandle, bytes: u64) {
        self.pages.insert((device.0, page.0), bytes);
    }

    pub fn page_back(&mut self, device: DeviceId, page: PageHandle) {
        self.pages.remove(&(device.0, page.0));
    }

    pub fn mapping(&mut self, address: u64, bytes: u64) {
        self.mappings.insert(address, bytes);
    }

    pub fn mappings_back(&mut self, address: u64, bytes: u64) {
        let end = address.saturating_add(bytes);
        let gone: Vec<u64> = self.mappings.range(address..end).map(|(&at, _)| at).collect();
        for at in gone {
            self.mappings.remove(&at);
        }
    }

    pub fn plain(&mut self, address: u64, bytes: u64) {
        self.plain.insert(address, bytes);
    }

    pub fn plain_back(&mut self, address: u64) {
        self.plain.remove(&address);
    }

    pub fn leaks(&self) -> Leaks {
        Leaks {
            pages: self.pages.len() + self.plain.len(),
            mappings: self.mappings.len(),
            reservations: self.reservations.len(),
            streams: self.streams,
            events: self.events,
            bytes: self.pages.values().chain(self.plain.values()).sum(),
        }
    }
}

/// What is still out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Leaks {
    /// Pages, and plain allocations.
    pub pages: usize,
    pub mappings: usize,
    pub reservations: usize,
    pub streams: usize,
    pub events: usize,
    pub bytes: u64,
}

impl Leaks {
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

impl fmt::Display for Leaks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { pages, mappings, reservations, streams, events, bytes } = self;
        write!(
            f,
            "{pages} pages, {mappings} mappings, {reservations} reservations, {streams} streams, \
             {events} events, {bytes} bytes"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_call_takes_back_many_mappings() {
        let mut books = Books::default();
        (0..4).for_each(|n| books.mapping(n * 10, 10));
        books.mappings_back(10, 20);
        assert_eq!(books.leaks().mappings, 2);
        books.mappings_back(0, 10);
        books.mappings_back(30, 10);
        assert!(books.leaks().is_empty());
    }

    #[test]
    fn pages_are_told_apart_by_device() {
        let mut books = Books::default();
        books.page(DeviceId(0), PageHandle(7), 2);
        books.page(DeviceId(1), PageHandle(7), 3);
        books.plain(100, 5);
        books.page_back(DeviceId(0), PageHandle(7));
        let leaks = books.leaks();
        assert_eq!((leaks.pages, leaks.bytes), (2, 8));
        books.plain_back(100);
        books.page_back(DeviceId(1), PageHandle(7));
        assert!(books.leaks().is_empty());
    }
}
