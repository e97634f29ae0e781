//! Device memory: addresses, pages of physical memory, mappings, and plain allocations.
//!
//! Physical memory is told apart by *physical addresses* that are the simulator's own, unique over
//! devices and never reused: the race oracle follows those, and so sees that two mappings of a page
//! are the same bytes, and that memory taken anew is not.
//!
//! Invariants, for each device:
//!
//! ```text
//! used = sum of the bytes of pages that live + sum of the bytes of plain allocations, dying ones
//!        included + idle <= capacity
//! a page lives  <=>  a handle of it is not released, or a mapping of it remains
//! every mapping lies in one reservation; mappings do not overlap
//! reservations, plain allocations (dying ones too) and free addresses partition the device's
//! address space
//! ```

mod contents;
mod space;
#[cfg(test)]
mod tests;
mod translate;
mod work;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::Range;

use crate::error::{ErrorCode, Refusal};
use contents::Contents;
use space::Space;

pub(crate) use translate::Touched;
pub(crate) use work::{Computation, Work};
pub use work::{DeviceBytes, Mismatch};

/// Size and alignment of plain allocations.
const PLAIN_UNIT: u64 = 512;

type Answer<T> = Result<T, Refusal>;

/// A page of physical memory.
#[derive(Debug)]
struct Page {
    device: u16,
    phys: Range<u64>,
    mappings: u32,
    /// How often its handle must be released.
    handles: u32,
}

/// A page seen at an address.
#[derive(Debug)]
struct Mapping {
    page: u64,
    phys: Range<u64>,
    /// Devices that may touch it, ascending.
    access: Vec<u16>,
}

impl Mapping {
    fn bytes(&self) -> u64 {
        self.phys.end - self.phys.start
    }
}

/// What one device has.
#[derive(Debug)]
struct Device {
    capacity: u64,
    used: u64,
    space: Space,
    /// Bytes by address.
    reservations: BTreeMap<u64, u64>,
    mappings: BTreeMap<u64, Mapping>,
    /// Physical bytes by address.
    plain: BTreeMap<u64, Range<u64>>,
    /// Plain allocations that were freed in a stream's order, to which the stream has yet to come.
    dying: BTreeMap<u64, Range<u64>>,
    /// Physical bytes that a pool of the driver's keeps for later.
    idle: u64,
}

/// A mapping that went, and whether its page went with it.
#[derive(Debug)]
pub(crate) struct Unmapped {
    pub address: u64,
    pub phys: Range<u64>,
    pub died: bool,
}

/// What is alive, for the leak check.
#[derive(Debug)]
pub(crate) struct Census {
    pub pages: usize,
    pub mappings: usize,
    pub reservations: usize,
    pub allocations: usize,
    pub bytes: u64,
}

/// The memory of all devices.
#[derive(Debug)]
pub(crate) struct Memory {
    /// Addresses of device `d` are those from `(d + 1) * span` up to the next device's.
    span: u64,
    granularity: u64,
    /// Whether a page may be mapped at addresses of another device.
    shared: bool,
    devices: Vec<Device>,
    pages: HashMap<u64, Page>,
    next_page: u64,
    next_phys: u64,
    contents: Option<Contents>,
    /// Devices `(from, to)`: `from` may touch plain allocations of `to`.
    peers: HashSet<(u16, u16)>,
}

impl Memory {
    /// `span`, a multiple of `granularity`, times one more than the devices must fit into 63 bits.
    pub(crate) fn new(
        capacities: &[u64],
        granularity: u64,
        span: u64,
        shared: bool,
        contents: bool,
    ) -> Self {
        let device = |(at, &capacity): (usize, &u64)| Device {
            capacity,
            used: 0,
            space: Space::new((at as u64 + 1) * span, span),
            reservations: BTreeMap::new(),
            mappings: BTreeMap::new(),
            plain: BTreeMap::new(),
            dying: BTreeMap::new(),
            idle: 0,
        };
        Self {
            span,
            granularity,
            shared,
            devices: capacities.iter().enumerate().map(device).collect(),
            pages: HashMap::new(),
            next_page: 1,
            next_phys: PLAIN_UNIT,
            contents: contents.then(Contents::default),
            peers: HashSet::new(),
        }
    }

