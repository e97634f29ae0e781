//! Physical pages: which of the reservation's pages have memory behind them, and the driver calls
//! that change it.
//!
//! ```text
//! reserved = page_bytes * (mapped pages + spare pages) <= limit
//! handles[p] is Some  <=>  page p of the reservation is mapped, with access set
//! ```
//!
//! Every operation is transactional: a driver error part-way leaves both as they were.

use crate::driver::{DeviceId, Driver, DriverError, DriverResult, PageHandle};
use crate::sync::{Arc, AtomicU64, Ordering};

pub(super) struct Pages {
    driver: Arc<dyn Driver>,
    device: DeviceId,
    base: u64,
    page_bytes: u64,
    /// Devices that may touch this memory.
    access: Box<[DeviceId]>,
    /// Most physical bytes to take from the driver.
    limit: u64,
    handles: Vec<Option<PageHandle>>,
    /// Pages taken out of a mapping and not given back yet.
    spare: Vec<PageHandle>,
    /// What a failed mapping left mapped because unmapping it failed too: unmapped before the next
    /// mapping.
    stuck: Vec<(u64, Vec<PageHandle>)>,
    gauge: Arc<Gauge>,
}

/// A device's figures, readable by anybody at any time.
#[derive(Default)]
pub struct Gauge {
    reserved: AtomicU64,
    peak: AtomicU64,
    /// Allocations served with memory that another stream used last.
    cross_hits: AtomicU64,
}

impl Gauge {
    fn set(&self, bytes: u64) {
        // Relaxed: a statistic. Only the arena's holder writes.
        self.reserved.store(bytes, Ordering::Relaxed);
        self.peak.fetch_max(bytes, Ordering::Relaxed);
    }

    pub fn count_cross_hit(&self) {
        self.cross_hits.fetch_add(1, Ordering::Relaxed);
    }

    pub fn cross_hits(&self) -> u64 {
        self.cross_hits.load(Ordering::Relaxed)
    }

    /// Physical bytes held.
    pub fn reserved(&self) -> u64 {
        self.reserved.load(Ordering::Relaxed)
    }

    pub fn peak(&self) -> u64 {
        self.peak.load(Ordering::Relaxed)
    }
}

impl Pages {
    pub fn new(
        driver: Arc<dyn Driver>,
        device: DeviceId,
        base: u64,
        page_bytes: u64,
        limit: u64,
        gauge: Arc<Gauge>,
    ) -> Self {
        let (handles, spare, stuck) = (Vec::new(), Vec::new(), Vec::new());
        let access = Box::new([device]);
        Self { driver, device, base, page_bytes, access, limit, handles, spare, stuck, gauge }
    }

    /// Pages mapped from now on are accessible to these devices, this one among them.
    pub fn set_access(&mut self, devices: Box<[DeviceId]>) {
        self.access = devices;
    }

    pub fn page_bytes(&self) -> u64 {
        self.page_bytes
    }

    pub fn gauge(&self) -> &Gauge {
        &self.gauge
    }

    /// Pages that can still be mapped without exceeding the limit.
    pub fn headroom(&self) -> u64 {
        (self.limit.saturating_sub(self.gauge.reserved())) / self.page_bytes
            + self.spare.len() as u64
    }

    /// Most physical bytes to hold.
    pub fn limit(&self) -> u64 {
        self.limit
    }

    /// Physical bytes held.
    pub fn reserved(&self) -> u64 {
        self.gauge.reserved()
    }

    /// Bytes of pages that are mapped nowhere.
    pub fn spare_bytes(&self) -> u64 {
        self.spare.len() as u64 * self.page_bytes
    }

    fn page_of(&self, address: u64) -> usize {
        ((address - self.base) / self.page_bytes) as usize
    }

