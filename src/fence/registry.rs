//! Stream ids: given out, quarantined at the end, given out again.
//!
//! A driver reuses a destroyed stream's handle at once; the pool reuses an id only when all that its
//! last stream was given has completed. Then whatever fence still names the id is either completed
//! or made by its successor, whose numbers go on where the last ones ended.

use super::stream::Seal;
use super::{Fences, Sealed};
use crate::block::{Fence, StreamId};
use crate::driver::{DeviceId, Driver, StreamHandle};
use crate::sync::{Arc, Mutex, Ordering, lock};
use std::any::Any;

/// Who sees to a stream's handle once it has ended.
pub enum Owner {
    /// The pool, which made it, and destroys it.
    Pool,
    /// The caller, who keeps it valid until the pool has let go of the stream, and no longer.
    Caller,
    /// An object of the caller's, which the pool drops.
    #[cfg_attr(not(feature = "cuda"), allow(dead_code, reason = "backends with objects make it"))]
    Kept(Arc<dyn Any + Send + Sync>),
}

pub(super) struct Registry(Mutex<Ids>);

#[derive(Default)]
struct Ids {
    /// Largest id given out so far.
    top: u16,
    /// Ended streams with their last seal. An id stays with its device, since events do.
    quarantine: Vec<(DeviceId, Fence)>,
    /// Streams whose last seal the driver refused. Their handles are kept, to try again: without
    /// that seal nobody could tell when their work is done.
    unfinished: Vec<StreamId>,
    /// What keeps handles of the caller's alive.
    kept: Vec<(StreamId, Arc<dyn Any + Send + Sync>)>,
    /// Of streams that stand for graphs' memory: the devices whose streams may have launched the graph.
    launchers: Vec<(StreamId, Box<[DeviceId]>)>,
}

impl Registry {
    pub fn new() -> Self {
        Self(Mutex::new(Ids::default()))
    }

    /// The largest id given out so far.
    pub fn top(&self) -> u16 {
        lock(&self.0).top
    }

    pub fn set_launchers(&self, id: StreamId, devices: &[DeviceId]) {
        self.forget_launchers(id);
        lock(&self.0).launchers.push((id, devices.into()));
    }

    pub fn launchers(&self, id: StreamId) -> Option<Box<[DeviceId]>> {
        let ids = lock(&self.0);
        ids.launchers.iter().find(|(of, _)| *of == id).map(|(_, devices)| devices.clone())
    }

    pub fn forget_launchers(&self, id: StreamId) {
        lock(&self.0).launchers.retain(|(of, _)| *of != id);
    }
}

impl Fences {
    /// Gives a stream an id. `None` when 65,535 are taken. Takes a lock and may query the driver.
    pub fn register(
        &self,
        device: DeviceId,
        handle: StreamHandle,
        owner: Owner,
    ) -> Option<StreamId> {
        self.finish_streams();
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
        let stays = !matches!(owner, Owner::Caller);
        let owned = matches!(owner, Owner::Pool);
        self.stream(id).bind(device, handle, owned, stays);
        if let Owner::Kept(object) = owner {
            ids.kept.push((id, object));
        }
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
        // The last seal of the id's stream before is over, or the id would not have been given out. Who
        // saw that first may still be about to empty the place.
        let before = Seal(stream.last.load(Ordering::Acquire));
        if before.event().is_some() {
            self.settle(stream, &stream.last, before);
        }
        let last = std::slice::from_ref(&stream.last);
        let ready = !stream.is_graph() || self.follow_all(id);
        // Twice, for a driver that fails once.
        let sealed = ready
            && (0..2).any(|_| {
                matches!(self.record_seal(stream, last, |_, _| Ok(())), Ok(Sealed::Published))
            });
        if !sealed {
            // The handle of a stream that only its caller keeps is gone after this: then its memory stays
            // away from others for good.
            if stream.handle_stays() {
                lock(&self.registry.0).unfinished.push(id);
            }
            return;
        }
        // Release pairs with the acquire of `effective`.
        stream.ended.store(true, Ordering::Release);
        self.destroy_handle(id);
        let last = Fence::new(id, stream.last_seal());
        lock(&self.registry.0).quarantine.push((stream.device(), last));
    }

    fn destroy_handle(&self, id: StreamId) {
        let stream = self.stream(id);
        if stream.is_owned() {
            // Refused only by a driver that is going away; the handle goes with it.
            let _ = self.driver.destroy_stream(stream.device(), stream.handle());
            return;
        }
        let mut ids = lock(&self.registry.0);
        let kept = ids.kept.iter().position(|&(of, _)| of == id);
        let kept = kept.map(|at| ids.kept.swap_remove(at));
        drop(ids);
        // It may call the driver.
        drop(kept);
    }

    /// Tries again to end the streams whose last seal the driver refused.
    pub fn finish_streams(&self) {
        let unfinished = std::mem::take(&mut lock(&self.registry.0).unfinished);
        unfinished.into_iter().for_each(|id| self.end(id));
    }

    /// Destroys the handles of streams that could not be ended. The caller is the pool's last user.
    pub(super) fn abandon_streams(&self) {
        let unfinished = std::mem::take(&mut lock(&self.registry.0).unfinished);
        unfinished.into_iter().for_each(|id| self.destroy_handle(id));
    }
}
