//! Time as events measure it: what the calls made so far would have cost the host.

use millpond_simgpu::Sim;

/// Nanoseconds of simulated time, over all devices.
pub(crate) fn now(sim: &Sim) -> u64 {
    (0..sim.device_count()).map(|device| sim.host_ns(device)).sum()
}
