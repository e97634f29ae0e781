//! One helper for locks.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks, whether or not a holder panicked: nothing here panics while it holds a lock with its
/// state half changed, and a simulated driver should go on serving the tests that do panic.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
