//! Work on streams: launches, fills, copies, content checks, and rendezvous.

use std::sync::Arc;

use crate::lag;
use crate::meeting::{Meeting, Part, Party};
use crate::memory::{Computation, DeviceBytes, Touched, Work};
use crate::oracle::{Access, Invalid, PhysTouch};
use crate::sched::Op;
use crate::sim::World;
use crate::stream::StreamId;
use crate::{Call, Completion, ErrorCode, Result, Sim, SimError, Stream};

/// A range of addresses that a piece of work reads or writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Touch {
    /// The first address.
    pub address: u64,
    /// Length in bytes; 0 touches nothing.
    pub len: u64,
    /// Read or write.
    pub access: Access,
    /// A write stamps it on the bytes; a read expects to find it there. Checked by the oracle.
    pub label: Option<u64>,
}

impl Touch {
    /// A read without a label.
    pub const fn read(address: u64, len: u64) -> Self {
        Self { address, len, access: Access::Read, label: None }
    }

    /// A write without a label.
    pub const fn write(address: u64, len: u64) -> Self {
        Self { address, len, access: Access::Write, label: None }
    }

    /// The same with a label.
    #[must_use]
    pub const fn label(mut self, label: u64) -> Self {
        self.label = Some(label);
        self
    }
}

impl World {
    /// Gives a stream a piece of work.
    pub(crate) fn submit(
        &mut self,
        call: Call,
        on: StreamId,
        touches: &[Touch],
        work: Work,
    ) -> Result<()> {
        self.submit_as(call, on, touches.iter().map(|touch| (on.device, *touch)), work)
    }

    /// The same, where each touch is made by a device of its own.
    fn submit_as(
        &mut self,
        call: Call,
        on: StreamId,
        touches: impl ExactSizeIterator<Item = (u16, Touch)>,
        work: Work,
    ) -> Result<()> {
        let mut reached = Vec::with_capacity(touches.len());
        let mut missed = None;
        for (device, touch) in touches {
            let pieces = self.memory.translate(Some(device), touch.address, touch.len);
            for piece in pieces {
                match piece {
                    Touched::Bytes { address, phys } => reached.push(PhysTouch {
                        phys,
                        address,
                        access: touch.access,
                        label: touch.label,
                    }),
                    Touched::Nothing { address, bytes, why } => {
                        missed.get_or_insert((address, bytes, why));
                        if let (Some(oracle), Some(key)) = (&mut self.oracle, on.key) {
                            oracle.invalid_touch(key, address, bytes, why);
                        }
                    }
                }
            }
        }
        if let (Some(oracle), Some(key)) = (&mut self.oracle, on.key) {
            if matches!(work, Work::Copy { .. }) {
                reached = oracle.carry_labels(reached);
            }
            oracle.submit(key, &reached);
            if missed.is_some() {
                // The hazard is noted; the work itself, which would end the context, is not run.
                return Ok(());
            }
        } else if let Some((address, bytes, why)) = missed {
            return Err(unreachable(call, on.device, address, bytes, why));
        }
        match &mut self.sched {
            Some(sched) => sched.push(on.serial, Op::Work(work)),
            None if self.memory.has_contents() => self.findings.run(&mut self.memory, &work),
            None => {}
        }
        Ok(())
    }
}

fn unreachable(call: Call, device: u16, address: u64, bytes: u64, why: Invalid) -> SimError {
    let what = match why {
        Invalid::Unmapped => "nothing is mapped at",
        Invalid::Freed => "nothing is allocated at",
        Invalid::NoAccess => "there is no access to",
    };
    let message = format!("device {device}: {what} {address:#x} ({bytes} bytes)");
    SimError::new(call, ErrorCode::InvalidValue, message)
}

impl Sim {
    fn submit(&self, call: Call, stream: Stream, touches: &[Touch], work: Work) -> Result<()> {
        let inner = &*self.inner;
        let mut world = inner.world();
        let on = inner.given(call, stream)?;
        inner.enter(call, on.device)?;
        world.submit(call, on, touches, work)
    }

    /// Launches work that reads and writes the given ranges, and leaves contents alone.
    ///
    /// # Errors
    ///
    /// Where the handle is not valid. Where a range is not mapped, not allocated or not accessible
    /// to the stream's device: with the oracle off an error, with it on a hazard. This holds for
    /// every kind of work.
    pub fn launch(&self, stream: Stream, touches: &[Touch]) -> Result<()> {
        let ranges = touches.iter().map(|touch| (touch.address, touch.len));
        let work = Work::Touch(ranges.collect());
        self.submit(Call::Launch, stream, touches, work)
    }

