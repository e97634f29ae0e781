//! How much memory goes back after the moves of a gap: a pure function of what the steps needed.
//!
//! What is live at a step's peak is wanted again in the next step, and stays. What is held beyond it
//! goes, but not again and again: a step that takes back what a gap has given pays the driver twice. After
//! such a step, and where nothing could go, the next gaps give nothing back, twice as many as the last
//! time.

/// Most gaps in a row that give nothing back.
const MOST_WAIT: u32 = 64;

#[derive(Default)]
pub struct Trims {
    /// What the last gap left reserved, if it gave something back.
    left: Option<u64>,
    /// Gaps to let pass, and how many it was the last time.
    wait: u32,
    last_wait: u32,
}

impl Trims {
    /// What to keep reserved, where that is less than what is. `needed` was in use at once in the last
    /// step, or little less; `slack` more is not worth a call.
    pub fn target(&mut self, reserved: u64, needed: u64, slack: u64) -> Option<u64> {
        if let Some(left) = self.left.take() {
            if reserved > left + slack {
                self.rest();
            } else {
                self.last_wait = 0;
            }
        }
        if self.wait > 0 {
            self.wait -= 1;
            return None;
        }
        (reserved > needed.saturating_add(slack)).then_some(needed)
    }

    /// So many bytes went back, and so much is still reserved.
    pub fn done(&mut self, returned: u64, reserved: u64) {
        match returned {
            // All of it is in use, or in flight.
            0 => self.rest(),
            _ => self.left = Some(reserved),
        }
    }

    fn rest(&mut self) {
        self.last_wait = (self.last_wait * 2).clamp(1, MOST_WAIT);
        self.wait = self.last_wait;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_taken_back_is_given_less_and_less() {
        let mut trims = Trims::default();
        assert_eq!(trims.target(110, 100, 10), None, "not worth a call");
        let mut given = Vec::new();
        for gap in 0..200 {
            // Every step takes all of it again.
            if trims.target(150, 100, 10).is_some() {
                trims.done(50, 100);
                given.push(gap);
            }
        }
        assert_eq!(given, [0, 2, 5, 10, 19, 36, 69, 134, 199]);
        let mut trims = Trims::default();
        assert_eq!(trims.target(150, 100, 10), Some(100));
        trims.done(45, 105);
        assert_eq!(trims.target(105, 80, 10), Some(80), "the step kept to what was left");
        trims.done(0, 105);
        assert_eq!(trims.target(105, 80, 10), None, "nothing went, and it is tried again at once");
        assert_eq!(trims.target(105, 80, 10), Some(80));
    }
}
