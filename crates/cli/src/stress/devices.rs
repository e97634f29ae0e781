//! The devices' side of a run: what is done to memory there, and what was found in it.

use super::machine::Setup;
use crate::gpus::Leaks;
use millpond::Stream;
use millpond_simgpu::{Sim, Touch};

/// What stages have devices do. All of it is submitted: nothing waits for it but by streams.
pub(super) trait Devices: Send + Sync {
    /// Fills `bytes` bytes with a pattern.
    fn fill(&self, stream: &Stream, address: u64, bytes: u64, pattern: u64) -> anyhow::Result<()>;
    /// Compares them with the pattern when the stream comes to it.
    fn check(&self, stream: &Stream, address: u64, bytes: u64, pattern: u64) -> anyhow::Result<()>;
    /// Copies, also from one device to another.
    fn copy(&self, stream: &Stream, to: u64, from: u64, bytes: u64) -> anyhow::Result<()>;
    /// Tells the race oracle, where there is one, of touches that are not done.
    fn touch(&self, _stream: &Stream, _touches: &[Touch]) -> anyhow::Result<()> {
        Ok(())
    }
    /// The streams' later work comes after all earlier work of each, as in a collective.
    fn meet(&self, streams: &[&Stream]) -> anyhow::Result<()>;
    /// A call of the pool is made.
    fn tick(&self) {}
    /// Ends when all work is over and every comparison made.
    fn settle(&self) -> anyhow::Result<()>;
    /// What was found; call when the pool is gone.
    fn findings(&self) -> Findings;
}

/// What came to light on the devices.
#[derive(Debug)]
pub(super) struct Findings {
    /// `None` without the race oracle.
    pub hazards: Option<u64>,
    pub mismatches: u64,
    pub device_faults: u64,
    /// What the pool has not given back.
    pub leaks: Leaks,
    /// The first of each kind, for people.
    pub details: Vec<String>,
}

/// How many findings of a kind are shown in detail.
pub(super) const SHOWN: usize = 5;

/// Addresses of a simulated device; what lies below the first and behind the last is nobody's.
const ADDRESSES: u64 = 16 << 40;

/// Simulated GPUs.
pub(super) struct SimDevices {
    sim: Sim,
    oracle: bool,
}

/// The simulated driver's handle of a stream.
fn raw(stream: &Stream) -> millpond_simgpu::Stream {
    stream.handle().into()
}

impl SimDevices {
    pub fn new(setup: &Setup, capacity: u64) -> anyhow::Result<Self> {
        let sim = Sim::builder()
            .devices(setup.devices)
            .capacity(capacity)
            .completion(setup.completion)
            .address_space(ADDRESSES)
            .contents(true)
            .oracle(setup.oracle)
            .seed(setup.seed)
            .build()?;
        Ok(Self { sim, oracle: setup.oracle })
    }

    pub fn sim(&self) -> &Sim {
        &self.sim
    }

    /// No address is as high.
    pub fn end(&self) -> u64 {
        ADDRESSES * (u64::from(self.sim.device_count()) + 1)
    }
}

impl Devices for SimDevices {
    fn fill(&self, stream: &Stream, address: u64, bytes: u64, pattern: u64) -> anyhow::Result<()> {
        Ok(self.sim.fill(raw(stream), address, bytes, pattern)?)
    }

    fn check(&self, stream: &Stream, address: u64, bytes: u64, pattern: u64) -> anyhow::Result<()> {
        Ok(self.sim.check_fill(raw(stream), address, bytes, pattern)?)
    }

    fn copy(&self, stream: &Stream, to: u64, from: u64, bytes: u64) -> anyhow::Result<()> {
        Ok(self.sim.copy(raw(stream), to, from, bytes)?)
    }

    fn touch(&self, stream: &Stream, touches: &[Touch]) -> anyhow::Result<()> {
        if self.oracle {
            self.sim.launch(raw(stream), touches)?;
        }
        Ok(())
    }

    fn meet(&self, streams: &[&Stream]) -> anyhow::Result<()> {
        let streams: Vec<_> = streams.iter().map(|stream| raw(stream)).collect();
        Ok(self.sim.rendezvous(&streams)?)
    }

    fn tick(&self) {
        self.sim.tick();
    }

    fn settle(&self) -> anyhow::Result<()> {
        for device in 0..self.sim.device_count() {
            self.sim.device_synchronize(device)?;
        }
        Ok(())
    }

    fn findings(&self) -> Findings {
        let sim = &self.sim;
        let hazards = sim.hazards();
        let hazards = hazards.iter().take(SHOWN).map(ToString::to_string);
        let mismatches = sim.mismatches();
        let mismatches = mismatches.iter().take(SHOWN).map(|found| format!("{found:?}"));
        let leaks = sim.leaks();
        Findings {
            hazards: self.oracle.then(|| sim.hazard_count()),
            mismatches: sim.content_mismatches(),
            device_faults: sim.device_faults(),
            details: hazards.chain(mismatches).collect(),
            leaks: Leaks {
                pages: leaks.pages,
                mappings: leaks.mappings,
                reservations: leaks.reservations,
                streams: leaks.streams,
                events: leaks.events,
                bytes: leaks.bytes,
            },
        }
    }
}
