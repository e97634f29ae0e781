//! The arena: the part of a heap that one thread enters at a time, and the order in which a miss
//! looks for memory.

use super::apart::Apart;
use super::extent::{Links, List};
use super::fit::Effort;
use super::gauge::Gauge;
use super::index::Index;
use super::pages::Pages;
use super::plain::Plain;
use super::plan::{Bound, Survey};
use super::supply::Supply;
use super::waiting::Keeping;
use super::{ADDRESSES, Blocks};
use crate::block::{Descriptor, State, StreamId, Word};
use crate::config::{Reuse, Settings};
use crate::driver::{DeviceId, Driver, DriverError};
use crate::error::OutOfMemory;
use crate::fence::{Asked, Fences};
use crate::recycle::Recycler;
use crate::size;
use crate::sync::Arc;

/// A part of the address space with its own extents, or another view of all of it. Small and large
/// blocks share none while there is other memory.
pub(super) struct Region {
    pub first: u32,
    /// Bytes with memory behind them.
    pub backed: u64,
    free: Index,
    cached: Index,
    holes: Index,
}

impl Region {
    /// The index of one of the region's lists.
    pub fn index(&self, list: List) -> &Index {
        match list {
            List::Free | List::None => &self.free,
            List::Cached => &self.cached,
            List::Holes => &self.holes,
        }
    }

    /// The same, to be changed.
    pub fn list(&mut self, list: List) -> &mut Index {
        match list {
            List::Free | List::None => &mut self.free,
            List::Cached => &mut self.cached,
            List::Holes => &mut self.holes,
        }
    }
}

/// Small blocks' region, and the other.
pub(super) const SMALL: u8 = 0;
pub(super) const LARGE: u8 = 1;

pub struct Arena {
    pub(super) blocks: Arc<Blocks>,
    pub(super) fences: Arc<Fences>,
    pub(super) supply: Supply,
    /// Memory that is taken in pages.
    pub(super) pages: Pages,
    /// Or in segments.
    pub(super) plain: Option<Plain>,
    pub(super) links: Vec<Links>,
    /// Descriptors that describe nothing.
    pub(super) spares: Vec<u32>,
    /// Descriptors of places in plans' ranges.
    pub(super) planned: Vec<u32>,
    pub(super) regions: [Region; 2],
    /// What the buddy system has of it.
    pub(super) apart: Apart,
    /// Whether the memory that was handed out last waited for work not known to be over.
    pub(super) pending: bool,
    pub(super) settings: Settings,
    /// The stream whose miss is being served.
    pub(super) requester: Option<StreamId>,
    /// While notes are read or everything is merged: what the driver was asked in vain.
    pub(super) inquiry: Option<Asked>,
    /// The most bytes that were live when a request was stitched.
    pub(super) peak_live: u64,
    /// Misses until the watermarks count again.
    pub(super) until_relief: u32,
    /// What is left as it was freed.
    pub(super) keeping: Keeping,
    /// A survey's memory, kept for the next; and that of `merge_listed` and `read_notes`.
    pub(super) scratch: Survey,
    listed: Vec<(u64, u32)>,
    noted: Vec<u32>,
}

/// What a miss asks for.
#[derive(Clone, Copy)]
pub struct Request {
    pub stream: StreamId,
    /// Granted bytes.
    pub bytes: u64,
    pub requested: u64,
}

/// Why the arena has nothing to give.
#[derive(Debug)]
pub enum Denied {
    /// No memory for it, and where the memory is.
    OutOfMemory(Box<OutOfMemory>),
    /// A driver call failed.
    Driver(DriverError),
    /// All 2^24 descriptors describe something.
    Descriptors,
}

impl Arena {
    /// An arena over a fresh reservation, or over none.
    pub fn new(
        driver: Arc<dyn Driver>,
        device: DeviceId,
        blocks: Arc<Blocks>,
        fences: Arc<Fences>,
        gauge: Arc<Gauge>,
        layout: Layout,
        settings: Settings,
    ) -> Option<Self> {
        let base = blocks.base();
        let supply = Supply::new(driver, device, layout.limit, gauge);
        let pages = Pages::new(base, layout.page_bytes);
        let region = || Region {
            first: 0,
            backed: 0,
            free: Index::new(),
            cached: Index::new(),
            holes: Index::new(),
        };
        let mut arena = Self {
            blocks,
            fences,
            supply,
            pages,
            plain: None,
            links: vec![Links::default()],
            spares: Vec::new(),
            planned: Vec::new(),
            regions: [region(), region()],
            apart: Apart::default(),
            pending: false,
            settings,
            requester: None,
            inquiry: None,
            peak_live: 0,
            until_relief: 0,
            keeping: Keeping::new(Recycler::new(&settings)),
            scratch: Survey::default(),
            listed: Vec::new(),
            noted: Vec::new(),
        };
        let (small, large) = match layout.addresses {
            Addresses::Reserved { small, large } => ((base, small), (base + small, large)),
            Addresses::Drivers => {
                arena.plain = Some(Plain::default());
                ((0, ADDRESSES), (0, ADDRESSES))
            }
        };
        arena.regions[0].first = arena.describe_region(SMALL, small.0, small.1)?;
        arena.regions[1].first = arena.describe_region(LARGE, large.0, large.1)?;
        Some(arena)
    }

