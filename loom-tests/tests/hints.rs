//! The hint tables of stream caches and shards: filing, taking, and replacing the table.
#![cfg(loom)]

use crossbeam_epoch::{Collector, Guard, LocalHandle, unprotected};
use loom_tests::{Outcomes, explore, role};
use millpond::internals::{Blocks, Hint, HintCache, Probe, State, Word, stream};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The alignment of a table's lines, and of nothing else that a rebuild allocates.
const LINE_ALIGN: usize = 128;
const KEY: u64 = 7;

thread_local! {
    /// The next allocation of lines is the one to watch.
    static WATCHING: Cell<bool> = const { Cell::new(false) };
    static WATCHED: Cell<usize> = const { Cell::new(0) };
    static FREED: Cell<bool> = const { Cell::new(false) };
}

/// The system's allocator; it notices when the watched lines are freed, and keeps them, so that a
/// mistake reads old memory and not another's. A model runs on one system thread.
struct Watch;

// SAFETY: all memory is the system allocator's; one block is not given back to it.
unsafe impl GlobalAlloc for Watch {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promise.
        let memory = unsafe { System.alloc(layout) };
        if layout.align() == LINE_ALIGN && WATCHING.replace(false) {
            WATCHED.set(memory as usize);
        }
        memory
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        if memory as usize == WATCHED.get() && layout.align() == LINE_ALIGN {
            FREED.set(true);
            return;
        }
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static WATCH: Watch = Watch;

/// A guard for where no table is freed.
fn still() -> &'static Guard {
    // SAFETY: no other thread frees tables meanwhile: there is one thread, or no model that uses
    // this collects what a rebuild has deferred.
    unsafe { unprotected() }
}

/// Participants of a collector of the model's own. They have joined, and taken their first look at
/// its garbage, before the model's roles start: neither is the library's to prove.
fn participants<const N: usize>() -> [LocalHandle; N] {
    let collector = Collector::new();
    let handles = std::array::from_fn(|_| collector.register());
    handles.iter().for_each(|handle| drop(handle.pin()));
    handles
}

/// Cached blocks 1 to 3, and a cache with a table of one line for two hints.
struct Bed {
    blocks: Blocks,
    cache: HintCache,
    rebuilding: AtomicBool,
}

impl Bed {
    fn new() -> Arc<Self> {
        FREED.set(false);
        let blocks = Blocks::new(1 << 20, 1 << 20);
        for index in 1..=3 {
            let block = blocks.create(index).unwrap();
            block.set_extent(u64::from(index) << 20, KEY * 512);
            block.set_state(State::Claimed);
            block.reset_fences(stream(1));
            block.release(block.hand_out());
        }
        let rebuilding = AtomicBool::new(false);
        let bed = Self { blocks, cache: HintCache::default(), rebuilding };
        assert!(!bed.put(1), "no table yet");
        WATCHING.set(true);
        bed.cache.make_room(|_| false, still());
        assert!(!WATCHING.get(), "a table was made");
        Arc::new(bed)
    }

    fn hint(&self, index: u32) -> Hint {
        self.blocks.at(index).word().hint(index)
    }

    fn put(&self, index: u32) -> bool {
        let stale = |hint| self.blocks.is_stale(hint);
        self.cache.put(KEY, self.hint(index), stale, still())
    }

    /// Files hints until one is lost, and goes on until the table is due for a rebuild.
    fn crowd(&self) {
        assert!(self.put(1) && self.put(2), "the table has two places");
        for _ in 0..4 {
            assert!(!self.put(3), "a full table took a hint");
        }
    }

    /// Takes a block by a hint, as the pool does; checks that the table is there meanwhile.
    fn take(&self, guard: &Guard) -> Option<Hint> {
        let early = !self.rebuilding.load(Ordering::Relaxed);
        let there = || assert!(!early || !FREED.get(), "a table is freed while it is read");
        let taken = self.cache.take(
            KEY,
            |hint| {
                there();
                match self.blocks.at(hint.index()).claim(hint) {
                    Some(next) => Probe::Taken(next),
                    None => Probe::Stale,
                }
            },
            guard,
        );
        there();
        taken
    }

    fn rebuild(&self, guard: &Guard) {
        self.rebuilding.store(true, Ordering::Relaxed);
        self.cache.make_room(|hint| self.blocks.is_stale(hint), guard);
    }
}

