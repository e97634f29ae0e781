//! The gate that every call passes: it counts, prices, and fails the call where told to.
//!
//! Benchmarks time code that makes these calls, so the usual case is two relaxed additions and a
//! load. The counters are split into shards, one per thread as long as there are enough, so that
//! two threads that make calls do not fight over a cache line.
//!
//! Invariant: the calls made = the sum of `counts` over shards, devices and kinds.

use std::cell::Cell;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};

use crate::fault::Faults;
use crate::sync::lock;
use crate::{Call, Counters, ErrorCode, Fault, Result, SimError};

/// Shards of the counters. More threads than this share.
const SHARDS: usize = 8;

/// One device's counters in one shard.
#[repr(align(128))]
#[derive(Debug)]
struct Dials {
    counts: [AtomicU64; Call::COUNT],
    ns: AtomicU64,
}

impl Dials {
    fn new() -> Self {
        Self { counts: std::array::from_fn(|_| AtomicU64::new(0)), ns: AtomicU64::new(0) }
    }
}

/// The counters, the prices paid and the faults to come.
#[derive(Debug)]
pub(crate) struct Meter {
    /// `shards[shard * devices + device]`.
    dials: Box<[Dials]>,
    devices: usize,
    /// Whether a call must look further: a fault is armed, a context is gone, or the driver has shut
    /// down.
    alert: AtomicBool,
    shut_down: AtomicBool,
    /// The devices whose contexts are gone.
    destroyed: Box<[AtomicBool]>,
    faults: Mutex<Faults>,
}

impl Meter {
    pub(crate) fn new(devices: usize) -> Self {
        Self {
            dials: (0..devices * SHARDS).map(|_| Dials::new()).collect(),
            devices,
            alert: AtomicBool::new(false),
            shut_down: AtomicBool::new(false),
            destroyed: (0..devices).map(|_| AtomicBool::new(false)).collect(),
            faults: Mutex::default(),
        }
    }

    /// Counts a call of `device`, which must exist, and answers whether it may go on.
    pub(crate) fn enter(&self, call: Call, device: u16, ns: u64) -> Result<()> {
        let dials = &self.dials[shard() * self.devices + usize::from(device)];
        dials.counts[call.index()].fetch_add(1, Relaxed);
        dials.ns.fetch_add(ns, Relaxed);
        if self.alert.load(Relaxed) { self.look_further(call, device) } else { Ok(()) }
    }

    #[cold]
    fn look_further(&self, call: Call, device: u16) -> Result<()> {
        if self.shut_down.load(Relaxed) {
            return Err(SimError::new(
                call,
                ErrorCode::Deinitialized,
                format!("device {device}: the driver has shut down"),
            ));
        }
        self.check_context(call, device)?;
        match lock(&self.faults).strike(call) {
            Some(code) => {
                Err(SimError::new(call, code, format!("device {device}: injected failure")))
            }
            None => Ok(()),
        }
    }

    /// Fails where the device's context is gone.
    pub(crate) fn check_context(&self, call: Call, device: u16) -> Result<()> {
        if self.destroyed[usize::from(device)].load(Relaxed) {
            return Err(SimError::new(
                call,
                ErrorCode::ContextDestroyed,
                format!("device {device}: its context was destroyed"),
            ));
        }
        Ok(())
    }

    /// Adds time that the host spent waiting.
    pub(crate) fn spend(&self, device: u16, ns: u64) {
        self.dials[shard() * self.devices + usize::from(device)].ns.fetch_add(ns, Relaxed);
    }

    pub(crate) fn counters(&self) -> Counters {
        let mut sums = vec![[0; Call::COUNT]; self.devices];
        for (at, dials) in self.dials.iter().enumerate() {
            for (sum, count) in sums[at % self.devices].iter_mut().zip(&dials.counts) {
                *sum += count.load(Relaxed);
            }
        }
        Counters::new(sums)
    }

    pub(crate) fn host_ns(&self, device: u16) -> u64 {
        let device = usize::from(device);
        let of_device = self.dials.iter().skip(device).step_by(self.devices);
        if device < self.devices { of_device.map(|dials| dials.ns.load(Relaxed)).sum() } else { 0 }
    }

    pub(crate) fn inject(&self, fault: Fault) {
        let mut faults = lock(&self.faults);
        faults.add(Some(fault.call), fault.nth, fault.code, fault.sticky);
        self.alert.store(true, Relaxed);
    }

    pub(crate) fn inject_any(&self, nth: u64, code: ErrorCode, sticky: bool) {
        let mut faults = lock(&self.faults);
        faults.add(None, nth, code, sticky);
        self.alert.store(true, Relaxed);
    }

    /// Forgets all faults; says whether any was still to come.
    pub(crate) fn clear_faults(&self) -> bool {
        let mut faults = lock(&self.faults);
        let any = !faults.is_empty();
        faults.clear();
        let mut gone = self.destroyed.iter().chain([&self.shut_down]);
        self.alert.store(gone.any(|gone| gone.load(Relaxed)), Relaxed);
        any
    }

    /// Ends a device's context; nothing where there is no such device.
    pub(crate) fn destroy_context(&self, device: u16) {
        let _faults = lock(&self.faults);
        if let Some(destroyed) = self.destroyed.get(usize::from(device)) {
            destroyed.store(true, Relaxed);
            self.alert.store(true, Relaxed);
        }
    }

    pub(crate) fn shut_down(&self) {
        // Under the lock, so that clearing faults at the same time does not lose the alert.
        let _faults = lock(&self.faults);
        self.shut_down.store(true, Relaxed);
        self.alert.store(true, Relaxed);
    }
}

/// This thread's shard.
fn shard() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static SHARD: Cell<usize> = const { Cell::new(usize::MAX) };
    }
    SHARD
        .try_with(|shard| {
            if shard.get() == usize::MAX {
                shard.set(NEXT.fetch_add(1, Relaxed) % SHARDS);
            }
            shard.get()
        })
        .unwrap_or(0)
}