    /// Makes memory accessible to these devices, this one among them. Before the first allocation.
    pub fn set_access(&mut self, devices: Box<[DeviceId]>) {
        self.supply.access = devices;
    }

    /// Serves a miss: a live block, its descriptor's index and word.
    pub fn allocate(&mut self, request: Request) -> Result<(u32, Word), Denied> {
        let before = self.supply.reserved();
        let outcome = self.climb(request);
        if !size::is_small(request.bytes) {
            self.grow_beyond(before);
        }
        self.relieve();
        outcome
    }

    /// The ladder, least harm first: what is idle, neighbours merged, and known to be ordered before
    /// the stream's next work; the same once fences were asked about; new pages within the headroom,
    /// then pages of idle extents elsewhere; what a stream wait makes usable; new pages up to the
    /// limit; and the last resorts.
    pub(super) fn climb(&mut self, request: Request) -> Result<(u32, Word), Denied> {
        let region = if size::is_small(request.bytes) { SMALL } else { LARGE };
        if request.bytes > self.supply.limit() {
            // Nothing on the way could help.
            return Err(self.out_of_memory(request, self.cached_bytes()));
        }
        self.requester = Some(request.stream);
        self.supply.forgive();
        self.inquiry = self.new_inquiry();
        self.read_notes();
        self.recycle();
        self.inquiry = None;
        if let Some(taken) = self.fit(region, request, Effort::Known)? {
            return Ok(taken);
        }
        if region == SMALL
            && self.may_spread()
            && let Some(taken) = self.grow(region, request, Effort::Uncached, Bound::Budget)?
        {
            return Ok(taken);
        }
        // Chunks of which nothing is used any more.
        if self.tidy_chunks(self.settings.reuse != Reuse::SameStream)
            && let Some(taken) = self.fit(region, request, Effort::Known)?
        {
            return Ok(taken);
        }
        // Small blocks leave no notes, and large ones that came and went since theirs was read may
        // have got free neighbours: before more is done, everything is merged.
        let merges = self.merges_now();
        let merged = merges && self.merge(region);
        if merged && let Some(taken) = self.fit(region, request, Effort::Known)? {
            return Ok(taken);
        }
        let ask = match self.settings.reuse {
            Reuse::SameStream => Effort::Known,
            Reuse::Completed | Reuse::Wait => Effort::Ask,
        };
        if ask == Effort::Ask
            && let Some(taken) = self.fit(region, request, Effort::Ask)?
        {
            return Ok(taken);
        }
        if let Some(taken) = self.grow(region, request, ask, Bound::Budget)? {
            return Ok(taken);
        }
        // What was left whole gives way before anybody waits, or more memory is taken.
        let mut unmerged = !merges;
        while std::mem::take(&mut unmerged) && self.merge(region) || self.evict(request) {
            if let Some(taken) = self.fit(region, request, ask)? {
                return Ok(taken);
            }
            if let Some(taken) = self.grow(region, request, ask, Bound::Budget)? {
                return Ok(taken);
            }
        }
        if self.settings.reuse == Reuse::Wait {
            if let Some(taken) = self.fit(region, request, Effort::Wait)? {
                return Ok(taken);
            }
            if let Some(taken) = self.grow(region, request, Effort::Wait, Bound::Budget)? {
                return Ok(taken);
            }
        }
        if let Some(taken) = self.grow(region, request, ask, Bound::Limit)? {
            return Ok(taken);
        }
        self.reclaim_for(region, request)
    }

    /// Policy `SameStream` asks the driver nothing.
    pub(super) fn new_inquiry(&self) -> Option<Asked> {
        (self.settings.reuse != Reuse::SameStream).then(Asked::default)
    }

