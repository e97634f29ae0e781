//! What calls cost the host, in simulated time.
//!
//! The defaults are figures published for GPUs of the A100 class. Costs are added up
//! ([`Sim::host_ns`](crate::Sim::host_ns)); nothing ever sleeps for them.

use crate::Call;

/// Two mebibytes: the unit in which granting access is priced.
const ACCESS_UNIT: u64 = 2 << 20;

/// Host time of each call in nanoseconds.
///
/// A call for which no figure is published (work of the program's own, streams, the destruction of
/// an event, unreserving) is free by default.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Costs {
    ns: [u64; Call::COUNT],
    access_unit_ns: u64,
}

impl Default for Costs {
    fn default() -> Self {
        Self::free()
            .with(Call::EventRecord, 400)
            .with(Call::EventQuery, 200)
            .with(Call::StreamWait, 500)
            .with(Call::EventCreate, 1_000)
            .with(Call::Reserve, 19_000)
            .with(Call::Create, 30_000)
            .with(Call::Map, 1_500)
            .with(Call::SetAccess, 24_000)
            .with_access_unit(9_400)
            .with(Call::Unmap, 25_000)
            .with(Call::Release, 20_000)
            .with(Call::Alloc, 60_000)
            .with(Call::Free, 165_000)
            .with(Call::Sync, 10_000)
    }
}

impl Costs {
    /// Every call for nothing.
    pub const fn free() -> Self {
        Self { ns: [0; Call::COUNT], access_unit_ns: 0 }
    }

    /// The default, but creating a page takes 193 µs, as some systems have been seen to need.
    pub fn slow_create() -> Self {
        Self::default().with(Call::Create, 193_000)
    }

    /// The same with another price for one kind of call.
    pub const fn with(mut self, call: Call, ns: u64) -> Self {
        self.ns[call.index()] = ns;
        self
    }

    /// The same with another price for each 2 MiB to which a device is given access, on top of the
    /// price of the call itself.
    pub const fn with_access_unit(mut self, ns: u64) -> Self {
        self.access_unit_ns = ns;
        self
    }

    /// The price of one call, without what depends on its arguments.
    pub const fn of(&self, call: Call) -> u64 {
        self.ns[call.index()]
    }

    /// The price of giving `devices` devices access to `bytes` bytes in one call.
    pub fn of_set_access(&self, bytes: u64, devices: usize) -> u64 {
        let units = bytes.div_ceil(ACCESS_UNIT).saturating_mul(devices as u64);
        self.of(Call::SetAccess).saturating_add(self.access_unit_ns.saturating_mul(units))
    }
}
