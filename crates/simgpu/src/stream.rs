//! Streams: creation, destruction, host waits, and hanging.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use crate::lag::{self, Behind, Hang};
use crate::oracle::StreamKey;
use crate::sched::Op;
use crate::sim::{Inner, World};
use crate::{Call, Completion, ErrorCode, Result, Sim, SimError};

/// A raw stream handle, as drivers hand them out: the lowest free value, so that of a destroyed
/// stream goes to the next one created.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Stream(pub u64);

/// A stream, for as long as its handle is valid.
#[derive(Debug)]
pub(crate) struct StreamState {
    pub device: u16,
    /// Never reused, unlike the handle.
    pub serial: u32,
    pub key: Option<StreamKey>,
    /// With [`Completion::Lag`]: the hang of its own.
    hang: Option<Arc<Hang>>,
    /// With [`Completion::Lag`]: the hangs that its work is behind, its own included.
    pub behind: Behind,
    /// With [`Completion::Lag`]: when it was given work that the host has not waited for.
    pub given_at: Option<u64>,
}

/// What identifies a stream, to use without its lock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StreamId {
    pub device: u16,
    pub serial: u32,
    pub key: Option<StreamKey>,
}

impl StreamState {
    pub(crate) fn id(&self) -> StreamId {
        StreamId { device: self.device, serial: self.serial, key: self.key }
    }
}

/// Index of a handle in its table; handles start at 1.
pub(crate) fn index(handle: u64) -> Option<usize> {
    usize::try_from(handle.checked_sub(1)?).ok()
}

impl Inner {
    /// Calls `f` with the stream, locked.
    pub(crate) fn with_stream<R>(
        &self,
        call: Call,
        stream: Stream,
        f: impl FnOnce(&mut StreamState) -> Result<R>,
    ) -> Result<R> {
        index(stream.0)
            .and_then(|index| self.streams.with(index, f))
            .unwrap_or_else(|| Err(no_stream(call, stream)))
    }

    pub(crate) fn stream_id(&self, call: Call, stream: Stream) -> Result<StreamId> {
        self.with_stream(call, stream, |stream| Ok(stream.id()))
    }

    /// The same for a stream that is given work.
    pub(crate) fn given(&self, call: Call, stream: Stream) -> Result<StreamId> {
        let now = self.clock.load(Relaxed);
        self.with_stream(call, stream, |stream| {
            stream.given_at = Some(now);
            Ok(stream.id())
        })
    }

    /// The host waits until all of a stream's work is done, and learns so.
    pub(crate) fn drain_stream(
        &self,
        world: &mut World,
        call: Call,
        stream: Stream,
    ) -> Result<StreamId> {
        let (id, stuck) = self.with_stream(call, stream, |stream| {
            let stuck = lag::stuck(&stream.behind);
            if !stuck {
                stream.given_at = None;
            }
            Ok((stream.id(), stuck))
        })?;
        if stuck || !world.run_until(|sched| sched.is_idle(id.serial)) {
            return Err(deadlock(world, call, id.device));
        }
        self.pass_records(|record_of| record_of.serial == id.serial);
        if let (Some(oracle), Some(key)) = (&mut world.oracle, id.key) {
            let clock = oracle.record(key);
            oracle.observed(&clock);
        }
        Ok(id)
    }

    /// The host waits until all work of a device is done, and learns so.
    pub(crate) fn drain_device(&self, world: &mut World, call: Call, device: u16) -> Result<()> {
        let mut stuck = false;
        let mut keys = Vec::new();
        self.streams.for_each(|_, stream| {
            if stream.device == device {
                stuck |= lag::stuck(&stream.behind);
                keys.extend(stream.key);
            }
        });
        world.hangs.retain(|(_, hang)| hang.ended().is_none());
        stuck |= world.hangs.iter().any(|(busy, _)| *busy == device);
        if stuck || !world.run_until(|sched| sched.is_device_idle(device)) {
            return Err(deadlock(world, call, device));
        }
        self.pass_records(|record_of| record_of.device == device);
        self.streams.for_each(|_, stream| {
            if stream.device == device {
                stream.given_at = None;
            }
        });
        if let Some(oracle) = &mut world.oracle {
            for key in keys {
                let clock = oracle.record(key);
                oracle.observed(&clock);
            }
            world.destroyed.retain(|(of, clock)| {
                if *of == device {
                    oracle.observed(clock);
                }
                *of != device
            });
        }
        Ok(())
    }

