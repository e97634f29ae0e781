//! Leases: which thread cache the calling thread uses.
//!
//! The last cache used is one thread-local pointer away; the others of a thread that uses several
//! pools are in a list. A lease keeps its pool's host memory alive, so a thread in the middle of a
//! free never loses the ground under it; device memory does not depend on leases.

use crate::cache::thread::ThreadCache;
use crate::core::Core;
use crate::sync::Arc;
use std::cell::{Cell, RefCell};
use std::ptr;

thread_local! {
    static LAST: Cell<(*const Core, *const ThreadCache)> =
        const { Cell::new((ptr::null(), ptr::null())) };
    static LEASES: RefCell<Vec<Lease>> = const { RefCell::new(Vec::new()) };
}

struct Lease {
    core: Arc<Core>,
    cache: Arc<ThreadCache>,
}

impl Drop for Lease {
    fn drop(&mut self) {
        // No thread may use the cache once it is in the list for others.
        LAST.set((ptr::null(), ptr::null()));
        self.core.give_back(Arc::clone(&self.cache));
        if self.core.is_closed() {
            self.core.give_back_if_idle();
        }
    }
}

/// The calling thread's cache, if it is the one used last.
#[inline]
pub(crate) fn last(core: &Core) -> Option<&ThreadCache> {
    let (owner, cache) = LAST.get();
    if !ptr::eq(owner, core) {
        return None;
    }
    // SAFETY: LAST points into a lease of this thread; a lease resets it before it ends, and keeps
    // core and cache alive until then. The pool keeps every cache as long as it lives itself.
    unsafe { cache.as_ref() }
}

/// The calling thread's cache, leased now if it has none. `None` where the thread's local storage
/// is gone. Takes a lock when it leases.
pub(crate) fn get(core: &Core) -> Option<&ThreadCache> {
    if let Some(cache) = last(core) {
        return Some(cache);
    }
    let found = LEASES.try_with(|leases| {
        let mut leases = leases.borrow_mut();
        let held = leases.iter().find(|lease| ptr::eq(&*lease.core, core));
        let cache = match held {
            Some(lease) => Arc::as_ptr(&lease.cache),
            None => {
                // Leases of pools that are closed keep only host memory: let go of it.
                leases.retain(|lease| !lease.core.is_closed());
                let lease = Lease { core: core.share(), cache: core.lease() };
                let cache = Arc::as_ptr(&lease.cache);
                leases.push(lease);
                cache
            }
        };
        LAST.set((core, cache));
        cache
    });
    // SAFETY: as in `last`.
    found.ok().and_then(|cache| unsafe { cache.as_ref() })
}
