//! The free addresses of one device.
//!
//! Invariants: free ranges do not overlap, are not empty, and do not touch each other.

use std::collections::BTreeMap;

/// Free address ranges, the lowest used first: addresses are reused as soon as they can be, which
/// is what code that keeps stale addresses has to fear.
#[derive(Debug)]
pub(super) struct Space {
    /// Length by start.
    free: BTreeMap<u64, u64>,
}

impl Space {
    pub(super) fn new(start: u64, bytes: u64) -> Self {
        Self { free: BTreeMap::from([(start, bytes)]) }
    }

    /// Takes the lowest `bytes` that are aligned to `align`, a power of two.
    pub(super) fn take(&mut self, bytes: u64, align: u64) -> Option<u64> {
        let (start, length, aligned) = self.free.iter().find_map(|(&start, &length)| {
            let aligned = start.checked_next_multiple_of(align)?;
            let room = length.checked_sub(aligned - start)?;
            (room >= bytes).then_some((start, length, aligned))
        })?;
        self.free.remove(&start);
        if aligned > start {
            self.free.insert(start, aligned - start);
        }
        let (end, taken) = (start + length, aligned + bytes);
        if end > taken {
            self.free.insert(taken, end - taken);
        }
        Some(aligned)
    }

    /// Start and length of the free ranges.
    #[cfg(test)]
    pub(super) fn ranges(&self) -> impl Iterator<Item = (u64, u64)> {
        self.free.iter().map(|(start, bytes)| (*start, *bytes))
    }

    /// Gives a range back that was taken.
    pub(super) fn give(&mut self, mut start: u64, mut bytes: u64) {
        if let Some(after) = self.free.remove(&(start + bytes)) {
            bytes += after;
        }
        if let Some((&before, &length)) = self.free.range(..start).next_back()
            && before + length == start
        {
            start = before;
            bytes += length;
        }
        self.free.insert(start, bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_aligned_reused_and_merged() {
        let mut space = Space::new(0x200, 0x10000);
        let a = space.take(0x1000, 0x1000).unwrap();
        let b = space.take(0x1000, 0x200).unwrap();
        let c = space.take(0x200, 0x200).unwrap();
        assert_eq!((a, b, c), (0x1000, 0x2000, 0x200));
        assert_eq!(space.take(0x10000, 0x200), None);
        space.give(a, 0x1000);
        assert_eq!(space.take(0x800, 0x200), Some(0x400));
        space.give(0x400, 0x800);
        space.give(b, 0x1000);
        space.give(c, 0x200);
        assert_eq!(space.free, BTreeMap::from([(0x200, 0x10000)]));
    }
}
