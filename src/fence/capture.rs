//! Streams that capture, and the memory of graphs.
//!
//! What is submitted to a capturing stream becomes part of a graph, so the protocol leaves it alone:
//! it is *barred*. Nothing is recorded on it, it waits for nothing, and its seals are not asked about;
//! its stamps go on, and the first seal after the capture covers them.
//!
//! The memory of a graph belongs to a stream of its own that is given no work, and is barred for
//! life: what was freed in the capture serves the capture again, as memory of the same stream, and
//! nobody else. When the graph is gone its last work may still run, on whatever streams of its devices it
//! was launched. So the memory's stream is made to wait for all work of all of these, and then ends like
//! any other: its last seal completes when they have.

use super::Fences;
use crate::block::StreamId;
use crate::driver::DeviceId;
use crate::sync::{AtomicU32, Ordering, yield_now};

impl Fences {
    /// Leaves a stream alone, as its capture begins. False where it captures already. Waits for threads
    /// that are about to submit to it: each makes a call of the driver, at most two.
    pub fn begin_capture(&self, id: StreamId) -> bool {
        let stream = self.stream(id);
        if !stream.bar() {
            return false;
        }
        // Release pairs with the acquire of `is_capturing`.
        self.captures_on(self.device(id)).fetch_add(1, Ordering::AcqRel);
        while !stream.is_quiet() {
            yield_now();
        }
        true
    }

    /// The stream's capture is over.
    pub fn end_capture(&self, id: StreamId) {
        self.stream(id).unbar();
        // Release pairs with the acquire of `is_capturing`: what goes back then goes back after the capture.
        self.captures_on(self.device(id)).fetch_sub(1, Ordering::AcqRel);
    }

    /// Whether a stream of the device captures.
    pub fn is_capturing(&self, device: DeviceId) -> bool {
        // Acquire pairs with the releases in `begin_capture` and `end_capture`.
        self.captures_on(device).load(Ordering::Acquire) > 0
    }

    fn captures_on(&self, device: DeviceId) -> &AtomicU32 {
        &self.captures[usize::from(device.0)]
    }

    /// The stream, which is fresh, stands for the memory of a graph.
    pub fn devote_to_graph(&self, id: StreamId) {
        let stream = self.stream(id);
        stream.set_graph(true);
        let fresh = stream.bar();
        debug_assert!(fresh);
    }

    /// The graph's launches were on streams of these devices; without this call, of its own.
    pub fn graph_ran_on(&self, id: StreamId, devices: &[DeviceId]) {
        self.registry.set_launchers(id, devices);
    }

    /// Makes a graph's stream, which ends, wait for all work that any stream of the graph's devices has
    /// been given so far; then it is a stream like any other. False where that is not possible now. The
    /// caller is alone with its handle.
    pub(super) fn follow_all(&self, id: StreamId) -> bool {
        let devices = self.registry.launchers(id).unwrap_or_else(|| [self.device(id)].into());
        let launches = |other| devices.contains(&self.device(other));
        let follows = self.ids().filter(|&other| other != id && launches(other)).all(|other| {
            let stream = self.stream(other);
            if stream.is_graph() {
                // No work of its own.
                return true;
            }
            // A capturing stream may have launched the graph before: not now.
            matches!(self.wait_alone(id, stream.stamp(other)), Ok(true))
        });
        if follows {
            self.stream(id).unbar();
            self.registry.forget_launchers(id);
        }
        follows
    }
}
