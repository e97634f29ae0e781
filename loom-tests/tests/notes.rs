//! Notes: how the arena hears of blocks freed without its lock.
#![cfg(loom)]

use loom::sync::atomic::Ordering;
use loom_tests::{Outcomes, explore, role};
use millpond::internals::Blocks;
use std::sync::Arc;

/// Takes the list of notes and gives what was on it.
fn drain(blocks: &Blocks) -> Vec<u32> {
    let mut seen = Vec::new();
    let mut index = blocks.take_notes();
    while index != 0 && seen.len() < 8 {
        seen.push(index);
        index = blocks.at(index).note.load(Ordering::Relaxed);
    }
    seen
}

/// Two threads note the blocks they freed while the arena takes the list.
///
/// The bugs would be: a note is lost between two pushes or a push and the taking; the arena follows
/// a link that was not published with the head.
#[test]
fn two_notes_against_the_arena() {
    static SEEN: Outcomes = Outcomes::new();
    explore("two_notes_against_the_arena", || {
        let blocks = Arc::new(Blocks::new(1 << 20, 1 << 20));
        for index in 1..=3 {
            blocks.create(index).unwrap();
        }
        blocks.note(3);
        let frees = [1, 2].map(|index| {
            let on = blocks.clone();
            role(move || on.note(index))
        });
        let on = blocks.clone();
        let arena = role(move || {
            let mut seen = drain(&on);
            seen.extend(drain(&on));
            seen
        });
        for free in frees {
            free.join().unwrap();
        }
        let mut seen = arena.join().unwrap();
        SEEN.reached_if(seen.len() as u32 - 1, seen.len() <= 3);
        seen.extend(drain(&blocks));
        seen.sort_unstable();
        assert_eq!(seen, [1, 2, 3], "a noted block was not seen exactly once");
    });
    SEEN.assert_all(3);
}
