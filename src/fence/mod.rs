//! Fences: when another stream (or the host) may touch a freed block's bytes, without an event per
//! free.
//!
//! # The scheme
//!
//! Every stream S has a number `q`. A free *stamps* its block with the present number: the fence
//! `(S, q)` stands for all work that S had been given by then. Stamping costs one load. Only when
//! somebody needs to know about such a fence is S *sealed*: an event is recorded on it, after `q`
//! was advanced to `q + 1`. The event therefore covers every stamp up to the old number, whoever
//! made it, and the next stamps belong to the next event. A block that goes back to its own stream
//! never needs a seal.
//!
//! Two things can be learnt from a seal: the event is done (*poll*: everything up to its number is
//! completed, for all streams and the host), or stream T was made to wait for it (*wait*: T now
//! runs after it, and after everything S itself was known to run after when it was sealed).
//!
//! # Why a stamp needs no fence instruction
//!
//! `stamp` reads `q` after the caller's last submission to S; `seal` advances `q` before it records.
//! If the stamp's load precedes the advance, it read a number that the seal covers. Then the
//! caller's submissions precede the load, and the driver's submission lock orders them before or
//! after the record. Were one after the record, the caller's critical section came after the
//! recorder's, so the recorder's earlier `fetch_add` would be visible to the caller's later load,
//! which then reads the advanced number: a contradiction. A driver without such a lock would need
//! a SeqCst fence on both sides.
//!
//! # Invariants
//!
//! ```text
//! completed(S) = c     all work with number <= c is done, and a query said so
//! slot (p, e) of S     e was recorded on S after q passed p; e's row holds known(S) as it was before
//! known[T] has (S, p)  a stream wait covering (S, p) was submitted to T before this was written
//! q(S) only grows, also over the streams that use id S one after another
//! ```
//!
//! The protocol, its orderings and its mutants are model-checked in `loom-tests`.

mod asked;
mod capture;
mod check;
mod drain;
mod event;
mod registry;
mod stream;

use crate::block::{Fence, StreamId};
use crate::driver::{Caught, DeviceId, Driver, DriverError, DriverResult, EventHandle};
use crate::sync::{Arc, AtomicU32, AtomicU64, Mutex, Ordering, fence};
use crate::table::Table;
pub(crate) use asked::{Asked, Earliest};
pub use event::Events;
use event::KNOWN;
pub use registry::Owner;
use registry::Registry;
use std::time::Duration;
pub(crate) use stream::StreamFence;
use stream::{Seal, known_place};

/// Streams that can be registered at once, over all devices (id 0 is not used).
const STREAMS: usize = 1 << 16;

/// What came of a seal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sealed {
    /// The event stands in a slot.
    Published,
    /// Recorded, but every slot was taken: a later seal covers the stamps.
    NoSlot,
    /// The device's events are used up.
    NoEvent,
    /// The stream's handle may be gone, or captures.
    Retired,
}

/// The fences of a pool: its streams' states, its events, and the protocol over them.
pub struct Fences {
    driver: Caught,
    streams: Table<StreamFence>,
    events: Box<[Events]>,
    registry: Registry,
    /// Driver errors seen by queries, each of which poisoned a stream.
    poisonings: AtomicU64,
    /// Stream waits that the pool inserted to reuse memory.
    waits: AtomicU64,
    /// Captures under way, by device.
    captures: Box<[AtomicU32]>,
    seen: Mutex<check::Seen>,
}

impl Fences {
    pub fn new(driver: Arc<dyn Driver>) -> Self {
        let devices = driver.device_count();
        Self {
            streams: Table::new(STREAMS),
            events: (0..devices).map(|d| Events::new(DeviceId(d))).collect(),
            registry: Registry::new(),
            poisonings: AtomicU64::new(0),
            waits: AtomicU64::new(0),
            captures: (0..devices).map(|_| AtomicU32::new(0)).collect(),
            seen: Mutex::default(),
            driver: Caught(driver),
        }
    }

    /// The state of a registered (or once registered) stream.
    #[inline]
    pub fn stream(&self, id: StreamId) -> &StreamFence {
        // Ids come from `register`, which created the record.
        self.streams.get(u32::from(id.get())).expect("a stream id that was never registered")
    }

    fn events(&self, stream: &StreamFence) -> &Events {
        &self.events[usize::from(stream.device().0)]
    }

    /// The fence of all work that `id` has been given so far. Call after the last submission that
    /// touches the block. Lock-free; one load.
    #[inline]
    pub fn stamp(&self, id: StreamId) -> Fence {
        self.stream(id).stamp(id)
    }

    /// Whether the stream has ended: its work is covered by its last seal, its cache is gone.
    pub fn has_ended(&self, id: StreamId) -> bool {
        self.stream(id).ended.load(Ordering::Acquire)
    }

