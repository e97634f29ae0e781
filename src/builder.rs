//! What a pool is to be like, and how it is built.

use crate::config::{
    Buddy, Caching, Coalescing, Headroom, Preallocation, Recycling, Rescue, Reuse, Settings,
    Watermarks,
};
use crate::core::{Core, Device, Handle};
use crate::defrag::{Defragmentation, Movables, StepTiming};
use crate::driver::{Caught, DeviceId, Driver};
use crate::error::{Error, LimitedBy, OutOfMemory, Result};
use crate::fence::Fences;
use crate::fork;
use crate::heap::{Addresses, Arena, Blocks, Denied, Gauge, Layout};
use crate::planned::{Planner, Planning};
use crate::pool::Pool;
use crate::recorder::{Profiling, Recorder};
use crate::shard::Shards;
use crate::sync::{Arc, Mutex, on_each};
use std::time::Duration;

/// Sets up a [`Pool`].
#[derive(Clone, Debug)]
pub struct Builder {
    driver: Arc<dyn Driver>,
    settings: Settings,
    buddy: Buddy,
    headroom: Option<Headroom>,
    capacity: Option<u64>,
    capacities: Vec<(DeviceId, u64)>,
    share: Option<f64>,
    page_bytes: Option<u64>,
    peer_access: bool,
    peers: Vec<(DeviceId, Vec<DeviceId>)>,
    rescue: Option<Rescue>,
    defragmentation: Defragmentation,
    timing: StepTiming,
    profiling: Option<Profiling>,
    planning: Option<Planning>,
    /// The process that it was made in.
    process: u64,
}

impl Builder {
    pub(crate) fn new(driver: Arc<dyn Driver>) -> Self {
        fork::watch();
        Self {
            driver,
            settings: Settings::default(),
            buddy: Buddy::default(),
            headroom: None,
            capacity: None,
            capacities: Vec::new(),
            share: None,
            page_bytes: None,
            peer_access: false,
            peers: Vec::new(),
            rescue: None,
            defragmentation: Defragmentation::Off,
            timing: StepTiming::Measured,
            profiling: None,
            planning: None,
            process: fork::generation(),
        }
    }

    /// When memory that one stream freed may serve another. Default: [`Reuse::Wait`].
    #[must_use]
    pub fn reuse(mut self, reuse: Reuse) -> Self {
        self.settings.reuse = reuse;
        self
    }

    /// Which blocks come from the buddy system. Default: [`Buddy::LongLived`].
    #[must_use]
    pub fn buddy(mut self, buddy: Buddy) -> Self {
        self.buddy = buddy;
        self
    }

    /// Most physical bytes to take from each device, rounded down to pages. Default: all it has.
    #[must_use]
    pub fn capacity(mut self, bytes: u64) -> Self {
        self.capacity = Some(bytes);
        self
    }

    /// Most physical bytes to take from one device; goes before [`Builder::capacity`].
    #[must_use]
    pub fn device_capacity(mut self, device: DeviceId, bytes: u64) -> Self {
        self.capacities.push((device, bytes));
        self
    }

    /// How much more than the most that was ever live a device may hold while idle pages could be
    /// moved to where they are needed. Moving costs driver calls, holding costs memory. Default:
    /// [`Headroom::Unbounded`] where a capacity is set, else [`Headroom::Automatic`]. Without virtual
    /// memory management nothing moves, and it is always [`Headroom::Unbounded`].
    #[must_use]
    pub fn headroom(mut self, headroom: Headroom) -> Self {
        self.headroom = Some(headroom);
        self
    }

    /// As [`Builder::capacity`], as a share of each device's memory, from 0 to 1.
    #[must_use]
    pub fn capacity_share(mut self, share: f64) -> Self {
        self.share = Some(if share.is_nan() { 1.0 } else { share.clamp(0.0, 1.0) });
        self
    }

