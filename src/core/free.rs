//! One free: the stamp, the state word, and where the hint goes.

use super::{Core, Device, Grant, chunk_key};
use crate::block::{Descriptor, Fence, State, StreamId, Word};
use crate::cache::thread::Entry;
use crate::error::{Error, Result};
use crate::lease::{self, Lease};
use crate::size::{self, QUANTUM};
use crate::sync::{Ordering, fence};

impl Core {
    /// Frees a block that its owner holds live and gives up. A small block of a stream that this
    /// thread keeps bins for ends here. Lock-free.
    #[inline(always)]
    pub fn free(&self, device: &Device, grant: Grant<'_>) {
        let owned = Word::live(grant.hint);
        if grant.block.word() == owned && self.free_to_thread(grant, owned) {
            return;
        }
        self.free_shared(device, grant);
    }

    /// The free's short way, for a block without flags that the caller owns.
    #[inline(always)]
    fn free_to_thread(&self, Grant { block, hint }: Grant<'_>, owned: Word) -> bool {
        if let Some(class) = block.class()
            && let Some(cache) = lease::last(self)
            // SAFETY: this thread holds the lease, and no other borrow of its sets is alive here.
            && let Some(set) = unsafe { cache.set(block.stream()) }
            && !self.closed.load(Ordering::Relaxed)
            // The hint is filed before it is good; only this thread looks there.
            && set.push(class, Entry { hint, block })
        {
            // SAFETY: the record is type-stable and lives as long as the core.
            block.stamp_own(unsafe { &*set.fence() }.stamp(block.stream()));
            block.release(owned);
            return true;
        }
        false
    }

    #[cold]
    #[inline(never)]
    fn free_shared(&self, device: &Device, grant: Grant<'_>) {
        if self.is_forked() {
            return;
        }
        // A thread without a lease keeps the core alive by itself until it is through.
        let lease = lease::get(self);
        let _alive = lease.is_none().then(|| self.share());
        let Grant { block, hint } = grant;
        let owned =
            |word: Word| word.matches(hint) && matches!(word.state(), State::Live | State::Claimed);
        let mut word = block.word();
        if !owned(word) {
            // A buffer whose block was freed by address: it is somebody else's now.
            return;
        }
        if let Some(recorder) = &device.recorder {
            recorder.freeing(hint);
        }
        if let Some(planner) = &device.planner {
            planner.freeing(block, hint);
        }
        let (stream, bytes) = (block.stream(), block.size());
        let counted = device.movables.are_on() && block.is_large_extent();
        let uses = word.has(Word::USES);
        if uses {
            block.stamp_open(|stream| self.fences.stamp(stream));
        } else {
            block.stamp_own(self.fences.stamp(stream));
        }
        // A large block is in the arena's index, or goes there by a note: exactly one is pushed for each time
        // the flag is set. So does one in a chunk, to a list of their own, and a small one where all are
        // to be noted. Nobody is told of a place in a plan's range: its plan looks at the word.
        let (apart, large) = (word.has(Word::APART), !size::is_small(bytes));
        let planned = word.has(Word::PLANNED);
        let noted = !planned && (apart || large || self.notes_all);
        loop {
            let flags = if noted { Word::INDEXED } else { 0 };
            let cached = word.with_state(State::Cached).without(Word::USES).with(flags);
            match block.exchange(word, cached) {
                Ok(()) => break,
                Err(found) if owned(found) => word = found,
                Err(_) => return,
            }
        }
        if noted && !word.has(Word::INDEXED) {
            match apart {
                true => device.blocks.note_apart(hint.index()),
                false => device.blocks.note(hint.index()),
            }
        }
        if lease.is_none() {
            // Pairs with the fence in `close`. A thread with a lease looks again when it ends it.
            fence(Ordering::SeqCst);
        }
        if self.closed.load(Ordering::Acquire) {
            self.settle_late_free();
            return;
        }
        if counted {
            device.gauge.large_freed(bytes);
        }
        if planned || self.uncached {
            return;
        }
        let own = !uses && !self.fences.has_ended(stream);
        let key = if apart { chunk_key(bytes) } else { bytes / QUANTUM };
        self.file(lease, device, Grant { block, hint }, stream, key, own);
    }

