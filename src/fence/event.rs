//! Pooled events: created once per device, without timing, recorded again and again, destroyed with
//! the pool. The free ones form a tagged stack of rows, so taking and giving back are lock-free.

use crate::driver::{DeviceId, Driver, DriverResult, EventHandle};
use crate::sync::{AtomicU32, AtomicU64, Ordering};
use crate::table::Table;

/// Known orderings kept per stream (and per event, as its snapshot). Lossy: see [`super::known`].
#[cfg(not(loom))]
pub(crate) const KNOWN: usize = 16;
#[cfg(loom)]
pub(crate) const KNOWN: usize = 4;

/// Events a device may have pending at once.
const EVENTS: usize = (1 << 16) - 1;

/// One event: its handle, and what its stream knew when it was recorded.
#[derive(Default)]
pub struct Row {
    handle: AtomicU64,
    next: AtomicU32,
    pub snapshot: [AtomicU64; KNOWN],
}

impl Row {
    pub fn handle(&self) -> EventHandle {
        EventHandle(self.handle.load(Ordering::Relaxed))
    }
}

/// The events of one device.
pub struct Events {
    device: DeviceId,
    rows: Table<Row>,
    /// Rows made so far. Only grows.
    made: AtomicU32,
    /// Top of the stack of free rows: `tag:32 | index+1:32`. The tag moves at every pop; 32 bits are
    /// enough because a pop that sleeps through 2^32 seals of one device would have to wake up to
    /// the very same top.
    free: AtomicU64,
}

const LINK: u64 = u32::MAX as u64;

impl Events {
    pub fn new(device: DeviceId) -> Self {
        Self { device, rows: Table::new(EVENTS), made: AtomicU32::new(0), free: AtomicU64::new(0) }
    }

    /// The row at `index`, which came from a slot or from [`Events::take`].
    pub fn row(&self, index: u32) -> Option<&Row> {
        self.rows.get(index)
    }

    /// Takes a free event, or creates one. `None` when the device's events are used up.
    pub fn take(&self, driver: &dyn Driver) -> DriverResult<Option<u32>> {
        // Acquire pairs with the release of `give`: the row's link is visible.
        let mut top = self.free.load(Ordering::Acquire);
        while let Some(index) = (top & LINK).checked_sub(1) {
            let Some(row) = self.rows.get(index as u32) else { break };
            let next = u64::from(row.next.load(Ordering::Relaxed));
            let popped = ((top >> 32).wrapping_add(1) << 32) | next;
            match self.free.compare_exchange(top, popped, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return Ok(Some(index as u32)),
                Err(found) => top = found,
            }
        }
        // First the event, then its row: a failing driver costs no row.
        let handle = driver.create_event(self.device)?;
        let index = self.made.fetch_add(1, Ordering::Relaxed);
        let row = if (index as usize) < EVENTS { self.rows.get_or_create(index) } else { None };
        let Some(row) = row else {
            self.made.fetch_sub(1, Ordering::Relaxed);
            driver.destroy_event(self.device, handle)?;
            return Ok(None);
        };
        row.handle.store(handle.0, Ordering::Relaxed);
        Ok(Some(index))
    }

    /// Gives a taken event back.
    pub fn give(&self, index: u32) {
        let Some(row) = self.rows.get(index) else { return };
        let mut top = self.free.load(Ordering::Relaxed);
        loop {
            row.next.store((top & LINK) as u32, Ordering::Relaxed);
            let pushed = (top & !LINK) | u64::from(index + 1);
            // Release pairs with the acquire of `take`.
            match self.free.compare_exchange(top, pushed, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return,
                Err(found) => top = found,
            }
        }
    }

    /// Rows made so far.
    pub fn made(&self) -> u32 {
        self.made.load(Ordering::Relaxed)
    }

    /// The free rows, while nobody takes or gives any: for tests.
    pub fn free_rows(&self) -> Vec<u32> {
        let mut free = Vec::new();
        let mut next = self.free.load(Ordering::Acquire) & LINK;
        while let Some(row) = next.checked_sub(1) {
            free.push(row as u32);
            assert!(free.len() <= self.made() as usize, "the free events form a circle");
            let links = self.rows.get(row as u32).map(|row| row.next.load(Ordering::Relaxed));
            next = u64::from(links.unwrap_or(0));
        }
        free
    }

    /// Destroys every event. The caller is alone and no slot refers to them any more (or the
    /// pool is going away: destroying a pending event is legal).
    pub fn destroy(&self, driver: &dyn Driver) {
        let made = self.made.swap(0, Ordering::AcqRel);
        self.free.store(0, Ordering::Release);
        for index in 0..made {
            let Some(row) = self.rows.get(index) else { continue };
            let handle = row.handle.swap(0, Ordering::Relaxed);
            if handle != 0 {
                // A driver that is shutting down may refuse; there is nothing left to leak into.
                let _ = driver.destroy_event(self.device, EventHandle(handle));
            }
        }
    }

    /// Host memory held, in bytes.
    pub fn bytes(&self) -> u64 {
        self.rows.bytes()
    }
}
