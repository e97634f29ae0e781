//! Which addresses are in somebody's hands: a bit for each quantum of 512 bytes, so that no two live
//! blocks can overlap unseen. No locks: a thread sets and clears the bits of its own blocks.
//!
//! ```text
//! a bit is set  <=>  a live block has the quantum
//! ```

use millpond::size::QUANTUM;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Bytes that a word stands for.
const WORD: u64 = QUANTUM * 64;
/// Words that come into being together, for 2 MiB.
const WORDS: usize = 64;
/// Of those, how many: for 1 GiB.
const CHUNKS: usize = 512;

type Chunk = Box<[AtomicU64; WORDS]>;
type Region = Box<[OnceLock<Chunk>]>;

/// The addresses of all devices.
#[derive(Debug)]
pub(super) struct Occupancy {
    regions: Box<[OnceLock<Region>]>,
}

impl Occupancy {
    /// For addresses below `end`.
    pub fn new(end: u64) -> Self {
        let regions = end.div_ceil(WORD * (WORDS * CHUNKS) as u64) as usize;
        Self { regions: (0..regions).map(|_| OnceLock::new()).collect() }
    }

    /// A block comes into somebody's hands; whether nobody had any of it. Called by who has it.
    #[must_use]
    pub fn enter(&self, address: u64, bytes: u64) -> bool {
        // Relaxed: each word is counted by itself. A pool that hands memory from one thread to
        // another orders the one's clearing before the other's setting, or has a race of its own.
        self.each(address, bytes, |word, bits| word.fetch_or(bits, Relaxed) & bits == 0)
    }

    /// A block is about to be freed; whether all of it was taken.
    #[must_use]
    pub fn leave(&self, address: u64, bytes: u64) -> bool {
        self.each(address, bytes, |word, bits| word.fetch_and(!bits, Relaxed) & bits == bits)
    }

    /// Calls `f` for every word of a range with the bits that the range has there; whether all calls
    /// said so. False for addresses of no device.
    fn each(&self, address: u64, bytes: u64, f: impl Fn(&AtomicU64, u64) -> bool) -> bool {
        let (mut quantum, end) = (address / QUANTUM, (address + bytes).div_ceil(QUANTUM));
        let mut all = true;
        while quantum < end {
            let bit = quantum % 64;
            let count = (64 - bit).min(end - quantum);
            let bits = (u64::MAX >> (64 - count)) << bit;
            all &= self.word((quantum / 64) as usize).is_some_and(|word| f(word, bits));
            quantum += count;
        }
        all
    }

    fn word(&self, nth: usize) -> Option<&AtomicU64> {
        let (chunk, word) = (nth / WORDS, nth % WORDS);
        let region = self.regions.get(chunk / CHUNKS)?;
        let region = region.get_or_init(|| (0..CHUNKS).map(|_| OnceLock::new()).collect());
        let chunk = &region[chunk % CHUNKS];
        chunk.get_or_init(|| Box::new([const { AtomicU64::new(0) }; WORDS])).get(word)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overlaps_of_a_quantum_are_seen() {
        let map = Occupancy::new(4 << 30);
        let (a, b) = (WORD * 70 - 512, (1 << 30) - 512);
        for (address, bytes) in [(0, 1), (512, 512), (a, 3 << 20), (b, 1024)] {
            assert!(map.enter(address, bytes), "{address} {bytes}");
        }
        for (address, bytes) in [(0, 512), (a - 512, 513), (a + (3 << 20) - 1, 600), (1 << 30, 1)] {
            assert!(!map.enter(address, bytes), "{address} {bytes}");
        }
    }

    #[test]
    fn what_was_left_may_be_entered_and_left_once() {
        let map = Occupancy::new(4 << 30);
        for _ in 0..2 {
            assert!(map.enter(WORD - 1024, 5 * WORD));
            assert!(map.leave(WORD - 1024, 5 * WORD));
            assert!(!map.leave(WORD - 1024, 512));
        }
        assert!(!map.enter(u64::MAX - 4096, 512), "no device has it");
    }
}
