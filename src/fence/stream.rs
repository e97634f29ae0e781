//! A stream's fence state and its row of known orderings.

use super::event::KNOWN;
use crate::block::{Fence, StreamId};
use crate::driver::{DeviceId, StreamHandle};
use crate::sync::{AtomicBool, AtomicU64, Ordering};
use crossbeam_utils::CachePadded;

/// Seals of one stream that may be pending at once.
#[cfg(not(loom))]
pub(crate) const SLOTS: usize = 8;
#[cfg(loom)]
pub(crate) const SLOTS: usize = 2;

/// A pending seal: `q:48 | event+1:16`. Zero is an empty slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Seal(pub u64);

impl Seal {
    const EVENT_BITS: u32 = 16;

    pub const fn new(q: u64, event: u32) -> Self {
        Self(q << Self::EVENT_BITS | (event as u64 + 1))
    }

    pub const fn q(self) -> u64 {
        self.0 >> Self::EVENT_BITS
    }

    /// `None` for an empty slot.
    pub const fn event(self) -> Option<u32> {
        ((self.0 & ((1 << Self::EVENT_BITS) - 1)) as u32).checked_sub(1)
    }
}

/// The stream's owner has let go of it.
const RETIRED: u64 = 1 << 63;
/// Nothing may be recorded on the handle, nor asked about it, nor made to wait for it: the stream
/// captures, or stands for the memory of a graph.
const BARRED: u64 = 1 << 62;

/// What the fence protocol keeps for a stream. Type-stable: an id's next stream goes on with it.
pub(crate) struct StreamFence {
    /// The number that work submitted now belongs to. Advanced by each seal, never reset: a later
    /// stream with this id continues it. Starts at 1, since 0 marks an open fence entry.
    pub q: CachePadded<AtomicU64>,
    /// All work with a number up to this is done, and somebody saw it.
    pub completed: AtomicU64,
    /// The stream ended and its last seal was made: nothing later can exist.
    pub ended: AtomicBool,
    /// Threads that are submitting to the handle right now, [`RETIRED`] and [`BARRED`]: the handle is
    /// destroyed by whoever finds the first flag set and nobody left.
    users: AtomicU64,
    /// Whether the pool made the handle, and so destroys it.
    owned: AtomicBool,
    /// Whether the handle stays valid until the pool has ended the stream.
    stays: AtomicBool,
    /// Whether it stands for the memory of a graph, and has no work of its own.
    graph: AtomicBool,
    /// A query answered neither done nor not-ready: nothing is ever taken as completed again.
    pub poisoned: AtomicBool,
    device: AtomicU64,
    handle: AtomicU64,
    /// Pending seals, in one cache line.
    pub slots: CachePadded<[AtomicU64; SLOTS]>,
    /// The last seal of a stream that ended: it finds its place however many are pending.
    pub last: AtomicU64,
    /// What this stream is ordered after; see [`note`].
    pub known: [AtomicU64; KNOWN],
}

impl Default for StreamFence {
    fn default() -> Self {
        Self {
            q: CachePadded::new(AtomicU64::new(1)),
            completed: AtomicU64::new(0),
            ended: AtomicBool::new(true),
            users: AtomicU64::new(RETIRED),
            owned: AtomicBool::new(false),
            stays: AtomicBool::new(false),
            graph: AtomicBool::new(false),
            poisoned: AtomicBool::new(false),
            device: AtomicU64::new(0),
            handle: AtomicU64::new(0),
            slots: CachePadded::new(std::array::from_fn(|_| AtomicU64::new(0))),
            last: AtomicU64::new(0),
            known: std::array::from_fn(|_| AtomicU64::new(0)),
        }
    }
}

impl StreamFence {
    pub fn device(&self) -> DeviceId {
        DeviceId(self.device.load(Ordering::Relaxed) as u16)
    }

    pub fn handle(&self) -> StreamHandle {
        StreamHandle(self.handle.load(Ordering::Relaxed))
    }

    /// The fence of all work that this stream, whose id is `id`, has been given so far.
    #[inline]
    pub fn stamp(&self, id: StreamId) -> Fence {
        // Relaxed: pairs with the seal's `fetch_add` through the driver's submission lock (see
        // the module's text).
        Fence::new(id, self.q.load(Ordering::Relaxed))
    }

    /// The number of an ended stream's last seal.
    pub fn last_seal(&self) -> u64 {
        self.q.load(Ordering::Relaxed) - 1
    }

    /// Whether the driver failed to answer about the stream.
    pub fn is_poisoned(&self) -> bool {
        self.poisoned.load(Ordering::Relaxed)
    }

    /// Whether its owner has let go of it.
    pub fn is_retired(&self) -> bool {
        // Acquire pairs with the release of `retire`.
        self.users.load(Ordering::Acquire) & RETIRED != 0
    }

    /// Whether its owner has let go of it and there is no last seal: it is just being ended, or the driver
    /// refused that.
    pub fn is_unfinished(&self) -> bool {
        // Acquire pairs with the release of `end`.
        self.is_retired() && !self.ended.load(Ordering::Acquire)
    }