    /// Puts memory behind `bytes` at `address`, both whole pages: spare pages first, then new ones.
    pub fn back(&mut self, address: u64, bytes: u64) -> DriverResult<()> {
        self.unstick()?;
        let count = (bytes / self.page_bytes) as usize;
        let first = self.page_of(address);
        if self.handles.len() < first + count {
            self.handles.resize(first + count, None);
        }
        let mut pages = Vec::with_capacity(count);
        let mut mapped = 0;
        let result = self.back_with(address, count, &mut pages, &mut mapped);
        match result {
            Ok(()) => {
                for (place, page) in self.handles[first..].iter_mut().zip(pages) {
                    debug_assert!(place.is_none());
                    *place = Some(page);
                }
            }
            Err(_) => {
                let unmapped = pages.split_off(mapped as usize);
                self.spare.extend(unmapped);
                if !pages.is_empty() {
                    self.stuck.push((address, pages));
                }
                // What cannot be undone now is tried again before the next mapping.
                let _ = self.unstick();
                let _ = self.release_spare(u64::MAX);
            }
        }
        result
    }

    /// Unmaps what failed mappings left behind. Nothing has touched those pages: there is nothing to
    /// wait for.
    pub fn unstick(&mut self) -> DriverResult<()> {
        while let Some((address, pages)) = self.stuck.last() {
            let bytes = pages.len() as u64 * self.page_bytes;
            self.driver.unmap(self.device, *address, bytes)?;
            self.spare.extend(self.stuck.pop().into_iter().flat_map(|(_, pages)| pages));
        }
        Ok(())
    }

    fn back_with(
        &mut self,
        address: u64,
        count: usize,
        pages: &mut Vec<PageHandle>,
        mapped: &mut u64,
    ) -> DriverResult<()> {
        while pages.len() < count {
            let page = match self.spare.pop() {
                Some(page) => page,
                None => {
                    if self.gauge.reserved() + self.page_bytes > self.limit {
                        return Err(self.limit_reached());
                    }
                    let page = self.driver.create_page(self.device, self.page_bytes)?;
                    self.gauge.set(self.gauge.reserved() + self.page_bytes);
                    page
                }
            };
            pages.push(page);
        }
        for &page in &*pages {
            let at = address + *mapped * self.page_bytes;
            self.driver.map(self.device, at, self.page_bytes, page)?;
            *mapped += 1;
        }
        self.driver.set_access(self.device, address, *mapped * self.page_bytes, &self.access)
    }

    fn limit_reached(&self) -> DriverError {
        DriverError {
            call: "page limit",
            code: 2,
            message: format!("{} would hold more than {} bytes", self.device, self.limit),
            out_of_memory: true,
        }
    }

    /// Takes the memory from behind `bytes` at `address`, whole mapped pages, into the spare ones.
    /// The caller knows that no work in flight touches them.
    pub fn strip(&mut self, address: u64, bytes: u64) -> DriverResult<()> {
        self.driver.unmap(self.device, address, bytes)?;
        let first = self.page_of(address);
        let count = (bytes / self.page_bytes) as usize;
        self.spare.extend(self.handles[first..first + count].iter_mut().filter_map(Option::take));
        Ok(())
    }

    /// Gives at most `bytes` of spare pages back to the driver.
    pub fn release_spare(&mut self, bytes: u64) -> DriverResult<()> {
        // Then those pages are spare as well.
        let _ = self.unstick();
        let mut left = bytes / self.page_bytes;
        while left > 0
            && let Some(page) = self.spare.pop()
        {
            left -= 1;
            if let Err(error) = self.driver.release_page(self.device, page) {
                self.spare.push(page);
                return Err(error);
            }
            self.gauge.set(self.gauge.reserved() - self.page_bytes);
        }
        Ok(())
    }

    /// Host memory held, in bytes.
    pub fn bytes(&self) -> u64 {
        (self.handles.capacity() * size_of::<Option<PageHandle>>()
            + self.spare.capacity() * size_of::<PageHandle>()) as u64
    }

    /// Whether the page that `address` lies in is mapped.
    pub fn is_backed(&self, address: u64) -> bool {
        self.handles.get(self.page_of(address)).is_some_and(Option::is_some)
    }
}
