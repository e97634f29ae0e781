//! Where a device's memory is, for those who asked in vain.

use super::arena::{Arena, Denied, Request};
use crate::block::{Descriptor, State, StreamId, Word};
use crate::config::{BUCKETS, Bucket};
use crate::error::{LimitedBy, OutOfMemory, StreamBytes};

fn add(to: &mut Vec<StreamBytes>, stream: StreamId, bytes: u64) {
    match to.iter_mut().find(|entry| entry.stream == stream) {
        Some(entry) => entry.bytes += bytes,
        None => to.push(StreamBytes { stream, bytes }),
    }
}

/// What lies in a device's blocks.
#[derive(Clone, Copy, Debug, Default)]
pub struct Held {
    /// Requested bytes that users hold.
    pub live: u64,
    /// Bytes in caches, by bucket.
    pub cached: [u64; BUCKETS],
}

impl Arena {
    /// A walk over all blocks.
    pub fn held(&self) -> Held {
        let mut held = Held::default();
        let mut each = |_, block: &Descriptor| {
            if block.word().state() == State::Cached {
                held.cached[Bucket::of(block.size()) as usize] += block.size();
            }
        };
        self.for_each_extent(&mut each);
        self.for_each_apart(each);
        self.for_each_held(|block| held.live += block.requested());
        held
    }

    /// Bytes of large blocks that users hold, but for those in chunks and in plans' ranges.
    pub fn large_extents(&self) -> u64 {
        let mut bytes = 0;
        self.for_each_extent(|_, block| {
            if block.word().state() == State::Live && block.is_large_extent() {
                bytes += block.size();
            }
        });
        bytes
    }

    /// Idle bytes that caches may still find.
    pub(super) fn cached_bytes(&self) -> u64 {
        let mut cached = 0;
        let mut each = |_, block: &Descriptor| {
            if block.word().state() == State::Cached {
                cached += block.size();
            }
        };
        self.for_each_extent(&mut each);
        self.for_each_apart(each);
        cached
    }

    /// The out-of-memory answer as things stand; `cached` is what lay in caches when the request came.
    pub(super) fn out_of_memory(&self, request: Request, cached: u64) -> Denied {
        let mut report = OutOfMemory {
            device: self.supply.device,
            stream: request.stream,
            requested: request.requested,
            live: 0,
            reserved: self.supply.reserved(),
            limit: self.supply.limit(),
            limited_by: match self.supply.is_exhausted() {
                true => LimitedBy::Driver,
                false => self.settings.limited_by,
            },
            free: self.pages.spare_bytes(),
            cached,
            largest_free: 0,
            in_flight: 0,
            held: Vec::new(),
            pending: Vec::new(),
        };
        self.for_each_chunk(|chunk| {
            report.free += chunk.free_bytes();
            report.largest_free = report.largest_free.max(chunk.free_bytes());
            let stamp = chunk.stamp();
            if !stamp.is_none() && !self.fences.completed(stamp) {
                report.in_flight += chunk.free_bytes();
                add(&mut report.pending, stamp.stream(), chunk.free_bytes());
            }
        });
        let mut each = |_, block: &Descriptor| {
            let (state, bytes) = (block.word().state(), block.size());
            match state {
                // Counted with its chunk.
                State::Free if block.word().has(Word::APART) => {}
                State::Free | State::Cached => {
                    report.free += bytes;
                    report.largest_free = report.largest_free.max(bytes);
                    let mut pending = false;
                    block.for_each_fence(|fence| {
                        if !self.fences.completed(fence) {
                            pending = true;
                            add(&mut report.pending, fence.stream(), bytes);
                        }
                    });
                    if pending {
                        report.in_flight += bytes;
                    }
                }
                State::Live | State::Spare | State::Hole | State::Claimed | State::Chunk => {}
            }
        };
        self.for_each_extent(&mut each);
        self.for_each_apart(each);
        self.for_each_held(|block| {
            report.live += block.requested();
            add(&mut report.held, block.stream(), block.requested());
        });
        for list in [&mut report.held, &mut report.pending] {
            list.sort_by_key(|entry| std::cmp::Reverse(entry.bytes));
        }
        Denied::OutOfMemory(Box::new(report))
    }
}
