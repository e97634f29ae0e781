//! Freed blocks that wait in one piece, and merging in batches: what [`crate::recycle`] decides, done.
//!
//! A block that waits is `Cached` and listed like any other, but the heap leaves it whole: it is
//! neither cut nor merged, nor are its pages moved, until it is given up (or everything is, before
//! out-of-memory). Its own stream finds it by its hint all the while; the arena hears of that when it
//! next looks at it.

use super::arena::{Arena, Request};
use super::extent::List;
use crate::block::{Hint, State};
use crate::config::{Caching, Coalescing};
use crate::recycle::{Look, Now, Recycler, Usage};
use std::time::Instant;

/// Freed blocks between two looks at how much is idle, which is a walk over everything that is.
const IDLE_INTERVAL: u32 = 64;

/// What decides how long freed blocks stay as they are.
pub(super) struct Keeping {
    pub recycler: Option<Recycler>,
    /// Everything is given up: nothing is kept any more.
    pub pressed: bool,
    /// Everything idle is being merged.
    pub merging: bool,
    started: Instant,
    /// When notes were last read.
    now: Now,
    /// Freed since everything was merged; and since it was last looked how much is idle.
    freed: u32,
    unseen: u32,
    idle: u64,
}

impl Keeping {
    pub fn new(recycler: Option<Recycler>) -> Self {
        Self {
            recycler,
            pressed: false,
            merging: false,
            started: Instant::now(),
            now: Now::default(),
            freed: 0,
            unseen: 0,
            idle: 0,
        }
    }
}

impl Arena {
    /// Whether cached blocks are left whole.
    pub(super) fn keeps(&self) -> bool {
        self.keeping.recycler.is_some() && !self.keeping.pressed
    }

    /// The largest cached block that may serve a request of `bytes`, and then only as a whole.
    pub(super) fn most_waiting(&self, bytes: u64) -> u64 {
        match &self.keeping.recycler {
            Some(recycler) if !self.keeping.pressed => recycler.most(bytes),
            _ => u64::MAX,
        }
    }

    /// Whether cached blocks may be merged with what is free.
    pub(super) fn merges_cached(&self) -> bool {
        let batched = matches!(self.settings.coalescing, Coalescing::Batched { .. });
        !self.keeps() && (!batched || self.keeping.merging)
    }

    /// Whether what is freed is merged at once.
    fn merges_at_once(&self) -> bool {
        let settings = &self.settings;
        settings.caching == Caching::Off || settings.coalescing == Coalescing::Immediate
    }

    /// Notes are about to be read: the moment counts for what they say, and for what is done then.
    pub(super) fn look_at_clock(&mut self) {
        if self.keeping.recycler.is_some() {
            let time = self.keeping.started.elapsed();
            self.keeping.now = Now { step: self.supply.gauge().step(), time };
        }
    }

    /// A block that was freed, and is cached: it waits, is merged, or is listed as it is.
    pub(super) fn take_in(&mut self, index: u32) {
        let seen = self.block(index).word();
        self.keeping.freed += 1;
        self.keeping.unseen += 1;
        let merges = if let Some(mut recycler) = self.keeping.recycler.take() {
            let bytes = self.block(index).size();
            let waits = recycler.admit(seen.hint(index), bytes, self.keeping.now);
            self.keeping.recycler = Some(recycler);
            !waits
        } else if self.merges_at_once() {
            true
        } else {
            self.settings.coalescing == Coalescing::OnDemand && self.has_mergeable_neighbour(index)
        };
        if merges && self.claim(index, seen) {
            self.block(index).set_indexed(false);
            self.settle(index, State::Free);
        } else {
            self.enlist(index, List::Cached);
        }
    }

    /// Lets the heap have what has waited long enough.
    pub(super) fn recycle(&mut self) {
        let Some(mut recycler) = self.keeping.recycler.take() else { return };
        let (now, usage) = (self.keeping.now, self.usage());
        let due = recycler.due(now, usage, |hint| self.fate_of(hint));
        self.keeping.recycler = Some(recycler);
        self.give_up(due);
    }

