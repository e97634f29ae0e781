//! Events: records, queries and waits.
//!
//! An event is a name for its latest *record*. A wait captures the record that is current when it
//! is submitted: recording the event again changes nothing for it, and neither does destroying the
//! event. An event that was never recorded is done, and waiting for it is nothing.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::lag::{self, Behind, Hang};
use crate::oracle::Clock;
use crate::sched::{Flag, Op};
use crate::sim::{Inner, World};
use crate::stream::{StreamId, StreamState, deadlock, index};
use crate::{Call, Completion, ErrorCode, Result, Sim, SimError, Stream};

/// A raw event handle. Values of destroyed events are handed out again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Event(pub u64);

/// An event, for as long as its handle is valid.
#[derive(Debug)]
pub(crate) struct EventState {
    pub device: u16,
    pub record: Option<Record>,
}

/// A point in a stream's work.
#[derive(Clone, Debug)]
pub(crate) struct Record {
    pub stream: StreamId,
    pub due: Due,
    /// With the race oracle on.
    clock: Option<Clock>,
}

/// When a record is done.
#[derive(Clone, Debug)]
pub(crate) enum Due {
    /// With [`Completion::Lag`]; see the `lag` module.
    Tick { at: u64, behind: Behind },
    /// With [`Completion::Scheduled`].
    Flag(Flag),
}

impl Due {
    /// With [`Completion::Lag`]: when it is done, if it ever is as things are.
    pub(crate) fn done_at(&self, lag: u64) -> Option<u64> {
        match self {
            Self::Tick { at, behind } => lag::done_at(*at, behind, lag),
            Self::Flag(_) => None,
        }
    }

    /// With [`Completion::Lag`]: puts it behind a hang, if it is not done at `now`.
    pub(crate) fn hold(&mut self, hang: &Arc<Hang>, now: u64, lag: u64) {
        let done = self.done_at(lag).is_some_and(|at| at <= now);
        if let (Self::Tick { behind, .. }, false) = (self, done) {
            behind.push(Arc::clone(hang));
        }
    }
}

impl Inner {
    /// Calls `f` with the event, locked.
    fn with_event<R>(
        &self,
        call: Call,
        event: Event,
        f: impl FnOnce(&mut EventState) -> Result<R>,
    ) -> Result<R> {
        index(event.0).and_then(|index| self.events.with(index, f)).unwrap_or_else(|| {
            let message = format!("there is no event {}", event.0);
            Err(SimError::new(call, ErrorCode::InvalidHandle, message))
        })
    }

    pub(crate) fn is_done(&self, due: &Due) -> bool {
        match (due, self.completion) {
            (Due::Flag(flag), _) => flag.load(Ordering::Acquire),
            (Due::Tick { .. }, Completion::Lag(lag)) => {
                let now = self.clock.load(Ordering::Relaxed);
                due.done_at(lag).is_some_and(|at| at <= now)
            }
            (Due::Tick { .. }, Completion::Scheduled) => false,
        }
    }

    /// Appends a record to the work of `stream`.
    pub(crate) fn new_record(&self, world: Option<&mut World>, stream: &mut StreamState) -> Record {
        let due = match self.completion {
            Completion::Lag(lag) => {
                let now = self.clock.load(Ordering::Relaxed);
                // Hangs that ended long enough ago delay nothing any more.
                let lasts =
                    |hang: &Arc<Hang>| hang.ended().is_none_or(|end| end.saturating_add(lag) > now);
                stream.behind.retain(lasts);
                Due::Tick { at: now.saturating_add(lag), behind: stream.behind.clone() }
            }
            Completion::Scheduled => Due::Flag(Arc::new(AtomicBool::new(false))),
        };
        let mut clock = None;
        if let Some(world) = world {
            if let Due::Flag(flag) = &due {
                world.push(stream.serial, Op::Record(Arc::clone(flag)));
            }
            if let (Some(oracle), Some(key)) = (&mut world.oracle, stream.key) {
                clock = Some(oracle.record(key));
            }
        }
        Record { stream: stream.id(), due, clock }
    }
}

/// Tells the oracle, if there is one, that the host knows the record to be done.
pub(crate) fn observe(world: Option<&mut World>, record: &Record) {
    let oracle = world.and_then(|world| world.oracle.as_mut());
    if let (Some(oracle), Some(clock)) = (oracle, &record.clock) {
        oracle.observed(clock);
    }
}

impl Sim {
    /// Creates an event.
    ///
    /// # Errors
    ///
    /// Where the device does not exist.
    pub fn event_create(&self, device: u16) -> Result<Event> {
        const CALL: Call = Call::EventCreate;
        let inner = &*self.inner;
        inner.check_device(CALL, device)?;
        let _turn = inner.turn();
        inner.enter(CALL, device)?;
        let state = EventState { device, record: None };
        let index = inner.events.insert(state).ok_or_else(|| {
            SimError::new(CALL, ErrorCode::OutOfMemory, "the table of events is full")
        })?;
        Ok(Event(index as u64 + 1))
    }

    /// Destroys an event, whether or not it is done. Waits for it keep their record.
    ///
    /// # Errors
    ///
    /// Where the handle is not valid.
    pub fn event_destroy(&self, event: Event) -> Result<()> {
        const CALL: Call = Call::EventDestroy;
        let inner = &*self.inner;
        let _turn = inner.turn();
        let device = inner.with_event(CALL, event, |event| Ok(event.device))?;
        inner.enter(CALL, device)?;
        let state = index(event.0).and_then(|index| inner.events.remove(index));
        match state {
            Some(_) => Ok(()),
            // Another thread was faster.
            None => inner.with_event(CALL, event, |_| Ok(())),
        }
    }

