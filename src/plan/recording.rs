//! What one device's program asked for, in order.
//!
//! ```text
//! a block's Alloc comes before its Free; each name of a block is used once
//! step 0 comes before the first mark; step n lasts from the n-th mark to the next, or to the end
//! ```
//!
//! What breaks the first rule is passed over: a free of a block whose allocation was not recorded, and
//! a second free. A block allocated twice counts as two, of which the first is never freed.

use std::collections::HashMap;

/// Something that happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A block was allocated.
    Alloc {
        /// Its name, which no other block of the recording has.
        block: u64,
        /// The stream: its number among the device's streams, in the order in which they were made.
        stream: u32,
        /// Bytes as asked for.
        bytes: u64,
    },
    /// A block was freed.
    Free {
        /// Its name.
        block: u64,
    },
    /// A step began.
    Step,
}

/// What one device's program asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recording {
    events: Vec<Event>,
}

impl FromIterator<Event> for Recording {
    fn from_iter<I: IntoIterator<Item = Event>>(events: I) -> Self {
        Self { events: events.into_iter().collect() }
    }
}

impl Recording {
    /// What happened, in order.
    #[must_use]
    pub fn events(&self) -> &[Event] {
        &self.events
    }

    /// The allocations, with what became of them.
    pub(crate) fn history(&self) -> History {
        let mut history = History { requests: Vec::new(), starts: vec![0], operations: 0 };
        let mut live: HashMap<u64, usize> = HashMap::new();
        for &event in &self.events {
            match event {
                Event::Alloc { block, stream, bytes } => {
                    live.insert(block, history.requests.len());
                    history.requests.push(Request {
                        stream,
                        bytes,
                        step: history.starts.len() - 1,
                        operation: history.operations,
                        freed: None,
                    });
                    history.operations += 1;
                }
                Event::Free { block } => {
                    let Some(index) = live.remove(&block) else { continue };
                    history.requests[index].freed = Some(Freed {
                        // There is one: the block's own.
                        after: history.requests.len() - 1,
                        step: history.starts.len() - 1,
                        operation: history.operations,
                    });
                    history.operations += 1;
                }
                Event::Step => history.starts.push(history.requests.len()),
            }
        }
        history
    }
}

/// A recording's allocations, in order.
pub(crate) struct History {
    pub requests: Vec<Request>,
    /// The first request of each step.
    starts: Vec<usize>,
    /// Allocations and frees.
    pub operations: u64,
}

/// One allocation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    pub stream: u32,
    pub bytes: u64,
    pub step: usize,
    /// Allocations and frees before it.
    pub operation: u64,
    pub freed: Option<Freed>,
}

/// Where a block was freed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Freed {
    /// The last request before.
    pub after: usize,
    pub step: usize,
    pub operation: u64,
}

impl History {
    /// Steps that were marked.
    pub fn steps(&self) -> usize {
        self.starts.len() - 1
    }

    /// The requests of a step, as a range of indices.
    pub fn step(&self, step: usize) -> std::ops::Range<usize> {
        let end = self.starts.get(step + 1).copied().unwrap_or(self.requests.len());
        self.starts.get(step).map_or(end..end, |&start| start..end)
    }

    /// Calls `each` with a step's requests of which `counts` is true, and each one's *place*: its
    /// stream, and its number among those of its stream and step.
    pub fn each_place(
        &self,
        step: usize,
        counts: impl Fn(&Request) -> bool,
        mut each: impl FnMut(usize, Place),
    ) {
        let mut next: HashMap<u32, u32> = HashMap::new();
        for index in self.step(step) {
            let request = &self.requests[index];
            if counts(request) {
                let position = next.entry(request.stream).or_default();
                each(index, Place { stream: request.stream, position: *position });
                *position += 1;
            }
        }
    }

    /// The requests of a step by their places.
    pub fn places(&self, step: usize, counts: impl Fn(&Request) -> bool) -> HashMap<Place, usize> {
        let mut places = HashMap::new();
        self.each_place(step, counts, |index, place| {
            places.insert(place, index);
        });
        places
    }
}

/// Where in its step a request stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Place {
    pub stream: u32,
    pub position: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn alloc(block: u64, stream: u32, bytes: u64) -> Event {
        Event::Alloc { block, stream, bytes }
    }

    #[test]
    fn a_history_knows_steps_and_ends() {
        let free = |block| Event::Free { block };
        let events = [
            alloc(1, 0, 8),
            Event::Step,
            alloc(2, 0, 16),
            alloc(3, 1, 24),
            free(2),
            Event::Step,
            free(1),
            alloc(4, 0, 8),
            free(9),
            free(2),
            free(3),
        ];
        let history = Recording::from_iter(events).history();
        assert_eq!((history.steps(), history.operations), (2, 7));
        assert_eq!([0, 1, 2, 3].map(|step| history.step(step)), [0..1, 1..3, 3..4, 4..4]);
        let ends: Vec<_> = history
            .requests
            .iter()
            .map(|r| (r.step, r.freed.map(|freed| (freed.after, freed.step, freed.operation))))
            .collect();
        let expected =
            [(0, Some((2, 2, 4))), (1, Some((2, 1, 3))), (1, Some((3, 2, 6))), (2, None)];
        assert_eq!(ends, expected);
        let places = history.places(1, |_| true);
        assert_eq!(places[&Place { stream: 1, position: 0 }], 2);
        assert!(history.places(1, |r| r.bytes > 16).len() == 1);
    }
}