    /// The device that a stream belongs to.
    pub fn device(&self, id: StreamId) -> DeviceId {
        self.stream(id).device()
    }

    /// Whether work submitted to `to` from now on runs after `fence`, by what is known already.
    /// Lock-free; calls no driver.
    #[inline]
    pub fn ordered(&self, to: StreamId, fence: Fence) -> bool {
        fence.stream() == to || self.stream(to).knows(fence) || self.completed(fence)
    }

    /// Whether the work before `fence` is known to be done. Lock-free; calls no driver.
    #[inline]
    pub fn completed(&self, fence: Fence) -> bool {
        // Acquire pairs with the release of `settle`: what we do next comes after the query.
        let stream = self.stream(fence.stream());
        let done = stream.completed.load(Ordering::Acquire);
        done >= fence.q() || stream.ended.load(Ordering::Acquire) && done >= stream.last_seal()
    }

    /// The fence that has to be covered for `fence` to hold: nothing was submitted to a stream
    /// after its end, so a later stamp means no more than its last seal.
    fn effective(&self, fence: Fence) -> Fence {
        let stream = self.stream(fence.stream());
        // Acquire pairs with the release in `end`: who sees `ended` sees the last number.
        if stream.ended.load(Ordering::Acquire) {
            Fence::new(fence.stream(), fence.q().min(stream.last_seal()))
        } else {
            fence
        }
    }

    /// Seals `id`: records an event that covers all stamps so far, and passes it with the number
    /// it covers to `with` before it is published.
    fn seal_with(
        &self,
        id: StreamId,
        with: impl FnOnce(EventHandle, u64) -> DriverResult<()>,
    ) -> DriverResult<Sealed> {
        let stream = self.stream(id);
        let sealed =
            self.submitting(id, |fences| fences.record_seal(stream, &stream.slots[..], with));
        sealed.unwrap_or(Ok(Sealed::Retired))
    }

    /// The seal itself; the caller keeps the handle alive.
    fn record_seal(
        &self,
        stream: &StreamFence,
        places: &[AtomicU64],
        with: impl FnOnce(EventHandle, u64) -> DriverResult<()>,
    ) -> DriverResult<Sealed> {
        let events = self.events(stream);
        let Some(index) = events.take(&self.driver)? else { return Ok(Sealed::NoEvent) };
        let Some(row) = events.row(index) else { return Ok(Sealed::NoEvent) };

        // Before the snapshot is overwritten: a reader that sees one of the new words also sees
        // that the event's previous slot was emptied. Pairs with the acquire fence in `wait`.
        fence(Ordering::Release);
        for (copy, known) in row.snapshot.iter().zip(&stream.known) {
            copy.store(known.load(Ordering::Acquire), Ordering::Relaxed);
        }
        // Close the interval, then record: the event comes after every stamp up to `q`.
        let q = stream.q.fetch_add(1, Ordering::AcqRel);
        let recorded = self
            .driver
            .record(stream.device(), row.handle(), stream.handle())
            .and_then(|()| with(row.handle(), q));
        if let Err(error) = recorded {
            events.give(index);
            return Err(error);
        }
        let seal = Seal::new(q, index);
        let published = places.iter().any(|slot| {
            // Release: whoever reads the slot sees the snapshot, and queries after the record.
            slot.load(Ordering::Relaxed) == 0
                && slot.compare_exchange(0, seal.0, Ordering::Release, Ordering::Relaxed).is_ok()
        });
        if !published {
            events.give(index);
        }
        Ok(if published { Sealed::Published } else { Sealed::NoSlot })
    }

    /// Makes sure that a recorded event covers `fence`. False when none could be had now: every
    /// slot of the stream is pending, or its handle is gone.
    pub fn seal(&self, fence: Fence) -> DriverResult<bool> {
        let fence = self.effective(fence);
        if self.completed(fence) || self.stream(fence.stream()).covering(fence.q()).is_some() {
            return Ok(true);
        }
        let sealed = match self.seal_with(fence.stream(), |_, _| Ok(()))? {
            // Seals that nobody has asked about since they were done hold the slots.
            Sealed::NoSlot if self.settle_oldest(fence.stream(), None)? => {
                self.seal_with(fence.stream(), |_, _| Ok(()))?
            }
            sealed => sealed,
        };
        Ok(sealed == Sealed::Published)
    }

    /// Asks about the oldest pending seal of a stream, or waits for it, and empties its slot if it
    /// is done.
    fn settle_oldest(&self, id: StreamId, timeout: Option<Duration>) -> DriverResult<bool> {
        let stream = self.stream(id);
        let Some((slot, seal)) = stream.covering(0) else { return Ok(false) };
        let done = self.query(stream, seal, |driver, device, event| match timeout {
            None => driver.query(device, event),
            Some(timeout) => driver.synchronize(device, event, timeout),
        })?;
        if done {
            self.settle(stream, slot, seal);
        }
        Ok(done)
    }

