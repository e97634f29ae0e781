//! Vector clocks: how much of every stream's work a point in the program comes after.
//!
//! A stream numbers its pieces of work 1, 2, 3, …. A clock has one component per stream; component
//! `t` at value `n` says: after works `1..=n` of stream `t`. Because a stream runs its work in
//! order, one number per stream is enough, and "is work `m` of `t` before this point?" is the
//! comparison `n >= m`.
//!
//! The component a stream has for itself moves at each submission, the others only when the stream
//! waits. They are kept apart, the own one beside the shared vector of the others, so that a
//! submission touches no vector and a snapshot costs one reference count. The vector is copied only
//! when a wait teaches something new to a stream whose last snapshot is still held.

use std::fmt;
use std::sync::Arc;

/// A stream, as the oracle knows it.
///
/// Keys are dealt in order of creation and never reused: a driver that gives a new stream the raw
/// handle of a destroyed one must not make the oracle take the two for one ordering domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StreamKey(pub u32);

impl StreamKey {
    pub(super) fn index(self) -> usize {
        self.0 as usize
    }
}

impl fmt::Display for StreamKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "stream {}", self.0)
    }
}

/// A snapshot of a stream's vector clock: what an event recorded at that moment stands for.
///
/// Opaque, immutable and cheap to clone. It means something only to the [`Oracle`](super::Oracle)
/// that made it.
#[derive(Clone, Debug)]
pub struct Clock {
    stream: StreamKey,
    own: u64,
    seen: Arc<Vec<u64>>,
}

impl Clock {
    /// A clock that comes after nothing.
    pub(super) fn empty(stream: StreamKey) -> Self {
        Clock { stream, own: 0, seen: Arc::default() }
    }

    /// Joins this clock into the plain vector `into`.
    pub(super) fn join_into(&self, into: &mut Vec<u64>) {
        join(into, &self.seen);
        raise(into, self.stream, self.own);
    }
}

/// A live stream's clock.
///
/// Invariant: `seen[own stream] <= own`, so joining a vector that has passed through other streams
/// and come back never adds to the own component.
#[derive(Clone, Debug, Default)]
pub(super) struct Timeline {
    own: u64,
    seen: Arc<Vec<u64>>,
}

impl Timeline {
    /// The number of the next piece of work, which is thereby submitted.
    pub(super) fn tick(&mut self) -> u64 {
        self.own = self.own.saturating_add(1);
        self.own
    }

    /// What the stream has come after so far, apart from its own work.
    pub(super) fn seen(&self) -> &[u64] {
        &self.seen
    }

    /// A snapshot, for the stream's key `stream`.
    pub(super) fn snapshot(&self, stream: StreamKey) -> Clock {
        Clock { stream, own: self.own, seen: Arc::clone(&self.seen) }
    }

    /// Orders the later work of this stream, whose key is `stream`, after `clock`.
    pub(super) fn join(&mut self, stream: StreamKey, clock: &Clock) {
        let other = clock.stream != stream && clock.own > component(&self.seen, clock.stream);
        let more = !Arc::ptr_eq(&self.seen, &clock.seen) && exceeds(&clock.seen, &self.seen);
        if other || more {
            let seen = Arc::make_mut(&mut self.seen);
            join(seen, &clock.seen);
            if other {
                raise(seen, clock.stream, clock.own);
            }
        }
    }

    /// Adds all that this stream, whose key is `stream`, has come after and been given to `into`.
    pub(super) fn join_into(&self, stream: StreamKey, into: &mut Vec<u64>) {
        join(into, &self.seen);
        raise(into, stream, self.own);
    }

    /// Takes `seen`, which must include what this stream has seen already.
    pub(super) fn adopt(&mut self, seen: &Arc<Vec<u64>>) {
        self.seen = Arc::clone(seen);
    }
}

/// The component of `stream` in `clock`: 0 where the vector is too short to have one.
pub(super) fn component(clock: &[u64], stream: StreamKey) -> u64 {
    clock.get(stream.index()).copied().unwrap_or(0)
}

/// Whether `a` has a component above `b`'s.
fn exceeds(a: &[u64], b: &[u64]) -> bool {
    let (common, rest) = a.split_at(a.len().min(b.len()));
    common.iter().zip(b).any(|(a, b)| a > b) || rest.iter().any(|&a| a > 0)
}

/// `into = max(into, from)`, component by component.
fn join(into: &mut Vec<u64>, from: &[u64]) {
    if into.len() < from.len() {
        into.resize(from.len(), 0);
    }
    for (into, &from) in into.iter_mut().zip(from) {
        *into = (*into).max(from);
    }
}

/// `into[stream] = max(into[stream], value)`; a value of 0 never lengthens the vector.
fn raise(into: &mut Vec<u64>, stream: StreamKey, value: u64) {
    if value <= component(into, stream) {
        return;
    }
    if into.len() <= stream.index() {
        into.resize(stream.index() + 1, 0);
    }
    into[stream.index()] = value;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_join_that_teaches_nothing_copies_nothing() {
        let (a, b) = (StreamKey(0), StreamKey(1));
        let (mut ta, mut tb) = (Timeline::default(), Timeline::default());
        ta.tick();
        tb.join(b, &ta.snapshot(a));
        let held = tb.snapshot(b);
        tb.tick();
        tb.join(b, &ta.snapshot(a));
        assert!(Arc::ptr_eq(&held.seen, &tb.seen));
        ta.tick();
        tb.join(b, &ta.snapshot(a));
        assert_eq!(component(tb.seen(), a), 2);
        assert_eq!(component(&held.seen, a), 1, "a snapshot never changes");
    }

    #[test]
    fn a_zero_component_of_a_huge_key_takes_no_room() {
        let mut v = Vec::new();
        raise(&mut v, StreamKey(u32::MAX), 0);
        assert!(v.is_empty());
        Clock::empty(StreamKey(u32::MAX)).join_into(&mut v);
        assert!(v.is_empty());
    }

    #[test]
    fn comparison_pads_with_zeros() {
        assert!(!exceeds(&[1, 0, 0], &[1]));
        assert!(exceeds(&[1, 0, 1], &[1]));
        assert!(!exceeds(&[], &[1]));
    }
}
