//! What a device takes from its driver, in whatever form: how much there is, and may be.
//!
//! ```text
//! reserved = bytes of all pages + bytes of all segments <= limit
//! ```

use super::gauge::Gauge;
use crate::driver::{Caught, DeviceId, Driver, DriverError, DriverResult};
use crate::sync::Arc;

/// The driver, as the source of one device's memory.
pub(super) struct Supply {
    pub driver: Caught,
    pub device: DeviceId,
    /// Devices that may touch this memory, this one among them.
    pub access: Box<[DeviceId]>,
    /// Most physical bytes to take.
    limit: u64,
    /// The driver had nothing left when it was last asked.
    exhausted: bool,
    gauge: Arc<Gauge>,
}

impl Supply {
    pub fn new(driver: Arc<dyn Driver>, device: DeviceId, limit: u64, gauge: Arc<Gauge>) -> Self {
        let access = Box::new([device]);
        Self { driver: Caught(driver), device, access, limit, exhausted: false, gauge }
    }

    pub fn gauge(&self) -> &Gauge {
        &self.gauge
    }

    /// Bytes that can still be taken without exceeding `bound` in all, nor the limit. None once the
    /// driver has refused, until `forgive`.
    pub fn room(&self, bound: u64) -> u64 {
        if self.exhausted { 0 } else { bound.min(self.limit).saturating_sub(self.reserved()) }
    }

    /// Whether the driver had nothing left when it was last asked.
    pub fn is_exhausted(&self) -> bool {
        self.exhausted
    }

    /// Asks the driver again, although it had nothing left.
    pub fn forgive(&mut self) {
        self.exhausted = false;
    }

    /// Notes why the driver gave nothing.
    pub fn refused(&mut self, error: &DriverError) {
        self.exhausted |= error.out_of_memory;
    }

    /// Most physical bytes to hold.
    pub fn limit(&self) -> u64 {
        self.limit
    }

    /// Physical bytes held.
    pub fn reserved(&self) -> u64 {
        self.gauge.reserved()
    }

    /// Takes `bytes` by a call of the driver's, if the limit allows it.
    pub fn take<T>(
        &mut self,
        bytes: u64,
        call: impl FnOnce(&Caught, DeviceId) -> DriverResult<T>,
    ) -> DriverResult<T> {
        if self.reserved() + bytes > self.limit {
            return Err(DriverError {
                call: "memory limit",
                code: 2,
                message: format!("{} would hold more than {} bytes", self.device, self.limit),
                out_of_memory: true,
            });
        }
        let taken = call(&self.driver, self.device)?;
        self.gauge.set_reserved(self.reserved() + bytes);
        Ok(taken)
    }

    /// Gives `bytes` back by a call of the driver's.
    pub fn give(
        &mut self,
        bytes: u64,
        call: impl FnOnce(&Caught, DeviceId) -> DriverResult<()>,
    ) -> DriverResult<()> {
        call(&self.driver, self.device)?;
        self.gauge.set_reserved(self.reserved() - bytes);
        Ok(())
    }

    /// Checks that what is held is what is accounted for.
    pub fn check(&self, held: u64) {
        assert_eq!(self.reserved(), held, "reserved");
        assert!(held <= self.limit && held <= self.gauge.peak(), "beyond the limit, or the peak");
    }
}