    /// Lets the heap have waiting blocks of at least as many bytes as are requested, the longest unused
    /// first. False when none waits.
    pub(super) fn evict(&mut self, request: Request) -> bool {
        let Some(mut recycler) = self.keeping.recycler.take() else { return false };
        let waiting: u64 = recycler.waiting().iter().map(|bucket| bucket.0).sum();
        // Not one by one where many wait.
        let bytes = request.bytes.max(waiting / 32);
        let evicted = recycler.evict(bytes, self.keeping.now, |hint| self.fate_of(hint));
        self.keeping.recycler = Some(recycler);
        self.give_up(evicted)
    }

    /// Merges blocks that waited. False when none does any more.
    fn give_up(&mut self, hints: Vec<Hint>) -> bool {
        let start = Instant::now();
        let mut any = false;
        for hint in hints {
            let (index, seen) = (hint.index(), self.block(hint.index()).word());
            let bytes = self.block(index).size();
            if seen.matches(hint) && seen.state() == State::Cached && self.claim(index, seen) {
                self.settle(index, State::Free);
                self.supply.gauge().count_recycled(bytes);
                any = true;
            } else if let Look::Again(hint) = self.fate_of(hint)
                && let Some(recycler) = &mut self.keeping.recycler
            {
                // Taken and freed since it was looked at: it left no note, and waits anew.
                recycler.admit(hint, bytes, self.keeping.now);
            }
        }
        if any {
            self.supply.gauge().count_pass(start.elapsed());
        }
        any
    }

    /// What became of a block that was to wait.
    fn fate_of(&mut self, hint: Hint) -> Look {
        let index = hint.index();
        let word = self.block(index).word();
        match word.state() {
            State::Cached if word.matches(hint) => Look::Waits,
            // One that is not listed has a note on its way, or describes something else by now.
            _ if self.links[index as usize].list != List::Cached => Look::Gone,
            State::Cached => Look::Again(word.hint(index)),
            // Its next free is to leave a note.
            _ => {
                self.forget(index);
                match self.links[index as usize].list {
                    List::Cached => Look::Again(self.block(index).word().hint(index)),
                    _ => Look::Gone,
                }
            }
        }
    }

    /// How much is held, and idle when it was last looked.
    fn usage(&mut self) -> Usage {
        if self.keeping.unseen >= IDLE_INTERVAL {
            self.keeping.unseen = 0;
            self.keeping.idle = self.idle_bytes();
        }
        Usage { reserved: self.supply.reserved(), idle: self.keeping.idle }
    }

    /// Bytes of idle extents that the index lists, and of spare pages.
    fn idle_bytes(&self) -> u64 {
        let mut idle = self.pages.spare_bytes();
        for region in &self.regions {
            for list in [List::Free, List::Cached] {
                region.index(list).for_each(&self.links, |index| {
                    let block = self.block(index);
                    let state = block.word().state();
                    idle +=
                        if matches!(state, State::Free | State::Cached) { block.size() } else { 0 };
                });
            }
        }
        idle
    }

    /// Whether everything that is idle is to be merged before a miss goes on.
    pub(super) fn merges_now(&mut self) -> bool {
        match self.settings.coalescing {
            Coalescing::OnDemand | Coalescing::Immediate => true,
            Coalescing::Batched { frees, fragmentation } => {
                let most = (self.supply.reserved() as f64 * fragmentation) as u64;
                self.keeping.freed >= frees || self.idle_bytes() > most
            }
        }
    }

    /// Merges extents all at once by `merge`.
    pub(super) fn in_a_pass<R>(&mut self, merge: impl FnOnce(&mut Self) -> R) -> R {
        let timed = self.settings.coalescing != Coalescing::OnDemand
            || self.keeping.recycler.is_some()
            || self.settings.caching == Caching::Off;
        let since = timed.then(Instant::now);
        self.keeping.merging = true;
        let outcome = merge(self);
        self.keeping.merging = false;
        self.keeping.freed = 0;
        self.keeping.idle = 0;
        if let Some(since) = since {
            self.supply.gauge().count_pass(since.elapsed());
        }
        outcome
    }

    /// A step of the program begins: what waits too long goes back.
    pub fn begin_step(&mut self) {
        if self.keeping.recycler.is_some() {
            self.read_notes();
            self.recycle();
        }
    }
}
