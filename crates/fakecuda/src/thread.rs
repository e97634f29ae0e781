//! What the driver keeps for each thread: its contexts, its capture mode, whether it is a callback.

use std::cell::{Cell, RefCell};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

thread_local! {
    static CONTEXTS: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
    static CAPTURE_MODE: Cell<u32> = const { Cell::new(0) };
    static IN_CALLBACK: Cell<bool> = const { Cell::new(false) };
    static ID: Cell<u64> = const { Cell::new(0) };
}

/// Tells threads apart. Relaxed where it is drawn: only its being unique matters.
static NEXT: AtomicU64 = AtomicU64::new(1);

/// A number that no other thread has.
pub(crate) fn id() -> u64 {
    ID.try_with(|id| {
        if id.get() == 0 {
            id.set(NEXT.fetch_add(1, Relaxed));
        }
        id.get()
    })
    .unwrap_or(u64::MAX)
}

/// The context that is current, if any. None where the thread's storage is gone.
pub(crate) fn current() -> Option<usize> {
    CONTEXTS.try_with(|contexts| contexts.borrow().last().copied()).ok().flatten()
}

/// Puts a context in the current one's place; `None` takes that away.
pub(crate) fn set_current(context: Option<usize>) {
    let _ = CONTEXTS.try_with(|contexts| {
        let mut contexts = contexts.borrow_mut();
        contexts.pop();
        contexts.extend(context);
    });
}

pub(crate) fn push(context: usize) {
    let _ = CONTEXTS.try_with(|contexts| contexts.borrow_mut().push(context));
}

pub(crate) fn pop() -> Option<usize> {
    CONTEXTS.try_with(|contexts| contexts.borrow_mut().pop()).ok().flatten()
}

/// The mode that `cuThreadExchangeStreamCaptureMode` sets.
pub(crate) fn capture_mode() -> u32 {
    CAPTURE_MODE.try_with(Cell::get).unwrap_or(0)
}

pub(crate) fn set_capture_mode(mode: u32) {
    let _ = CAPTURE_MODE.try_with(|cell| cell.set(mode));
}

/// Whether the thread runs host functions, which may not call the driver.
pub(crate) fn in_callback() -> bool {
    IN_CALLBACK.try_with(Cell::get).unwrap_or(false)
}

pub(crate) fn enter_callbacks() {
    let _ = IN_CALLBACK.try_with(|cell| cell.set(true));
}