    /// With [`Completion::Lag`]: takes the clock to where the records of some streams are done.
    fn pass_records(&self, of: impl Fn(&StreamId) -> bool) {
        let Completion::Lag(lag) = self.completion else {
            return;
        };
        let mut latest = 0;
        self.events.for_each(|_, event| {
            let record = event.record.as_ref().filter(|record| of(&record.stream));
            if let Some(at) = record.and_then(|record| record.due.done_at(lag)) {
                latest = latest.max(at);
            }
        });
        self.clock.fetch_max(latest, Relaxed);
    }
}

impl Sim {
    /// Creates a stream.
    ///
    /// # Errors
    ///
    /// Where the device does not exist.
    pub fn stream_create(&self, device: u16) -> Result<Stream> {
        const CALL: Call = Call::StreamCreate;
        let inner = &*self.inner;
        inner.check_device(CALL, device)?;
        let mut world = inner.world();
        inner.enter(CALL, device)?;
        let state = StreamState {
            device,
            serial: inner.next_stream.fetch_add(1, Relaxed),
            key: world.oracle.as_mut().map(|oracle| oracle.stream_created()),
            hang: None,
            behind: Vec::new(),
            given_at: None,
        };
        let serial = state.serial;
        let index = inner.streams.insert(state).ok_or_else(|| {
            SimError::new(CALL, ErrorCode::OutOfMemory, "the table of streams is full")
        })?;
        if let Some(sched) = &mut world.sched {
            sched.open(serial, device);
        }
        Ok(Stream(index as u64 + 1))
    }

    /// The name under which hazards speak of a stream; `None` without the oracle.
    ///
    /// # Errors
    ///
    /// Where the handle is not valid.
    pub fn stream_key(&self, stream: Stream) -> Result<Option<StreamKey>> {
        Ok(self.inner.stream_id(Call::Launch, stream)?.key)
    }

    /// The device of a stream.
    ///
    /// # Errors
    ///
    /// Where the handle is not valid.
    pub fn stream_device(&self, stream: Stream) -> Result<u16> {
        Ok(self.inner.stream_id(Call::Launch, stream)?.device)
    }

    /// Destroys a stream's handle. Work that it has been given still runs.
    ///
    /// # Errors
    ///
    /// Where the handle is not valid.
    pub fn stream_destroy(&self, stream: Stream) -> Result<()> {
        const CALL: Call = Call::StreamDestroy;
        let inner = &*self.inner;
        let mut world = inner.world();
        let id = inner.stream_id(CALL, stream)?;
        inner.enter(CALL, id.device)?;
        let state = index(stream.0).and_then(|index| inner.streams.remove(index));
        let state = state.ok_or_else(|| no_stream(CALL, stream))?;
        let lasting = state.behind.into_iter();
        let lasting = lasting.filter(|hang| hang.ended().is_none());
        world.hangs.extend(lasting.map(|hang| (id.device, hang)));
        if let Some(sched) = &mut world.sched {
            sched.close(id.serial);
        }
        if let (Some(oracle), Some(key)) = (&mut world.oracle, id.key) {
            let clock = oracle.record(key);
            oracle.stream_destroyed(key);
            world.destroyed.push((id.device, clock));
        }
        Ok(())
    }

    /// Waits until all work that the stream has been given is done.
    ///
    /// # Errors
    ///
    /// Where the handle is not valid, or the wait would never end.
    pub fn stream_synchronize(&self, stream: Stream) -> Result<()> {
        const CALL: Call = Call::Sync;
        let inner = &*self.inner;
        let mut world = inner.world();
        let id = inner.stream_id(CALL, stream)?;
        inner.enter(CALL, id.device)?;
        inner.drain_stream(&mut world, CALL, stream).map(drop)
    }

