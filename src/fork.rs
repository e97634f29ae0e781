//! Forked children: a pool does not follow into them.
//!
//! A child has the pool's memory as it was at the fork, with locks that threads held which the child
//! does not have, and a driver whose state is the parent's. So everything that takes a lock or calls
//! the driver asks first whether the pool was built in this process: fallible calls are refused, and
//! what drops and frees would give back stays where it is. A pool that the child builds works.
//!
//! The hot paths do not ask: they need the thread's last lease, which the fork's handler takes away.
//! Handlers run for `fork` itself. What comes to a child by other ways (`vfork`, a bare `clone`) may
//! only call `exec` anyway.

// Not from `crate::sync`: models have no processes, and loom's atomics are not for statics.
use std::sync::atomic::{AtomicU64, Ordering};

/// How many forks lie between this process and the first.
static GENERATION: AtomicU64 = AtomicU64::new(0);

/// The process, as a number that differs from those of all it came from.
#[inline]
pub(crate) fn generation() -> u64 {
    // Relaxed: only the handler writes, while its process has a single thread.
    GENERATION.load(Ordering::Relaxed)
}

/// From now on children know that they are.
#[cfg(all(unix, not(any(loom, shuttle))))]
pub(crate) fn watch() {
    use std::sync::atomic::AtomicBool;
    static WATCHED: AtomicBool = AtomicBool::new(false);
    // No lock, which a child could find taken. Who comes at the same time registers again: to count
    // twice does no harm.
    if !WATCHED.load(Ordering::Acquire) {
        // SAFETY: the handler has no arguments, stays in place, and does only what is safe in a
        // child of a process with threads: an atomic addition, and a thread-local store.
        let failed = unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
        // Refused only for want of host memory: the next pool tries again.
        WATCHED.store(failed == 0, Ordering::Release);
    }
}

/// Other systems have no forks, models and compositions have one process.
#[cfg(any(not(unix), loom, shuttle))]
pub(crate) fn watch() {}

#[cfg(all(unix, not(any(loom, shuttle))))]
extern "C" fn in_child() {
    GENERATION.fetch_add(1, Ordering::Relaxed);
    crate::lease::forget_last();
}