    /// Files the hint of a block that was just freed.
    fn file(
        &self,
        lease: Option<&Lease>,
        device: &Device,
        Grant { block, hint }: Grant<'_>,
        stream: StreamId,
        key: u64,
        own: bool,
    ) {
        let guard = lease::pin(lease);
        let cache = if own { self.stream_cache(stream) } else { None };
        if !size::is_small(key * QUANTUM) {
            let _ = cache.is_some_and(|cache| cache.put_over(key, hint, &guard))
                || device.shards.put_over(stream, key, hint, &guard);
            return;
        }
        let stale = |hint| device.blocks.is_stale(hint);
        if cache.is_some_and(|cache| cache.put(key, hint, stale, &guard))
            || device.shards.put(stream, key, hint, stale, &guard)
        {
            return;
        }
        // No room for a small block's hint: the arena gets a note instead, unless somebody has
        // found the block already.
        let word = block.word();
        if word.matches(hint)
            && word.state() == State::Cached
            && !word.has(Word::INDEXED)
            && block.exchange(word, word.with(Word::INDEXED)).is_ok()
        {
            device.blocks.note(hint.index());
        }
    }

    /// A use on another stream, until the free.
    pub fn record_use(&self, block: &Descriptor, stream: StreamId) {
        // The own stream's use lasts until the free anyway, unless `last_use` ended it before.
        if block.stream() != stream || block.word().has(Word::USES) {
            block.begin_uses();
            block.record_use(Fence::open(stream));
        }
    }

    /// A use that ends with what the stream has been given so far.
    pub fn last_use(&self, block: &Descriptor, stream: StreamId) {
        block.begin_uses();
        block.record_use(self.fences.stamp(stream));
    }

    /// Frees by address: claims the block first, so that of two frees one is told.
    #[inline]
    pub fn free_address(&self, address: u64) -> Result<()> {
        let (device, grant, mut word) = self.live_at(address)?;
        // Only flags can move while the block stays live under this tag, and at most twice.
        while let Err(found) = grant.block.exchange(word, word.with_state(State::Claimed)) {
            if !found.matches(grant.hint) || found.state() != State::Live {
                return Err(Error::NotAllocated { address });
            }
            word = found;
        }
        if !grant.block.is_raw() {
            self.stay();
        }
        let plain = word == Word::live(grant.hint);
        if !(plain && self.free_to_thread(grant, word)) {
            self.free_shared(device, grant);
        }
        Ok(())
    }

    /// The live block that starts at `address`.
    #[inline]
    pub fn live_at(&self, address: u64) -> Result<(&Device, Grant<'_>, Word)> {
        match self.device_at(address) {
            Some(device) => Self::live_on(device, address),
            None => self.live_anywhere(address),
        }
    }

    /// As `live_at` outside all reservations, where a driver may have put what it chose the address of.
    /// Devices that no longer have memory there may still know the address.
    #[cold]
    #[inline(never)]
    fn live_anywhere(&self, address: u64) -> Result<(&Device, Grant<'_>, Word)> {
        let mut outcome = Err(Error::UnknownAddress { address });
        for device in &self.devices {
            match Self::live_on(device, address) {
                Err(Error::UnknownAddress { .. }) => {}
                known => outcome = known,
            }
        }
        outcome
    }

    #[inline]
    fn live_on(device: &Device, address: u64) -> Result<(&Device, Grant<'_>, Word)> {
        let (index, block, word) =
            device.blocks.find(address).ok_or(Error::UnknownAddress { address })?;
        match word.state() {
            State::Live => Ok((device, Grant { block, hint: word.hint(index) }, word)),
            State::Cached | State::Claimed => Err(Error::NotAllocated { address }),
            State::Spare | State::Free | State::Hole | State::Chunk => {
                Err(Error::UnknownAddress { address })
            }
        }
    }
}