    pub(crate) fn has_contents(&self) -> bool {
        self.contents.is_some()
    }

    /// The device whose address it is.
    pub(crate) fn device_of(&self, address: u64) -> Option<u16> {
        device_of(address, self.span, self.devices.len() as u16)
    }

    /// Free and total bytes.
    pub(crate) fn info(&self, device: u16) -> (u64, u64) {
        let device = &self.devices[usize::from(device)];
        (device.capacity - device.used, device.capacity)
    }

    pub(crate) fn enable_peer(&mut self, from: u16, to: u16) {
        self.peers.insert((from, to));
    }

    pub(crate) fn disable_peer(&mut self, from: u16, to: u16) {
        self.peers.remove(&(from, to));
    }

    fn granular(&self, what: &str, value: u64) -> Answer<()> {
        if value == 0 || !value.is_multiple_of(self.granularity) {
            return Err(Refusal::invalid(format!(
                "{what} {value:#x} is not a positive multiple of the granularity {:#x}",
                self.granularity
            )));
        }
        Ok(())
    }

    fn owner(&mut self, address: u64) -> Answer<&mut Device> {
        match self.device_of(address) {
            Some(device) => Ok(&mut self.devices[usize::from(device)]),
            None => Err(Refusal::invalid(format!("{address:#x} is no device's address"))),
        }
    }

    pub(crate) fn reserve(&mut self, device: u16, bytes: u64, align: u64) -> Answer<u64> {
        self.granular("a size of", bytes)?;
        if !align.is_power_of_two() {
            return Err(Refusal::invalid(format!("an alignment of {align:#x} is no power of two")));
        }
        let align = align.max(self.granularity);
        let owner = &mut self.devices[usize::from(device)];
        let address = owner.space.take(bytes, align).ok_or_else(|| {
            Refusal::new(
                ErrorCode::OutOfMemory,
                format!("device {device}: no {bytes} bytes of address space in one piece"),
            )
        })?;
        owner.reservations.insert(address, bytes);
        Ok(address)
    }

    pub(crate) fn unreserve(&mut self, address: u64, bytes: u64) -> Answer<()> {
        let owner = self.owner(address)?;
        if owner.reservations.get(&address) != Some(&bytes) {
            return Err(Refusal::invalid(format!(
                "{address:#x} with {bytes} bytes is not a whole reservation"
            )));
        }
        if let Some((mapped, _)) = owner.mappings.range(address..address + bytes).next() {
            return Err(Refusal::invalid(format!(
                "the reservation at {address:#x} still has a mapping at {mapped:#x}"
            )));
        }
        owner.reservations.remove(&address);
        owner.space.give(address, bytes);
        Ok(())
    }

    /// Takes physical memory of `device` and gives it addresses of its own.
    fn take_physical(&mut self, device: u16, bytes: u64) -> Answer<Range<u64>> {
        let owner = &mut self.devices[usize::from(device)];
        let free = owner.capacity - owner.used;
        if bytes > free {
            return Err(Refusal::new(
                ErrorCode::OutOfMemory,
                format!("device {device}: {bytes} bytes asked for, {free} free"),
            ));
        }
        let end = self.next_phys.checked_add(bytes).ok_or_else(|| {
            Refusal::new(ErrorCode::OutOfMemory, "physical addresses are used up")
        })?;
        owner.used += bytes;
        let phys = self.next_phys..end;
        self.next_phys = end;
        if let Some(contents) = &mut self.contents {
            contents.create(&phys);
        }
        Ok(phys)
    }

