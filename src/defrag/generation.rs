//! Which blocks a gap may move, and how many bytes of them: by their age in gaps, and by time.
//!
//! ```text
//! young = survived fewer than `promotion` gaps;  old = the others
//! gap n moves young blocks, and old ones too where n is a multiple of `every`
//! copied in a step, by the rate assumed  <=  share * the step's time
//! ```

use super::rate;
use std::time::Duration;

/// How blocks age, and how much time may be spent on moving them.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct Generations {
    /// Old blocks move at every so-manieth gap.
    pub every: u64,
    /// The share of a step's time that copies may take.
    pub share: f64,
    /// Gaps after which a block is old.
    pub promotion: u32,
}

impl Default for Generations {
    /// Old blocks at every 100th gap, those that have survived 2; at most 5 % of a step.
    fn default() -> Self {
        Self { every: 100, share: 0.05, promotion: 2 }
    }
}

impl Generations {
    /// The same with old blocks moved at every so-manieth gap.
    #[must_use]
    pub fn every(self, gaps: u64) -> Self {
        Self { every: gaps, ..self }
    }

    /// The same with another share of a step's time.
    #[must_use]
    pub fn share(self, share: f64) -> Self {
        Self { share, ..self }
    }

    /// The same with blocks that are old after so many gaps.
    #[must_use]
    pub fn promotion(self, gaps: u32) -> Self {
        Self { promotion: gaps, ..self }
    }

    /// Whether gap number `gap` moves a block that has survived so many.
    pub(crate) fn moves(&self, gap: u64, survived: u32) -> bool {
        survived < self.promotion || gap.is_multiple_of(self.every.max(1))
    }
}

/// Most bytes to copy at a gap.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Budget {
    /// Whatever is worth it.
    Unlimited,
    /// So many bytes at each gap.
    Bytes(u64),
    /// As many as are copied in such a time, at each gap.
    Time(Duration),
    /// As many as are copied in this share of a step's time, in a step: see [`crate::Pool::begin_step`].
    Share(f64),
}

impl Budget {
    /// The bytes that a gap may copy, where the step has copied some already, and takes so long, if that
    /// is known.
    pub(crate) fn bytes(self, copied: u64, step: Option<Duration>, rate: u64) -> u64 {
        match self {
            Self::Unlimited => u64::MAX,
            Self::Bytes(bytes) => bytes,
            Self::Time(time) => rate::bytes(time, rate),
            Self::Share(share) => {
                let share = if share.is_nan() { 0.0 } else { share.clamp(0.0, 1.0) };
                // Not as a time, which the longest one rounds up to more than.
                let seconds = step.unwrap_or_default().as_secs_f64() * share;
                ((seconds * rate as f64) as u64).saturating_sub(copied)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn old_blocks_wait_for_their_gap() {
        let ages = Generations::default();
        assert!((1..99).all(|gap| ages.moves(gap, 0) && ages.moves(gap, 1) && !ages.moves(gap, 2)));
        assert!(ages.moves(100, 2) && ages.moves(200, u32::MAX));
        // No gap is the zeroth: as often as every one.
        assert!(Generations::default().every(0).moves(7, 9));
    }

    #[test]
    fn budgets_are_bytes_in_the_end() {
        let second = Some(Duration::from_secs(1));
        assert_eq!(Budget::Bytes(7).bytes(100, None, 1), 7);
        assert_eq!(Budget::Unlimited.bytes(100, None, 1), u64::MAX);
        assert_eq!(Budget::Time(Duration::from_millis(2)).bytes(0, None, 5000), 10);
        assert_eq!(Budget::Share(0.05).bytes(0, second, 1000), 50);
        assert_eq!(Budget::Share(0.05).bytes(30, second, 1000), 20);
        assert_eq!(Budget::Share(f64::NAN).bytes(0, second, 1000), 0);
        assert_eq!(Budget::Share(1.0).bytes(0, Some(Duration::MAX), u64::MAX), u64::MAX);
        assert_eq!(Budget::Time(Duration::MAX).bytes(0, None, u64::MAX), u64::MAX);
        // Before a step's time is known nothing is spent of it.
        assert_eq!(Budget::Share(0.05).bytes(0, None, 1000), 0);
    }

    proptest! {
        /// However a step's gaps share it, they do not copy more than is the step's.
        #[test]
        fn gaps_of_a_step_share_its_budget(
            wants in prop::collection::vec(0u64..1000, 1..9),
            share in 0.0f64..2.0,
        ) {
            let step = Some(Duration::from_secs(1));
            let mut copied = 0;
            for want in wants {
                copied += want.min(Budget::Share(share).bytes(copied, step, 1000));
            }
            prop_assert!(copied <= (share.min(1.0) * 1000.0) as u64 + 1);
        }
    }
}
