//! What a trace's devices were asked for, and what is printed of it as JSON.

use millpond::DeviceId;
use millpond::plan::{DevicePlan, Event, Profile, Recording};
use millpond_trace::{Op, Trace};
use serde::Serialize;
use std::collections::HashMap;

/// A trace's profile.
#[derive(Debug, Serialize)]
pub(super) struct Record {
    pub trace: String,
    pub devices: Vec<DeviceRecord>,
}

/// One device's.
#[derive(Debug, Serialize)]
pub(super) struct DeviceRecord {
    pub ordinal: u16,
    #[serde(flatten)]
    pub profile: Profile,
    /// Null where nothing recurs.
    pub plan: Option<PlanRecord>,
}

/// A plan in figures.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct PlanRecord {
    /// Requests with a place.
    pub planned: usize,
    /// All requests of the step.
    pub step_requests: u32,
    pub bytes: u64,
    /// The least that they could be.
    pub peak_bytes: u64,
    pub ratio: f64,
}

impl DeviceRecord {
    pub fn new(ordinal: u16, profile: Profile, plan: Option<&DevicePlan>) -> Self {
        let plan = plan.map(|plan| PlanRecord {
            planned: plan.requests().len(),
            step_requests: plan.slots(),
            bytes: plan.bytes(),
            peak_bytes: plan.peak_bytes(),
            ratio: plan.ratio(),
        });
        Self { ordinal, profile, plan }
    }
}

/// What each device was asked for. Streams count by their rank among the device's, which is the order
/// in which a replay makes them.
pub(super) fn recordings(trace: &Trace) -> Vec<(DeviceId, Recording)> {
    let devices = &trace.summary().devices;
    let mut ranks = HashMap::new();
    let mut index = HashMap::new();
    for (at, device) in devices.iter().enumerate() {
        index.insert(device.ordinal, at);
        for (rank, &stream) in (0_u32..).zip(&device.streams) {
            ranks.insert((device.ordinal, stream), rank);
        }
    }
    let mut events: Vec<Vec<Event>> = vec![Vec::new(); devices.len()];
    let mut homes = vec![0; trace.blocks()];
    for op in trace.ops() {
        match *op {
            Op::Alloc { id, device, stream, bytes } => {
                // The summary names every device and stream of an allocation.
                let (Some(&home), Some(&stream)) =
                    (index.get(&device), ranks.get(&(device, stream)))
                else {
                    continue;
                };
                homes[id as usize] = home;
                events[home].push(Event::Alloc { block: id, stream, bytes });
            }
            Op::Free { id, .. } => events[homes[id as usize]].push(Event::Free { block: id }),
            Op::Step(_) => events.iter_mut().for_each(|events| events.push(Event::Step)),
            Op::Use { .. } | Op::Wait { .. } | Op::WaitAcross { .. } | Op::Phase(_) => {}
        }
    }
    let ordinals = devices.iter().map(|device| DeviceId(device.ordinal));
    ordinals.zip(events.into_iter().map(Recording::from_iter)).collect()
}
