//! The invariants of the fence protocol, checked: for tests. Nobody else uses it meanwhile.

use super::event::KNOWN;
use super::stream::{Seal, StreamFence};
use super::{Fences, known_place};
use crate::block::{Fence, StreamId};
use crate::driver::DeviceId;
use crate::sync::{AtomicU64, Ordering, lock};
use std::collections::HashMap;

/// What the last check saw of each stream id: its number, and what was completed.
pub(super) type Seen = HashMap<StreamId, (u64, u64)>;

impl Fences {
    /// Every id that was ever given out.
    pub fn ids(&self) -> impl Iterator<Item = StreamId> {
        (1..=self.registry.top()).map(StreamId)
    }

    /// A stamp names a stream there is, and a number it has come to.
    pub fn check_fence(&self, fence: Fence) {
        assert!(fence.stream().get() <= self.registry.top(), "{fence:?} is of no stream");
        let q = self.stream(fence.stream()).q.load(Ordering::Relaxed);
        assert!(fence.q() <= q, "{fence:?} is to come: the stream is at {q}");
    }

    /// Checks the invariants on top of [`super`]; panics with what is wrong.
    pub fn check(&self) {
        for (device, events) in (0..).map(DeviceId).zip(&self.events) {
            let mut held = events.free_rows();
            for stream in self.ids().map(|id| self.stream(id)).filter(|s| s.device() == device) {
                held.extend(stream.places().filter_map(|slot| seal(slot).event()));
            }
            held.sort_unstable();
            let all: Vec<u32> = (0..events.made()).collect();
            assert_eq!(held, all, "an event of {device} is in two places, or in none");
        }
        let mut seen = lock(&self.seen);
        for id in self.ids() {
            let stream = self.stream(id);
            let q = stream.q.load(Ordering::Relaxed);
            let completed = stream.completed.load(Ordering::Relaxed);
            assert!(completed < q, "{id} has completed {completed} and is at {q}");
            for slot in stream.places().filter(|slot| seal(slot).event().is_some()) {
                assert!(seal(slot).q() < q, "{id} is at {q} and has {:?}", seal(slot));
                let event = seal(slot).event().and_then(|at| self.events(stream).row(at));
                self.check_known(id, &event.expect("an event in a slot").snapshot);
            }
            self.check_known(id, &stream.known);
            self.check_end(id, stream);
            let (q_then, completed_then) = seen.insert(id, (q, completed)).unwrap_or_default();
            assert!(q >= q_then && completed >= completed_then, "{id} went back");
        }
    }

    /// What a stream runs after: seals that were made, of others, each in its place.
    fn check_known(&self, id: StreamId, known: &[AtomicU64; KNOWN]) {
        for (place, entry) in known.iter().enumerate() {
            let fence = Fence(entry.load(Ordering::Relaxed));
            if fence.is_none() {
                continue;
            }
            let theirs = self.stream(fence.stream()).q.load(Ordering::Relaxed);
            assert_ne!(fence.stream(), id, "{id} is ordered after itself");
            assert_eq!(known_place(fence.stream()), place, "{id} knows {fence:?}");
            assert!(fence.q() < theirs, "{id} knows {fence:?}, which is at {theirs}");
        }
    }

    /// A stream that has not ended has no last seal, unless its id's earlier stream is still known
    /// by one.
    fn check_end(&self, id: StreamId, stream: &StreamFence) {
        let last = seal(&stream.last);
        if stream.ended.load(Ordering::Relaxed) && last.event().is_some() {
            assert_eq!(last.q(), stream.last_seal(), "the last seal of {id}");
        }
    }
}

fn seal(slot: &AtomicU64) -> Seal {
    Seal(slot.load(Ordering::Relaxed))
}
