//! The device's shared free list: blocks of any stream, each with its fence set.
//!
//! A block comes here when more than its own stream touched it, when its stream has ended, or when
//! its stream's cache has no room. The list is split into shards so that streams rarely meet: a
//! stream files under its own shard and looks there first, then in the others.

use crate::block::{Hint, StreamId};
use crate::cache::{HintCache, Probe};
use crossbeam_epoch::Guard;
use crossbeam_utils::CachePadded;

/// Two under loom, where each is searched in every interleaving.
const SHARDS: usize = if cfg!(loom) { 2 } else { 4 };

#[derive(Default)]
pub struct Shards {
    shards: [CachePadded<HintCache>; SHARDS],
}

impl Shards {
    /// The shards in the order in which `stream` visits them.
    fn order(&self, stream: StreamId) -> impl Iterator<Item = &HintCache> {
        let home = usize::from(stream.get());
        (0..SHARDS).map(move |step| &*self.shards[(home + step) % SHARDS])
    }

    /// Files a hint under its size in quanta, in the stream's shard or the next. False when neither has
    /// room. Lock-free.
    pub fn put(
        &self,
        stream: StreamId,
        key: u64,
        hint: Hint,
        stale: impl Fn(Hint) -> bool + Copy,
        guard: &Guard,
    ) -> bool {
        self.order(stream).take(2).any(|shard| shard.put(key, hint, stale, guard))
    }

    /// As [`Shards::put`], for blocks that the arena's index holds anyway. Lock-free.
    pub fn put_over(&self, stream: StreamId, key: u64, hint: Hint, guard: &Guard) -> bool {
        self.order(stream).any(|shard| shard.put_over(key, hint, guard))
    }

    /// Offers the hints of one size to `probe` until it takes one. Lock-free.
    pub fn take<R>(
        &self,
        stream: StreamId,
        key: u64,
        mut probe: impl FnMut(Hint) -> Probe<R>,
        guard: &Guard,
    ) -> Option<R> {
        self.order(stream).find_map(|shard| shard.take(key, &mut probe, guard))
    }

    /// Rebuilds the stream's home shard if it was crowded. Allocates: for misses only.
    pub fn make_room(&self, stream: StreamId, stale: impl Fn(Hint) -> bool, guard: &Guard) {
        if let Some(home) = self.order(stream).next() {
            home.make_room(stale, guard);
        }
    }

    /// Calls `each` with every key and hint: for tests.
    pub fn for_each(&self, mut each: impl FnMut(u64, Hint)) {
        self.shards.iter().for_each(|shard| shard.for_each(&mut each));
    }

    /// Host memory held, in bytes.
    pub fn bytes(&self) -> u64 {
        self.shards.iter().map(|shard| shard.bytes()).sum()
    }
}
