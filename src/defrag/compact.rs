//! Which blocks to move where: a pure function of what lies where, and of how much may be copied.
//!
//! Memory is wanted in whole *units*: a page, where pages can be mapped anywhere; a segment elsewhere.
//! What idle memory is worth is the sum, over units, of the square of each idle run's part of it:
//!
//! ```text
//! worth = sum over idle runs r and units u of |r ∩ u|² / |u|
//! a block moves once, to where it lies lower, or to a run that it fills exactly
//! every move raises the worth; all together by at least WORTH of the bytes copied
//! bytes copied <= budget
//! ```
//!
//! A whole unit is worth its bytes, half of one a quarter of them; so the moves that are best by worth
//! gained for bytes copied are those that empty units and join runs, the emptiest units first. A move
//! alone gains little where a unit takes several to be emptied: the moves are made one after the other
//! on paper, and as many of them are kept as gain most.

use std::collections::{BTreeMap, BTreeSet, BinaryHeap};

/// What lies in a range of addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Nothing, and what was there is over.
    Idle,
    /// What has to stay.
    Still,
    /// A block that may be moved, by a number of the caller's.
    Block(u32),
}

/// A range of addresses with memory behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    pub address: u64,
    pub bytes: u64,
    pub kind: Kind,
    /// Nothing is joined over the border of a stretch.
    pub stretch: u32,
}

/// How the memory of a stretch is taken: units of so many bytes, counted from an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stretch {
    pub origin: u64,
    pub unit: u64,
}

/// A block that is to be moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Move {
    pub block: u32,
    pub from: u64,
    pub to: u64,
    pub bytes: u64,
}

/// What to do.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// In this order: a block may go where an earlier one was.
    pub moves: Vec<Move>,
    /// Blocks, and their bytes, whose turn came when the budget did not reach.
    pub left: (u64, u64),
}

/// A move has to gain this share of the bytes that it copies.
const WORTH: u64 = 4;
/// Moves at most: the heap serves nobody meanwhile.
const MOST: usize = 1024;
/// Runs that are looked at for one block.
const TRIES: usize = 32;

/// What an idle run is worth.
fn worth(stretch: Stretch, start: u64, bytes: u64) -> u64 {
    let Stretch { origin, unit } = stretch;
    let end = start + bytes;
    let part = |bytes: u64| (u128::from(bytes) * u128::from(bytes) / u128::from(unit)) as u64;
    let first = start - (start - origin) % unit;
    if end <= first + unit {
        return part(bytes);
    }
    let (head, tail) = (first + unit - start, (end - origin) % unit);
    part(head) + part(tail) + (bytes - head - tail)
}

#[derive(Clone, Copy)]
struct Run {
    bytes: u64,
    stretch: u32,
}

#[derive(Clone, Copy)]
struct Block {
    number: u32,
    bytes: u64,
    stretch: u32,
}

/// The memory, as the moves so far leave it.
struct Paper<'a> {
    stretches: &'a [Stretch],
    /// Idle runs by their start, and by size.
    runs: BTreeMap<u64, Run>,
    sizes: BTreeSet<(u64, u64)>,
    /// Blocks that have not been moved, by their start.
    blocks: BTreeMap<u64, Block>,
}

impl<'a> Paper<'a> {
    fn new(stretches: &'a [Stretch], pieces: &[Piece]) -> Self {
        let (runs, sizes, blocks) = (BTreeMap::new(), BTreeSet::new(), BTreeMap::new());
        let mut paper = Self { stretches, runs, sizes, blocks };
        let mut run: Option<(u64, Run)> = None;
        for &Piece { address, bytes, kind, stretch } in pieces {
            match (&mut run, kind) {
                (Some((start, run)), Kind::Idle)
                    if *start + run.bytes == address && run.stretch == stretch =>
                {
                    run.bytes += bytes;
                }
                (_, Kind::Idle) => {
                    run.take().into_iter().for_each(|(start, run)| paper.add(start, run));
                    run = Some((address, Run { bytes, stretch }));
                }
                (_, Kind::Block(number)) => {
                    paper.blocks.insert(address, Block { number, bytes, stretch });
                }
                (_, Kind::Still) => {}
            }
        }
        run.into_iter().for_each(|(start, run)| paper.add(start, run));
        paper
    }

    fn add(&mut self, start: u64, run: Run) {
        if run.bytes > 0 {
            self.runs.insert(start, run);
            self.sizes.insert((run.bytes, start));
        }
    }

    fn remove(&mut self, start: u64) {
        if let Some(run) = self.runs.remove(&start) {
            self.sizes.remove(&(run.bytes, start));
        }
    }

    fn worth(&self, stretch: u32, start: u64, bytes: u64) -> u64 {
        worth(self.stretches[stretch as usize], start, bytes)
    }