    fn give_physical(&mut self, device: u16, phys: &Range<u64>) {
        self.devices[usize::from(device)].used -= phys.end - phys.start;
        if let Some(contents) = &mut self.contents {
            contents.destroy(phys);
        }
    }

    pub(crate) fn create_page(&mut self, device: u16, bytes: u64) -> Answer<(u64, Range<u64>)> {
        self.granular("a size of", bytes)?;
        let phys = self.take_physical(device, bytes)?;
        let page = self.next_page;
        self.next_page += 1;
        self.pages.insert(page, Page { device, phys: phys.clone(), mappings: 0, handles: 1 });
        Ok((page, phys))
    }

    /// The device of a page whose handle is valid.
    pub(crate) fn page_device(&self, page: u64) -> Option<u16> {
        let page = self.pages.get(&page).filter(|page| page.handles > 0)?;
        Some(page.device)
    }

    /// Releases a handle; the physical memory, where it goes at once.
    pub(crate) fn release_page(&mut self, handle: u64) -> Answer<Option<Range<u64>>> {
        let page = self.pages.get_mut(&handle).filter(|page| page.handles > 0);
        let page = page.ok_or_else(|| no_page(handle))?;
        page.handles -= 1;
        Ok(self.bury(handle))
    }

    /// The handle of the page that is mapped at an address, to be released once more than before.
    pub(crate) fn retain_page(&mut self, address: u64) -> Answer<u64> {
        let handle = self.mapping_at(address).map(|(_, mapping)| mapping.page);
        let page = handle.and_then(|handle| self.pages.get_mut(&handle));
        match (handle, page) {
            (Some(handle), Some(page)) => {
                page.handles = page.handles.saturating_add(1);
                Ok(handle)
            }
            _ => Err(Refusal::invalid(format!("nothing is mapped at {address:#x}"))),
        }
    }

    /// The mapping that covers an address, and where it starts.
    fn mapping_at(&self, address: u64) -> Option<(u64, &Mapping)> {
        let device = &self.devices[usize::from(self.device_of(address)?)];
        let (start, mapping) = device.mappings.range(..=address).next_back()?;
        (*start + mapping.bytes() > address).then_some((*start, mapping))
    }

    /// The devices that may touch the mapping at an address.
    pub(crate) fn access_at(&self, address: u64) -> Option<&[u16]> {
        Some(&self.mapping_at(address)?.1.access)
    }

    /// What covers an address, a mapping or a plain allocation, and the device whose memory it is.
    pub(crate) fn found_at(&self, address: u64) -> Option<(u16, Range<u64>)> {
        if let Some((start, mapping)) = self.mapping_at(address) {
            let home = self.pages.get(&mapping.page)?.device;
            return Some((home, start..start + mapping.bytes()));
        }
        let home = self.device_of(address)?;
        let plain = &self.devices[usize::from(home)].plain;
        let (start, phys) = plain.range(..=address).next_back()?;
        let end = start + (phys.end - phys.start);
        (end > address).then_some((home, *start..end))
    }

    /// Ends a page that no longer lives.
    fn bury(&mut self, handle: u64) -> Option<Range<u64>> {
        let page = self.pages.get(&handle)?;
        if page.handles > 0 || page.mappings > 0 {
            return None;
        }
        let page = self.pages.remove(&handle)?;
        self.give_physical(page.device, &page.phys);
        Some(page.phys)
    }

