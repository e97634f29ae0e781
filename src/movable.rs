//! Movable blocks, as users hold them: memory whose address is nobody's while it is not pinned.
//!
//! ```text
//! an address is given out by a pin, and good until the pin's end
//! a use is work submitted to the pin's stream meanwhile; the pin's end stamps it
//! a pin's stream runs after the copy that brought the block to where it is
//! ```

use crate::block::{Descriptor, Fence, State, StreamId};
use crate::core::{Core, Device, Grant, Handle};
use crate::driver::DeviceId;
use crate::error::{Error, Result};
use crate::fence::Asked;
use crate::slot::{Place, Slot};
use crate::stream::Stream;
use crate::sync::Arc;
use std::fmt;
use std::marker::PhantomData;

/// Device memory for `len` values of `T` that the pool may move, at [`Pool::step_gap`] only, while
/// nobody has it pinned. Freed when dropped, from any thread.
///
/// It has an address only while it is pinned, and uses are what is submitted to the pin's stream
/// meanwhile. Uses on different streams are the caller's to order, as for a [`crate::Buffer`]; they need
/// no declaration.
///
/// [`Pool::step_gap`]: crate::Pool::step_gap
pub struct Movable<T: Copy + 'static = u8> {
    core: Arc<Core>,
    device: Arc<Device>,
    slot: Arc<Slot>,
    len: usize,
    elements: PhantomData<fn() -> T>,
}

impl<T: Copy + 'static> Movable<T> {
    pub(crate) fn new(core: &Handle, device: &Arc<Device>, grant: Grant<'_>, len: usize) -> Self {
        let Grant { block, hint } = grant;
        // Every use is stamped when it ends. So far what used the memory is over, or in its stream.
        core.last_use(block, block.stream());
        let slot = Arc::new(Slot::new(Place { hint, ready: Fence::NONE }));
        device.movables.enroll(&slot, hint);
        Self { core: core.share(), device: Arc::clone(device), slot, len, elements: PhantomData }
    }

    /// Keeps the block where it is until the guard is dropped, and says where that is. Work submitted to
    /// `stream` until then may use the memory; dropping the guard ends the use. There may be several pins
    /// at once, on any streams and threads. Where the block has been moved, `stream` runs after the copy:
    /// it is made to wait where that is not known to be so already. A graph that the stream begins to
    /// capture meanwhile keeps the address: then the pin is to last as long as the graph is launched.
    ///
    /// Lock-free unless this very block is just being moved, but for what the driver locks. A guard that
    /// is forgotten rather than dropped keeps the memory for good.
    ///
    /// # Errors
    /// [`Error::ForeignStream`] when the stream belongs to another pool; [`Error::Capturing`];
    /// [`Error::CannotWait`]; [`Error::NotAllocated`] when the memory was freed by its address;
    /// [`Error::Forked`]; or a driver error.
    pub fn pin(&self, stream: &Stream) -> Result<Pinned<'_, T>> {
        self.core.check_process()?;
        if !stream.is_of(&self.core) {
            return Err(Error::ForeignStream { stream: stream.id() });
        }
        stream.check_capture()?;
        let place = self.slot.pin();
        let pinned = self.block(place).and_then(|block| {
            self.order(stream.id(), place.ready)?;
            Ok(block.address())
        });
        match pinned {
            Ok(address) => Ok(Pinned { movable: self, place, address, stream: stream.id() }),
            Err(error) => {
                self.slot.unpin();
                Err(error)
            }
        }
    }

    /// The pinned block, if it was not freed by its address.
    fn block(&self, place: Place) -> Result<&Descriptor> {
        let block = self.device.blocks.at(place.hint.index());
        let word = block.word();
        if word.matches(place.hint) && word.state() == State::Live {
            Ok(block)
        } else {
            Err(Error::NotAllocated { address: block.address() })
        }
    }

    /// Makes a stream run after a copy: known to already, or the copy is over, or by a wait.
    fn order(&self, stream: StreamId, ready: Fence) -> Result<()> {
        let fences = &self.core.fences;
        if ready.is_none()
            || fences.ordered(stream, ready)
            || Asked::default().ask(fences, ready)
            || fences.wait(stream, ready)?
        {
            return Ok(());
        }
        Err(Error::CannotWait { stream, other: ready.stream() })
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it holds no element. Never true: it has at least one byte.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Bytes asked for.
    pub fn bytes(&self) -> u64 {
        self.len as u64 * size_of::<T>() as u64
    }

    /// The device that the memory is on.
    pub fn device(&self) -> DeviceId {
        self.device.id
    }
}

impl<T: Copy + 'static> Drop for Movable<T> {
    fn drop(&mut self) {
        if self.core.is_forked() {
            return self.core.leak();
        }
        // Where it is being moved, the mover frees it.
        let Some(Place { hint, .. }) = self.slot.let_go() else { return };
        let block = self.device.blocks.at(hint.index());
        // Used by its own stream alone, it is freed like any block of that stream's.
        let own = |fence: Fence| fence.stream() == block.stream();
        if block.word().matches(hint) && block.single_fence().is_some_and(own) {
            block.end_uses();
        }
        self.core.free(&self.device, Grant { block, hint });
    }
}

impl<T: Copy + 'static> fmt::Debug for Movable<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Movable")
            .field("bytes", &self.bytes())
            .field("device", &self.device.id.0)
            .finish_non_exhaustive()
    }
}

/// A movable block that stays where it is, for work of one stream, until this is dropped.
pub struct Pinned<'a, T: Copy + 'static = u8> {
    movable: &'a Movable<T>,
    place: Place,
    address: u64,
    stream: StreamId,
}

impl<T: Copy + 'static> Pinned<'_, T> {
    /// The device address, aligned to 512 bytes: good until the guard is dropped.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.movable.len
    }

    /// Whether it holds no element. Never true.
    pub fn is_empty(&self) -> bool {
        self.movable.is_empty()
    }

    /// Bytes asked for.
    pub fn bytes(&self) -> u64 {
        self.movable.bytes()
    }

    /// The stream whose work may use it.
    pub fn stream(&self) -> StreamId {
        self.stream
    }

    /// Where the address is kept.
    #[cfg(feature = "cuda")]
    pub(crate) fn address_ref(&self) -> &u64 {
        &self.address
    }
}

impl<T: Copy + 'static> Drop for Pinned<'_, T> {
    fn drop(&mut self) {
        let Movable { core, slot, .. } = self.movable;
        if core.is_forked() {
            return;
        }
        // Before the pin ends: who moves or frees the block then sees the use.
        if let Ok(block) = self.movable.block(self.place) {
            core.last_use(block, self.stream);
        }
        slot.unpin();
    }
}

impl<T: Copy + 'static> fmt::Debug for Pinned<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pinned")
            .field("address", &format_args!("{:#x}", self.address))
            .field("bytes", &self.bytes())
            .field("stream", &self.stream.get())
            .finish()
    }
}
