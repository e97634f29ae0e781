//! Size bins over extents: the arena's index of what may be had, by size.
//!
//! Bins are a float-like function of the size in quanta (after sebbbi's OffsetAllocator, and TLSF:
//! Masmano et al., "TLSF: a New Dynamic Memory Allocator for Real-Time Systems", 2004): 16 bins an
//! octave, so sizes in one bin differ by at most 1/16. A bitmap finds the next bin in use. Bins are
//! doubly linked lists through the extents' links, so an extent leaves in constant time.
//!
//! Invariant: an extent in this index has `links[i].list` naming it and `links[i].bin` its bin.

use super::extent::{Links, List};
use crate::size::QUANTUM;

/// Bins of 16 an octave for sizes up to 2^40 quanta.
const BINS: usize = 16 * 38;
const WORDS: usize = BINS.div_ceil(64);

/// The bin of an extent of `bytes`.
pub(super) fn bin_of(bytes: u64) -> usize {
    let n = (bytes / QUANTUM).max(1);
    let bin = if n < 16 {
        n as usize
    } else {
        let octave = n.ilog2();
        (octave as usize - 3) * 16 + ((n >> (octave - 4)) & 15) as usize
    };
    bin.min(BINS - 1)
}

/// Extents by size.
pub(super) struct Index {
    heads: [u32; BINS],
    used: [u64; WORDS],
}

impl Index {
    pub fn new() -> Self {
        Self { heads: [0; BINS], used: [0; WORDS] }
    }

    /// Files extent `index`, whose links name this list already.
    pub fn insert(&mut self, links: &mut [Links], index: u32, bytes: u64) {
        let bin = bin_of(bytes);
        let head = self.heads[bin];
        let own = &mut links[index as usize];
        debug_assert!(own.list != List::None);
        own.bin = bin as u16;
        own.bin_prev = 0;
        own.bin_next = head;
        if head != 0 {
            links[head as usize].bin_prev = index;
        }
        self.heads[bin] = index;
        self.used[bin / 64] |= 1 << (bin % 64);
    }

    /// Takes extent `index`, which is in this index, out of its bin.
    pub fn remove(&mut self, links: &mut [Links], index: u32) {
        let own = &mut links[index as usize];
        debug_assert!(own.list != List::None);
        own.list = List::None;
        let (bin, prev, next) = (usize::from(own.bin), own.bin_prev, own.bin_next);
        if next != 0 {
            links[next as usize].bin_prev = prev;
        }
        if prev != 0 {
            links[prev as usize].bin_next = next;
        } else {
            self.heads[bin] = next;
            if next == 0 {
                self.used[bin / 64] &= !(1 << (bin % 64));
            }
        }
    }

    /// The first bin in use that may hold extents of at least `bytes`.
    pub fn first_bin(&self, bytes: u64) -> Option<usize> {
        self.bin_from(bin_of(bytes))
    }

    /// The first bin in use after `bin`.
    pub fn bin_after(&self, bin: usize) -> Option<usize> {
        self.bin_from(bin + 1)
    }

    fn bin_from(&self, bin: usize) -> Option<usize> {
        let mut word = bin / 64;
        let mut bits = *self.used.get(word)? & (u64::MAX << (bin % 64));
        loop {
            if bits != 0 {
                return Some(word * 64 + bits.trailing_zeros() as usize);
            }
            word += 1;
            bits = *self.used.get(word)?;
        }
    }

    /// Calls `each` with every extent.
    pub fn for_each(&self, links: &[Links], mut each: impl FnMut(u32)) {
        let mut bin = self.bin_from(0);
        while let Some(current) = bin {
            let mut index = self.heads[current];
            while index != 0 {
                each(index);
                index = links[index as usize].bin_next;
            }
            bin = self.bin_after(current);
        }
    }

    /// Checks that each bin's list starts where it says, and is marked if it has a start.
    pub fn check_heads(&self, links: &[Links], list: List) {
        for (bin, &head) in self.heads.iter().enumerate() {
            let used = self.used[bin / 64] >> (bin % 64) & 1 == 1;
            assert_eq!(used, head != 0, "the mark of bin {bin} of {list:?}");
            if head != 0 {
                let first = links[head as usize];
                assert_eq!(first.list, list, "extent {head} starts a list");
                assert_eq!((usize::from(first.bin), first.bin_prev), (bin, 0), "extent {head}");
            }
        }
    }

    /// The head of a bin's list; 0 when it is empty.
    pub fn head(&self, bin: usize) -> u32 {
        self.heads[bin]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn bins_are_monotone_and_narrow() {
        let mut last = 0;
        for n in 1..100_000u64 {
            let bin = bin_of(n * QUANTUM);
            assert!(bin == last || bin == last + 1, "{n}");
            last = bin;
        }
        assert!(bin_of(u64::MAX) < BINS);
    }

    proptest! {
        #[test]
        fn finds_what_a_sorted_list_finds(ops in prop::collection::vec((1u64..1 << 24, any::<bool>()), 1..120)) {
            let mut index = Index::new();
            let mut links = vec![Links::default(); ops.len() + 1];
            let mut held: Vec<(u64, u32)> = Vec::new();
            for (i, &(bytes, remove)) in ops.iter().enumerate() {
                let bytes = bytes * QUANTUM;
                if remove && !held.is_empty() {
                    let (_, gone) = held.swap_remove(bytes as usize % held.len());
                    index.remove(&mut links, gone);
                } else {
                    links[i + 1].list = List::Free;
                    index.insert(&mut links, i as u32 + 1, bytes);
                    held.push((bytes, i as u32 + 1));
                }
                let want = held.iter().map(|&(b, _)| b).filter(|&b| b >= bytes).min();
                let mut best = None;
                let mut bin = index.first_bin(bytes);
                while let (Some(b), None) = (bin, best) {
                    let mut at = index.head(b);
                    while at != 0 {
                        let size = held.iter().find(|h| h.1 == at).unwrap().0;
                        if size >= bytes && best.is_none_or(|s| size < s) {
                            best = Some(size);
                        }
                        at = links[at as usize].bin_next;
                    }
                    bin = index.bin_after(b);
                }
                prop_assert_eq!(best, want);
            }
        }
    }
}
