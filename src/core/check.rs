//! The invariants of caches, checked: for tests.
//!
//! ```text
//! a hint whose tag is its block's      =>  the block is cached, and of the size it is filed under
//! one in a stream's cache or bins      =>  the block waits for that stream alone
//! where blocks may move, the gauge of large blocks' bytes is what users hold of them
//! ```

use super::{Core, Device, chunk_key};
use crate::block::{Hint, State, StreamId, Word};
use crate::level::Level;
use crate::size::{self, QUANTUM};
use crate::sync::lock;

impl Core {
    /// Checks the pool's invariants; panics with what is wrong. In a forked child there are none.
    pub fn check(&self, level: Level) {
        if self.is_forked() {
            return;
        }
        for device in &self.devices {
            lock(&device.arena).check(level);
        }
        if level >= Level::Full {
            self.fences.check();
            for device in self.devices.iter().filter(|device| device.movables.are_on()) {
                let held = lock(&device.arena).large_extents();
                assert_eq!(device.gauge.large(), held, "large blocks' bytes");
            }
            self.planners().for_each(|(device, planner)| planner.check(device));
            self.check_caches();
        }
    }

    fn check_caches(&self) {
        for device in &self.devices {
            device.shards.for_each(|key, hint| Self::check_hint(device, key, hint, None));
        }
        for stream in self.fences.ids() {
            let Ok(home) = self.device(self.fences.device(stream)) else { continue };
            if let Some(cache) = self.stream_cache(stream) {
                cache.for_each(|key, hint| Self::check_hint(home, key, hint, Some(stream)));
            }
        }
        for cache in &lock(&self.leases).all {
            // SAFETY: no other thread uses the pool, and this one is not between two steps of a call.
            unsafe {
                cache.for_each(|stream, fence, class, entry| {
                    let home = self.device(self.fences.device(stream)).expect("a stream's device");
                    let block = home.blocks.at(entry.hint.index());
                    assert!(std::ptr::eq(entry.block, block), "a bin of {stream} leads astray");
                    assert!(std::ptr::eq(fence, self.fences.stream(stream)), "bins of {stream}");
                    let key = size::class_bytes(class) / QUANTUM;
                    Self::check_hint(home, key, entry.hint, Some(stream));
                });
            }
        }
    }

    /// A hint that is filed under `key`, in something of `stream`'s or in a shard.
    fn check_hint(device: &Device, key: u64, hint: Hint, stream: Option<StreamId>) {
        let block = device.blocks.at(hint.index());
        let word = block.word();
        if !word.matches(hint) {
            return;
        }
        let index = hint.index();
        assert_eq!(word.state(), State::Cached, "{index} has a hint under {stream:?}");
        let apart = word.has(Word::APART);
        let size = if apart { chunk_key(block.size()) } else { block.size() / QUANTUM };
        assert_eq!(size, key, "{index} is filed under another size");
        if let Some(stream) = stream {
            let alone = block.all_fences(|fence| fence.stream() == stream);
            assert!(alone, "{index} is in a cache of {stream} and waits for others");
        }
    }
}
