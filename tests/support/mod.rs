//! What the tests share: a driver that is watched, a generator of numbers, a ledger of live ranges.
#![allow(dead_code, reason = "each test binary uses a part of it")]

use millpond::DeviceId;
use millpond::driver::{DeviceInfo, Driver, DriverResult, EventHandle, PageHandle, StreamHandle};
use std::any::Any;
use std::collections::BTreeMap;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

type Hook = Box<dyn FnOnce() + Send>;

/// A driver that counts the pool's calls, remembers which failed, and on request runs something of
/// the test's at the end of a call, before the pool sees the answer.
pub struct Watched {
    inner: Arc<dyn Driver>,
    total: AtomicU64,
    /// The number of the call that panics, if any is to.
    panics: AtomicU64,
    log: Mutex<Log>,
}

#[derive(Default)]
struct Log {
    calls: BTreeMap<&'static str, u64>,
    failed: Vec<(&'static str, DeviceId)>,
    /// What the next plain allocation is said to be at.
    said: Option<u64>,
    hook: Option<(When, Hook)>,
}

/// The call that a hook waits for.
enum When {
    Named(&'static str),
    Number(u64),
}

impl Watched {
    pub fn new(inner: Arc<dyn Driver>) -> Arc<Self> {
        Arc::new(Self {
            inner,
            total: AtomicU64::new(0),
            panics: AtomicU64::new(0),
            log: Mutex::default(),
        })
    }

    fn log(&self) -> MutexGuard<'_, Log> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How often the pool made a call, by the name of the trait's function.
    pub fn calls(&self, name: &str) -> u64 {
        self.log().calls.get(name).copied().unwrap_or(0)
    }

    /// Calls that deal with events: records, queries, stream waits, host waits.
    pub fn event_calls(&self) -> u64 {
        ["record", "query", "wait", "synchronize"].iter().map(|name| self.calls(name)).sum()
    }

    /// The calls that failed, in order.
    pub fn failed(&self) -> Vec<(&'static str, DeviceId)> {
        self.log().failed.clone()
    }

    /// How often the pool made any call. Takes no lock.
    pub fn total(&self) -> u64 {
        self.total.load(Ordering::Relaxed)
    }

    /// Runs `hook` at the end of the pool's `nth` call, counted from its first, which is 1.
    pub fn at(&self, nth: u64, hook: impl FnOnce() + Send + 'static) {
        self.log().hook = Some((When::Number(nth), Box::new(hook)));
    }

    /// Runs `hook` once, at the end of the next call of this name.
    pub fn during(&self, name: &'static str, hook: impl FnOnce() + Send + 'static) {
        self.log().hook = Some((When::Named(name), Box::new(hook)));
    }

    /// The next plain allocation is not made, and said to be at this address.
    pub fn allocate_at(&self, address: u64) {
        self.log().said = Some(address);
    }

    /// The false answer to a call that gives a number, if it is one that is to have it.
    fn false_answer<T: 'static>(&self, name: &str) -> Option<T> {
        let said = &mut self.log().said;
        let said = if name == "allocate" { said.take() } else { None };
        said.and_then(|address| {
            (Box::new(address) as Box<dyn Any>).downcast().ok().map(|said| *said)
        })
    }

    /// Forgets a hook that still waits for its call.
    pub fn disarm(&self) {
        self.log().hook = None;
    }

    /// Whether a hook still waits for its call.
    pub fn is_armed(&self) -> bool {
        self.log().hook.is_some()
    }

    fn seen<T>(
        &self,
        name: &'static str,
        device: DeviceId,
        number: u64,
        answer: DriverResult<T>,
    ) -> DriverResult<T> {
        let mut log = self.log();
        *log.calls.entry(name).or_default() += 1;
        if answer.is_err() {
            log.failed.push((name, device));
        }
        let hook = log.hook.take_if(|(when, _)| match when {
            When::Named(armed) => *armed == name,
            When::Number(nth) => *nth == number,
        });
        drop(log);
        if let Some((_, hook)) = hook {
            // The pool takes a panic for a call that fails: what a hook asserts must not end there.
            if catch_unwind(AssertUnwindSafe(hook)).is_err() {
                std::process::abort();
            }
        }
        answer
    }

    /// The pool's `nth` call, counted from its first, which is 1, panics and does nothing.
    pub fn panic_at(&self, nth: u64) {
        self.panics.store(nth, Ordering::Relaxed);
    }

