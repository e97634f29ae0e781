//! What a trace comes to: counts, devices and their streams, peaks.

use std::collections::{BTreeMap, BTreeSet};

use crate::op::Op;

/// How many lines of each kind a trace has.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// `a` lines, and so the number of blocks.
    pub allocs: u64,
    /// `f` lines.
    pub frees: u64,
    /// `u` lines.
    pub uses: u64,
    /// `w` lines.
    pub waits: u64,
    /// `x` lines.
    pub waits_across: u64,
    /// `m step` lines.
    pub steps: u64,
    /// `m phase` lines.
    pub phases: u64,
}

impl Counts {
    /// Operations: every line but the marks.
    #[must_use]
    pub fn ops(&self) -> u64 {
        self.allocs + self.frees + self.uses + self.waits + self.waits_across
    }

    /// Allocations and frees.
    #[must_use]
    pub fn allocs_and_frees(&self) -> u64 {
        self.allocs + self.frees
    }

    fn add(&mut self, op: &Op) {
        *match op {
            Op::Alloc { .. } => &mut self.allocs,
            Op::Free { .. } => &mut self.frees,
            Op::Use { .. } => &mut self.uses,
            Op::Wait { .. } => &mut self.waits,
            Op::WaitAcross { .. } => &mut self.waits_across,
            Op::Step(_) => &mut self.steps,
            Op::Phase(_) => &mut self.phases,
        } += 1;
    }
}

/// What a trace asks of one device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceSummary {
    /// The device.
    pub ordinal: u16,
    /// Every stream that a line names on this device, in ascending order.
    pub streams: Vec<u32>,
    /// The most bytes live at once, as asked for.
    pub peak_live_bytes: u64,
    /// The bytes live at the trace's end.
    pub end_live_bytes: u64,
}

/// What a whole trace comes to.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Summary {
    /// Lines of each kind.
    pub counts: Counts,
    /// Every device that a line names, in ascending order.
    pub devices: Vec<DeviceSummary>,
    /// The most bytes live at once over all devices: at most, and often below,
    /// [`Summary::sum_of_device_peaks`].
    pub peak_live_bytes: u64,
    /// The most blocks live at once over all devices.
    pub peak_live_blocks: u64,
    /// The bytes of all allocations together.
    pub requested_bytes: u128,
}

impl Summary {
    /// The sum over devices of each device's peak, wherever in the trace it lies. Stops at
    /// [`u64::MAX`].
    #[must_use]
    pub fn sum_of_device_peaks(&self) -> u64 {
        self.devices.iter().fold(0, |sum: u64, d| sum.saturating_add(d.peak_live_bytes))
    }

    /// Every stream that a line names as `(device, stream)`, in ascending order.
    pub fn streams(&self) -> impl Iterator<Item = (u16, u32)> {
        self.devices.iter().flat_map(|d| d.streams.iter().map(|&stream| (d.ordinal, stream)))
    }
}

/// Sums up operations as they pass.
///
/// Invariant: `live_bytes` is the sum of the devices' `live`, and fits 64 bits.
#[derive(Debug, Default)]
pub(crate) struct SummaryBuilder {
    counts: Counts,
    devices: BTreeMap<u16, Device>,
    live_bytes: u64,
    peak_live_bytes: u64,
    live_blocks: u64,
    peak_live_blocks: u64,
    requested_bytes: u128,
}

#[derive(Debug, Default)]
struct Device {
    streams: BTreeSet<u32>,
    live: u64,
    peak: u64,
}

impl SummaryBuilder {
    pub(crate) fn counts(&self) -> &Counts {
        &self.counts
    }

    /// Counts an operation.
    pub(crate) fn count(&mut self, op: &Op) {
        self.counts.add(op);
    }

    /// A line names this stream.
    pub(crate) fn stream(&mut self, device: u16, stream: u32) {
        self.devices.entry(device).or_default().streams.insert(stream);
    }

    /// Bytes become live; `None`, and nothing has changed, where 64 bits cannot count them.
    pub(crate) fn alloc(&mut self, device: u16, stream: u32, bytes: u64) -> Option<()> {
        self.live_bytes = self.live_bytes.checked_add(bytes)?;
        self.peak_live_bytes = self.peak_live_bytes.max(self.live_bytes);
        self.live_blocks += 1;
        self.peak_live_blocks = self.peak_live_blocks.max(self.live_blocks);
        self.requested_bytes += u128::from(bytes);
        let device = self.devices.entry(device).or_default();
        device.streams.insert(stream);
        device.live += bytes;
        device.peak = device.peak.max(device.live);
        Some(())
    }

    /// Bytes that were live are no longer so.
    pub(crate) fn free(&mut self, device: u16, bytes: u64) {
        self.live_bytes -= bytes;
        self.live_blocks -= 1;
        if let Some(device) = self.devices.get_mut(&device) {
            device.live -= bytes;
        }
    }

    pub(crate) fn finish(self) -> Summary {
        let devices = self.devices.into_iter();
        Summary {
            counts: self.counts,
            devices: devices
                .map(|(ordinal, device)| DeviceSummary {
                    ordinal,
                    streams: device.streams.into_iter().collect(),
                    peak_live_bytes: device.peak,
                    end_live_bytes: device.live,
                })
                .collect(),
            peak_live_bytes: self.peak_live_bytes,
            peak_live_blocks: self.peak_live_blocks,
            requested_bytes: self.requested_bytes,
        }
    }
}
