//! The race oracle: finds touches of device memory that nothing orders.
//!
//! A simulator that executes work in one order can be lucky: a pool that hands a block out too early
//! may still see the right bytes. The oracle does not depend on luck. It is told what is submitted
//! and what the host learns, in program order, and decides from that alone whether the program is
//! right under *every* schedule. It simulates nothing, owns no memory and knows no time.
//!
//! # What orders work
//!
//! The vertices are pieces of work (kernels, copies, fills), each on one stream. Work `a` is ordered
//! before work `b` exactly if a chain of these leads from `a` to `b`:
//!
//! - *stream*: `b` was submitted to the same stream after `a`;
//! - *event*: an event was recorded after `a` on its stream ([`Oracle::record`]), a stream was told
//!   to wait for it ([`Oracle::wait`]), and `b` was submitted to that stream after the wait;
//! - *rendezvous*: `a` was submitted to a participant before a collective and `b` to a participant
//!   after it ([`Oracle::rendezvous`]);
//! - *observation*: the host learnt that `a` had completed ([`Oracle::observed`]) and submitted `b`
//!   thereafter, to whatever stream.
//!
//! The last rule is the only one that goes through the host, and it asks for *knowledge*, not for
//! completion. If `a` happened to be done when `b` was submitted, but no query said so and no host
//! wait returned, the program had no reason to believe it; on another day `a` takes longer. Such
//! luck is what a pool's bug looks like in testing, so completion that nobody observed orders
//! nothing. For the same reason a stream wait tells the host nothing: it orders the device's work,
//! and unmapping or freeing, which the host does at once, still has to wait for an observation.
//!
//! # Vector clocks
//!
//! Each stream numbers its work. A stream's clock has a number `n` for every stream `t`: the next
//! work comes after the first `n` works of `t`. Submitting raises the own number; a record is a copy
//! of the clock; a wait takes the maximum with a copy; a rendezvous gives all participants the
//! maximum of theirs. So `clock[t] >= m` holds exactly if a chain leads from work `m` of `t` to what
//! is submitted next, and no graph need be kept. What the host has observed is one more clock. It
//! holds for all later submissions alike, so it is not joined into the streams' clocks: every check
//! looks at both. (A snapshot need not carry it either: whoever waits for the snapshot submits later
//! and is therefore held against a host clock at least as large.)
//!
//! # Hazards
//!
//! - [`Unordered`](Hazard::Unordered): two pieces of work touch a physical byte, at least one writes,
//!   and no chain leads from the one submitted first to the other. They may run at once, or the
//!   other way round.
//! - [`NeverWritten`](Hazard::NeverWritten): a read of bytes that nothing has written since the
//!   memory came into being.
//! - [`StaleContent`](Hazard::StaleContent): a read names the label its bytes were written with and
//!   another write has come between, as happens when two blocks overlap while both are in use. Order
//!   does not excuse that, and on one stream no unordered pair would show it. Labels follow the
//!   order of submission.
//! - [`InFlight`](Hazard::InFlight): the host unmaps, frees or releases memory and does not know that
//!   all work that touches it has completed. An unmap is judged by the touches through the mapping
//!   that goes: work in flight through another mapping of the same bytes keeps its own.
//! - [`Invalid`](Hazard::Invalid): whoever translates addresses found no memory there, or none the
//!   stream may use ([`Oracle::invalid_touch`]).
//! - [`DeadStream`](Hazard::DeadStream): work given to a stream that does not exist.
//!
//! Order is a matter of physical bytes, so the oracle follows those: two virtual ranges of one page
//! are one memory. The virtual address of a touch serves the judgement of unmaps and the messages.
//!
//! The answer is exact: a hazard is reported at a submission if and only if the rules above are
//! broken by it, also after earlier hazards. How that takes little memory is told in `history.rs`.

mod clock;
mod hazard;
mod history;
#[cfg(test)]
mod tests;

use std::ops::Range;
use std::sync::Arc;

pub use clock::{Clock, StreamKey};
pub use hazard::{Access, Hazard, HazardKind, Invalid, Retire, Touch};

use clock::Timeline;
use hazard::Log;
use history::{History, Mark, View};