    /// Asks the driver, at most once, whether `fence` has completed. Does not seal.
    pub fn poll(&self, fence: Fence) -> DriverResult<bool> {
        let fence = self.effective(fence);
        if self.completed(fence) {
            return Ok(true);
        }
        let stream = self.stream(fence.stream());
        let Some((slot, seal)) = stream.covering(fence.q()) else { return Ok(false) };
        let done = self.query(stream, seal, |driver, device, event| driver.query(device, event))?;
        if done {
            self.settle(stream, slot, seal);
        }
        Ok(done)
    }

    /// Waits on the host until `fence` has completed, at most for `timeout` (twice that where the
    /// stream's slots are full of pending seals).
    pub fn synchronize(&self, fence: Fence, timeout: Duration) -> DriverResult<bool> {
        let sealed = self.seal(fence)?
            || self.settle_oldest(fence.stream(), Some(timeout))? && self.seal(fence)?;
        let fence = self.effective(fence);
        if self.completed(fence) {
            return Ok(true);
        }
        let stream = self.stream(fence.stream());
        let Some((slot, seal)) = stream.covering(fence.q()).filter(|_| sealed) else {
            return Ok(false);
        };
        let done = self.query(stream, seal, |driver, device, event| {
            driver.synchronize(device, event, timeout)
        })?;
        if done {
            self.settle(stream, slot, seal);
        }
        Ok(done)
    }

    fn query(
        &self,
        stream: &StreamFence,
        seal: Seal,
        ask: impl FnOnce(&dyn Driver, DeviceId, EventHandle) -> DriverResult<bool>,
    ) -> DriverResult<bool> {
        if stream.poisoned.load(Ordering::Relaxed) || stream.is_barred() {
            return Ok(false);
        }
        let events = self.events(stream);
        let Some(row) = seal.event().and_then(|event| events.row(event)) else {
            return Ok(false);
        };
        // Should the event have been recycled since the slot was read, then (S, q) had completed:
        // "done" is true anyway, and "not done" only delays.
        ask(&self.driver, stream.device(), row.handle()).inspect_err(|_| {
            stream.poisoned.store(true, Ordering::Relaxed);
            self.poisonings.fetch_add(1, Ordering::Relaxed);
        })
    }

    /// Publishes that `seal` is done and empties its slot and those of earlier seals. Whoever
    /// empties a slot gives its event back: exactly one thread.
    fn settle(&self, stream: &StreamFence, slot: &AtomicU64, seal: Seal) {
        // Release pairs with the acquire of `completed`. First this, then the slot: a slot that is
        // empty because its event was recycled implies that its number is covered.
        stream.completed.fetch_max(seal.q(), Ordering::AcqRel);
        let events = self.events(stream);
        let empty = |slot: &AtomicU64, seal: Seal| {
            let emptied =
                slot.compare_exchange(seal.0, 0, Ordering::AcqRel, Ordering::Relaxed).is_ok();
            if let (true, Some(event)) = (emptied, seal.event()) {
                events.give(event);
            }
        };
        empty(slot, seal);
        for slot in stream.places() {
            let earlier = Seal(slot.load(Ordering::Acquire));
            if earlier.0 != 0 && earlier.q() < seal.q() {
                empty(slot, earlier);
            }
        }
    }

    /// Makes stream `to` run after `fence`, sealing its stream if need be. True when it does;
    /// false when no event could be had for it now.
    pub fn wait(&self, to: StreamId, fence: Fence) -> DriverResult<bool> {
        self.submitting(to, |fences| fences.wait_alone(to, fence)).unwrap_or(Ok(false))
    }

    /// Submits to `to`, whose handle stays alive and captures nothing meanwhile; `None` where it may be
    /// gone, or captures.
    fn submitting<T>(&self, to: StreamId, submit: impl FnOnce(&Self) -> T) -> Option<T> {
        let stream = self.stream(to);
        if !stream.enter() {
            return None;
        }
        let done = submit(self);
        if stream.leave() {
            self.end(to);
        }
        Some(done)
    }

    /// Copies device memory as work of a stream: the fence of that, and of all that it was given before.
    /// None where its handle may be gone, or captures, or nobody could tell when the copy is over.
    pub fn copy(
        &self,
        on: StreamId,
        to: u64,
        from: u64,
        bytes: u64,
    ) -> Option<DriverResult<Fence>> {
        if self.stream(on).is_poisoned() {
            return None;
        }
        self.submitting(on, |fences| {
            let stream = fences.stream(on);
            let copied = fences.driver.copy(stream.device(), stream.handle(), to, from, bytes);
            copied.map(|()| stream.stamp(on))
        })
    }

