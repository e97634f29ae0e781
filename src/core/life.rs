//! The end of a pool: the last handle closes it, the last block gives the memory back.

use super::{Core, Device};
use crate::driver::{Caught, Driver};
use crate::sync::{Arc, Ordering, fence, lock};

impl Core {
    pub fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    fn add_handle(&self) {
        self.handles.fetch_add(1, Ordering::Relaxed);
    }

    fn drop_handle(&self) {
        if self.is_forked() {
            return self.leak();
        }
        if self.handles.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.close();
        }
    }

    /// The last handle is gone: nobody allocates any more. When no block is held the memory goes
    /// back to the driver now; else the last late free gives it back.
    fn close(&self) {
        *lock(&self.anchor) = Some(self.share());
        self.closed.store(true, Ordering::Relaxed);
        // Pairs with the fence in `free_shared` of a thread without a lease, and with that at the end of
        // a lease: they see the pool closed, or we see their blocks freed.
        fence(Ordering::SeqCst);
        self.give_back_if_idle();
    }

    /// A block was freed after its pool had closed. Looking whether it was the last takes a walk
    /// over all extents, so it is done each time that half of those seen last have gone.
    pub(super) fn settle_late_free(&self) {
        let late = self.late.fetch_sub(1, Ordering::AcqRel);
        if late <= 1 {
            self.give_back_if_idle();
        }
    }

    /// Gives all memory back to the driver if the pool is closed and no block is held. A free that
    /// did not see the pool close is not lost: its thread looks again when it ends its lease.
    pub fn give_back_if_idle(&self) {
        let mut anchor = lock(&self.anchor);
        if anchor.is_none() {
            return;
        }
        for (device, planner) in self.planners() {
            planner.end(device);
        }
        let live: u64 = self.devices.iter().map(|device| lock(&device.arena).live_blocks()).sum();
        if live > 0 {
            self.late.store(live.div_ceil(2) as i64, Ordering::Release);
            return;
        }
        // One after the other: a pool may be closed on any thread, also on one of a thread pool's,
        // which must not run other tasks while it holds the anchor.
        for device in &self.devices {
            device.give_back(&self.driver);
        }
        self.fences.destroy();
        // Callers keep the core alive by a handle, a lease or a reference of their own.
        let last = anchor.take();
        drop(anchor);
        drop(last);
    }
}

impl Device {
    /// Gives all memory back to the driver, as far as its work is over; and the addresses, if nothing
    /// is left there.
    pub fn give_back(&self, driver: &Caught) {
        if lock(&self.arena).empty()
            && let Some((address, bytes)) = self.reservation
        {
            // Refused only by a driver that is going away, and the reservation with it.
            let _ = driver.unreserve(self.id, address, bytes);
        }
    }
}

/// A user's share in the core: pools and streams hold one.
pub struct Handle(Arc<Core>);

impl Handle {
    pub fn new(core: Arc<Core>) -> Self {
        core.add_handle();
        Self(core)
    }
}

impl Clone for Handle {
    fn clone(&self) -> Self {
        Self::new(Arc::clone(&self.0))
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.0.drop_handle();
    }
}

impl std::ops::Deref for Handle {
    type Target = Core;

    #[inline]
    fn deref(&self) -> &Core {
        &self.0
    }
}
