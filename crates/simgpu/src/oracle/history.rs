//! What has happened to each physical byte, as a map of intervals.
//!
//! Bytes with the same history share an interval. An interval holds the *content* (the label of the
//! last write and where it came from) and the *marks*: the touches that can still matter.
//!
//! # Which marks can be forgotten
//!
//! A mark is `(stream, work, access, alias)`. It is asked two questions later on: is a new touch
//! that conflicts with it ordered after it, and does the host know it complete when a mapping goes.
//! Write `a → b` for "`a` is ordered before `b`". A mark `a` is dropped when
//!
//! - *the host knows it complete*: every later submission comes after it, and no unmap or free is
//!   early on its account; or
//! - *a new mark `b` stands for it*: `a → b`, both through the same alias, and `b` conflicts with
//!   all that `a` conflicts with (`b` is a write, or `a` is a read).
//!   If a later touch `z` is not after `a`, it is not after `b` either, since `a → b → z` would put
//!   it after `a`: the same hazard is found at the same `z`. Nor can the host know `b` complete
//!   without knowing `a`.
//!
//! Nothing else is dropped, so the marks are exact, even after a first hazard has been found: one
//! mark per stream and access that no other stands for. Without hazards and aliases that is one
//! write, and the reads since that do not follow one another.
//!
//! # Aliases
//!
//! Physical bytes can be mapped more than once. A mark holds virtual minus physical address, the
//! *shift*: all bytes of one mapping have the same, it survives splitting an interval, and an unmap
//! is judged by the marks of its own shift alone.
//!
//! # Invariants
//!
//! - intervals are not empty and do not overlap: `start < end <= next start`
//! - marks are sorted by `(stream, access, shift)`, without duplicates: equal histories compare equal
//! - intervals that touch and are equal are one, except where one was not visited since they became
//!   equal
//! - bytes in no interval were never touched since they came into being

use std::collections::BTreeMap;
use std::ops::Range;

use super::clock::{StreamKey, component};
use super::hazard::{Access, Hazard, Log, Retire, Touch};

/// A touch that can still matter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Mark {
    pub(super) stream: StreamKey,
    pub(super) access: Access,
    /// Virtual minus physical address, modulo 2^64.
    pub(super) shift: u64,
    pub(super) work: u64,
}

impl Mark {
    fn key(&self) -> (StreamKey, Access, u64) {
        (self.stream, self.access, self.shift)
    }

    /// The touch at physical byte `at`.
    fn touch(&self, at: u64) -> Touch {
        Touch {
            stream: self.stream,
            work: self.work,
            access: self.access,
            address: at.wrapping_add(self.shift),
        }
    }
}

/// What a read would find.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Content {
    #[default]
    NeverWritten,
    Written {
        label: Option<u64>,
        stream: StreamKey,
        shift: u64,
    },
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct State {
    content: Content,
    marks: Vec<Mark>,
}

#[derive(Clone, Debug)]
struct Interval {
    end: u64,
    state: State,
}

/// What a new touch comes after: its stream's clock and the host's.
#[derive(Clone, Copy)]
pub(super) struct View<'a> {
    pub(super) seen: &'a [u64],
    pub(super) host: &'a [u64],
}

impl View<'_> {
    /// Whether `old` is ordered before `new`.
    fn ordered(&self, old: &Mark, new: &Mark) -> bool {
        old.stream == new.stream || component(self.seen, old.stream) >= old.work
    }
}

/// Whether the host knows the touch complete.
fn known(host: &[u64], mark: &Mark) -> bool {
    component(host, mark.stream) >= mark.work
}

/// The history of all physical bytes.
#[derive(Clone, Debug, Default)]
pub(super) struct History {
    /// Intervals by their first byte.
    map: BTreeMap<u64, Interval>,
    /// Scratch space, empty between calls.
    keys: Vec<u64>,
    /// Scratch space, empty between calls.
    gaps: Vec<Range<u64>>,
}