/// A range of bytes that a piece of work touches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PhysTouch {
    /// The physical bytes, in a numbering of the caller's that is unique over all devices.
    pub phys: Range<u64>,
    /// The virtual address of the first of them, in the mapping the touch goes through. A touch that
    /// spans pages which are not neighbours physically is several of these.
    pub address: u64,
    /// Whether they are read or overwritten.
    pub access: Access,
    /// For a write, the label to put on the bytes (`None` takes any label away). For a read, the
    /// label they must have (`None` accepts all).
    pub label: Option<u64>,
}

/// Decides whether a program's touches of device memory are ordered. See the [module](self).
///
/// No call panics or fails, whatever it is given: empty ranges touch nothing, and keys of destroyed
/// or unknown streams order nothing.
#[derive(Clone, Debug, Default)]
pub struct Oracle {
    /// By key; `None` for a destroyed stream.
    streams: Vec<Option<Timeline>>,
    /// What the host has learnt to be complete.
    host: Vec<u64>,
    history: History,
    log: Log,
}

impl Oracle {
    /// An oracle that knows of no streams and no memory.
    pub fn new() -> Self {
        Self::default()
    }

    /// A new stream, whose work nothing orders yet but what the host knows.
    pub fn stream_created(&mut self) -> StreamKey {
        // Keys are 32 bits wide and never reused: past the last one, streams are dead from birth.
        match u32::try_from(self.streams.len()) {
            Ok(key) if key < u32::MAX => {
                self.streams.push(Some(Timeline::default()));
                StreamKey(key)
            }
            _ => StreamKey(u32::MAX),
        }
    }

    /// The stream's handle is gone. What it was given still runs, and counts as in flight until the
    /// host observes a clock that covers it.
    pub fn stream_destroyed(&mut self, key: StreamKey) {
        if let Some(slot) = self.streams.get_mut(key.index()) {
            *slot = None;
        }
    }

    /// One piece of work is submitted to stream `s`: checks its touches against history, then
    /// records them.
    ///
    /// The touches of one piece of work are not held against each other. Its reads find what was
    /// there before its writes, whatever the order in `touches`.
    pub fn submit(&mut self, s: StreamKey, touches: &[PhysTouch]) {
        let Some(Some(timeline)) = self.streams.get_mut(s.index()) else {
            self.log.note(Hazard::DeadStream { stream: s });
            self.log.close();
            return;
        };
        let work = timeline.tick();
        let view = View { seen: timeline.seen(), host: &self.host };
        for access in [Access::Read, Access::Write] {
            for touch in touches.iter().filter(|touch| touch.access == access) {
                let mark = Mark {
                    stream: s,
                    access,
                    shift: touch.address.wrapping_sub(touch.phys.start),
                    work,
                };
                let phys = touch.phys.clone();
                self.history.touch(phys, mark, touch.label, view, &mut self.log);
                self.log.close();
            }
        }
    }

    /// The touches of a copy, whose reads come in the order in which its writes take what they read: the
    /// writes put the labels that are on the bytes read now.
    pub fn carry_labels(&self, touches: Vec<PhysTouch>) -> Vec<PhysTouch> {
        let (mut all, writes): (Vec<_>, Vec<_>) =
            touches.into_iter().partition(|touch| touch.access == Access::Read);
        let mut labels = all.iter().flat_map(|read| self.history.labels(read.phys.clone()));
        let mut run = (0, None);
        let mut carried = Vec::new();
        for write in writes {
            let mut at = write.phys.start;
            while at < write.phys.end {
                while run.0 == 0 {
                    run = labels.next().unwrap_or((u64::MAX, None));
                }
                let bytes = run.0.min(write.phys.end - at);
                let address = write.address.wrapping_add(at - write.phys.start);
                let (phys, label) = (at..at + bytes, run.1);
                carried.push(PhysTouch { phys, address, access: Access::Write, label });
                (run.0, at) = (run.0 - bytes, at + bytes);
            }
        }
        drop(labels);
        all.append(&mut carried);
        all
    }