    /// Whether the pool has to destroy the handle.
    pub fn is_owned(&self) -> bool {
        self.owned.load(Ordering::Relaxed)
    }

    /// Whether the handle is valid until the stream's end, however long that takes.
    pub fn handle_stays(&self) -> bool {
        self.stays.load(Ordering::Relaxed)
    }

    /// Gives the id to a stream. The caller holds the registration lock and the id is out of
    /// quarantine, so nobody reads these fields.
    pub fn bind(&self, device: DeviceId, handle: StreamHandle, owned: bool, stays: bool) {
        self.device.store(u64::from(device.0), Ordering::Relaxed);
        self.handle.store(handle.0, Ordering::Relaxed);
        self.owned.store(owned, Ordering::Relaxed);
        self.stays.store(stays, Ordering::Relaxed);
        self.graph.store(false, Ordering::Relaxed);
        self.poisoned.store(false, Ordering::Relaxed);
        self.ended.store(false, Ordering::Release);
        // Release pairs with the acquire of `enter`: whoever may use the handle sees it.
        self.users.store(0, Ordering::Release);
    }

    /// Keeps the handle alive, and free to be submitted to, until [`StreamFence::leave`]. False when the
    /// stream is retired or barred.
    pub fn enter(&self) -> bool {
        let mut users = self.users.load(Ordering::Acquire);
        while users & (RETIRED | BARRED) == 0 {
            let more = users + 1;
            match self.users.compare_exchange(users, more, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return true,
                Err(found) => users = found,
            }
        }
        false
    }

    /// True when the caller is the last user of a retired stream and must end it.
    #[must_use]
    pub fn leave(&self) -> bool {
        // AcqRel: the ender's destruction of the handle comes after everybody's use of it.
        self.users.fetch_sub(1, Ordering::AcqRel) & !BARRED == RETIRED + 1
    }

    /// No new users from now on. True when the caller must end the stream: nobody uses it.
    #[must_use]
    pub fn retire(&self) -> bool {
        self.users.fetch_or(RETIRED, Ordering::AcqRel) & !BARRED == 0
    }

    pub fn is_graph(&self) -> bool {
        self.graph.load(Ordering::Relaxed)
    }

    pub fn set_graph(&self, on: bool) {
        self.graph.store(on, Ordering::Relaxed);
    }

    /// Nobody submits to the handle from now on. False where it was so already. Who is about to submit
    /// may still do it, until [`StreamFence::is_quiet`].
    #[must_use]
    pub fn bar(&self) -> bool {
        // Acquire pairs with the release of `leave` and `unbar`; who enters later sees the flag.
        self.users.fetch_or(BARRED, Ordering::AcqRel) & BARRED == 0
    }

    /// The handle may be submitted to again.
    pub fn unbar(&self) {
        // Release pairs with the acquire of `enter`: what is submitted next comes after the capture.
        self.users.fetch_and(!BARRED, Ordering::AcqRel);
    }

    pub fn is_barred(&self) -> bool {
        // Acquire pairs with the release of `unbar`: what is asked next comes after the capture.
        self.users.load(Ordering::Acquire) & BARRED != 0
    }

    /// Whether no thread is submitting to the handle.
    pub fn is_quiet(&self) -> bool {
        // Acquire pairs with the release of `leave`: their submissions came before.
        self.users.load(Ordering::Acquire) & !(RETIRED | BARRED) == 0
    }

    /// The places where a pending seal may be.
    pub fn places(&self) -> impl Iterator<Item = &AtomicU64> {
        self.slots.iter().chain(std::iter::once(&self.last))
    }

    /// The pending seal with the smallest number that covers `q`.
    pub fn covering(&self, q: u64) -> Option<(&AtomicU64, Seal)> {
        let mut best: Option<(&AtomicU64, Seal)> = None;
        for slot in self.places() {
            // Acquire pairs with the release CAS that published the seal, after its record.
            let seal = Seal(slot.load(Ordering::Acquire));
            if seal.0 != 0 && seal.q() >= q && best.is_none_or(|(_, b)| seal.q() < b.q()) {
                best = Some((slot, seal));
            }
        }
        best
    }

    /// Whether this stream is known to run after the fence.
    pub fn knows(&self, fence: Fence) -> bool {
        // Acquire pairs with the release of `note`, which follows the submission of the stream
        // wait: work that we submit after reading it comes after that wait.
        let known = Fence(self.known[known_place(fence.stream())].load(Ordering::Acquire));
        known.stream() == fence.stream() && known.q() >= fence.q()
    }

    /// Writes down that this stream now runs after `fence`. The row is bounded and lossy: another
    /// stream's entry in the same place is overwritten. Forgetting costs a wait, never safety.
    pub fn note(&self, fence: Fence) {
        let entry = &self.known[known_place(fence.stream())];
        let mut seen = entry.load(Ordering::Relaxed);
        while Fence(seen).stream() != fence.stream() || Fence(seen).q() < fence.q() {
            match entry.compare_exchange(seen, fence.0, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return,
                Err(found) => seen = found,
            }
        }
    }
}

/// The place of a stream in rows of known orderings.
pub(super) fn known_place(stream: StreamId) -> usize {
    usize::from(stream.get()) % KNOWN
}