    /// The idle bytes right below and above a block.
    fn beside(&self, at: u64, block: Block) -> (u64, u64) {
        let below = self.runs.range(..at).next_back();
        let below =
            below.filter(|(start, run)| *start + run.bytes == at && run.stretch == block.stretch);
        let above = self.runs.get(&(at + block.bytes)).filter(|run| run.stretch == block.stretch);
        (below.map_or(0, |(_, run)| run.bytes), above.map_or(0, |run| run.bytes))
    }

    /// What is gained where a block leaves.
    fn gain(&self, at: u64, block: Block) -> u64 {
        let (below, above) = self.beside(at, block);
        let joined = self.worth(block.stretch, at - below, below + block.bytes + above);
        let apart = self.worth(block.stretch, at - below, below)
            + self.worth(block.stretch, at + block.bytes, above);
        joined.saturating_sub(apart)
    }

    /// What is lost where a block comes to lie at the start of a run.
    fn loss(&self, start: u64, bytes: u64) -> u64 {
        let Run { bytes: all, stretch } = self.runs[&start];
        let left = self.worth(stretch, start + bytes, all - bytes);
        self.worth(stretch, start, all).saturating_sub(left)
    }

    /// What is gained where a block goes to the start of the run right below it, which is as large.
    fn slide(&self, at: u64, block: Block) -> u64 {
        let (below, above) = self.beside(at, block);
        let after = self.worth(block.stretch, at - below + block.bytes, below + above);
        let before = self.worth(block.stretch, at - below, below)
            + self.worth(block.stretch, at + block.bytes, above);
        after.saturating_sub(before)
    }

    /// The run that a block goes to, and what is gained in all: one that it fills, or a lower one, where
    /// the most is. None where nothing is gained.
    fn place(&self, at: u64, block: Block) -> Option<(u64, u64)> {
        let (below, above) = self.beside(at, block);
        let gain = self.gain(at, block);
        let mut best: Option<(u64, u64)> = None;
        for &(bytes, start) in self.sizes.range((block.bytes, 0)..).take(TRIES) {
            let fills = bytes == block.bytes;
            // The memory of a copy does not overlap: a run beside it is only as good as it is alone.
            let net = match start {
                _ if below > 0 && start == at - below => self.slide(at, block),
                _ if above > 0 && start == at + block.bytes => continue,
                _ if start > at && !fills => continue,
                _ => gain.saturating_sub(self.loss(start, block.bytes)),
            };
            if net > 0 && best.is_none_or(|(_, most)| net > most) {
                best = Some((start, net));
            }
        }
        best
    }

    /// Moves a block on paper. Returns where the run that it leaves starts, and ends.
    fn carry(&mut self, at: u64, block: Block, to: u64) -> (u64, u64) {
        let Run { bytes, stretch } = self.runs[&to];
        self.remove(to);
        self.add(to + block.bytes, Run { bytes: bytes - block.bytes, stretch });
        self.blocks.remove(&at);
        let (below, above) = self.beside(at, block);
        if below > 0 {
            self.remove(at - below);
        }
        if above > 0 {
            self.remove(at + block.bytes);
        }
        let joined = Run { bytes: below + block.bytes + above, stretch: block.stretch };
        self.add(at - below, joined);
        (at - below, at + block.bytes + above)
    }

    /// The blocks that touch a range of addresses from outside.
    fn around(&self, start: u64, end: u64) -> impl Iterator<Item = (u64, Block)> {
        let below = self.blocks.range(..start).next_back();
        let below = below.filter(|(at, block)| *at + block.bytes == start);
        let above = self.blocks.get_key_value(&end);
        below.into_iter().chain(above).map(|(&at, &block)| (at, block))
    }
}