/// A table is replaced and, as soon as the epochs allow, freed, while another thread takes a hint.
///
/// The bug would be: the table is freed while the thread that pinned before is still reading it.
#[test]
fn take_against_a_rebuild() {
    static SEEN: Outcomes = Outcomes::new();
    explore("take_against_a_rebuild", || {
        let bed = Bed::new();
        bed.crowd();
        let [reader, writer] = participants();
        let on = bed.clone();
        let take = role(move || {
            let taken = on.take(&reader.pin());
            (taken, reader)
        });
        let on = bed.clone();
        let rebuild = role(move || {
            let guard = writer.pin();
            on.rebuild(&guard);
            guard.flush();
            drop(guard);
            for _ in 0..2 {
                writer.pin().flush();
            }
            SEEN.reached(u32::from(FREED.get()));
            writer
        });
        let (taken, _reader) = take.join().unwrap();
        let _writer = rebuild.join().unwrap();
        assert!(taken.is_some(), "neither table had a good hint");
    });
    SEEN.assert_all(2);
}

/// Two threads take while the table is replaced: for a moment a hint stands in both tables.
///
/// The bug would be: one block goes to both.
#[test]
fn two_takes_against_a_rebuild() {
    static SEEN: Outcomes = Outcomes::new();
    explore("two_takes_against_a_rebuild", || {
        let bed = Bed::new();
        bed.crowd();
        // One good hint is left.
        assert!(bed.blocks.at(2).claim(bed.hint(2)).is_some());
        let takes = [(); 2].map(|()| {
            let on = bed.clone();
            role(move || on.take(still()))
        });
        let [writer] = participants();
        let on = bed.clone();
        let rebuild = role(move || {
            on.rebuild(&writer.pin());
            writer
        });
        let taken: Vec<_> = takes.into_iter().filter_map(|take| take.join().unwrap()).collect();
        let _writer = rebuild.join().unwrap();
        assert_eq!(taken.len(), 1, "one block went to both takers, or to none");
        assert_eq!(bed.take(still()), None, "a block that is held was taken");
        SEEN.reached(0);
    });
    SEEN.assert_all(1);
}

/// Two threads file hints of one size, of which the table knows nothing yet, while a third takes.
///
/// The bugs would be: one hint overwrites the other; a filed hint is found by nobody.
#[test]
fn two_puts_against_a_take() {
    static SEEN: Outcomes = Outcomes::new();
    explore("two_puts_against_a_take", || {
        let bed = Bed::new();
        let puts = [1, 2].map(|index| {
            let on = bed.clone();
            role(move || assert!(on.put(index), "the table has two places"))
        });
        let on = bed.clone();
        let take = role(move || on.take(still()));
        for put in puts {
            put.join().unwrap();
        }
        let early = take.join().unwrap();
        SEEN.reached(u32::from(early.is_some()));
        let mut taken: Vec<u32> = [early, bed.take(still()), bed.take(still())]
            .into_iter()
            .flatten()
            .map(Hint::index)
            .collect();
        taken.sort_unstable();
        assert_eq!(taken, [1, 2], "a filed hint is lost, or was good twice");
        for index in 1..=2 {
            assert_eq!(bed.blocks.at(index).word(), Word::live(bed.hint(index)));
        }
    });
    SEEN.assert_all(2);
}

/// A hint takes the place of a stale one, which a taker comes across at the same moment.
///
/// The bug would be: the taker empties the place after the new hint was filed in it. That the new
/// hint finds no room although the taker makes some is none: it is told so.
#[test]
fn stale_hint_replaced_against_a_take() {
    static SEEN: Outcomes = Outcomes::new();
    explore("stale_hint_replaced_against_a_take", || {
        let bed = Bed::new();
        assert!(bed.put(1) && bed.put(2));
        for index in 1..=2 {
            assert!(bed.blocks.at(index).claim(bed.hint(index)).is_some());
        }
        let on = bed.clone();
        let put = role(move || on.put(3));
        let on = bed.clone();
        let take = role(move || on.take(still()));
        let filed = put.join().unwrap();
        let taken = take.join().unwrap();
        SEEN.reached(if filed { u32::from(taken.is_some()) } else { 2 });
        let late = bed.take(still());
        let found: Vec<u32> = [taken, late].into_iter().flatten().map(Hint::index).collect();
        assert_eq!(found, [3].repeat(usize::from(filed)), "a filed hint is lost, or good twice");
    });
    SEEN.assert_all(3);
}
