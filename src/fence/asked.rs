//! Asking the driver about fences during one search.

use super::Fences;
use crate::block::{Fence, StreamId};
use crate::driver::DriverResult;

/// Streams asked in vain during one search: each is queried at most once, however many blocks wait
/// for it.
#[derive(Default)]
pub(crate) struct Asked {
    failed: Vec<StreamId>,
}

impl Asked {
    /// Whether the fence's stream was asked in vain.
    pub fn has_failed(&self, fence: Fence) -> bool {
        self.failed.contains(&fence.stream())
    }

    /// Counts the fence's stream as asked in vain.
    pub fn refuse(&mut self, fence: Fence) {
        if !self.has_failed(fence) {
            self.failed.push(fence.stream());
        }
    }

    /// Whether `fence` has completed, by at most one query, after a seal where none covers it yet.
    pub fn ask(&mut self, fences: &Fences, fence: Fence) -> DriverResult<bool> {
        if fences.completed(fence) {
            return Ok(true);
        }
        if self.has_failed(fence) {
            return Ok(false);
        }
        let done = fences.seal(fence)? && fences.poll(fence)?;
        if !done {
            self.refuse(fence);
        }
        Ok(done)
    }
}
