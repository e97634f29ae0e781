//! Which parts of a block are filled and compared. Pure.
//!
//! Sampled parts are chosen so that two blocks that share memory, whichever came first and however
//! far they overlap by more than a stretch, mostly share a part:
//!
//! ```text
//! a block's first PART bytes          the same memory handed out from the same place on
//! PART bytes at each multiple of      any other overlap of STRIDE bytes: both blocks look there,
//! STRIDE among the addresses          also where a page is mapped twice, pages being multiples of it
//! ```
//!
//! Overlaps of live blocks are not left to samples: see `occupancy`.

/// Most bytes of a part.
const PART: u64 = 512;
/// Distance of the addresses that everybody looks at.
const STRIDE: u64 = 256 << 10;

/// How much of each block is filled and compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Coverage {
    Whole,
    Sampled,
}

impl Coverage {
    /// The parts of `bytes` bytes at `address`, in order, without overlaps, the first at `address`.
    pub fn parts(self, address: u64, bytes: u64) -> impl Iterator<Item = (u64, u64)> {
        let whole = self == Self::Whole;
        let first = (address, if whole { bytes } else { bytes.min(PART) });
        let end = address + bytes;
        let mut at = (address + 1).next_multiple_of(STRIDE);
        let others = std::iter::from_fn(move || {
            let part = (at, PART.min(end.saturating_sub(at)));
            at += STRIDE;
            (!whole && part.1 > 0).then_some(part)
        });
        std::iter::once(first).chain(others)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(address: u64, bytes: u64) -> Vec<(u64, u64)> {
        Coverage::Sampled.parts(address, bytes).collect()
    }

    #[test]
    fn samples_lie_in_the_block_and_apart() {
        for address in
            [0, 512, 65_536, STRIDE - 1024, STRIDE - 512, STRIDE, STRIDE + 512, 7 * STRIDE - 1024]
        {
            for bytes in [1, 511, 512, 1024, 1025, 1536, 4097, STRIDE, STRIDE + 700, 3 << 20] {
                let parts = parts(address, bytes);
                assert_eq!(parts[0].0, address);
                assert!(parts.windows(2).all(|pair| pair[0].0 + pair[0].1 <= pair[1].0));
                let last = parts[parts.len() - 1];
                assert!(last.1 > 0 && last.0 + last.1 <= address + bytes, "{address} {bytes}");
                assert_eq!(
                    Coverage::Whole.parts(address, bytes).collect::<Vec<_>>(),
                    [(address, bytes)]
                );
            }
        }
    }

    #[test]
    fn blocks_that_share_a_stretch_share_a_part() {
        let (one, other) = (parts(512, 5 * STRIDE), parts(STRIDE - 512, 2 * STRIDE));
        assert!(other.iter().any(|part| one.contains(part)), "{one:?} {other:?}");
    }
}
