//! Thread caches: who leases them, and who else takes what is in them.
#![cfg(loom)]

use loom::sync::Notify;
use loom::thread::JoinHandle;
use loom_tests::device::{Held, PAGE, Pond, Stream};
use loom_tests::{Outcomes, explore, explore_shallow, leasing_role, role};
use millpond::Reuse;
use std::sync::Arc;

const SMALL: u64 = 700;

/// A pool, and what a thread that has ended has left: an idle thread cache that keeps two small
/// blocks of a stream, and three more that nobody has freed yet.
struct Legacy {
    pond: Arc<Pond>,
    s: Stream,
    cached: [Held; 2],
    held: [Held; 3],
}

impl Legacy {
    fn new(pages: u64) -> Self {
        let thread = leasing_role(move || {
            let pond = Pond::build(pages, 4, Reuse::SameStream);
            let s = pond.open();
            let take = || pond.allocate(s, SMALL).expect("memory for the setup");
            let cached = [(); 2].map(|()| take());
            let held = [(); 3].map(|()| take());
            cached.into_iter().for_each(|block| pond.free(block));
            Self { pond, s, cached, held }
        });
        let legacy = thread.join().unwrap();
        assert_eq!(legacy.pond.thread_caches(), 1);
        legacy
    }
}

/// Two threads lease a cache to free a block; then one frees another, and one allocates one. Either
/// may have ended, and given its cache back, before the other asks for one.
///
/// The bugs would be: both use one cache at a time (loom sees two touch its cell); the second does
/// not see the bins as the first left them; both get one block.
#[test]
fn cache_passed_on_by_a_thread_that_ends() {
    static SEEN: Outcomes = Outcomes::new();
    explore_shallow("cache_passed_on_by_a_thread_that_ends", || {
        let Legacy { pond, s, held: [first, second, third], .. } = Legacy::new(2);
        let on = pond.clone();
        let one = leasing_role(move || {
            on.free(first);
            // Into a bin.
            on.free(second);
        });
        let on = pond.clone();
        let two = leasing_role(move || {
            on.free(third);
            on.allocate(s, SMALL).expect("cached blocks")
        });
        one.join().unwrap();
        two.join().unwrap();
        SEEN.reached_if(0, pond.thread_caches() == 1);
        SEEN.reached_if(1, pond.thread_caches() == 2);
        pond.check_invariants();
    });
    SEEN.assert_all(2);
}

/// A thread takes a block from its bin, a second claims it by a hint of its own, and a third needs
/// the page that it lies on: the heap's search, and then the ladder, which claims whatever is cached.
///
/// The bugs would be: two of them have the block; the third gets the page while a block of it is
/// in use.
#[test]
fn thread_hint_and_ladder_at_once() {
    static SEEN: Outcomes = Outcomes::new();
    explore_shallow("thread_hint_and_ladder_at_once", || {
        let Legacy { pond, s, cached, held: [first, rest @ ..] } = Legacy::new(1);
        rest.into_iter().for_each(|block| pond.free(block));
        // The thread has its lease before the others begin.
        let gates = [(); 2].map(|()| Arc::new(Notify::new()));
        let (on, [open, open_too]) = (pond.clone(), gates.clone());
        let thread = leasing_role(move || {
            on.free(first);
            open.notify();
            open_too.notify();
            on.allocate(s, SMALL)
        });
        let [gate, gate_too] = gates;
        let on = pond.clone();
        let hint = role(move || {
            gate.wait();
            on.claim(cached[1].hint)
        });
        let on = pond.clone();
        let ladder = role(move || {
            gate_too.wait();
            on.allocate_in_arena(s, PAGE)
        });
        let thread = thread.join().unwrap();
        let (hint, ladder) = (hint.join().unwrap(), ladder.join().unwrap());
        if let (Some(thread), Some(hint)) = (thread, hint) {
            assert_ne!(thread.address, hint.address, "two users hold one block");
        }
        let small = thread.is_some() || hint.is_some();
        assert!(!small || ladder.is_none(), "one page serves two");
        assert!(small || ladder.is_some(), "free memory was refused to all");
        SEEN.reached(u32::from(ladder.is_some()));
        SEEN.reached_if(2, thread.is_some() && hint.is_some());
        pond.check_invariants();
    });
    SEEN.assert_all(3);
}

/// Drops the pool's last handle while the roles that `frees` starts give up its last blocks; then
/// nothing may be left of its memory.
fn close_against<const N: usize>(
    pond: &Arc<Pond>,
    seen: &'static Outcomes,
    frees: impl FnOnce() -> [JoinHandle<()>; N],
) {
    pond.streams.driver.keep_up();
    let handle = pond.share();
    let frees = frees();
    let on = pond.clone();
    let close = role(move || {
        drop(handle);
        seen.reached(u32::from(on.streams.driver.pages() == 0));
    });
    frees.into_iter().for_each(|free| free.join().unwrap());
    close.join().unwrap();
    assert_eq!(pond.streams.driver.pages(), 0, "a closed pool keeps its memory");
}

/// The pool's last handle is dropped while a thread without a cache frees its last block.
///
/// The bug would be: the thread takes the pool for open, the pool takes the block for held, and the
/// memory is given back by neither.
#[test]
fn pool_closed_against_a_stray_free() {
    static SEEN: Outcomes = Outcomes::new();
    explore("pool_closed_against_a_stray_free", || {
        let pond = Pond::new(2, 4, Reuse::SameStream);
        let s = pond.open();
        let block = pond.allocate_in_arena(s, PAGE).unwrap();
        let on = pond.clone();
        close_against(&pond, &SEEN, || [role(move || on.free(block))]);
    });
    SEEN.assert_all(2);
}

/// The same with a thread that has a cache; it looks at the pool again when it ends. A second one
/// frees as well.
#[test]
fn pool_closed_against_frees_of_threads_that_end() {
    static SEEN: Outcomes = Outcomes::new();
    explore_shallow("pool_closed_against_frees_of_threads_that_end", || {
        let Legacy { pond, held: [first, second, third], .. } = Legacy::new(2);
        pond.free(third);
        let frees = [first, second].map(|block| {
            let on = pond.clone();
            move || on.free(block)
        });
        close_against(&pond, &SEEN, || frees.map(leasing_role));
    });
    SEEN.assert_all(2);
}

/// The pool closes while a thread frees its last block into a bin, without a look at anything that
/// others see, and ends.
///
/// The bug would be: the closing pool takes the block for held, and the thread, at its end, the pool
/// for open.
#[test]
fn pool_closed_against_a_free_into_a_bin() {
    static SEEN: Outcomes = Outcomes::new();
    explore_shallow("pool_closed_against_a_free_into_a_bin", || {
        let Legacy { pond, held: [first, second, third], .. } = Legacy::new(2);
        pond.free(third);
        let on = pond.clone();
        let free = move || {
            // The thread leases the cache that has the bins.
            on.free(first);
            on.free(second);
        };
        close_against(&pond, &SEEN, || [leasing_role(free)]);
    });
    SEEN.assert_all(2);
}