    /// Bytes of a page, the unit in which memory is taken from the driver and moved, rounded up to
    /// a power of two, and to the driver's granularity. Larger pages take fewer driver calls to get and to move, and more
    /// memory: parts of a page cannot move. Without virtual memory management the sizes of plain
    /// allocations are multiples of it. Default: the granularity.
    #[must_use]
    pub fn page_bytes(mut self, bytes: u64) -> Self {
        self.page_bytes = Some(bytes);
        self
    }

    /// When a device holds more than `high` bytes, idle memory goes back to the driver until it
    /// holds `low`, as far as whole pages are idle and the work that used them is over. Looked at
    /// once in 64 misses of the caches; nothing waits. Without virtual memory management whole plain
    /// allocations go back, which waits for the device, and while it does not get done they stay.
    /// Default: idle memory is kept.
    #[must_use]
    pub fn watermarks(mut self, low: u64, high: u64) -> Self {
        self.settings.watermarks = Some(Watermarks { low: low.min(high), high });
        self
    }

    /// Whether idle pages are moved to where they are needed before new ones are taken, as the
    /// headroom says. Without, they move only where there is no other memory. Default: they are.
    #[must_use]
    pub fn stitching(mut self, on: bool) -> Self {
        self.settings.stitching = on;
        self
    }

    /// What becomes of a block between its free and its next use. All but [`Caching::Open`] tell the
    /// arena of every free and do without the threads' own bins. Default: [`Caching::Open`].
    #[must_use]
    pub fn caching(mut self, caching: Caching) -> Self {
        self.settings.caching = caching;
        self
    }

    /// Delayed recycling: freed blocks wait, whole, and go back to the heap by the bounds given. With
    /// [`Caching::Off`] they wait without being used. Default: none; the heap has them at once.
    #[must_use]
    pub fn recycling(mut self, recycling: Recycling) -> Self {
        self.settings.recycling = Some(recycling);
        self
    }

    /// When free memory is merged, other than what a cache or delayed recycling keeps whole. Default:
    /// [`Coalescing::OnDemand`].
    #[must_use]
    pub fn coalescing(mut self, coalescing: Coalescing) -> Self {
        self.settings.coalescing = coalescing;
        self
    }

    /// When memory is taken from the driver. Default: when a request needs it.
    #[must_use]
    pub fn preallocation(mut self, preallocation: Preallocation) -> Self {
        self.settings.preallocation = preallocation;
        self
    }

    /// Lets every device of the pool touch the memory of every other (copies and kernels across
    /// devices). Access is set page by page as memory is mapped, which costs driver time for each
    /// device; without virtual memory management once, when the pool is built. Default: off.
    #[must_use]
    pub fn peer_access(mut self, on: bool) -> Self {
        self.peer_access = on;
        self
    }

    /// Lets these devices, and no others, touch the memory of one device; goes before
    /// [`Builder::peer_access`], which then decides for the other devices.
    #[must_use]
    pub fn device_peers(mut self, device: DeviceId, peers: &[DeviceId]) -> Self {
        self.peers.push((device, peers.to_vec()));
        self
    }

    /// What to do before an allocation fails for want of memory: `rescue` is told where the memory
    /// is, and answers whether it made room; then the allocation starts over. It is called on the
    /// allocating thread, which holds no lock of the pool: it may free, trim, and ask for figures.
    /// It goes on being called until it answers false, and for its own allocations too.
    #[must_use]
    pub fn on_out_of_memory(
        mut self,
        rescue: impl Fn(&OutOfMemory) -> bool + Send + Sync + 'static,
    ) -> Self {
        self.rescue = Some(Rescue(Arc::new(rescue)));
        self
    }

    /// How movable blocks move at step gaps: see [`Pool::step_gap`]. Default: they do not.
    #[must_use]
    pub fn defragmentation(mut self, defragmentation: Defragmentation) -> Self {
        self.settings.gaps = defragmentation != Defragmentation::Off;
        self.defragmentation = defragmentation;
        self
    }