impl History {
    /// Checks a new touch of `range` against history and records it.
    pub(super) fn touch(
        &mut self,
        range: Range<u64>,
        new: Mark,
        label: Option<u64>,
        view: View<'_>,
        log: &mut Log,
    ) {
        if range.is_empty() {
            return;
        }
        match self.map.get_mut(&range.start) {
            Some(interval) if interval.end == range.end => {
                interval.state.visit(range.clone(), new, label, view, log);
            }
            _ => {
                self.cover(&range);
                for (&start, interval) in self.map.range_mut(range.clone()) {
                    let piece = start..interval.end;
                    interval.state.visit(piece, new, label, view, log);
                }
            }
        }
        self.coalesce(&range);
    }

    /// Reports the touches of `range` that the host does not know complete: all of them, or only
    /// those through the alias of `shift`.
    pub(super) fn in_flight(
        &mut self,
        range: &Range<u64>,
        shift: Option<u64>,
        (what, address): (Retire, u64),
        host: &[u64],
        log: &mut Log,
    ) {
        if range.is_empty() {
            return;
        }
        let first = self.start_of_interval_at(range.start);
        let mut forgot = false;
        for (&start, interval) in self.map.range_mut(first..range.end) {
            let (start, end) = (start.max(range.start), interval.end.min(range.end));
            if start >= end {
                continue;
            }
            interval.state.marks.retain(|mark| {
                if known(host, mark) {
                    forgot = true;
                    return false;
                }
                if shift.is_none_or(|shift| shift == mark.shift) {
                    log.note(Hazard::InFlight {
                        what,
                        address,
                        touch: mark.touch(start),
                        bytes: end - start,
                    });
                }
                true
            });
        }
        if forgot {
            self.coalesce(range);
        }
    }

    /// The labels on the bytes of `range`, in order: a number of bytes each.
    pub(super) fn labels(&self, range: Range<u64>) -> Vec<(u64, Option<u64>)> {
        let mut labels = Vec::new();
        let mut at = range.start;
        let first = self.start_of_interval_at(range.start);
        for (&start, interval) in self.map.range(first..range.end) {
            let (start, end) = (start.max(range.start), interval.end.min(range.end));
            if start < end {
                labels.extend((at < start).then(|| (start - at, None)));
                let label = match interval.state.content {
                    Content::Written { label, .. } => label,
                    Content::NeverWritten => None,
                };
                labels.push((end - start, label));
                at = end;
            }
        }
        labels.extend((at < range.end).then(|| (range.end - at, None)));
        labels
    }

    /// Drops all history of `range`: its bytes are as if new.
    pub(super) fn forget(&mut self, range: &Range<u64>) {
        if range.is_empty() {
            return;
        }
        self.split(range.start);
        self.split(range.end);
        let mut keys = std::mem::take(&mut self.keys);
        keys.extend(self.map.range(range.clone()).map(|(&start, _)| start));
        for start in keys.drain(..) {
            self.map.remove(&start);
        }
        self.keys = keys;
    }

    /// Starts the history of `range`, which has none, with a mark that writes nothing.
    pub(super) fn begin(&mut self, range: &Range<u64>, mark: Mark) {
        if !range.is_empty() {
            let state = State { content: Content::NeverWritten, marks: vec![mark] };
            self.map.insert(range.start, Interval { end: range.end, state });
        }
    }

    /// The first byte of the interval that holds `at` or ends before it; else `at`.
    fn start_of_interval_at(&self, at: u64) -> u64 {
        let last = self.map.range(..=at).next_back();
        last.map_or(at, |(&start, _)| start)
    }

    /// Makes `at` a boundary, if an interval lies across it.
    fn split(&mut self, at: u64) {
        let Some((_, head)) = self.map.range_mut(..at).next_back() else {
            return;
        };
        if head.end > at {
            let tail = head.clone();
            head.end = at;
            self.map.insert(at, tail);
        }
    }