    /// Repeats the eight bytes of `pattern` (little end first) over a range, from its first byte on.
    ///
    /// # Errors
    ///
    /// As [`launch`](Self::launch).
    pub fn fill(&self, stream: Stream, address: u64, len: u64, pattern: u64) -> Result<()> {
        let bytes = len;
        let work = Work::Fill { address, bytes, pattern };
        self.submit(Call::Fill, stream, &[Touch::write(address, len)], work)
    }

    /// Compares a range with what [`fill`](Self::fill) leaves, when the stream comes to it, so that
    /// the host need not wait. See [`content_mismatches`](Self::content_mismatches). Without
    /// contents it is a read.
    ///
    /// # Errors
    ///
    /// As [`launch`](Self::launch).
    pub fn check_fill(&self, stream: Stream, address: u64, len: u64, pattern: u64) -> Result<()> {
        let bytes = len;
        let work = Work::Check { address, bytes, pattern };
        self.submit(Call::Launch, stream, &[Touch::read(address, len)], work)
    }

    /// Copies `len` bytes within a device or between devices, and the labels on them. The stream's
    /// device needs access to both ranges.
    ///
    /// # Errors
    ///
    /// As [`launch`](Self::launch).
    pub fn copy(&self, stream: Stream, to: u64, from: u64, len: u64) -> Result<()> {
        let bytes = len;
        let touches = [Touch::read(from, len), Touch::write(to, len)];
        self.submit(Call::Copy, stream, &touches, Work::Copy { to, from, bytes })
    }

    /// The same for ranges that two devices give access to: `to` is touched as the first device
    /// would, `from` as the second. Copies between devices that are no peers go through the host.
    ///
    /// # Errors
    ///
    /// As [`launch`](Self::launch), and where a device does not exist.
    pub fn copy_between(
        &self,
        stream: Stream,
        (to_device, to): (u16, u64),
        (from_device, from): (u16, u64),
        len: u64,
    ) -> Result<()> {
        const CALL: Call = Call::Copy;
        let inner = &*self.inner;
        inner.check_device(CALL, to_device)?;
        inner.check_device(CALL, from_device)?;
        let mut world = inner.world();
        let on = inner.given(CALL, stream)?;
        inner.enter(CALL, on.device)?;
        let touches = [(from_device, Touch::read(from, len)), (to_device, Touch::write(to, len))];
        world.submit_as(CALL, on, touches.into_iter(), Work::Copy { to, from, bytes: len })
    }

