//! Handles: values that look like pointers and are never followed.
//!
//! A value says of what kind it is, which machine gave it out, and a serial number, so that a handle
//! of an earlier machine, or one that was destroyed, is told from one that lives.
//!
//! ```text
//! 0x6000_0000_0000 | generation (12 bits) << 32 | kind << 28 | serial number << 4
//! ```
//!
//! Values of destroyed streams go to the next streams created, as real drivers do it and as code that
//! tells streams apart by them must be made to feel. All others are used once, so that every use after
//! the destruction is found.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

const BASE: usize = 0x6000_0000_0000;
const GENERATIONS: usize = 0xfff;
const SERIALS: usize = 0xff_ffff;

/// What a handle is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Context = 1,
    Stream,
    Event,
    Pool,
    Graph,
    GraphExec,
    GraphNode,
    Module,
    Function,
}

/// Why there is nothing behind a handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    Null,
    Destroyed,
    EarlierMachine,
    Never,
}

/// What lives of one kind.
#[derive(Debug)]
pub(crate) struct Handles<T> {
    kind: Kind,
    generation: usize,
    next: usize,
    returned: BinaryHeap<Reverse<usize>>,
    live: BTreeMap<usize, T>,
}

impl<T> Handles<T> {
    pub(crate) fn new(kind: Kind, generation: usize) -> Self {
        let (returned, live) = (BinaryHeap::new(), BTreeMap::new());
        Self { kind, generation: generation & GENERATIONS, next: 1, returned, live }
    }

    fn handle(&self, serial: usize) -> usize {
        BASE | self.generation << 32 | (self.kind as usize) << 28 | (serial & SERIALS) << 4
    }

    pub(crate) fn insert(&mut self, value: T) -> usize {
        let serial = match self.returned.pop() {
            Some(Reverse(serial)) => serial,
            None => {
                self.next += 1;
                self.next - 1
            }
        };
        let handle = self.handle(serial);
        self.live.insert(handle, value);
        handle
    }

    pub(crate) fn get(&self, handle: usize) -> Option<&T> {
        self.live.get(&handle)
    }

    pub(crate) fn get_mut(&mut self, handle: usize) -> Option<&mut T> {
        self.live.get_mut(&handle)
    }

    pub(crate) fn remove(&mut self, handle: usize) -> Option<T> {
        let value = self.live.remove(&handle)?;
        if self.kind == Kind::Stream {
            self.returned.push(Reverse(handle >> 4 & SERIALS));
        }
        Some(value)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (usize, &T)> {
        self.live.iter().map(|(handle, value)| (*handle, value))
    }

    pub(crate) fn values_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.live.values_mut()
    }

    /// Why there is nothing behind `handle`.
    pub(crate) fn fate(&self, handle: usize) -> Fate {
        let serial = handle >> 4 & SERIALS;
        let kind = handle >> 28 & 0xf;
        let generation = handle >> 32 & GENERATIONS;
        if handle == 0 {
            Fate::Null
        } else if handle & BASE != BASE || handle & 0xf != 0 || kind != self.kind as usize {
            Fate::Never
        } else if generation != self.generation {
            Fate::EarlierMachine
        } else if serial != 0 && serial < self.next {
            Fate::Destroyed
        } else {
            Fate::Never
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handle_tells_its_fate() {
        let mut events = Handles::new(Kind::Event, 7);
        let (first, second) = (events.insert('a'), events.insert('b'));
        assert_eq!(events.remove(first), Some('a'));
        assert_eq!(events.fate(first), Fate::Destroyed);
        let third = events.insert('c');
        assert_ne!(third, first, "used once");
        assert_eq!(events.get(second), Some(&'b'));
        assert_eq!(Handles::<char>::new(Kind::Event, 8).fate(second), Fate::EarlierMachine);
        assert_eq!(Handles::<char>::new(Kind::Stream, 7).fate(second), Fate::Never);
        assert_eq!(events.fate(0), Fate::Null);
        assert_eq!(events.fate(0x1234), Fate::Never);
    }

    #[test]
    fn a_streams_handle_is_used_again() {
        let mut streams = Handles::new(Kind::Stream, 1);
        let (first, _second) = (streams.insert(1), streams.insert(2));
        streams.remove(first);
        assert_eq!(streams.insert(3), first);
    }
}