    /// What an event recorded on `s` now stands for: all work submitted to `s` so far, and all that
    /// this was ordered after. For a stream that does not exist, nothing.
    pub fn record(&mut self, s: StreamKey) -> Clock {
        match self.streams.get(s.index()) {
            Some(Some(timeline)) => timeline.snapshot(s),
            _ => Clock::empty(s),
        }
    }

    /// Stream `s` waits for `c`: its later work is ordered after it. The host learns nothing.
    pub fn wait(&mut self, s: StreamKey, c: &Clock) {
        if let Some(Some(timeline)) = self.streams.get_mut(s.index()) {
            timeline.join(s, c);
        }
    }

    /// The host has learnt that `c` has completed, because a query said so or a host wait returned:
    /// all later submissions, on any stream, are ordered after it.
    ///
    /// A query or a host wait that names a stream, not an event, observes the stream's
    /// [`record`](Oracle::record) of that moment.
    pub fn observed(&mut self, c: &Clock) {
        c.join_into(&mut self.host);
    }

    /// A collective over `streams`: work before it on any of them is ordered before work after it on
    /// every one of them. What the collective itself touches is submitted by its callers.
    pub fn rendezvous(&mut self, streams: &[StreamKey]) {
        let mut joint = Vec::new();
        for &s in streams {
            if let Some(Some(timeline)) = self.streams.get(s.index()) {
                timeline.join_into(s, &mut joint);
            }
        }
        let joint = Arc::new(joint);
        for &s in streams {
            if let Some(Some(timeline)) = self.streams.get_mut(s.index()) {
                timeline.adopt(&joint);
            }
        }
    }

    /// The bytes `phys` have come into being: they have no history and were never written.
    ///
    /// Bytes the oracle was never told of are taken for such.
    pub fn memory_created(&mut self, phys: Range<u64>) {
        self.history.forget(&phys);
    }

    /// The bytes `phys` come into being in the order of stream `s`, seen at `address`: as
    /// [`memory_created`](Self::memory_created), and what touches them must be ordered after that.
    pub fn memory_created_on(&mut self, s: StreamKey, phys: Range<u64>, address: u64) {
        self.history.forget(&phys);
        if let Some(Some(timeline)) = self.streams.get_mut(s.index()) {
            let work = timeline.tick();
            let shift = address.wrapping_sub(phys.start);
            let mark = Mark { stream: s, access: Access::Write, shift, work };
            self.history.begin(&phys, mark);
        }
    }

    /// The bytes `phys`, seen at `address`, go in the order of stream `s`: all that touched them must
    /// be ordered before, and their history ends.
    pub fn retire_on(&mut self, s: StreamKey, phys: Range<u64>, address: u64) {
        let touch = PhysTouch { phys: phys.clone(), address, access: Access::Write, label: None };
        self.submit(s, &[touch]);
        self.history.forget(&phys);
    }

    /// The host gives up the bytes `phys` now, at virtual address `address`. An unmap needs all work
    /// that touched them through this very mapping to be known complete; a free or a release, all
    /// work that touched them, and their history ends.
    ///
    /// A mapping of pages that are not neighbours physically is retired with one call for each.
    pub fn retire(&mut self, phys: Range<u64>, what: Retire, address: u64) {
        let shift = match what {
            Retire::Unmap => Some(address.wrapping_sub(phys.start)),
            Retire::Free | Retire::Release => None,
        };
        self.history.in_flight(&phys, shift, (what, address), &self.host, &mut self.log);
        self.log.close();
        if what != Retire::Unmap {
            self.history.forget(&phys);
        }
    }

    /// Work of stream `s` touches `len` bytes at `address`, where there is no memory that it may use.
    pub fn invalid_touch(&mut self, s: StreamKey, address: u64, len: u64, why: Invalid) {
        self.log.note(Hazard::Invalid { stream: s, address, bytes: len, why });
        self.log.close();
    }

    /// The first hazards found, in the order found; the details of the first thousand are kept.
    pub fn hazards(&self) -> &[Hazard] {
        self.log.kept()
    }

    /// How many hazards were found, those not kept included.
    pub fn hazard_count(&self) -> u64 {
        self.log.count()
    }
}
