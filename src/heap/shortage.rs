//! Where a device's memory is, for those who asked in vain.

use super::arena::Arena;
use crate::block::{Fence, State, StreamId};
use crate::error::StreamBytes;

/// What there is, in bytes, when a request cannot be served.
#[derive(Debug, Default)]
pub struct Shortage {
    /// Asked for and held by users.
    pub live: u64,
    /// Idle, in all.
    pub free: u64,
    /// Idle and in caches.
    pub cached: u64,
    /// The largest idle extent.
    pub largest_free: u64,
    /// Idle, and waiting for work in flight.
    pub in_flight: u64,
    /// Live blocks by the stream they were allocated on, the most first.
    pub held: Vec<StreamBytes>,
    /// Idle blocks by the streams they wait for, the most first.
    pub pending: Vec<StreamBytes>,
}

fn add(to: &mut Vec<StreamBytes>, stream: StreamId, bytes: u64) {
    match to.iter_mut().find(|entry| entry.stream == stream) {
        Some(entry) => entry.bytes += bytes,
        None => to.push(StreamBytes { stream, bytes }),
    }
}

impl Arena {
    /// Idle bytes that caches may still find.
    pub(super) fn cached_bytes(&self) -> u64 {
        let mut cached = 0;
        self.for_each_extent(|_, block| {
            if block.word().state() == State::Cached {
                cached += block.size();
            }
        });
        cached
    }

    /// Looks at every extent. What is cached is for the caller to say.
    pub(super) fn shortage(&self) -> Shortage {
        let mut shortage = Shortage { free: self.pages.spare_bytes(), ..Shortage::default() };
        self.for_each_extent(|_, block| {
            let (state, bytes) = (block.word().state(), block.size());
            match state {
                State::Live => {
                    shortage.live += block.requested();
                    add(&mut shortage.held, block.stream(), block.requested());
                }
                State::Free | State::Cached => {
                    shortage.free += bytes;
                    shortage.largest_free = shortage.largest_free.max(bytes);
                    let mut pending = false;
                    block.all_fences(|fence: Fence| {
                        if !self.fences.completed(fence) {
                            pending = true;
                            add(&mut shortage.pending, fence.stream(), bytes);
                        }
                        true
                    });
                    if pending {
                        shortage.in_flight += bytes;
                    }
                }
                State::Spare | State::Hole | State::Claimed => {}
            }
        });
        shortage.held.sort_by_key(|entry| std::cmp::Reverse(entry.bytes));
        shortage.pending.sort_by_key(|entry| std::cmp::Reverse(entry.bytes));
        shortage
    }
}
