//! Memory calls: reserve, create, map, set access, unmap, release; plain allocation.

use crate::error::Refusal;
use crate::memory::Memory;
use crate::oracle::Retire;
use crate::{Call, ErrorCode, Result, Sim, SimError};

/// A raw handle of a page: physical memory, to be mapped at an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Page(pub u64);

impl Sim {
    /// Reserves addresses of a device, aligned to the granularity.
    ///
    /// # Errors
    ///
    /// Where the size is not a multiple of the granularity, or no range of it is left.
    pub fn reserve(&self, device: u16, bytes: u64) -> Result<u64> {
        self.reserve_aligned(device, bytes, 1)
    }

    /// The same, aligned to `align` too, a power of two.
    ///
    /// # Errors
    ///
    /// Where it is none, and as [`reserve`](Self::reserve).
    pub fn reserve_aligned(&self, device: u16, bytes: u64, align: u64) -> Result<u64> {
        const CALL: Call = Call::Reserve;
        let inner = &*self.inner;
        inner.check_device(CALL, device)?;
        let mut world = inner.world();
        inner.enter(CALL, device)?;
        let answer = world.memory.reserve(device, bytes, align);
        answer.map_err(|refusal| refusal.during(CALL))
    }

    /// Gives a whole reservation back, in which nothing is mapped any more.
    ///
    /// # Errors
    ///
    /// Where it is anything else.
    pub fn unreserve(&self, address: u64, bytes: u64) -> Result<()> {
        const CALL: Call = Call::Unreserve;
        let inner = &*self.inner;
        let mut world = inner.world();
        inner.enter(CALL, owner(CALL, world.memory.device_of(address), address)?)?;
        let answer = world.memory.unreserve(address, bytes);
        answer.map_err(|refusal| refusal.during(CALL))
    }

    /// Takes physical memory, a multiple of the granularity.
    ///
    /// # Errors
    ///
    /// Where the size is something else, or so much memory is not free.
    pub fn page_create(&self, device: u16, bytes: u64) -> Result<Page> {
        const CALL: Call = Call::Create;
        let inner = &*self.inner;
        inner.check_device(CALL, device)?;
        let mut world = inner.world();
        inner.enter(CALL, device)?;
        let answer = world.memory.create_page(device, bytes);
        let (page, phys) = answer.map_err(|refusal| refusal.during(CALL))?;
        if let Some(oracle) = &mut world.oracle {
            oracle.memory_created(phys);
        }
        Ok(Page(page))
    }

    /// Gives a page's handle back. The memory lives on until the last mapping of it goes.
    ///
    /// # Errors
    ///
    /// Where the handle is not valid.
    pub fn page_release(&self, page: Page) -> Result<()> {
        const CALL: Call = Call::Release;
        let inner = &*self.inner;
        let mut world = inner.world();
        let device = world.memory.page_device(page.0).ok_or_else(|| {
            let message = format!("there is no page {}, or it was released", page.0);
            SimError::new(CALL, ErrorCode::InvalidHandle, message)
        })?;
        inner.enter(CALL, device)?;
        let answer = world.memory.release_page(page.0);
        let died = answer.map_err(|refusal| refusal.during(CALL))?;
        if let (Some(oracle), Some(phys)) = (&mut world.oracle, died) {
            oracle.retire(phys, Retire::Release, 0);
        }
        Ok(())
    }

    /// The handle of the page that is mapped at an address. It has to be released once more than
    /// before, and is valid again where it was not.
    ///
    /// # Errors
    ///
    /// Where nothing is mapped there.
    pub fn page_retain(&self, address: u64) -> Result<Page> {
        const CALL: Call = Call::Create;
        let inner = &*self.inner;
        let mut world = inner.world();
        inner.enter(CALL, owner(CALL, world.memory.device_of(address), address)?)?;
        let answer = world.memory.retain_page(address);
        answer.map(Page).map_err(|refusal| refusal.during(CALL))
    }

    /// Maps a whole page in a reservation of its device, or of any where addresses are
    /// [shared](crate::Builder::shared_addresses). A page may be mapped at several addresses.
    /// No device may touch it yet: see [`set_access`](Self::set_access).
    ///
    /// # Errors
    ///
    /// Where `bytes` is not the page's size, the range overlaps a mapping, does not lie in one
    /// reservation or is not aligned, or the handle is not valid.
    pub fn map(&self, address: u64, bytes: u64, page: Page) -> Result<()> {
        const CALL: Call = Call::Map;
        let inner = &*self.inner;
        let mut world = inner.world();
        inner.enter(CALL, owner(CALL, world.memory.device_of(address), address)?)?;
        let answer = world.memory.map(address, bytes, page.0);
        answer.map_err(|refusal| refusal.during(CALL))
    }

    /// Gives devices access to whole mappings, any number of them without a hole between, on top of
    /// the access there is.
    ///
    /// # Errors
    ///
    /// Where the range is something else, or a device does not exist.
    pub fn set_access(&self, address: u64, bytes: u64, devices: &[u16]) -> Result<()> {
        const CALL: Call = Call::SetAccess;
        let inner = &*self.inner;
        for device in devices {
            inner.check_device(CALL, *device)?;
        }
        let mut world = inner.world();
        let device = owner(CALL, world.memory.device_of(address), address)?;
        let price = inner.costs.of_set_access(bytes, devices.len());
        inner.meter.enter(CALL, device, price)?;
        let answer = world.memory.set_access(address, bytes, devices);
        answer.map_err(|refusal| refusal.during(CALL))
    }

