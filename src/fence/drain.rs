//! Whether devices have done all that they were given.
//!
//! For driver calls that wait for a device by themselves, and without a limit.

use super::Fences;
use crate::block::{Fence, StreamId};
use crate::driver::{DeviceId, Driver};
use std::time::{Duration, Instant};

impl Fences {
    /// Waits on the host until all streams of some devices have done what they were given so far, at
    /// most for `patience`. An error is the first fence that was waited for in vain.
    pub fn drain(&self, devices: &[DeviceId], patience: Duration) -> Result<(), Fence> {
        let deadline = Instant::now() + patience;
        self.finish_streams();
        // What stands for a graph's memory has no work, and nobody can say that it is done.
        let works = |id| !self.stream(id).is_graph() || self.has_ended(id);
        let mut streams = self.ids().filter(|&id| devices.contains(&self.device(id)) && works(id));
        streams.try_for_each(|id| {
            let fence = self.effective(self.stamp(id));
            if self.has_done(id, fence, deadline) { Ok(()) } else { Err(fence) }
        })
    }

    /// Whether a stream has come to a fence of its own. Also of a stream whose memory stays away from
    /// others, since the driver failed to answer about it, the driver is asked again; where it gives no
    /// answer at all the stream is passed over: such a driver answers other calls with errors too.
    fn has_done(&self, id: StreamId, fence: Fence, deadline: Instant) -> bool {
        let left = || deadline.saturating_duration_since(Instant::now());
        let stream = self.stream(id);
        // Everything twice, for a driver that fails once.
        let seal = || self.seal(fence).or_else(|_| self.seal(fence));
        let sealed = match seal() {
            // Pending seals hold all the slots.
            Ok(false) if matches!(self.settle_oldest(id, Some(left())), Ok(true)) => seal(),
            sealed => sealed,
        };
        if sealed.is_err() || self.completed(fence) {
            return true;
        }
        let Some((slot, seal)) = stream.covering(fence.q()) else { return stream.is_unfinished() };
        let Some(row) = seal.event().and_then(|event| self.events(stream).row(event)) else {
            return false;
        };
        let ask = || match self.driver.query(stream.device(), row.handle()) {
            Ok(false) => self.driver.synchronize(stream.device(), row.handle(), left()),
            answer => answer,
        };
        let answer = ask().or_else(|_| ask());
        if answer == Ok(true) && !stream.is_poisoned() {
            self.settle(stream, slot, seal);
        }
        answer.unwrap_or(true)
    }
}