    /// Brings the index up to date with what was freed since the arena last looked: merged with a
    /// free neighbour, or else listed as it is, so that its own stream may still find it.
    pub(super) fn read_notes(&mut self) {
        self.look_at_clock();
        let mut noted = std::mem::take(&mut self.noted);
        let mut index = self.blocks.take_notes();
        while index != 0 {
            noted.push(index);
            index = self.block(index).note.load(crate::sync::Ordering::Relaxed);
        }
        if self.keeps() {
            // The last note comes first, and what waits is to do so in the order of the frees.
            noted.reverse();
        }
        for index in noted.drain(..) {
            let block = self.block(index);
            match block.word().state() {
                // Merged away before its note was read: only now may it be reused.
                State::Spare => {
                    block.set_indexed(false);
                    self.spares.push(index);
                }
                State::Free | State::Hole | State::Chunk => block.set_indexed(false),
                State::Cached | State::Live | State::Claimed => {
                    if !block.forget_if_taken() {
                        self.take_in(index);
                    }
                }
            }
        }
        self.noted = noted;
    }

    /// Merges what may be merged before a miss goes on. Says whether anything changed.
    fn merge(&mut self, region: u8) -> bool {
        self.in_a_pass(|arena| match region {
            SMALL => arena.merge_all(region),
            _ => arena.merge_listed(region),
        })
    }

    /// Takes a block that its user's side has claimed out of the index; its next free notes it.
    pub(super) fn forget(&mut self, index: u32) {
        if self.block(index).forget_if_taken() {
            let region = usize::from(self.links[index as usize].region);
            self.regions[region].list(List::Cached).remove(&mut self.links, index);
        }
    }

    /// Claims and merges every extent of a region that can be had. Says whether anything changed.
    pub(super) fn merge_all(&mut self, region: u8) -> bool {
        self.inquiry = self.new_inquiry();
        let mut changed = false;
        let mut index = self.regions[usize::from(region)].first;
        while index != 0 {
            index = match self.merge_one(index) {
                Some(merged) => {
                    changed = true;
                    merged
                }
                None => index,
            };
            index = self.links[index as usize].next;
        }
        self.inquiry = None;
        changed
    }

    /// As `merge_all` for the extents that the index lists: all that are idle, but for small blocks
    /// in caches and what was freed since the notes were read. Does not pass by live blocks.
    pub(super) fn merge_listed(&mut self, region: u8) -> bool {
        self.inquiry = self.new_inquiry();
        let mut changed = false;
        let mut listed = std::mem::take(&mut self.listed);
        let from = &self.regions[usize::from(region)];
        for list in [List::Free, List::Cached] {
            let each = |index| listed.push((self.block(index).address(), index));
            from.index(list).for_each(&self.links, each);
        }
        listed.sort_unstable();
        for &(address, index) in &listed {
            // Merged with the one before it already, it describes something else, or nothing.
            if self.block(index).address() == address {
                changed |= self.merge_one(index).is_some();
            }
        }
        listed.clear();
        self.listed = listed;
        self.inquiry = None;
        changed
    }

    /// Claims an extent that is cached, or free beside one that may be had, and merges it. Returns
    /// what it became.
    fn merge_one(&mut self, index: u32) -> Option<u32> {
        let seen = self.block(index).word();
        let worth = match seen.state() {
            State::Cached => self.merges_cached(),
            State::Free => self.has_mergeable_neighbour(index),
            _ => false,
        };
        (worth && self.claim(index, seen)).then(|| self.settle(index, State::Free))
    }

    /// Calls `each` with every extent of every region, in address order.
    pub(super) fn for_each_extent(&self, mut each: impl FnMut(u32, &Descriptor)) {
        for region in &self.regions {
            let mut index = region.first;
            while index != 0 {
                each(index, self.block(index));
                index = self.links[index as usize].next;
            }
        }
    }

    /// Host memory held, in bytes.
    pub fn bookkeeping(&self) -> u64 {
        (size_of::<Self>()
            + self.links.capacity() * size_of::<Links>()
            + self.spares.capacity() * size_of::<u32>()) as u64
            + self.apart.bytes()
            + self.keeping.recycler.as_ref().map_or(0, Recycler::heap_bytes)
            + self.pages.bytes()
            + self.plain.as_ref().map_or(0, |plain| plain.segments.bytes())
    }
}

/// Where a device's memory lies, and in what it is taken.
#[derive(Clone, Copy, Debug)]
pub struct Layout {
    /// Bytes of a page, or what those of a segment are a multiple of.
    pub page_bytes: u64,
    pub addresses: Addresses,
    /// Most physical bytes to take.
    pub limit: u64,
}

/// Who says where memory lies.
#[derive(Clone, Copy, Debug)]
pub enum Addresses {
    /// The pool: in a reservation with so many bytes for small blocks, and so many for large ones.
    Reserved { small: u64, large: u64 },
    /// The driver.
    Drivers,
}