    /// How long a step takes and how fast devices copy, by which budgets of time become bytes. Default:
    /// [`StepTiming::Measured`].
    #[must_use]
    pub fn step_timing(mut self, timing: StepTiming) -> Self {
        self.timing = timing;
        self
    }

    /// Records what the pool is asked for, for [`crate::Pool::profile`]. Threads keep no blocks of their
    /// own meanwhile, and every allocation and free is written down, so both take longer. Default: off.
    #[must_use]
    pub fn profiling(mut self, profiling: Profiling) -> Self {
        self.profiling = Some(profiling);
        self
    }

    /// Gives the requests above [`crate::plan::DevicePlan::ABOVE`] that recur from step to step a place each in
    /// one range of memory, by a plan in hand or by one that the pool makes of what it is asked for: see
    /// [`Planning`]. A request that differs from the plan, or whose place is taken, is served as always; where
    /// little else is idle it takes what nobody holds of the range, and the plan rests for a step. Asks that
    /// [`Pool::begin_step`] says where steps begin. Default: off.
    #[must_use]
    pub fn planned(mut self, planning: Planning) -> Self {
        self.planning = Some(planning);
        self
    }

    /// How long an allocation may wait on the host for work in flight before it reports
    /// out-of-memory. Default: one second.
    #[must_use]
    pub fn host_wait(mut self, timeout: Duration) -> Self {
        // Nobody waits longer, and deadlines stay within what the clock can say.
        self.settings.host_wait = timeout.min(Duration::from_secs(1 << 32));
        self
    }

    /// Builds the pool: reserves address space on every device that has virtual memory management,
    /// seven times its memory, and takes memory only where [`Builder::preallocation`] says so.
    ///
    /// # Errors
    /// [`Error::Driver`] when a device cannot be asked, has not the memory of a fixed size that its capacity allows, has no
    /// address space left, or cannot be touched by one that was to; [`Error::NoSuchDevice`] when [`Builder::device_peers`] named one;
    /// [`Error::Forked`] when the process has forked since the builder got its driver.
    pub fn build(self) -> Result<Pool> {
        if self.process != fork::generation() {
            return Err(Error::Forked);
        }
        let fences = Arc::new(Fences::new(Arc::clone(&self.driver)));
        let driver = Caught(Arc::clone(&self.driver));
        let count = self.driver.device_count();
        let ids: Vec<DeviceId> = (0..count).map(DeviceId).collect();
        let mut named = self.peers.iter().flat_map(|(of, peers)| peers.iter().chain([of]));
        if let Some(&device) = named.find(|device| device.0 >= count) {
            return Err(Error::NoSuchDevice { device, count });
        }
        let built = on_each(&ids, |&id| self.device(&driver, id, &fences));
        let mut devices = Vec::with_capacity(built.len());
        let mut failure = None;
        for device in built {
            match device {
                Ok(device) => devices.push(device),
                Err(error) => failure = Some(error),
            }
        }
        if let Some(error) = failure {
            for device in devices {
                device.give_back(&driver);
            }
            return Err(error);
        }
        let devices = devices.into_iter().map(Arc::new).collect();
        let core = Core::new(self.driver, fences, devices, &self.settings, self.rescue);
        Ok(Pool::of(Handle::new(core)))
    }

    /// The devices that may touch one's memory, itself among them.
    fn access(&self, id: DeviceId) -> Box<[DeviceId]> {
        let named = self.peers.iter().rev().find(|(device, _)| *device == id);
        let mut access: Vec<DeviceId> = match named {
            Some((_, peers)) => peers.clone(),
            None if self.peer_access => (0..self.driver.device_count()).map(DeviceId).collect(),
            None => Vec::new(),
        };
        access.push(id);
        access.sort_unstable();
        access.dedup();
        access.into()
    }

