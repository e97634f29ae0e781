//! Asking the driver about fences during one search.

use super::Fences;
use crate::block::Fence;

/// Fences asked about in vain during one search. A stream runs in order, so what came after such a
/// fence is not over either, and is not asked about again; each stream is queried at most as often
/// as it has pending seals.
#[derive(Default)]
pub(crate) struct Asked {
    /// The earliest of each stream.
    failed: Vec<Fence>,
}

impl Asked {
    /// Whether the fence, or an earlier one of its stream, was asked about in vain.
    pub fn has_failed(&self, fence: Fence) -> bool {
        self.failed.iter().any(|f| f.stream() == fence.stream() && f.q() <= fence.q())
    }

    /// Counts the fence as asked about in vain.
    pub fn refuse(&mut self, fence: Fence) {
        match self.failed.iter_mut().find(|f| f.stream() == fence.stream()) {
            Some(earliest) if earliest.q() <= fence.q() => {}
            Some(earliest) => *earliest = fence,
            None => self.failed.push(fence),
        }
    }

    /// Whether `fence` has completed, by at most one query, after a seal where none covers it yet.
    /// A driver that fails to answer has not said so; the stream is then left alone.
    pub fn ask(&mut self, fences: &Fences, fence: Fence) -> bool {
        if fences.completed(fence) {
            return true;
        }
        if self.has_failed(fence) {
            return false;
        }
        let done = matches!(fences.seal(fence), Ok(true)) && matches!(fences.poll(fence), Ok(true));
        if !done {
            self.refuse(fence);
        }
        done
    }
}
