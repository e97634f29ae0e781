//! Where a device's memory is, for those who asked in vain.

use super::arena::{Arena, Denied, Request};
use crate::block::{State, StreamId};
use crate::error::{OutOfMemory, StreamBytes};

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

    /// The out-of-memory answer as things stand; `cached` is what lay in caches when the request came.
    pub(super) fn out_of_memory(&self, request: Request, cached: u64) -> Denied {
        let mut report = OutOfMemory {
            device: self.supply.device,
            stream: request.stream,
            requested: request.requested,
            live: 0,
            reserved: self.supply.reserved(),
            limit: self.supply.limit(),
            free: self.pages.spare_bytes(),
            cached,
            largest_free: 0,
            in_flight: 0,
            held: Vec::new(),
            pending: Vec::new(),
        };
        self.for_each_extent(|_, block| {
            let (state, bytes) = (block.word().state(), block.size());
            match state {
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
                State::Live | State::Spare | State::Hole | State::Claimed => {}
            }
        });
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
