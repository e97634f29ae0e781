//! The only door to atomics, locks and cells: `std` in the shipped library, `loom` in the models.
//!
//! Every concurrent structure takes its primitives from here, so a loom model runs the shipped
//! code and not a copy of it.

#[cfg(not(loom))]
pub(crate) use std::sync::{
    Mutex, MutexGuard,
    atomic::{AtomicBool, AtomicI64, AtomicPtr, AtomicU32, AtomicU64, Ordering, fence},
};

#[cfg(loom)]
pub(crate) use loom::sync::{
    Mutex, MutexGuard,
    atomic::{AtomicBool, AtomicI64, AtomicPtr, AtomicU32, AtomicU64, Ordering, fence},
};

// Reference counts are the standard library's to prove; loom's `Arc` cannot hold a `dyn Driver`.
pub(crate) use std::sync::Arc;

/// Locks `mutex`, also when a thread panicked while it held it: the pool's own critical sections
/// restore their invariants before anything that can unwind.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}