    pub(crate) fn map(&mut self, address: u64, bytes: u64, handle: u64) -> Answer<()> {
        self.granular("an address of", address)?;
        let (device, shared) = (self.device_of(address), self.shared);
        let page = self.pages.get(&handle).filter(|page| page.handles > 0);
        let page = page.ok_or_else(|| no_page(handle))?;
        let (phys, home) = (page.phys.clone(), page.device);
        if phys.end - phys.start != bytes {
            return Err(Refusal::invalid(format!(
                "page {handle} has {} bytes and is mapped whole, not with {bytes}",
                phys.end - phys.start
            )));
        }
        let owner = self.owner(address)?;
        if device != Some(home) && !shared {
            return Err(Refusal::invalid(format!(
                "page {handle} is of device {home}, {address:#x} is not"
            )));
        }
        let end = address.saturating_add(bytes);
        let reserved = owner.reservations.range(..=address).next_back();
        if reserved.is_none_or(|(start, length)| start + length < end) {
            return Err(Refusal::invalid(format!(
                "{address:#x} with {bytes} bytes does not lie in one reservation"
            )));
        }
        let before = owner.mappings.range(..end).next_back();
        if let Some((start, _)) = before.filter(|(start, there)| *start + there.bytes() > address) {
            return Err(Refusal::invalid(format!(
                "{address:#x} with {bytes} bytes overlaps the mapping at {start:#x}"
            )));
        }
        let mapping = Mapping { page: handle, phys, access: Vec::new() };
        owner.mappings.insert(address, mapping);
        if let Some(page) = self.pages.get_mut(&handle) {
            page.mappings += 1;
        }
        Ok(())
    }

    pub(crate) fn set_access(&mut self, address: u64, bytes: u64, devices: &[u16]) -> Answer<()> {
        let owner = self.owner(address)?;
        owner.whole_mappings(address, bytes)?;
        for (_, mapping) in owner.mappings.range_mut(address..address + bytes) {
            for device in devices {
                if let Err(at) = mapping.access.binary_search(device) {
                    mapping.access.insert(at, *device);
                }
            }
        }
        Ok(())
    }

    /// Takes access away again.
    pub(crate) fn drop_access(&mut self, address: u64, bytes: u64, devices: &[u16]) -> Answer<()> {
        let owner = self.owner(address)?;
        owner.whole_mappings(address, bytes)?;
        for (_, mapping) in owner.mappings.range_mut(address..address + bytes) {
            mapping.access.retain(|device| !devices.contains(device));
        }
        Ok(())
    }

    pub(crate) fn unmap(&mut self, address: u64, bytes: u64) -> Answer<Vec<Unmapped>> {
        let owner = self.owner(address)?;
        owner.whole_mappings(address, bytes)?;
        let starts: Vec<u64> =
            owner.mappings.range(address..address + bytes).map(|(&start, _)| start).collect();
        let rest: Vec<(u64, Mapping)> =
            starts.into_iter().filter_map(|at| owner.mappings.remove_entry(&at)).collect();
        let mut gone = Vec::with_capacity(rest.len());
        for (address, mapping) in rest {
            if let Some(page) = self.pages.get_mut(&mapping.page) {
                page.mappings -= 1;
            }
            let died = self.bury(mapping.page).is_some();
            let phys = mapping.phys;
            gone.push(Unmapped { address, phys, died });
        }
        Ok(gone)
    }

    pub(crate) fn allocate(&mut self, device: u16, bytes: u64) -> Answer<(u64, Range<u64>)> {
        let rounded = bytes.checked_next_multiple_of(PLAIN_UNIT);
        let rounded = rounded.filter(|bytes| *bytes > 0).ok_or_else(|| {
            Refusal::invalid(format!("device {device}: an allocation of {bytes} bytes"))
        })?;
        let phys = self.take_physical(device, rounded)?;
        let owner = &mut self.devices[usize::from(device)];
        let Some(address) = owner.space.take(rounded, PLAIN_UNIT) else {
            self.give_physical(device, &phys);
            return Err(Refusal::new(
                ErrorCode::OutOfMemory,
                format!("device {device}: no {rounded} bytes of address space in one piece"),
            ));
        };
        owner.plain.insert(address, phys.clone());
        Ok((address, phys))
    }

    /// The device of a plain allocation that starts at `address`.
    pub(crate) fn plain_device(&self, address: u64) -> Answer<u16> {
        let device = self
            .device_of(address)
            .filter(|device| self.devices[usize::from(*device)].plain.contains_key(&address));
        device
            .ok_or_else(|| Refusal::invalid(format!("no plain allocation starts at {address:#x}")))
    }