    /// Records an event after all work that the stream has been given.
    ///
    /// # Errors
    ///
    /// Where a handle is not valid, or the two are of different devices.
    pub fn event_record(&self, event: Event, stream: Stream) -> Result<()> {
        const CALL: Call = Call::EventRecord;
        let inner = &*self.inner;
        let mut turn = inner.turn();
        inner.with_stream(CALL, stream, |of| {
            inner.with_event(CALL, event, |state| {
                inner.enter(CALL, of.device)?;
                if state.device != of.device {
                    return Err(SimError::new(
                        CALL,
                        ErrorCode::InvalidHandle,
                        format!(
                            "event {} is of device {}, stream {} of device {}",
                            event.0, state.device, stream.0, of.device
                        ),
                    ));
                }
                state.record = Some(inner.new_record(turn.as_deref_mut(), of));
                Ok(())
            })
        })
    }

    /// Whether the work before the event's latest record is done; `true` where there is no record.
    ///
    /// # Errors
    ///
    /// Where the handle is not valid.
    pub fn event_query(&self, event: Event) -> Result<bool> {
        const CALL: Call = Call::EventQuery;
        let inner = &*self.inner;
        let mut turn = inner.turn();
        inner.with_event(CALL, event, |state| {
            inner.enter(CALL, state.device)?;
            let Some(record) = &state.record else {
                return Ok(true);
            };
            let done = inner.is_done(&record.due);
            if done {
                observe(turn.as_deref_mut(), record);
            }
            Ok(done)
        })
    }

    /// Waits until the event's latest record is done, or the timeout has passed; says whether it is
    /// done. With [`Completion::Lag`] the wait takes the clock to that moment.
    ///
    /// No wall time passes. A wait that could end in time does end; one that could not (a stream
    /// hangs) spends the timeout in simulated time. A timeout of zero is a query.
    ///
    /// # Errors
    ///
    /// Where the handle is not valid, or the wait would never end: without a timeout, behind a
    /// stream that hangs; with or without, where operations wait for each other.
    pub fn event_synchronize(&self, event: Event, timeout: Option<Duration>) -> Result<bool> {
        const CALL: Call = Call::Sync;
        let inner = &*self.inner;
        let mut turn = inner.turn();
        let (device, record) = inner.with_event(CALL, event, |state| {
            inner.enter(CALL, state.device)?;
            Ok((state.device, state.record.clone()))
        })?;
        let Some(record) = record else {
            return Ok(true);
        };
        let done = if timeout == Some(Duration::ZERO) {
            inner.is_done(&record.due)
        } else {
            let done = match (&record.due, inner.completion) {
                (Due::Tick { .. }, Completion::Lag(lag)) => {
                    let at = record.due.done_at(lag);
                    at.map(|at| inner.clock.fetch_max(at, Ordering::Relaxed)).is_some()
                }
                (due, _) => {
                    turn.as_deref_mut().is_some_and(|world| world.run_until(|_| inner.is_done(due)))
                }
            };
            if !done {
                give_up(inner, turn.as_deref(), device, timeout)?;
            }
            done
        };
        if done {
            observe(turn.as_deref_mut(), &record);
        }
        Ok(done)
    }

    /// Makes later work of the stream wait for the event's latest record so far. The event may be of
    /// another device.
    ///
    /// # Errors
    ///
    /// Where a handle is not valid, or the event's context is gone.
    pub fn stream_wait(&self, stream: Stream, event: Event) -> Result<()> {
        const CALL: Call = Call::StreamWait;
        let inner = &*self.inner;
        let mut turn = inner.turn();
        inner.with_stream(CALL, stream, |waiter| {
            inner.with_event(CALL, event, |event| {
                inner.enter(CALL, waiter.device)?;
                inner.meter.check_context(CALL, event.device)?;
                let Some(record) = &event.record else {
                    return Ok(());
                };
                if let (Due::Tick { at, behind }, Completion::Lag(lag)) =
                    (&record.due, inner.completion)
                {
                    lag::follow(&mut waiter.behind, behind);
                    waiter.given_at = waiter.given_at.max(Some(at.saturating_sub(lag)));
                }
                let Some(world) = turn.as_deref_mut() else {
                    return Ok(());
                };
                if let Due::Flag(flag) = &record.due {
                    world.push(waiter.serial, Op::Wait(Arc::clone(flag)));
                }
                if let (Some(oracle), Some(key), Some(clock)) =
                    (&mut world.oracle, waiter.key, &record.clock)
                {
                    oracle.wait(key, clock);
                }
                Ok(())
            })
        })
    }
}

/// A host wait that nothing will end: times out behind a hang, fails otherwise.
fn give_up(
    inner: &Inner,
    world: Option<&World>,
    device: u16,
    timeout: Option<Duration>,
) -> Result<()> {
    let sched = world.and_then(|world| world.sched.as_ref());
    match timeout {
        Some(timeout) if sched.is_none_or(|sched| sched.any_hangs()) => {
            let ns = u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX);
            inner.meter.spend(device, ns);
            Ok(())
        }
        _ => {
            let why = match world {
                Some(world) => return Err(deadlock(world, Call::Sync, device)),
                None => format!("device {device}: the work is behind a stream that hangs"),
            };
            Err(SimError::new(Call::Sync, ErrorCode::Deadlock, why))
        }
    }
}
