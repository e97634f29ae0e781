//! Phases of a step. Three are known by name; any other keeps the name it was given.

use std::fmt;

/// A phase of a step.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Phase {
    /// `forward`
    Forward,
    /// `backward`
    Backward,
    /// `optimizer`
    Optimizer,
    /// Any other.
    Other(
        /// Its name.
        PhaseName,
    ),
}

/// The name of a phase other than the known three: one word of 1 to [`PhaseName::MAX_LEN`] bytes,
/// without control characters. Made by [`Phase::new`] only, so that no phase has two spellings.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct PhaseName(Box<Text>);

/// Behind a thin pointer, so that a rare name makes no other operation wider.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Text(Box<str>);

impl PhaseName {
    /// The most bytes that a name may have.
    pub const MAX_LEN: usize = 255;

    /// The name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0.0
    }
}

impl Phase {
    /// The phase of this name, or `None` where a trace could not hold the name.
    #[must_use]
    pub fn new(name: &str) -> Option<Phase> {
        let fits = (1..=PhaseName::MAX_LEN).contains(&name.len())
            && !name.chars().any(|c| c.is_whitespace() || c.is_control());
        fits.then(|| match name {
            "forward" => Phase::Forward,
            "backward" => Phase::Backward,
            "optimizer" => Phase::Optimizer,
            other => Phase::Other(PhaseName(Box::new(Text(other.into())))),
        })
    }

    /// The phase's name, as a trace spells it.
    #[must_use]
    pub fn name(&self) -> &str {
        match self {
            Phase::Forward => "forward",
            Phase::Backward => "backward",
            Phase::Optimizer => "optimizer",
            Phase::Other(name) => name.as_str(),
        }
    }
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_phases_are_one_to_one() {
        for name in ["forward", "backward", "optimizer", "all-reduce", "Forward"] {
            assert_eq!(Phase::new(name).expect("a name").name(), name);
        }
        assert_eq!(Phase::new("forward"), Some(Phase::Forward));
        assert!(matches!(Phase::new("Forward"), Some(Phase::Other(_))));
    }

    #[test]
    fn refuses_what_a_line_cannot_hold() {
        let long = "x".repeat(PhaseName::MAX_LEN + 1);
        for name in ["", "two words", "a\tb", "a\nb", "\u{1b}[31m", &long] {
            assert_eq!(Phase::new(name), None, "{name:?}");
        }
        assert!(Phase::new(&long[1..]).is_some());
    }
}
