//! Pins: memory that has to stay where it is, beyond the life of its block.

use crate::core::{Device, Handle};
use crate::sync::{Arc, lock};
use std::fmt;

/// Keeps the physical memory of a block at its addresses until dropped.
///
/// Idle memory may otherwise be moved: its pages are mapped at other addresses, for other blocks.
/// That must not happen to memory whose address somebody outside the pool goes on using: registered
/// for RDMA or with a collective library, exported to another process, or reachable by a kernel
/// that runs on while its blocks come and go. A pinned block can be freed and its memory reused;
/// only its pages are neither moved nor given back (or the plain allocation that it lies in). A pin
/// keeps its pool open.
pub struct Pin {
    core: Handle,
    device: Arc<Device>,
    address: u64,
    bytes: u64,
}

impl Pin {
    /// The right to undo a pin that was made.
    pub(crate) fn new(core: Handle, device: Arc<Device>, address: u64, bytes: u64) -> Self {
        Self { core, device, address, bytes }
    }

    /// Where the pinned block starts.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Bytes of the block. All pages that it touches are pinned.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        if self.core.is_forked() {
            return;
        }
        debug_assert!(!self.core.is_closed());
        lock(&self.device.arena).pin(self.address, self.bytes, false);
    }
}

impl fmt::Debug for Pin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pin")
            .field("device", &self.device.id.0)
            .field("address", &format_args!("{:#x}", self.address))
            .field("bytes", &self.bytes)
            .finish()
    }
}
