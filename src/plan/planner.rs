//! From a recording to a plan: which requests recur, how long their blocks live, where they lie.
//!
//! The step is a period. The last whole step of the recording is the one that is planned, and the one
//! before it says what recurs: a request is planned when the step before asked for the same size at
//! the same place (the same stream, and the same number among that stream's requests above 128 KiB). A block
//! lives as long as it did in that step. One that was still alive at the step's end wraps around: how
//! far into the next step it lives is read from the block at its place in the step before. What lives
//! for a whole period or longer is left to the pool, and so are blocks up to 128 KiB.
//!
//! Order is all that counts, so time is counted in requests: slot n begins with the step's n-th.

use super::pack::{self, Item};
use super::recording::{History, Place, Recording, Request};
use crate::driver::DeviceId;
use crate::size;

/// Comparisons of two blocks that the search for places may take: a second or so.
const BUDGET: u64 = 400_000_000;

/// The last step counts as a whole one when it has this share of the requests of the one before.
const WHOLE: f64 = 0.9;

/// Bytes that a device's planned blocks may add up to: beyond what any device has.
const MOST_BYTES: u64 = 1 << 60;

/// Plans of a program's devices.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    devices: Vec<DevicePlan>,
}

impl Plan {
    /// Plans each device by what it was asked for. Devices of which nothing recurs have no plan.
    #[must_use]
    pub fn of<'a>(recordings: impl IntoIterator<Item = (DeviceId, &'a Recording)>) -> Self {
        let plans = recordings.into_iter();
        plans.filter_map(|(device, recording)| DevicePlan::of(device, recording)).collect()
    }

    /// The devices' plans, by their ordinal.
    #[must_use]
    pub fn devices(&self) -> &[DevicePlan] {
        &self.devices
    }

    /// The plan of one device.
    #[must_use]
    pub fn device(&self, device: DeviceId) -> Option<&DevicePlan> {
        self.devices.iter().find(|plan| plan.device == device)
    }
}

impl FromIterator<DevicePlan> for Plan {
    /// Plans of different devices; of two of one device the first counts.
    fn from_iter<I: IntoIterator<Item = DevicePlan>>(plans: I) -> Self {
        let mut devices: Vec<DevicePlan> = plans.into_iter().collect();
        devices.sort_by_key(|plan| plan.device);
        devices.dedup_by_key(|plan| plan.device);
        Self { devices }
    }
}

/// One device's plan.
///
/// Invariants: places are distinct, offsets and sizes are multiples of 512, `offset + bytes` is at most
/// the plan's bytes, and blocks that share a slot share no byte.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DevicePlan {
    pub(super) device: DeviceId,
    pub(super) bytes: u64,
    pub(super) peak_bytes: u64,
    pub(super) slots: u32,
    pub(super) requests: Vec<Planned>,
}

/// A request that has its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(deny_unknown_fields))]
pub struct Planned {
    /// The stream: its number among the device's streams, in the order in which they were made.
    pub stream: u32,
    /// Its number among the requests above [`DevicePlan::ABOVE`] of its stream in the step, from 0.
    pub position: u32,
    /// Bytes of the block: those asked for, rounded up to a block's size.
    pub bytes: u64,
    /// Where in the range it begins.
    pub offset: u64,
    /// The slot of the step that it is allocated in: requests that come before it.
    pub first: u32,
    /// The last slot that it is alive in; less than `first` where that is in the next step.
    pub last: u32,
}

impl DevicePlan {
    /// Requests of more bytes than this may have a place. Smaller ones are many, make up a few thousandths of
    /// the memory, and are served by the calling thread's own cache.
    // A size class: a request is above it if its block is.
    pub const ABOVE: u64 = 128 << 10;

    /// Plans a device by what it was asked for. `None` where there are no two steps to compare, or
    /// nothing recurs.
    #[must_use]
    pub fn of(device: DeviceId, recording: &Recording) -> Option<Self> {
        Self::by(device, recording, Terms { budget: BUDGET, slack: 0.0, recurs: 0.0 })
    }