    /// Takes devices' access to whole mappings away. Does not wait for work in flight.
    ///
    /// # Errors
    ///
    /// As [`set_access`](Self::set_access).
    pub fn drop_access(&self, address: u64, bytes: u64, devices: &[u16]) -> Result<()> {
        const CALL: Call = Call::SetAccess;
        let inner = &*self.inner;
        let mut world = inner.world();
        inner.enter(CALL, owner(CALL, world.memory.device_of(address), address)?)?;
        let answer = world.memory.drop_access(address, bytes, devices);
        answer.map_err(|refusal| refusal.during(CALL))
    }

    /// Whether a device may touch the mapping at an address; `None` where nothing is mapped. Not a
    /// call of the driver, so neither counted nor priced.
    pub fn has_access(&self, address: u64, device: u16) -> Option<bool> {
        let world = self.inner.world();
        world.memory.access_at(address).map(|access| access.contains(&device))
    }

    /// What covers an address, a mapping or a plain allocation: the device whose memory it is, where
    /// it starts, and its length. Not a call of the driver, so neither counted nor priced.
    pub fn memory_at(&self, address: u64) -> Option<(u16, u64, u64)> {
        let world = self.inner.world();
        let (device, range) = world.memory.found_at(address)?;
        Some((device, range.start, range.end - range.start))
    }

    /// Removes whole mappings, any number of them without a hole between. Does **not** wait for work
    /// in flight.
    ///
    /// # Errors
    ///
    /// Where the range is something else.
    pub fn unmap(&self, address: u64, bytes: u64) -> Result<()> {
        const CALL: Call = Call::Unmap;
        let inner = &*self.inner;
        let mut world = inner.world();
        inner.enter(CALL, owner(CALL, world.memory.device_of(address), address)?)?;
        let answer = world.memory.unmap(address, bytes);
        let gone = answer.map_err(|refusal| refusal.during(CALL))?;
        if let Some(oracle) = &mut world.oracle {
            for mapping in gone {
                oracle.retire(mapping.phys.clone(), Retire::Unmap, mapping.address);
                if mapping.died {
                    oracle.retire(mapping.phys, Retire::Release, mapping.address);
                }
            }
        }
        Ok(())
    }

    /// Allocates device memory that its device may touch, and devices with
    /// [peer access](Self::peer_access).
    ///
    /// # Errors
    ///
    /// Where the size is 0, or so much memory is not free.
    pub fn malloc(&self, device: u16, bytes: u64) -> Result<u64> {
        const CALL: Call = Call::Alloc;
        let inner = &*self.inner;
        inner.check_device(CALL, device)?;
        let mut world = inner.world();
        inner.enter(CALL, device)?;
        let answer = world.memory.allocate(device, bytes);
        let (address, phys) = answer.map_err(|refusal| refusal.during(CALL))?;
        if let Some(oracle) = &mut world.oracle {
            oracle.memory_created(phys);
        }
        Ok(address)
    }

    /// Frees what [`malloc`](Self::malloc) gave, after waiting for all work of its device.
    ///
    /// # Errors
    ///
    /// Where no allocation starts at the address, or the wait would never end.
    pub fn free(&self, address: u64) -> Result<()> {
        const CALL: Call = Call::Free;
        let refuse = |refusal: Refusal| refusal.during(CALL);
        let inner = &*self.inner;
        let mut world = inner.world();
        let device = world.memory.plain_device(address).map_err(refuse)?;
        inner.enter(CALL, device)?;
        inner.drain_device(&mut world, CALL, device)?;
        let phys = world.memory.free(address).map_err(refuse)?;
        if let Some(oracle) = &mut world.oracle {
            oracle.retire(phys, Retire::Free, address);
        }
        Ok(())
    }

    /// Lets `from` touch plain allocations of `to`, those to come included. Mapped memory is not
    /// covered: its access is set mapping by mapping.
    ///
    /// # Errors
    ///
    /// Where a device does not exist.
    pub fn peer_access(&self, from: u16, to: u16) -> Result<()> {
        self.change_peers(from, to, Memory::enable_peer)
    }

    /// Takes that permission back.
    ///
    /// # Errors
    ///
    /// Where a device does not exist.
    pub fn peer_access_end(&self, from: u16, to: u16) -> Result<()> {
        self.change_peers(from, to, Memory::disable_peer)
    }

    fn change_peers(&self, from: u16, to: u16, change: fn(&mut Memory, u16, u16)) -> Result<()> {
        const CALL: Call = Call::PeerAccess;
        let inner = &*self.inner;
        inner.check_device(CALL, from)?;
        inner.check_device(CALL, to)?;
        let mut world = inner.world();
        inner.enter(CALL, from)?;
        change(&mut world.memory, from, to);
        Ok(())
    }

    /// Free and total bytes of physical memory.
    ///
    /// # Errors
    ///
    /// Where the device does not exist.
    pub fn memory_info(&self, device: u16) -> Result<(u64, u64)> {
        const CALL: Call = Call::MemoryInfo;
        let inner = &*self.inner;
        inner.check_device(CALL, device)?;
        let world = inner.world();
        inner.enter(CALL, device)?;
        Ok(world.memory.info(device))
    }
}

/// The device of an address, or an error.
fn owner(call: Call, device: Option<u16>, address: u64) -> Result<u16> {
    device.ok_or_else(|| {
        let message = format!("{address:#x} is no device's address");
        SimError::new(call, ErrorCode::InvalidValue, message)
    })
}