    fn panic_if_due(&self, name: &'static str, device: DeviceId, number: u64) {
        if number == self.panics.load(Ordering::Relaxed) {
            self.log().failed.push((name, device));
            panic!("call {number}, {name}, panics");
        }
    }
}

impl fmt::Debug for Watched {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Watched").field(&self.inner).finish()
    }
}

macro_rules! watched {
    ($(fn $name:ident(device: DeviceId $(, $arg:ident: $type:ty)*) -> $out:ty;)*) => {
        impl Driver for Watched {
            fn name(&self) -> &'static str {
                self.inner.name()
            }

            fn device_count(&self) -> u16 {
                self.inner.device_count()
            }

            fn device_of_context(&self, context: u64) -> Option<DeviceId> {
                self.inner.device_of_context(context)
            }

            $(fn $name(&self, device: DeviceId $(, $arg: $type)*) -> DriverResult<$out> {
                let number = self.total.fetch_add(1, Ordering::Relaxed) + 1;
                self.panic_if_due(stringify!($name), device, number);
                let answer = match self.false_answer(stringify!($name)) {
                    Some(said) => Ok(said),
                    None => self.inner.$name(device $(, $arg)*),
                };
                self.seen(stringify!($name), device, number, answer)
            })*
        }
    };
}

watched! {
    fn device(device: DeviceId) -> DeviceInfo;
    fn check_stream(device: DeviceId, stream: StreamHandle) -> ();
    fn create_stream(device: DeviceId) -> StreamHandle;
    fn destroy_stream(device: DeviceId, stream: StreamHandle) -> ();
    fn create_event(device: DeviceId) -> EventHandle;
    fn destroy_event(device: DeviceId, event: EventHandle) -> ();
    fn record(device: DeviceId, event: EventHandle, stream: StreamHandle) -> ();
    fn query(device: DeviceId, event: EventHandle) -> bool;
    fn wait(device: DeviceId, stream: StreamHandle, event: EventHandle) -> ();
    fn synchronize(device: DeviceId, event: EventHandle, timeout: Duration) -> bool;
    fn copy(device: DeviceId, stream: StreamHandle, to: u64, from: u64, bytes: u64) -> ();
    fn reserve(device: DeviceId, bytes: u64) -> u64;
    fn unreserve(device: DeviceId, address: u64, bytes: u64) -> ();
    fn create_page(device: DeviceId, bytes: u64) -> PageHandle;
    fn release_page(device: DeviceId, page: PageHandle) -> ();
    fn map(device: DeviceId, address: u64, bytes: u64, page: PageHandle) -> ();
    fn set_access(device: DeviceId, address: u64, bytes: u64, to: &[DeviceId]) -> ();
    fn unmap(device: DeviceId, address: u64, bytes: u64) -> ();
    fn allocate(device: DeviceId, bytes: u64) -> u64;
    fn free(device: DeviceId, address: u64) -> ();
    fn enable_peer(device: DeviceId, to: DeviceId) -> ();
}

/// Whether the long runs were asked for.
pub fn slow() -> bool {
    std::env::var_os("MILLPOND_SLOW").is_some_and(|value| value == "1")
}

/// A small generator (SplitMix64): equal seeds give equal runs.
pub struct Rng(u64);

impl Rng {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `end`.
    pub fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    /// An index into something of `len` things.
    pub fn index(&mut self, len: usize) -> usize {
        self.below(len as u64) as usize
    }

    /// A size up to about `most`, small ones as likely as large ones.
    pub fn size(&mut self, most: u64) -> u64 {
        let octaves = u64::from(most.ilog2()) + 1;
        let top = 1u64 << self.below(octaves);
        (top + self.below(top)).min(most)
    }
}

/// The ranges that are live, none of which may overlap another.
#[derive(Default)]
pub struct Ledger(BTreeMap<u64, u64>);

impl Ledger {
    /// Enters a range; panics where it overlaps one that is there.
    pub fn enter(&mut self, address: u64, bytes: u64) {
        let end = address + bytes;
        if let Some((&other, &until)) = self.0.range(..end).next_back() {
            assert!(
                until <= address,
                "{address:#x} + {bytes} overlaps the live block {other:#x} to {until:#x}"
            );
        }
        self.0.insert(address, end);
    }

    /// Takes a range out before it is freed.
    pub fn leave(&mut self, address: u64) {
        assert!(self.0.remove(&address).is_some(), "{address:#x} is not in the ledger");
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }
}