    /// The same by other terms.
    pub(crate) fn by(device: DeviceId, recording: &Recording, terms: Terms) -> Option<Self> {
        let history = recording.history();
        let step = planned_step(&history)?;
        let (requests, slots, recurs) = recurring(&history, step);
        if recurs < terms.recurs {
            return None;
        }
        let items: Vec<Item> = requests
            .iter()
            .map(|&Planned { bytes, first, last, .. }| Item { bytes, first, last })
            .collect();
        let sum = items.iter().try_fold(0_u64, |sum, item| sum.checked_add(item.bytes))?;
        if items.is_empty() || sum > MOST_BYTES {
            return None;
        }
        let packing = pack::pack(&items, slots, terms.budget, terms.slack);
        let offsets = packing.offsets.iter();
        Some(Self {
            device,
            bytes: packing.bytes,
            peak_bytes: pack::peak(&items, slots),
            slots,
            requests: requests
                .iter()
                .zip(offsets)
                .map(|(&request, &offset)| Planned { offset, ..request })
                .collect(),
        })
    }

    /// The device.
    #[must_use]
    pub fn device(&self) -> DeviceId {
        self.device
    }

    /// Bytes of the range.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The most bytes of planned blocks that are alive at once: no range could be smaller.
    #[must_use]
    pub fn peak_bytes(&self) -> u64 {
        self.peak_bytes
    }

    /// The range's bytes over the least that they could be.
    #[must_use]
    pub fn ratio(&self) -> f64 {
        self.bytes as f64 / self.peak_bytes.max(1) as f64
    }

    /// Requests of the step that was planned, the others among them.
    #[must_use]
    pub fn slots(&self) -> u32 {
        self.slots
    }

    /// The requests that have a place, in the order in which they come.
    #[must_use]
    pub fn requests(&self) -> &[Planned] {
        &self.requests
    }
}

/// What a plan is made for.
#[derive(Clone, Copy)]
pub(crate) struct Terms {
    /// Comparisons of two blocks that the search for places may take.
    pub budget: u64,
    /// How much more than the least the range may have, as a share.
    pub slack: f64,
    /// The share of the planned step's bytes that must recur, of requests that may have a place.
    pub recurs: f64,
}

/// Whether a request, or a block, may have a place.
pub(crate) fn counts(bytes: u64) -> bool {
    bytes > DevicePlan::ABOVE && bytes <= size::REQUEST_MAX
}

fn counted(request: &Request) -> bool {
    counts(request.bytes)
}

/// The last whole step that has one before it.
fn planned_step(history: &History) -> Option<usize> {
    let last = history.steps();
    let requests = |step| history.step(step).len() as f64;
    let whole = |step| requests(step) > 0.0 && requests(step) >= WHOLE * requests(step - 1);
    // Step 0 is what came before the first mark.
    (2..=last).rev().take(2).find(|&step| whole(step))
}

/// The requests of a step that recur and live for less than a period, at offset 0; the slots; and the share
/// of the bytes of such requests that recur.
fn recurring(history: &History, step: usize) -> (Vec<Planned>, u32, f64) {
    let range = history.step(step);
    let Ok(slots) = u32::try_from(range.len()) else { return (Vec::new(), 0, 0.0) };
    let before = history.places(step - 1, counted);
    let slot_of = |index: usize| (index - range.start) as u32;
    let mut planned = Vec::new();
    let (mut all, mut same) = (0.0, 0.0);
    history.each_place(step, counted, |index, place| {
        let request = &history.requests[index];
        all += request.bytes as f64;
        let Some(&earlier) = before.get(&place) else { return };
        let twin = &history.requests[earlier];
        if twin.bytes != request.bytes {
            return;
        }
        same += request.bytes as f64;
        let first = slot_of(index);
        let last = match (request.freed, twin.freed) {
            (Some(freed), _) if freed.step == step => slot_of(freed.after),
            (_, Some(freed)) if freed.step == step => {
                // Freed before the step's first request: at the end of the step before.
                let last = freed.after.checked_sub(range.start).map_or(slots - 1, |n| n as u32);
                if freed.after >= index {
                    return;
                }
                last
            }
            _ => return,
        };
        let bytes = size::granted(request.bytes);
        let Place { stream, position } = place;
        planned.push(Planned { stream, position, bytes, offset: 0, first, last });
    });
    (planned, slots, same / f64::max(all, 1.0))
}