    /// Launches work that reads and writes the given ranges, and does to contents what `run` does
    /// when the stream comes to it. Without contents it is not called.
    ///
    /// # Errors
    ///
    /// As [`launch`](Self::launch).
    pub fn compute(
        &self,
        stream: Stream,
        touches: &[Touch],
        run: Arc<dyn Fn(&mut DeviceBytes<'_>) + Send + Sync>,
    ) -> Result<()> {
        let work = if self.has_contents() {
            Work::Compute(Computation(run))
        } else {
            Work::Touch(touches.iter().map(|touch| (touch.address, touch.len)).collect())
        };
        self.submit(Call::Launch, stream, touches, work)
    }

    /// Copies bytes of the host's to the device. They are read at once, as from pageable memory.
    ///
    /// # Errors
    ///
    /// As [`launch`](Self::launch).
    pub fn write_bytes(&self, stream: Stream, address: u64, data: &[u8]) -> Result<()> {
        let len = data.len() as u64;
        let inner = &*self.inner;
        let mut world = inner.world();
        let on = inner.given(Call::Copy, stream)?;
        inner.enter(Call::Copy, on.device)?;
        let work = if world.memory.has_contents() {
            let data = data.to_vec();
            Work::Write { address, data }
        } else {
            Work::Touch(vec![(address, len)])
        };
        world.submit(Call::Copy, on, &[Touch::write(address, len)], work)
    }

    /// Copies bytes to the host, once all earlier work of the stream is done.
    ///
    /// # Errors
    ///
    /// As [`launch`](Self::launch), except that what is not there is an error under the oracle too;
    /// where there are no contents; and where the stream's work would never end.
    pub fn read_bytes(&self, stream: Stream, address: u64, len: u64) -> Result<Vec<u8>> {
        const CALL: Call = Call::Copy;
        let inner = &*self.inner;
        let mut world = inner.world();
        let on = inner.given(CALL, stream)?;
        inner.enter(CALL, on.device)?;
        if !world.memory.has_contents() {
            let message = "the simulation was built without contents";
            return Err(SimError::new(CALL, ErrorCode::NotSupported, message));
        }
        let touch = [Touch::read(address, len)];
        world.submit(CALL, on, &touch, Work::Touch(vec![(address, len)]))?;
        inner.drain_stream(&mut world, CALL, stream)?;
        let pieces = world.memory.translate(Some(on.device), address, len);
        for piece in pieces {
            if let Touched::Nothing { address, bytes, why } = piece {
                return Err(unreachable(CALL, on.device, address, bytes, why));
            }
        }
        Ok(world.memory.read(address, len).0)
    }

    /// An operation that runs on all the streams together, once all of them have come to it, as a
    /// collective does. It orders what is before it on any of them before what is after it on every
    /// one. What it touches is submitted by itself.
    ///
    /// # Errors
    ///
    /// Where a handle is not valid, or a stream is named twice.
    pub fn rendezvous(&self, streams: &[Stream]) -> Result<()> {
        const CALL: Call = Call::Rendezvous;
        let inner = &*self.inner;
        let mut world = inner.world();
        let mut ids = Vec::with_capacity(streams.len());
        for stream in streams {
            ids.push(inner.stream_id(CALL, *stream)?);
        }
        let party = Arc::new(Party::new(ids.len()));
        for id in &ids {
            inner.enter(CALL, id.device)?;
            join(&party, *id, None)?;
        }
        if let Some(sched) = &mut world.sched {
            for id in &ids {
                sched.push(id.serial, Op::Meet(Arc::clone(&party)));
            }
        } else {
            let mut behind = Vec::new();
            for stream in streams {
                inner.with_stream(CALL, *stream, |stream| {
                    lag::follow(&mut behind, &stream.behind);
                    Ok(())
                })?;
            }
            for stream in streams {
                inner.with_stream(CALL, *stream, |stream| {
                    lag::follow(&mut stream.behind, &behind);
                    Ok(())
                })?;
            }
        }
        if let Some(oracle) = &mut world.oracle {
            let keys: Vec<_> = ids.iter().filter_map(|id| id.key).collect();
            oracle.rendezvous(&keys);
        }
        Ok(())
    }

    /// A rendezvous of so many streams, whose parts are then submitted with [`join`](Self::join).
    pub fn meeting(&self, parts: usize) -> Meeting {
        Meeting(Arc::new(Party::new(parts)))
    }

    /// Submits one stream's part of a rendezvous: later work of the stream waits until all parts
    /// have been submitted and all the streams have come to theirs. The race oracle orders work by
    /// it once the last part is submitted.
    ///
    /// # Errors
    ///
    /// Where the handle is not valid, the stream takes part already, all parts have been submitted,
    /// or completion is not [`Completion::Scheduled`].
    pub fn join(&self, stream: Stream, meeting: &Meeting) -> Result<()> {
        const CALL: Call = Call::Rendezvous;
        let inner = &*self.inner;
        let mut world = inner.world();
        let world = &mut *world;
        let id = inner.stream_id(CALL, stream)?;
        inner.enter(CALL, id.device)?;
        let Some(sched) = &mut world.sched else {
            let message = format!("joining one by one needs {:?}", Completion::Scheduled);
            return Err(SimError::new(CALL, ErrorCode::NotSupported, message));
        };
        let known = match (&mut world.oracle, id.key) {
            (Some(oracle), Some(key)) => Some((key, oracle.record(key))),
            _ => None,
        };
        let last = join(&meeting.0, id, known)?;
        sched.push(id.serial, Op::Meet(Arc::clone(&meeting.0)));
        if let (Some(oracle), true) = (&mut world.oracle, last) {
            let parts = meeting.0.parts();
            let known: Vec<_> = parts.into_iter().filter_map(|part| part.known).collect();
            for (key, _) in &known {
                for (_, clock) in &known {
                    oracle.wait(*key, clock);
                }
            }
        }
        Ok(())
    }
}

fn join(
    party: &Party,
    id: StreamId,
    known: Option<(crate::oracle::StreamKey, crate::oracle::Clock)>,
) -> Result<bool> {
    let stream = id.serial;
    party.join(Part { stream, known }).map_err(|why| {
        let message = format!("device {}: {why}", id.device);
        SimError::new(Call::Rendezvous, ErrorCode::InvalidValue, message)
    })
}