    fn device(&self, driver: &Caught, id: DeviceId, fences: &Arc<Fences>) -> Result<Device> {
        let info = driver.device(id)?;
        // At most the device's memory, of which there is to be a page at least.
        let largest = 1 << info.memory_bytes.max(1).ilog2();
        let page_bytes = self.page_bytes.unwrap_or(0).min(largest).next_power_of_two();
        let page_bytes = page_bytes.max(info.granularity);
        let asked = self
            .capacities
            .iter()
            .rev()
            .find_map(|&(device, bytes)| (device == id).then_some(bytes))
            .or(self.capacity)
            .or(self.share.map(|share| (info.memory_bytes as f64 * share) as u64));
        let headroom = match (self.headroom, asked) {
            // Nothing moves there, so nothing is gained by keeping to less.
            _ if !info.virtual_memory => Headroom::Unbounded,
            (Some(headroom), _) => headroom,
            (None, Some(_)) => Headroom::Unbounded,
            (None, None) => Headroom::Automatic,
        };
        let mut settings = Settings { headroom, ..self.settings };
        if asked.is_some_and(|bytes| bytes < info.memory_bytes) {
            settings.limited_by = LimitedBy::Capacity;
        }
        // There is no more than the device has, whatever may be taken.
        let most = asked.unwrap_or(u64::MAX).min(info.memory_bytes);
        let mut limit = most / page_bytes * page_bytes;
        if let Preallocation::Fixed { bytes } = settings.preallocation {
            let fixed = bytes.min(i64::MAX as u64).next_multiple_of(page_bytes);
            if fixed <= limit {
                (limit, settings.limited_by) = (fixed, LimitedBy::FixedSize);
            }
        }
        let access = self.access(id);
        let (addresses, reservation, blocks) = if info.virtual_memory {
            // Address space is cheap: enough that holes never force a move, nor the places that pages
            // have left and that work in flight may still use. Small blocks alone may fill the device.
            let span = info.memory_bytes.next_multiple_of(page_bytes);
            let (small, large) = (span * 2, span * 5);
            // Pages larger than the granularity are aligned all the same.
            let reserved = small + large + page_bytes - info.granularity;
            let reservation = driver.reserve(id, reserved)?;
            let blocks = Blocks::new(reservation.next_multiple_of(page_bytes), small + large);
            (Addresses::Reserved { small, large }, Some((reservation, reserved)), blocks)
        } else {
            for &peer in access.iter().filter(|&&peer| peer != id) {
                driver.enable_peer(id, peer)?;
            }
            (Addresses::Drivers, None, Blocks::anywhere())
        };
        let layout = Layout { page_bytes, addresses, limit };
        let blocks = Arc::new(blocks.with_buddy(self.buddy));
        let gauge = Arc::new(Gauge::default());
        let mut arena = Arena::new(
            Arc::clone(&self.driver),
            id,
            Arc::clone(&blocks),
            Arc::clone(fences),
            Arc::clone(&gauge),
            layout,
            settings,
        )
        .ok_or(Error::TooManyBlocks { device: id })?;
        arena.set_access(access);
        let laid_in = arena.preallocate();
        let device = Device {
            id,
            blocks,
            arena: Mutex::new(arena),
            shards: Shards::default(),
            gauge,
            movables: Movables::new(self.defragmentation, self.timing),
            limit,
            reservation,
            recorder: self.profiling.map(Recorder::new),
            planner: self.planning.as_ref().map(|planning| Planner::new(id, planning)),
        };
        match laid_in {
            Ok(()) => Ok(device),
            Err(denied) => {
                device.give_back(driver);
                Err(match denied {
                    Denied::Driver(error) => error.into(),
                    Denied::Descriptors => Error::TooManyBlocks { device: id },
                    Denied::OutOfMemory(report) => Error::OutOfMemory(report),
                })
            }
        }
    }
}
