//! One allocation from the buddy system.
//!
//! ```text
//! stream cache and shards, by exact size   lock-free, as for any block
//! the trees of the chunks                  lock-free where a block has started there before
//! the arena                                what is over goes back into the trees; a new chunk; as any other
//! ```

use super::allocate::Layer;
use super::{Core, Device, Enter, Grant};
use crate::block::StreamId;
use crate::config::Lifetime;
use crate::error::Result;
use crate::heap::{Arena, Request, Search};
use crate::lease::Lease;
use crate::size::QUANTUM;

/// The key under which hints to blocks in chunks are filed: apart from those of other blocks of the size.
pub(super) const fn chunk_key(bytes: u64) -> u64 {
    (bytes / QUANTUM) | (1 << 54)
}

impl Core {
    /// As `allocate`, for a block that is said to live so long.
    #[inline]
    pub fn allocate_as<'c>(
        &'c self,
        device: &'c Device,
        stream: StreamId,
        bytes: u64,
        lifetime: Lifetime,
        enter: Enter,
    ) -> Result<Grant<'c>> {
        match lifetime {
            Lifetime::Transient => self.allocate(device, stream, bytes, enter),
            Lifetime::Persistent => self.allocate_shared(device, stream, bytes, lifetime, enter),
        }
    }

    /// The size of the block where a request is the buddy system's.
    pub(super) fn chunked(
        &self,
        device: &Device,
        stream: StreamId,
        bytes: u64,
        lifetime: Lifetime,
    ) -> Option<u64> {
        let reserved = device.gauge.reserved();
        let granted = device.blocks.chunks.wants(bytes, lifetime, reserved)?;
        // What a graph takes is its own; a chunk would be many streams'.
        (!self.fences.stream(stream).is_graph()).then_some(granted)
    }

    /// A block of a chunk's.
    pub(super) fn find_apart<'c>(
        &'c self,
        lease: Option<&Lease>,
        device: &'c Device,
        request: Request,
        enter: Enter,
    ) -> Result<(Grant<'c>, Layer)> {
        let found = self.find_cached(lease, device, request.stream, chunk_key(request.bytes));
        let found = found.or_else(|| Some((self.find_in_chunks(device, request)?, Layer::Buddy)));
        Ok(match found {
            Some(found) => found,
            None => {
                let grant = self.take_from_arena(device, request, enter, Arena::allocate_apart)?;
                (grant, Layer::Heap)
            }
        })
    }

    /// Memory of a chunk that the stream is known to come after, at a start that has a descriptor.
    /// Lock-free.
    fn find_in_chunks<'c>(&'c self, device: &'c Device, request: Request) -> Option<Grant<'c>> {
        let known = |stamp| self.fences.ordered(request.stream, stamp);
        let place = device.blocks.chunks.claim(request.bytes, Search::Hinted, known)?;
        let Some(index) = place.start() else {
            // Who holds the arena makes one.
            place.release();
            return None;
        };
        let (block, word) = device.blocks.hand_out_apart(place, index, request);
        Some(Grant { block, hint: word.hint(index) })
    }
}
