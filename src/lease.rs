//! Leases: which thread cache the calling thread uses.
//!
//! The last cache used is one thread-local pointer away; the others of a thread that uses several
//! pools are in a list. A lease keeps its pool's host memory alive, so a thread in the middle of a
//! free never loses the ground under it; device memory does not depend on leases.

use crate::cache::thread::ThreadCache;
use crate::core::Core;
use crate::epoch;
use crate::sync::{Arc, Ordering, fence, thread_local};
use crossbeam_epoch::{Guard, LocalHandle};
use std::cell::{Cell, RefCell};
use std::ops::Deref;
use std::ptr;

/// A thread's leases, which LAST points to: they must not move.
type Leases = Vec<Box<Lease>>;

thread_local! {
    /// The core whose lease was used last, and the lease.
    static LAST: Cell<(*const Core, *const Lease)> =
        const { Cell::new((ptr::null(), ptr::null())) };
    static LEASES: RefCell<Leases> = const { RefCell::new(Leases::new()) };
}

#[cfg(loom)]
thread_local! {
    /// The thread is one whose local storage is gone.
    static STRAY: Cell<bool> = const { Cell::new(false) };
}

/// The calling thread gets no lease from now on, like one whose local storage is gone.
#[cfg(loom)]
pub fn stray() {
    STRAY.with(|stray| stray.set(true));
}

/// A thread's right to one of a pool's thread caches, with the thread's part in host epochs.
pub(crate) struct Lease {
    cache: Arc<ThreadCache>,
    epoch: LocalHandle,
    core: Arc<Core>,
}

impl Deref for Lease {
    type Target = ThreadCache;

    #[inline]
    fn deref(&self) -> &ThreadCache {
        &self.cache
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        // No thread may use the cache once it is in the list for others.
        let _ = LAST.try_with(|last| last.set((ptr::null(), ptr::null())));
        if self.core.is_forked() {
            return self.core.leak();
        }
        self.core.give_back(Arc::clone(&self.cache));
        // Pairs with the fence in `close`: it sees freed what this thread has freed, or we see the pool
        // closed.
        fence(Ordering::SeqCst);
        if self.core.is_closed() {
            self.core.give_back_if_idle();
        }
    }
}

/// Ends the calling thread's leases, as its end would: loom lets a thread be joined before that.
#[cfg(loom)]
pub fn end_leases() {
    drop(LEASES.with(RefCell::take));
}

/// Enters a host epoch, through the lease where there is one.
#[inline]
pub(crate) fn pin(lease: Option<&Lease>) -> Guard {
    match lease {
        Some(lease) => lease.epoch.pin(),
        None => epoch::pin(),
    }
}

/// The calling thread's lease, if it is the one used last.
#[inline]
pub(crate) fn last(core: &Core) -> Option<&Lease> {
    let (owner, lease) = LAST.try_with(Cell::get).ok()?;
    if !ptr::eq(owner, core) {
        return None;
    }
    // SAFETY: LAST points to a boxed lease of this thread; a lease resets it before it ends.
    unsafe { lease.as_ref() }
}

/// The calling thread has used no lease: its next call looks for one. Safe in a forked child.
#[cfg(all(unix, not(any(loom, shuttle))))]
pub(crate) fn forget_last() {
    let _ = LAST.try_with(|last| last.set((ptr::null(), ptr::null())));
}

/// The calling thread's lease, made now if it has none. `None` where the thread's local storage is
/// gone. Takes a lock when it leases.
#[inline]
pub(crate) fn get(core: &Core) -> Option<&Lease> {
    match last(core) {
        Some(lease) => Some(lease),
        None => find(core),
    }
}

#[cold]
fn find(core: &Core) -> Option<&Lease> {
    #[cfg(loom)]
    if STRAY.with(Cell::get) {
        return None;
    }
    let held = |leases: &Leases| {
        let held = leases.iter().find(|lease| ptr::eq(&*lease.core, core));
        held.map(|lease| ptr::from_ref(&**lease))
    };
    // Before a lease is made, those of closed pools go, which keep only host memory. They end after
    // the borrow, and before there is a lease to lose: ending one may give back a pool's memory, which
    // may run anything, also this.
    let closed = LEASES.try_with(|leases| {
        let mut leases = leases.borrow_mut();
        match held(&leases) {
            Some(_) => Leases::new(),
            None => leases.extract_if(.., |lease| lease.core.is_closed()).collect(),
        }
    });
    drop(closed.ok()?);
    let lease = LEASES.try_with(|leases| {
        let mut leases = leases.borrow_mut();
        held(&leases).unwrap_or_else(|| {
            let lease = Box::new(Lease {
                cache: core.lease(),
                epoch: epoch::collector().register(),
                core: core.share(),
            });
            let at = ptr::from_ref(&*lease);
            leases.push(lease);
            at
        })
    });
    let lease = lease.ok()?;
    let _ = LAST.try_with(|last| last.set((core, lease)));
    // SAFETY: as in `last`.
    unsafe { lease.as_ref() }
}
