//! What the core has to do with plans.

use super::{Core, Device, Enter, Grant};
use crate::block::StreamId;
use crate::planned::{Asked, Planner};
use crate::sync::on_each;

impl Core {
    /// A request's place in the device's plan, if it has one that can be had.
    pub(super) fn find_planned<'c>(
        &self,
        planner: &Planner,
        device: &'c Device,
        stream: StreamId,
        bytes: u64,
        enter: Enter,
    ) -> Option<Grant<'c>> {
        if self.fences.stream(stream).is_graph() {
            // What a graph takes is its own.
            return None;
        }
        let request = Asked { stream, bytes, step: self.step() };
        planner.find(device, &self.fences, self.reuse, enter, request)
    }

    /// What the device's plan holds is memory like any other, if there is not so much else that is idle.
    /// Says whether it is.
    pub(super) fn make_room(&self, device: &Device, enter: Enter, bytes: u64) -> bool {
        device.planner.as_ref().is_some_and(|planner| planner.make_room(device, enter, bytes))
    }

    /// Every device's planning, where there is one.
    pub fn planners(&self) -> impl Iterator<Item = (&Device, &Planner)> {
        self.devices.iter().filter_map(|device| Some((&**device, device.planner.as_ref()?)))
    }

    /// A step begins.
    #[cold]
    pub(super) fn plan_step(&self, step: u64) {
        let planners: Vec<_> = self.planners().collect();
        on_each(&planners, |(device, planner)| planner.step(device, &self.fences, step));
    }
}