    /// As `wait`; the caller keeps the handle of `to` alive.
    fn wait_alone(&self, to: StreamId, fence: Fence) -> DriverResult<bool> {
        let fence = self.effective(fence);
        if self.ordered(to, fence) {
            return Ok(true);
        }
        let from = self.stream(fence.stream());
        if from.poisoned.load(Ordering::Relaxed) {
            return Ok(false);
        }
        let ordered = match from.covering(fence.q()) {
            Some((slot, seal)) => self.wait_for_seal(to, fence, slot, seal)?,
            None => matches!(
                self.wait_for_new_seal(to, fence.stream())?,
                Sealed::Published | Sealed::NoSlot
            ),
        };
        if ordered {
            self.waits.fetch_add(1, Ordering::Relaxed);
        }
        Ok(ordered)
    }

    fn wait_for_seal(
        &self,
        to: StreamId,
        needed: Fence,
        slot: &AtomicU64,
        seal: Seal,
    ) -> DriverResult<bool> {
        let from = self.stream(needed.stream());
        let waiter = self.stream(to);
        let Some(row) = seal.event().and_then(|event| self.events(from).row(event)) else {
            return Ok(false);
        };
        let snapshot: [u64; KNOWN] =
            std::array::from_fn(|i| row.snapshot[i].load(Ordering::Relaxed));
        // Pairs with the release fence in `seal_with`: had a word come from a later recording of
        // this event, we would see the slot changed.
        fence(Ordering::Acquire);
        // Acquire pairs with the CAS in `settle` that empties the slot.
        if slot.load(Ordering::Acquire) != seal.0 {
            // Emptied: the seal completed, and `settle` said so first.
            return Ok(self.completed(needed));
        }
        // Should the event be recycled right here, the wait is for a later record: more than
        // needed, and what we note below is true since (S, q) has completed.
        self.driver.wait(waiter.device(), waiter.handle(), row.handle())?;
        // Only now: a note must never be seen before the wait it stands for was submitted.
        waiter.note(Fence::new(needed.stream(), seal.q()));
        self.join(waiter, to, &snapshot);
        Ok(true)
    }

    /// A user's wait: everything that `from` has been given so far comes before what `to` is given
    /// from now on. Always submits a wait; needs no free slot.
    pub fn wait_for_all(&self, to: StreamId, from: StreamId) -> DriverResult<()> {
        if to == from {
            return Ok(());
        }
        let sealed = self.submitting(to, |fences| fences.wait_for_new_seal(to, from));
        let message = match sealed.unwrap_or(Ok(Sealed::Retired))? {
            Sealed::Published | Sealed::NoSlot => return Ok(()),
            Sealed::NoEvent => format!("no event to be had for {from} of {}", self.device(from)),
            Sealed::Retired => format!("{from} or {to} has begun to capture, or to end"),
        };
        Err(DriverError { call: "Stream::wait", code: 0, message, out_of_memory: false })
    }

    fn wait_for_new_seal(&self, to: StreamId, from: StreamId) -> DriverResult<Sealed> {
        let waiter = self.stream(to);
        // Read before the record: what `from` is known to run after by now, its event does too.
        let snapshot: [u64; KNOWN] =
            std::array::from_fn(|i| self.stream(from).known[i].load(Ordering::Acquire));
        let mut sealed = 0;
        let outcome = self.seal_with(from, |event, q| {
            sealed = q;
            self.driver.wait(waiter.device(), waiter.handle(), event)
        })?;
        if matches!(outcome, Sealed::Published | Sealed::NoSlot) {
            waiter.note(Fence::new(from, sealed));
            self.join(waiter, to, &snapshot);
        }
        Ok(outcome)
    }

    /// Takes over what a seal's stream knew when it was sealed.
    fn join(&self, waiter: &StreamFence, to: StreamId, snapshot: &[u64; KNOWN]) {
        for &known in snapshot {
            let known = Fence(known);
            if !known.is_none() && known.stream() != to {
                waiter.note(known);
            }
        }
    }

    /// Host memory held, in bytes.
    pub fn bytes(&self) -> u64 {
        self.streams.bytes() + self.events.iter().map(Events::bytes).sum::<u64>()
    }

    /// Stream waits inserted to reuse memory.
    pub fn waits(&self) -> u64 {
        self.waits.load(Ordering::Relaxed)
    }

    /// Streams whose queries failed.
    pub fn poisonings(&self) -> u64 {
        self.poisonings.load(Ordering::Relaxed)
    }

    /// Destroys the events. The caller is the last user of the pool.
    pub fn destroy(&self) {
        self.abandon_streams();
        for events in &self.events {
            events.destroy(&self.driver);
        }
    }
}