    /// Whether all work that the stream has been given is done.
    ///
    /// # Errors
    ///
    /// Where the handle is not valid.
    pub fn stream_query(&self, stream: Stream) -> Result<bool> {
        const CALL: Call = Call::EventQuery;
        let inner = &*self.inner;
        let mut world = inner.world();
        let id = inner.stream_id(CALL, stream)?;
        inner.enter(CALL, id.device)?;
        let done = match (&world.sched, inner.completion) {
            (Some(sched), _) => sched.is_idle(id.serial),
            (None, Completion::Lag(lag)) => {
                let now = self.now();
                inner.with_stream(CALL, stream, |stream| {
                    let at = stream.given_at.map_or(0, |at| at.saturating_add(lag));
                    Ok(lag::done_at(at, &stream.behind, lag).is_some_and(|at| at <= now))
                })?
            }
            (None, Completion::Scheduled) => false,
        };
        if let (Some(oracle), Some(key), true) = (&mut world.oracle, id.key, done) {
            let clock = oracle.record(key);
            oracle.observed(&clock);
        }
        Ok(done)
    }

    /// Waits until all work of a device is done, that of destroyed streams included.
    ///
    /// # Errors
    ///
    /// Where the device does not exist, or the wait would never end.
    pub fn device_synchronize(&self, device: u16) -> Result<()> {
        const CALL: Call = Call::Sync;
        let inner = &*self.inner;
        inner.check_device(CALL, device)?;
        let mut world = inner.world();
        inner.enter(CALL, device)?;
        inner.drain_device(&mut world, CALL, device)
    }

    /// Lets a stream hang, as though it ran a kernel that never ends: what it has not done yet, it
    /// does not do, and what comes after its records does not happen. (With [`Completion::Lag`] only
    /// records are held up, since work has its effect when it is submitted.) Not a call of the
    /// driver, so neither counted nor priced.
    ///
    /// # Errors
    ///
    /// Where the handle is not valid.
    pub fn hang(&self, stream: Stream) -> Result<()> {
        let inner = &*self.inner;
        let mut world = inner.world();
        let id = inner.stream_id(Call::Launch, stream)?;
        if let Some(sched) = &mut world.sched {
            sched.set_hang(id.serial, true);
            return Ok(());
        }
        let hang = Hang::new();
        let hangs_already = inner.with_stream(Call::Launch, stream, |stream| {
            if stream.hang.is_some() {
                return Ok(true);
            }
            stream.hang = Some(Arc::clone(&hang));
            stream.behind.push(Arc::clone(&hang));
            Ok(false)
        })?;
        if hangs_already {
            return Ok(());
        }
        let now = self.now();
        let lag = match inner.completion {
            Completion::Lag(lag) => lag,
            Completion::Scheduled => 0,
        };
        inner.events.for_each(|_, event| {
            let record = event.record.as_mut();
            if let Some(record) = record.filter(|record| record.stream.serial == id.serial) {
                record.due.hold(&hang, now, lag);
            }
        });
        world.hangs.push((id.device, hang));
        Ok(())
    }

    /// Lets a stream that hangs go on.
    ///
    /// # Errors
    ///
    /// Where the handle is not valid.
    pub fn unhang(&self, stream: Stream) -> Result<()> {
        let inner = &*self.inner;
        let mut world = inner.world();
        let id = inner.stream_id(Call::Launch, stream)?;
        if let Some(sched) = &mut world.sched {
            sched.set_hang(id.serial, false);
        }
        inner.with_stream(Call::Launch, stream, |stream| {
            if let Some(hang) = stream.hang.take() {
                hang.end(self.now());
            }
            Ok(())
        })
    }

    /// Lets all streams go on, destroyed ones included.
    pub fn unhang_all(&self) {
        let mut world = self.inner.world();
        if let Some(sched) = &mut world.sched {
            sched.unhang_all();
        }
        for (_, hang) in world.hangs.drain(..) {
            hang.end(self.now());
        }
        self.inner.streams.for_each(|_, stream| stream.hang = None);
    }
}

/// The error of a host wait that nothing will end.
pub(crate) fn deadlock(world: &World, call: Call, device: u16) -> SimError {
    let why = world.sched.as_ref().map(|sched| sched.describe());
    let why = why.unwrap_or_else(|| "the work is behind a stream that hangs".into());
    SimError::new(call, ErrorCode::Deadlock, format!("device {device}: {why}"))
}

fn no_stream(call: Call, stream: Stream) -> SimError {
    let message = format!("there is no stream {}", stream.0);
    SimError::new(call, ErrorCode::InvalidHandle, message)
}

impl World {
    /// Appends an operation to a stream, with [`Completion::Scheduled`].
    pub(crate) fn push(&mut self, stream: u32, op: Op) {
        if let Some(sched) = &mut self.sched {
            sched.push(stream, op);
        }
    }
}
