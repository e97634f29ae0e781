//! Numbers drawn from a seed: equal seeds draw equal numbers, whatever the threads do.

/// SplitMix64.
#[derive(Clone, Debug)]
pub(super) struct Rng(u64);

impl Rng {
    /// A generator for what `parts` name together: a seed, a step, a stage, …
    pub fn of(parts: &[u64]) -> Self {
        let mut state = 0;
        for part in parts {
            state = Self(state ^ part).next();
        }
        Self(state)
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `bound`, which is not 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        // The high half of the product: as even as 64 bits allow.
        ((u128::from(self.next()) * u128::from(bound)) >> 64) as u64
    }

    /// True once in `n` times.
    pub fn once_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    /// True with probability `share`.
    pub fn chance(&mut self, share: f64) -> bool {
        // 53 bits, as many as the fraction of an f64 holds.
        ((self.next() >> 11) as f64) < share * (1u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draws_stay_below_their_bound_and_follow_the_seed() {
        let (mut a, mut b) = (Rng::of(&[1, 2]), Rng::of(&[1, 2]));
        for bound in 1..1000 {
            let drawn = a.below(bound);
            assert!(drawn < bound);
            assert_eq!(drawn, b.below(bound));
        }
        assert_ne!(Rng::of(&[1, 2]).next(), Rng::of(&[2, 1]).next());
    }

    #[test]
    fn a_share_of_nothing_and_of_everything_are_certain() {
        let mut rng = Rng::of(&[7]);
        assert!((0..1000).all(|_| !rng.chance(0.0) && rng.chance(1.0)));
    }
}