    pub(crate) fn free(&mut self, address: u64) -> Answer<Range<u64>> {
        let device = self.plain_device(address)?;
        let owner = self.owner(address)?;
        let phys = owner.plain.remove(&address).unwrap_or_default();
        owner.space.give(address, phys.end - phys.start);
        self.give_physical(device, &phys);
        Ok(phys)
    }

    /// Ends the use of a plain allocation whose memory goes with [`bury_plain`](Self::bury_plain).
    pub(crate) fn doom(&mut self, address: u64) -> Answer<Range<u64>> {
        let owner = self.owner(address)?;
        match owner.plain.remove(&address) {
            Some(phys) => {
                owner.dying.insert(address, phys.clone());
                Ok(phys)
            }
            None => Err(Refusal::invalid(format!("no plain allocation starts at {address:#x}"))),
        }
    }

    /// Gives a doomed allocation's memory and addresses back.
    pub(crate) fn bury_plain(&mut self, address: u64) {
        let Some(device) = self.device_of(address) else {
            return;
        };
        let owner = &mut self.devices[usize::from(device)];
        if let Some(phys) = owner.dying.remove(&address) {
            owner.space.give(address, phys.end - phys.start);
            self.give_physical(device, &phys);
        }
    }

    /// Bytes of doomed allocations of a device, which must exist.
    pub(crate) fn dying(&self, device: u16) -> u64 {
        let dying = self.devices[usize::from(device)].dying.values();
        dying.map(|phys| phys.end - phys.start).sum()
    }

    /// Sets how many bytes of a device, which must exist, a pool of the driver's keeps for later.
    pub(crate) fn set_idle(&mut self, device: u16, bytes: u64) -> Answer<()> {
        let owner = &mut self.devices[usize::from(device)];
        let others = owner.used - owner.idle;
        if bytes > owner.capacity - others {
            return Err(Refusal::new(
                ErrorCode::OutOfMemory,
                format!("device {device}: {bytes} bytes to keep, {} free", owner.capacity - others),
            ));
        }
        owner.used = others + bytes;
        owner.idle = bytes;
        Ok(())
    }

    /// What is alive of a device, which must exist.
    pub(crate) fn census(&self, device: u16) -> Census {
        let pages = self.pages.values().filter(|page| page.device == device).count();
        let device = &self.devices[usize::from(device)];
        Census {
            pages,
            mappings: device.mappings.len(),
            reservations: device.reservations.len(),
            allocations: device.plain.len(),
            bytes: device.used - device.idle,
        }
    }
}

impl Device {
    /// Whether the range consists of whole mappings, without a hole.
    fn whole_mappings(&self, address: u64, bytes: u64) -> Answer<()> {
        let end = address.checked_add(bytes).filter(|_| bytes > 0);
        let end = end.ok_or_else(|| Refusal::invalid(format!("{address:#x}: {bytes} bytes")))?;
        let mut at = address;
        for (&start, mapping) in self.mappings.range(address..end) {
            if start != at {
                break;
            }
            at += mapping.bytes();
        }
        if at == end {
            return Ok(());
        }
        Err(Refusal::invalid(format!(
            "{address:#x} with {bytes} bytes is not made of whole mappings: {}",
            if at > end {
                format!("it ends inside the one before {at:#x}")
            } else {
                format!("none starts at {at:#x}")
            }
        )))
    }
}

/// The device whose address it is, where each of `devices` has `span` addresses.
pub(crate) fn device_of(address: u64, span: u64, devices: u16) -> Option<u16> {
    let device = (address / span).checked_sub(1)?;
    (device < u64::from(devices)).then_some(device as u16)
}

fn no_page(handle: u64) -> Refusal {
    Refusal::new(ErrorCode::InvalidHandle, format!("there is no page {handle}, or it was released"))
}
