//! Stream ids: given out, quarantined at the end, given out again.
//!
//! A driver reuses a destroyed stream's handle at once; the pool reuses an id only when all that its
//! last stream was given has completed. Then whatever fence still names the id is either completed
//! or made by its successor, whose numbers go on where the last ones ended.

use super::{Fences, Sealed};
use crate::block::{Fence, StreamId};
use crate::driver::{DeviceId, StreamHandle};
use crate::sync::{Mutex, Ordering, lock};

pub(super) struct Registry(Mutex<Ids>);

#[derive(Default)]
struct Ids {
    /// Largest id given out so far.
    top: u16,
    /// Ended streams with their last seal. An id stays with its device, since events do.
    quarantine: Vec<(DeviceId, Fence)>,
}

impl Registry {
    pub fn new() -> Self {
        Self(Mutex::new(Ids::default()))
    }
}

impl Fences {
    /// Gives a stream an id. `None` when 65,535 are taken. Takes a lock and may query the driver.
    pub fn register(
        &self,
        device: DeviceId,
        handle: StreamHandle,
        owned: bool,
    ) -> Option<StreamId> {
        let mut ids = lock(&self.registry.0);
        let out = ids
            .quarantine
            .iter()
            .position(|&(on, last)| on == device && self.poll(last).unwrap_or(false));
        let id = match out {
            Some(index) => ids.quarantine.swap_remove(index).1.stream(),
            None => {
                let next = StreamId(ids.top.checked_add(1)?);
                self.streams.get_or_create(u32::from(next.0))?;
                ids.top = next.0;
                next
            }
        };
        self.stream(id).bind(device, handle, owned);
        Some(id)
    }

    /// Lets go of a stream. Once no thread is recording on it, it ends: a last seal covers all it
    /// was given, its handle is destroyed (if the pool made it), and its id is quarantined until
    /// the seal has completed.
    pub fn retire(&self, id: StreamId) {
        if self.stream(id).retire() {
            self.end(id);
        }
    }

    /// The caller is alone with the stream's handle.
    pub(super) fn end(&self, id: StreamId) {
        let stream = self.stream(id);
        let sealed = self.record_seal(stream, std::slice::from_ref(&stream.last), |_, _| Ok(()));
        // Release pairs with the acquire of `effective`.
        stream.ended.store(true, Ordering::Release);
        if stream.is_owned() {
            // Refused only by a driver that is going away; the handle goes with it.
            let _ = self.driver.destroy_stream(stream.device(), stream.handle());
        }
        // Without a last seal nobody can tell when the stream's work is done: the id is not used
        // again.
        if let Ok(Sealed::Published) = sealed {
            let last = Fence::new(id, stream.q.load(Ordering::Relaxed) - 1);
            lock(&self.registry.0).quarantine.push((stream.device(), last));
        }
    }
}
