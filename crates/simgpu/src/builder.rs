//! Configuration of a simulation.

use crate::error::BuildError;
use crate::{Costs, Sim};

/// When the work of streams is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Completion {
    /// An event is done so many ticks of the clock after it was recorded; work itself takes no time
    /// and has its effect when it is submitted. The clock goes on with [`Sim::tick`] and with host
    /// waits, which take it to the moment waited for. With 0 every event is done at once.
    Lag(u64),
    /// Streams are queues that a seeded scheduler runs, a few operations at each call. Work has its
    /// effect when it runs.
    Scheduled,
}

/// Builds a [`Sim`].
#[derive(Clone, Debug)]
pub struct Builder {
    capacities: Vec<u64>,
    devices: Option<u16>,
    capacity: u64,
    granularity: u64,
    pub(crate) address_space: u64,
    pub(crate) shared_addresses: bool,
    pub(crate) contents: bool,
    pub(crate) oracle: bool,
    pub(crate) completion: Completion,
    pub(crate) seed: u64,
    pub(crate) costs: Costs,
}

impl Default for Builder {
    fn default() -> Self {
        Self {
            capacities: Vec::new(),
            devices: None,
            capacity: 80 << 30,
            granularity: 2 << 20,
            address_space: 16 << 40,
            shared_addresses: false,
            contents: false,
            oracle: false,
            completion: Completion::Lag(0),
            seed: 0,
            costs: Costs::default(),
        }
    }
}

impl Builder {
    /// Number of devices; 1 by default. They are alike; see [`capacities`](Self::capacities) too.
    #[must_use]
    pub fn devices(mut self, devices: u16) -> Self {
        self.devices = Some(devices);
        self.capacities.clear();
        self
    }

    /// Physical memory of each device in bytes; 80 GiB by default.
    #[must_use]
    pub fn capacity(mut self, bytes: u64) -> Self {
        self.capacity = bytes;
        self
    }

    /// Physical memory of each device by itself, in the order of their ordinals; as many devices as
    /// there are values.
    #[must_use]
    pub fn capacities(mut self, bytes: Vec<u64>) -> Self {
        self.devices = Some(0);
        self.capacities = bytes;
        self
    }

    /// Smallest size and alignment of a page; a power of two, 2 MiB by default.
    #[must_use]
    pub fn granularity(mut self, bytes: u64) -> Self {
        self.granularity = bytes;
        self
    }

    /// Addresses of each device in bytes; 16 TiB by default.
    #[must_use]
    pub fn address_space(mut self, bytes: u64) -> Self {
        self.address_space = bytes;
        self
    }

    /// Whether a page may be mapped at addresses that were reserved for another device, as CUDA's
    /// addresses belong to no device; off by default, since a program that keeps the devices apart
    /// should not do so.
    #[must_use]
    pub fn shared_addresses(mut self, on: bool) -> Self {
        self.shared_addresses = on;
        self
    }

    /// Whether the bytes of device memory exist, in host memory; off by default. What is taken from
    /// the devices must then fit into host memory; it is used as it is written to.
    #[must_use]
    pub fn contents(mut self, on: bool) -> Self {
        self.contents = on;
        self
    }

    /// Whether the race oracle watches; off by default.
    #[must_use]
    pub fn oracle(mut self, on: bool) -> Self {
        self.oracle = on;
        self
    }

    /// When work is done; [`Completion::Lag`] of 0 by default.
    #[must_use]
    pub fn completion(mut self, completion: Completion) -> Self {
        self.completion = completion;
        self
    }

    /// What the scheduler draws from. Equal seeds and equal calls give equal runs.
    #[must_use]
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// What calls cost in simulated time.
    #[must_use]
    pub fn costs(mut self, costs: Costs) -> Self {
        self.costs = costs;
        self
    }

    /// Starts the simulation.
    ///
    /// # Errors
    ///
    /// Where the configuration contradicts itself; see [`BuildError`].
    pub fn build(self) -> Result<Sim, BuildError> {
        let capacities = if self.capacities.is_empty() {
            vec![self.capacity; usize::from(self.devices.unwrap_or(1))]
        } else {
            self.capacities.clone()
        };
        if capacities.is_empty() {
            return Err(BuildError::NoDevices);
        }
        if capacities.len() > usize::from(u16::MAX) {
            return Err(BuildError::TooManyDevices(capacities.len()));
        }
        if !self.granularity.is_power_of_two() || self.granularity < 512 {
            return Err(BuildError::Granularity(self.granularity));
        }
        let span = self.address_space;
        let refuse = |why| BuildError::AddressSpace { bytes: span, devices: capacities.len(), why };
        if span == 0 || !span.is_multiple_of(self.granularity) {
            return Err(refuse("it is no multiple of the granularity"));
        }
        if capacities.iter().any(|capacity| *capacity > span) {
            return Err(refuse("it is smaller than a device's memory"));
        }
        let all = span.checked_mul(capacities.len() as u64 + 1);
        if all.is_none_or(|all| all > 1 << 63) {
            return Err(refuse("all together do not fit into 63 bits"));
        }
        Ok(Sim::start(&self, capacities, self.granularity))
    }
}
