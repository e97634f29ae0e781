//! Who uses which block, while streams change from step to step.
//!
//! A trace says that a stream uses a block until its free. With `--streams-fresh` that stream is by
//! then another than the one that the pool was told about: it has to be told again.

use std::collections::BTreeMap;

/// A block whose user's stream has changed since the pool was told about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Carry {
    pub slot: u32,
    pub stream: u16,
}

/// The users of all live blocks.
#[derive(Default)]
pub(super) struct Users {
    /// How often streams have changed.
    changes: u32,
    /// By slot: each user, and the change after which the pool was last told.
    of: BTreeMap<u32, Vec<(u16, u32)>>,
}

impl Users {
    /// All streams are replaced.
    pub fn change(&mut self) {
        self.changes += 1;
    }

    /// The pool is told that a stream uses the slot's block.
    pub fn note(&mut self, slot: u32, stream: u16) {
        let users = self.of.entry(slot).or_default();
        match users.iter_mut().find(|(user, _)| *user == stream) {
            Some((_, told)) => *told = self.changes,
            None => users.push((stream, self.changes)),
        }
    }

    /// The slot's block is freed; what the pool must be told before.
    pub fn end(&mut self, slot: u32) -> impl Iterator<Item = Carry> + use<> {
        let users = self.of.remove(&slot).unwrap_or_default();
        due(slot, users, self.changes)
    }

    /// What is due for all blocks that are left.
    pub fn left(self) -> Vec<Carry> {
        let all = self.of.into_iter().flat_map(|(slot, users)| due(slot, users, self.changes));
        all.collect()
    }
}

fn due(slot: u32, users: Vec<(u16, u32)>, now: u32) -> impl Iterator<Item = Carry> {
    let stale = users.into_iter().filter(move |(_, told)| *told != now);
    stale.map(move |(stream, _)| Carry { slot, stream })
}
