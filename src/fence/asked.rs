//! Asking the driver about fences during one search.

use super::Fences;
use crate::block::Fence;

/// Fences asked about in vain during one search. A stream runs in order, so what came after such a
/// fence is not over either, and is not asked about again; each stream is queried at most as often
/// as it has pending seals.
#[derive(Default)]
pub(crate) struct Asked {
    failed: Earliest,
}

/// The earliest of each stream's fences.
#[derive(Default)]
pub(crate) struct Earliest(pub Vec<Fence>);

impl Earliest {
    pub fn add(&mut self, fence: Fence) {
        match self.0.iter_mut().find(|held| held.stream() == fence.stream()) {
            Some(held) if held.q() <= fence.q() => {}
            Some(held) => *held = fence,
            None => self.0.push(fence),
        }
    }
}

impl Asked {
    /// Whether the fence, or an earlier one of its stream, was asked about in vain.
    pub fn has_failed(&self, fence: Fence) -> bool {
        self.failed.0.iter().any(|f| f.stream() == fence.stream() && f.q() <= fence.q())
    }

    /// Counts the fence as asked about in vain.
    pub fn refuse(&mut self, fence: Fence) {
        self.failed.add(fence);
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
