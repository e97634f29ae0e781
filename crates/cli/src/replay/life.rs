//! How long a trace's blocks live: what a program knows of its own, and may declare.

use millpond_trace::{Op, Trace};

/// How a block is asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Life {
    /// With nothing said.
    #[default]
    Plain,
    /// As one that outlives the step after its own.
    Lasting,
    /// As one that may be moved while nobody uses it.
    Movable,
}

/// Which blocks something is said of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Declared {
    #[default]
    Nothing,
    /// Those that are never freed, or only after two more steps have begun.
    Lasting,
    /// Of the others, those that no other stream uses.
    Movable,
}

/// What is said of each block, by its number.
pub(super) fn lives(trace: &Trace, declared: Declared) -> Vec<Life> {
    let mut lives = vec![Life::Plain; trace.blocks()];
    if declared == Declared::Nothing {
        return lives;
    }
    let mut steps = 0_u64;
    // When it was allocated; whether it was freed soon; whether another stream used it.
    let mut seen = vec![(0, false, false); lives.len()];
    for op in trace.ops() {
        let block = |id: u64| usize::try_from(id).ok().filter(|&id| id < seen.len());
        match *op {
            Op::Step(_) => steps += 1,
            Op::Alloc { id, .. } => _ = block(id).map(|id| seen[id].0 = steps),
            Op::Free { id, .. } => _ = block(id).map(|id| seen[id].1 = steps < seen[id].0 + 2),
            Op::Use { id, .. } => _ = block(id).map(|id| seen[id].2 = true),
            _ => {}
        }
    }
    for (life, (_, soon, used)) in lives.iter_mut().zip(seen) {
        *life = match declared {
            Declared::Lasting if !soon => Life::Lasting,
            Declared::Movable if soon && !used => Life::Movable,
            _ => Life::Plain,
        };
    }
    lives
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_last_or_pass() {
        let text = "a 1 0 0 8\na 2 0 0 8\nm step 0\na 3 0 0 8\na 4 0 0 8\nu 4 3\nm step 1\nf 3 0\nf 4 0\n\
                    m step 2\nf 2 0\n";
        let trace = Trace::read("t", text.as_bytes()).unwrap();
        use Life::{Lasting, Movable, Plain};
        assert_eq!(lives(&trace, Declared::Lasting), [Lasting, Lasting, Plain, Plain]);
        assert_eq!(lives(&trace, Declared::Movable), [Plain, Plain, Movable, Plain]);
        assert_eq!(lives(&trace, Declared::Nothing), [Plain; 4]);
    }
}