    /// Makes `range` a union of intervals.
    fn cover(&mut self, range: &Range<u64>) {
        self.split(range.start);
        self.split(range.end);
        let mut gaps = std::mem::take(&mut self.gaps);
        let mut at = range.start;
        for (&start, interval) in self.map.range(range.clone()) {
            if at < start {
                gaps.push(at..start);
            }
            at = interval.end;
        }
        if at < range.end {
            gaps.push(at..range.end);
        }
        for gap in gaps.drain(..) {
            let state = State::default();
            let interval = Interval { end: gap.end, state };
            self.map.insert(gap.start, interval);
        }
        self.gaps = gaps;
    }

    /// Joins equal neighbours in `range`, its neighbours on both sides included.
    fn coalesce(&mut self, range: &Range<u64>) {
        let first = match self.map.range(..range.start).next_back() {
            Some((&start, interval)) if interval.end >= range.start => start,
            _ => range.start,
        };
        let mut keys = std::mem::take(&mut self.keys);
        let mut run: Option<&mut Interval> = None;
        for (&start, interval) in self.map.range_mut(first..=range.end) {
            match &mut run {
                Some(head) if head.end == start && head.state == interval.state => {
                    head.end = interval.end;
                    keys.push(start);
                }
                _ => run = Some(interval),
            }
        }
        for start in keys.drain(..) {
            self.map.remove(&start);
        }
        self.keys = keys;
    }
}

impl State {
    /// Checks a touch of this interval, whose bytes are `piece`, and records it.
    fn visit(
        &mut self,
        piece: Range<u64>,
        new: Mark,
        label: Option<u64>,
        view: View<'_>,
        log: &mut Log,
    ) {
        let bytes = piece.end - piece.start;
        let write = new.access == Access::Write;
        if write {
            self.content = Content::Written { label, stream: new.stream, shift: new.shift };
        } else {
            self.check_content(&piece, new, label, log);
        }
        self.marks.retain(|old| {
            if known(view.host, old) {
                return false;
            }
            let ordered = view.ordered(old, &new);
            if !ordered && (write || old.access == Access::Write) {
                log.note(Hazard::Unordered {
                    earlier: old.touch(piece.start),
                    later: new.touch(piece.start),
                    bytes,
                });
            }
            let replaced =
                ordered && old.shift == new.shift && (write || old.access == Access::Read);
            !replaced
        });
        // No equal key is left: a mark of this stream, access and shift was ordered before the new
        // one and has just been replaced.
        let at = self.marks.partition_point(|old| old.key() < new.key());
        self.marks.insert(at, new);
    }

    /// Checks that a read finds what it expects.
    fn check_content(&self, piece: &Range<u64>, new: Mark, expected: Option<u64>, log: &mut Log) {
        let bytes = piece.end - piece.start;
        let reader = new.touch(piece.start);
        match (self.content, expected) {
            (Content::NeverWritten, _) => log.note(Hazard::NeverWritten { reader, bytes }),
            (Content::Written { label, stream, shift }, Some(expected))
                if label != Some(expected) =>
            {
                log.note(Hazard::StaleContent {
                    reader,
                    expected,
                    found: label,
                    writer: stream,
                    writer_address: piece.start.wrapping_add(shift),
                    bytes,
                })
            }
            _ => {}
        }
    }
}

#[cfg(test)]
impl History {
    /// How many intervals there are.
    pub(super) fn len(&self) -> usize {
        self.map.len()
    }

    /// Panics unless the invariants at the top of this file hold.
    pub(super) fn check_invariants(&self) {
        let mut at = 0;
        for (&start, interval) in &self.map {
            assert!(at <= start && start < interval.end, "intervals overlap");
            at = interval.end;
            let keys: Vec<_> = interval.state.marks.iter().map(Mark::key).collect();
            assert!(keys.is_sorted_by(|a, b| a < b), "marks out of order");
        }
        assert!(self.keys.is_empty() && self.gaps.is_empty());
    }
}
