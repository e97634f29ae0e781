//! Ownership of a block: one compare-and-swap on its descriptor's state word.
#![cfg(loom)]

use loom_tests::{Outcomes, explore, role};
use millpond::internals::{Descriptor, Fence, Hint, State, Word, stream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

const INDEX: u32 = 1;

fn fence(of: u16, q: u64) -> Fence {
    Fence::new(stream(of), q)
}

/// A block that a user of stream 1 holds, and its word.
fn live() -> (Arc<Descriptor>, Word) {
    let block = Arc::new(Descriptor::default());
    block.set_extent(1 << 20, 1 << 20);
    block.set_state(State::Claimed);
    block.reset_fences(stream(1));
    let word = block.hand_out();
    (block, word)
}

/// The fences of a block, as they are read now.
fn fences(block: &Descriptor) -> Vec<Fence> {
    let mut fences = Vec::new();
    block.all_fences(|fence| {
        fences.push(fence);
        true
    });
    fences
}

/// Frees a block as `Core::free` does, the long way.
fn free(block: &Descriptor, word: Word, flags: u64) {
    block.exchange(word, word.with_state(State::Cached).with(flags)).expect("the owner's word");
}

/// Two threads hold a hint filed before the block's free, and claim by it while it is freed.
///
/// The bugs would be: both win; a winner does not see what the freeing thread wrote; the hint is
/// good again after the winner has freed the block in its turn.
#[test]
fn two_claims_by_one_hint() {
    static SEEN: Outcomes = Outcomes::new();
    explore("two_claims_by_one_hint", || {
        let (block, word) = live();
        let hint = word.hint(INDEX);
        let wins = Arc::new(AtomicUsize::new(0));
        let on = block.clone();
        let release = role(move || {
            on.stamp_own(fence(1, 5));
            on.release(word);
        });
        let claims = [6, 7].map(|q| {
            let (on, wins) = (block.clone(), wins.clone());
            role(move || {
                let won = on.claim(hint);
                if let Some(next) = won {
                    let before = wins.fetch_add(1, Ordering::Relaxed);
                    assert_eq!(before, 0, "one hint was good for two claims");
                    let seen = fences(&on);
                    assert_eq!(seen, [fence(1, 5)], "the winner does not see the freeing stamp");
                    on.stamp_own(fence(1, q));
                    on.release(Word::live(next));
                }
                won
            })
        });
        release.join().unwrap();
        let won: Vec<Hint> = claims.into_iter().filter_map(|claim| claim.join().unwrap()).collect();
        SEEN.reached(won.len() as u32);
        assert_eq!(block.claim(hint).is_some(), won.is_empty(), "a used hint is good again");
        if let Some(&next) = won.first() {
            assert!(block.claim(next).is_some(), "the winner's free left nothing to claim");
        }
    });
    SEEN.assert_all(2);
}

/// A block is freed the long way, by a compare-and-swap that sets flags, while two threads claim.
///
/// The bugs are those of `two_claims_by_one_hint`, and that a flagged word defeats the claim.
#[test]
fn two_claims_of_a_flagged_block() {
    static SEEN: Outcomes = Outcomes::new();
    explore("two_claims_of_a_flagged_block", || {
        let (block, word) = live();
        let hint = word.hint(INDEX);
        let on = block.clone();
        let release = role(move || {
            on.stamp_own(fence(1, 5));
            free(&on, word, Word::INDEXED);
        });
        let claims = [(); 2].map(|()| {
            let on = block.clone();
            role(move || {
                let won = on.claim(hint);
                if won.is_some() {
                    let seen = fences(&on);
                    assert_eq!(seen, [fence(1, 5)], "the winner does not see the freeing stamp");
                    assert!(on.word().has(Word::INDEXED), "a claim cleared the arena's flag");
                }
                won
            })
        });
        release.join().unwrap();
        let won = claims.into_iter().filter_map(|claim| claim.join().unwrap()).count();
        SEEN.reached(won as u32);
        assert!(won <= 1, "one hint was good for two claims");
        assert_eq!(block.claim(hint).is_some(), won == 0, "a used hint is good again");
    });
    SEEN.assert_all(2);
}

/// A thread reads a cached block's fences, then claims it, while its owner's stream takes it and
/// frees it again with other fences. The second reader is the arena.
///
/// The bug would be: the claim succeeds although the fences read belong to another cached period.
#[test]
fn fences_read_before_the_claim() {
    static SEEN: Outcomes = Outcomes::new();
    explore("fences_read_before_the_claim", || {
        let (block, word) = live();
        block.stamp_own(fence(1, 5));
        block.release(word);
        let hint = word.hint(INDEX);
        let on = block.clone();
        let reuse = role(move || {
            if let Some(next) = on.claim(hint) {
                on.reset_fences(stream(2));
                on.stamp_own(fence(2, 7));
                on.release(Word::live(next));
            }
        });
        let readers = [false, true].map(|arena| {
            let on = block.clone();
            role(move || {
                let word = on.word();
                if word.state() != State::Cached {
                    return;
                }
                let seen = fences(&on);
                let won = if arena {
                    on.claim_for_arena(word)
                } else {
                    on.claim(word.hint(INDEX)).is_some()
                };
                if won {
                    let first = word.matches(hint);
                    let belongs = if first { fence(1, 5) } else { fence(2, 7) };
                    assert_eq!(seen, [belongs], "the fences are not those of the claimed word");
                    SEEN.reached(u32::from(arena) + 2 * u32::from(first));
                }
            })
        });
        reuse.join().unwrap();
        for reader in readers {
            reader.join().unwrap();
        }
    });
    SEEN.assert_all(4);
}

/// A user claims by hint what the arena claims by its word, while the arena's index forgets it.
///
/// The bugs would be: both win or neither does.
#[test]
fn user_against_the_arena() {
    static SEEN: Outcomes = Outcomes::new();
    explore("user_against_the_arena", || {
        let (block, word) = live();
        block.stamp_own(fence(1, 5));
        free(&block, word, Word::INDEXED);
        let hint = word.hint(INDEX);
        let on = block.clone();
        let user = role(move || on.claim(hint).is_some());
        let on = block.clone();
        let arena = role(move || {
            let seen = on.word();
            let won = on.claim_for_arena(seen);
            // What was lost leaves the index; what was won as well, by the winner.
            assert!(won || on.forget_if_taken(), "lost to nobody");
            if won {
                on.set_indexed(false);
            }
            won
        });
        let (user, arena) = (user.join().unwrap(), arena.join().unwrap());
        assert!(user != arena, "a cached block went to both sides or to none");
        SEEN.reached(u32::from(user));
        let word = block.word();
        assert_eq!(word.state(), if user { State::Live } else { State::Claimed });
        assert!(!word.has(Word::INDEXED) && !word.matches(hint));
    });
    SEEN.assert_all(2);
}

/// The arena forgets a live block while its user frees it.
///
/// The bug would be: the free saw the flag and left no note, and the arena clears it afterwards:
/// the block is in no index and on no list.
#[test]
fn forgetting_against_a_free() {
    static SEEN: Outcomes = Outcomes::new();
    explore("forgetting_against_a_free", || {
        let (block, word) = live();
        block.set_indexed(true);
        let on = block.clone();
        let user = role(move || {
            // The free's loop: it decides by the word that it replaced.
            let mut word = word.with(Word::INDEXED);
            while let Err(found) =
                on.exchange(word, word.with_state(State::Cached).with(Word::INDEXED))
            {
                word = found;
            }
            !word.has(Word::INDEXED)
        });
        let on = block.clone();
        let arena = role(move || on.forget_if_taken());
        let (noted, forgotten) = (user.join().unwrap(), arena.join().unwrap());
        assert_eq!(noted, forgotten, "a freed block is in no index and on no list, or in both");
        assert!(block.word().has(Word::INDEXED), "a freed large block is not marked");
        SEEN.reached(u32::from(noted));
    });
    SEEN.assert_all(2);
}