/// The moves that are worth it, in order. `pieces` ascend by address, and do not overlap.
pub fn plan(stretches: &[Stretch], pieces: &[Piece], budget: u64) -> Plan {
    let mut paper = Paper::new(stretches, pieces);
    // By worth gained for a byte; of equals the highest address first.
    let score = |paper: &Paper<'_>, at: u64, block: Block| {
        (u128::from(paper.gain(at, block)) << 20) / u128::from(block.bytes)
    };
    let mut queue: BinaryHeap<(u128, u64)> =
        paper.blocks.iter().map(|(&at, &block)| (score(&paper, at, block), at)).collect();
    let (mut plan, mut copied) = (Plan::default(), 0);
    // How many moves to keep, and what they gain beyond what they have to.
    let (mut kept, mut best, mut surplus) = (0, 0i128, 0i128);
    while let Some((promised, at)) = queue.pop() {
        // Moved since it was queued.
        let Some(&block) = paper.blocks.get(&at) else { continue };
        let now = score(&paper, at, block);
        if now < promised {
            if now > 0 {
                queue.push((now, at));
            }
            continue;
        }
        let Some((to, gained)) = paper.place(at, block) else { continue };
        if block.bytes > budget - copied || plan.moves.len() == MOST {
            paper.blocks.remove(&at);
            plan.left.0 += 1;
            plan.left.1 += block.bytes;
            continue;
        }
        let (start, end) = paper.carry(at, block, to);
        copied += block.bytes;
        plan.moves.push(Move { block: block.number, from: at, to, bytes: block.bytes });
        surplus += i128::from(gained) - i128::from(block.bytes / WORTH);
        if surplus > best {
            (kept, best) = (plan.moves.len(), surplus);
        }
        queue.extend(paper.around(start, end).map(|(at, block)| (score(&paper, at, block), at)));
    }
    plan.moves.truncate(kept);
    plan
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const UNIT: u64 = 16 * CELL;
    /// A character's bytes.
    const CELL: u64 = 512;

    /// Stretches from strings: `.` is idle, `#` stays, other characters are blocks, each a run of equal
    /// ones.
    fn memory(rows: &[&str]) -> (Vec<Stretch>, Vec<Piece>) {
        let (mut stretches, mut pieces, mut at) = (Vec::new(), Vec::<Piece>::new(), 0);
        for row in rows {
            let stretch = stretches.len() as u32;
            stretches.push(Stretch { origin: at, unit: row.len() as u64 * CELL });
            let mut rest = *row;
            while let Some(first) = rest.chars().next() {
                let bytes = rest.chars().take_while(|&c| c == first).count();
                let kind = match first {
                    '.' => Kind::Idle,
                    '#' => Kind::Still,
                    other => Kind::Block(other as u32),
                };
                let len = bytes as u64 * CELL;
                pieces.push(Piece { address: at, bytes: len, kind, stretch });
                at += len;
                rest = &rest[bytes..];
            }
        }
        (stretches, pieces)
    }

    /// What the moves make of it, row by row; panics where a move is not legal.
    fn carried_out(stretches: &[Stretch], pieces: &[Piece], plan: &Plan) -> Vec<String> {
        let end = pieces.last().map_or(0, |piece| piece.address + piece.bytes);
        let mut cells = vec![Kind::Still; (end / CELL) as usize];
        let mut rows = vec![u32::MAX; cells.len()];
        for piece in pieces {
            for at in (piece.address..piece.address + piece.bytes).step_by(CELL as usize) {
                cells[(at / CELL) as usize] = piece.kind;
                rows[(at / CELL) as usize] = piece.stretch;
            }
        }
        let mut moved = BTreeSet::new();
        for each in &plan.moves {
            assert!(moved.insert(each.block), "moved twice: {each:?}");
            let of = |at: u64| (at / CELL) as usize..((at + each.bytes) / CELL) as usize;
            let (from, to) = (of(each.from), of(each.to));
            assert!(cells[from.clone()].iter().all(|&cell| cell == Kind::Block(each.block)));
            assert!(cells[to.clone()].iter().all(|&cell| cell == Kind::Idle), "taken: {each:?}");
            assert!(rows[to.clone()].iter().all(|&row| row == rows[to.start]), "over a border");
            let idle = |at: Option<usize>| {
                at.is_some_and(|at| {
                    cells.get(at) == Some(&Kind::Idle) && rows[at] == rows[to.start]
                })
            };
            let fills = !idle(to.start.checked_sub(1)) && !idle(Some(to.end));
            assert!(each.to < each.from || fills, "up, and not filling: {each:?}");
            cells[to].fill(Kind::Block(each.block));
            cells[from].fill(Kind::Idle);
        }
        let row = |number: usize| {
            let cells = cells.iter().zip(&rows).filter(|(_, row)| **row == number as u32);
            cells
                .map(|(cell, _)| match cell {
                    Kind::Idle => '.',
                    Kind::Still => '#',
                    Kind::Block(number) => char::from_u32(*number).unwrap_or('?'),
                })
                .collect()
        };
        (0..stretches.len()).map(row).collect()
    }

    fn moved(rows: &[&str], budget: u64) -> Vec<String> {
        let (stretches, pieces) = memory(rows);
        carried_out(&stretches, &pieces, &plan(&stretches, &pieces, budget * CELL))
    }

    #[test]
    fn units_are_emptied_by_the_least_that_does() {
        let after = moved(&["aaaa#.##########", "...b...."], 99);
        assert_eq!(after, ["aaaa#b##########", "........"]);
        // Nothing is gained: all idle memory is whole units already, or cannot be joined.
        for still in [["aaaa", "....", "bbbb"], ["a#.#", "#b#.", "####"]] {
            let (stretches, pieces) = memory(&still);
            assert_eq!(plan(&stretches, &pieces, 99 * CELL).moves, [], "{still:?}");
        }
    }

    #[test]
    fn a_checkerboard_becomes_one_run() {
        let rows = ["a.b.c.d.e.f.g.h."];
        let after = moved(&rows, 99);
        assert!(after[0].contains("........"), "{after:?}");
        // For half of the bytes there are, none is moved twice; for less, less is joined.
        let (stretches, pieces) = memory(&rows);
        assert!(plan(&stretches, &pieces, 99 * CELL).moves.len() <= 4);
        let little = plan(&stretches, &pieces, 2 * CELL);
        assert!(little.moves.len() <= 2 && little.left.0 > 0, "{little:?}");
        assert_eq!(plan(&stretches, &pieces, 0).moves, []);
    }

    /// Blocks may lie over the borders of pages: of the 80 idle bytes of 5 pages 4 whole ones come together.
    #[test]
    fn a_checkerboard_over_pages_becomes_whole_pages() {
        let stretches = [Stretch { origin: 0, unit: UNIT }];
        let piece = |at: u32| Piece {
            address: u64::from(at) * 10 * CELL,
            bytes: 10 * CELL,
            kind: if at.is_multiple_of(2) { Kind::Block(97 + at) } else { Kind::Idle },
            stretch: 0,
        };
        let pieces: Vec<Piece> = (0..16).map(piece).collect();
        let plan = plan(&stretches, &pieces, u64::MAX);
        let after = carried_out(&stretches, &pieces, &plan);
        let cells: Vec<char> = after[0].chars().collect();
        let whole = cells.chunks(16).filter(|page| page.iter().all(|&cell| cell == '.')).count();
        assert!(whole >= 4 && plan.moves.len() <= 6, "{after:?}");
    }

    #[test]
    fn runs_do_not_join_over_borders() {
        let after = moved(&["..aa", "bb..", "####"], 99);
        assert_eq!(after, ["bbaa", "....", "####"]);
    }

    fn rows() -> impl Strategy<Value = Vec<Vec<(u8, u64)>>> {
        let piece = (0u8..6, 1u64..7);
        prop::collection::vec(prop::collection::vec(piece, 1..12), 1..6)
    }

    proptest! {
        /// Moves are legal one after the other, keep to the budget, and gain what they have to.
        #[test]
        fn plans_are_legal_and_worth_it(
            rows in rows(),
            budget in 0u64..60 * CELL,
            units in prop::sample::select(vec![None, Some(UNIT), Some(5 * CELL)]),
        ) {
            let (mut stretches, mut pieces, mut at, mut number) = (Vec::new(), Vec::new(), 0, 0);
            for row in &rows {
                let (stretch, origin) = (stretches.len() as u32, at);
                for &(what, bytes) in row {
                    number += 1;
                    let kind = match what {
                        0 | 1 => Kind::Idle,
                        2 => Kind::Still,
                        _ => Kind::Block(number),
                    };
                    let bytes = bytes * CELL;
                    pieces.push(Piece { address: at, bytes, kind, stretch });
                    at += bytes;
                }
                // A segment is its own unit; pages are counted from a common origin.
                stretches.push(match units {
                    None => Stretch { origin, unit: at - origin },
                    Some(unit) => Stretch { origin: 0, unit },
                });
            }
            let plan = plan(&stretches, &pieces, budget);
            carried_out(&stretches, &pieces, &plan);
            let copied: u64 = plan.moves.iter().map(|each| each.bytes).sum();
            prop_assert!(copied <= budget);
            let total = |paper: &Paper<'_>| -> u64 {
                paper.runs.iter().map(|(&start, run)| paper.worth(run.stretch, start, run.bytes)).sum()
            };
            let mut paper = Paper::new(&stretches, &pieces);
            let before = total(&paper);
            for each in &plan.moves {
                let block = paper.blocks[&each.from];
                paper.carry(each.from, block, each.to);
            }
            // Rounded down, run by run.
            let slack = 2 * pieces.len() as u64;
            prop_assert!(
                total(&paper) + slack >= before + copied / WORTH,
                "{} from {before} for {copied}: {plan:?}",
                total(&paper)
            );
        }

        /// A run is worth no more than its bytes, all of them where it is whole units, and joining
        /// never loses.
        #[test]
        fn worth_is_convex(
            origin in 0u64..40 * CELL,
            start in 0u64..99 * CELL,
            a in 0u64..80 * CELL,
            b in 0u64..80 * CELL,
        ) {
            let stretch = Stretch { origin: origin.min(start), unit: UNIT };
            let (low, high) = (worth(stretch, start, a), worth(stretch, start + a, b));
            let both = worth(stretch, start, a + b);
            prop_assert!(low <= a && both + 4 >= low + high);
            prop_assert_eq!(worth(stretch, stretch.origin, 3 * UNIT), 3 * UNIT);
        }
    }
}
