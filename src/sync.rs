//! The only door to atomics, locks, cells and thread locals: `std` in the shipped library, `loom` in
//! the models, `shuttle` in the compositions.
//!
//! Every concurrent structure takes its primitives from here, so that models and compositions run
//! the shipped code and not a copy of it.

#[cfg(not(any(loom, shuttle)))]
pub(crate) use std::{
    sync::{
        Mutex, MutexGuard,
        atomic::{AtomicBool, AtomicI64, AtomicPtr, AtomicU32, AtomicU64, Ordering, fence},
    },
    thread::yield_now,
    thread_local,
};

#[cfg(loom)]
pub(crate) use loom::{
    sync::{
        Mutex, MutexGuard,
        atomic::{AtomicBool, AtomicI64, AtomicPtr, AtomicU32, AtomicU64, Ordering, fence},
    },
    thread::yield_now,
};

#[cfg(shuttle)]
pub(crate) use shuttle::{
    sync::{
        Mutex, MutexGuard,
        atomic::{AtomicBool, AtomicI64, AtomicPtr, AtomicU32, AtomicU64, Ordering, fence},
    },
    thread::yield_now,
    thread_local,
};

/// Loom's own macro takes no constant initial values.
#[cfg(loom)]
macro_rules! loom_thread_local {
    ($($(#[$attr:meta])* static $name:ident: $type:ty = const { $init:expr };)*) => {
        $(loom::thread_local! { $(#[$attr])* static $name: $type = $init; })*
    };
}
#[cfg(loom)]
pub(crate) use loom_thread_local as thread_local;

// Reference counts are the standard library's to prove; loom's `Arc` cannot hold a `dyn Driver`.
pub(crate) use std::sync::Arc;

/// Locks `mutex`, also when a thread panicked while it held it: the pool's own critical sections
/// restore their invariants before anything that can unwind. (A driver's panics are caught.)
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// A cell that one thread at a time may touch; loom checks that the touches are ordered.
#[cfg(loom)]
pub(crate) use loom::cell::UnsafeCell;

/// A cell that one thread at a time may touch.
#[cfg(not(loom))]
pub(crate) struct UnsafeCell<T>(std::cell::UnsafeCell<T>);

#[cfg(not(loom))]
impl<T> UnsafeCell<T> {
    pub const fn new(value: T) -> Self {
        Self(std::cell::UnsafeCell::new(value))
    }

    /// Calls `touch` with a pointer to what is in the cell; it is the caller who sees to it that
    /// nobody else touches it.
    #[inline(always)]
    pub fn with_mut<R>(&self, touch: impl FnOnce(*mut T) -> R) -> R {
        touch(self.0.get())
    }

    /// As `with_mut` for several that only read.
    #[inline(always)]
    pub fn with<R>(&self, look: impl FnOnce(*const T) -> R) -> R {
        look(self.0.get())
    }
}

/// Lets other threads get on for a time.
#[cfg(not(any(loom, shuttle)))]
pub(crate) fn pause(time: std::time::Duration) {
    std::thread::sleep(time);
}

/// Models and compositions know no time.
#[cfg(any(loom, shuttle))]
pub(crate) fn pause(_: std::time::Duration) {}

/// What `each` answers for every item, asked for in parallel; but one after the other in a forked
/// child, which has none of the threads that rayon started before.
#[cfg(not(any(loom, shuttle)))]
pub(crate) fn on_each<T: Sync, R: Send>(items: &[T], each: impl Fn(&T) -> R + Sync) -> Vec<R> {
    use rayon::prelude::*;
    match crate::fork::generation() {
        0 => items.par_iter().map(&each).collect(),
        _ => items.iter().map(each).collect(),
    }
}

/// What `each` answers for every item: models and compositions have their own threads.
#[cfg(any(loom, shuttle))]
pub(crate) fn on_each<T, R>(items: &[T], each: impl Fn(&T) -> R) -> Vec<R> {
    items.iter().map(each).collect()
}
