//! Where a request goes that no single extent can serve: pure functions over a survey.
//!
//! A *window* is a range of addresses over neighbouring extents that are idle or holes. The best one
//! needs the fewest pages that are not there. Such a window begins where an extent begins, or ends
//! where one ends: any other could be moved until it does without needing more.

use crate::block::Word;
use std::ops::{Range, RangeInclusive};

/// An extent that is idle or a hole, as a survey saw it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Piece {
    pub index: u32,
    pub seen: Word,
    pub address: u64,
    pub bytes: u64,
    pub kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Hole,
    /// Resident, and its fences allow its use.
    Usable,
    /// Resident, waiting for other streams.
    Pending,
}

impl Piece {
    pub fn end(&self) -> u64 {
        self.address + self.bytes
    }
}

/// A range over `pieces[first..=last]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Window {
    pub start: u64,
    pub end: u64,
    pub first: usize,
    pub last: usize,
    /// Pages that have to be put behind its holes.
    pub missing: u64,
}

impl Window {
    fn better_than(&self, other: &Option<Self>) -> bool {
        other.is_none_or(|other| (self.missing, self.start) < (other.missing, other.start))
    }
}

/// The window of `bytes` with the fewest missing pages, the lowest among equals. Pieces are in
/// address order; those that are `Pending` belong to no window.
pub(super) fn best_window(pieces: &[Piece], bytes: u64, page: u64) -> Option<Window> {
    let mut best = None;
    for run in runs(pieces) {
        best_in_run(pieces, *run.start(), *run.end(), bytes, page, &mut best);
    }
    best
}

/// The window of `bytes` that leaves the most whole pages to others: it lies at one end of a run,
/// where it may share a page with what is in use. When memory is nearly out, this one can be served
/// where the one with the fewest missing pages cannot, since that covers pages which could be taken.
/// `pinned` counts the pages of a range of addresses that are nobody's to take.
pub(super) fn tightest_window(
    pieces: &[Piece],
    bytes: u64,
    page: u64,
    pinned: impl Fn(Range<u64>) -> u64,
) -> Option<Window> {
    let mut best: Option<(u64, Window)> = None;
    for run in runs(pieces) {
        let (run_start, run_end) = (pieces[*run.start()].address, pieces[*run.end()].end());
        if run_end - run_start < bytes {
            continue;
        }
        for start in [run_start, run_end - bytes] {
            let end = start + bytes;
            // Pages that it touches, less those at the run's ends that are in use anyway.
            let touched = start / page..end.div_ceil(page);
            let free = run_start.div_ceil(page)..run_end / page;
            let whole = touched.start.max(free.start)..touched.end.min(free.end);
            let taken = match whole.is_empty() {
                true => 0,
                false => {
                    let count = whole.end - whole.start;
                    count - pinned(whole.start * page..whole.end * page)
                }
            };
            if best.as_ref().is_some_and(|best| best.0 <= taken) {
                continue;
            }
            let within = &pieces[run.clone()];
            let first = run.start() + within.partition_point(|piece| piece.end() <= start);
            let last = run.start() + within.partition_point(|piece| piece.address < end) - 1;
            let missing =
                pieces[first..=last].iter().map(|piece| missing_in(piece, start, end, page)).sum();
            best = Some((taken, Window { start, end, first, last, missing }));
        }
    }
    best.map(|best| best.1)
}

/// The largest idle piece, and as much more as it can grow: over the holes beside it to the idle pieces beyond,
/// the smaller holes first, as long as these take at most `most` pages, and no more than there are whole idle
/// ones outside. `None` where it grows over no hole.
pub(super) fn widest_window(pieces: &[Piece], page: u64, most: u64) -> Option<Window> {
    let is_idle = |at: &usize| pieces[*at].kind == Kind::Usable;
    let largest = (0..pieces.len()).filter(is_idle).max_by_key(|&at| pieces[at].bytes)?;
    let run = runs(pieces).find(|run| run.contains(&largest))?;
    let (mut first, mut last, mut missing) = (largest, largest, 0);
    loop {
        // The next idle piece on either side, with the pages of the hole before it.
        let below = (*run.start()..first).rev().find(is_idle).map(|at| (at, at + 1..first));
        let above = (last + 1..=*run.end()).find(is_idle).map(|at| (at, last + 1..at));
        let next = below.into_iter().chain(above).map(|(at, holes)| {
            (pieces[holes].iter().map(|hole| hole.bytes / page).sum::<u64>(), at)
        });
        let fits = |&(holes, at): &(u64, usize)| {
            let (below, above) = (&pieces[..first.min(at)], &pieces[last.max(at) + 1..]);
            missing + holes <= most.min(whole_pages(below, page) + whole_pages(above, page))
        };
        let Some((holes, at)) = next.filter(fits).min() else { break };
        missing += holes;
        (first, last) = (first.min(at), last.max(at));
    }
    let (start, end) = (pieces[first].address, pieces[last].end());
    (missing > 0).then_some(Window { start, end, first, last, missing })
}

/// Whole pages that are idle.
fn whole_pages(pieces: &[Piece], page: u64) -> u64 {
    let idle = pieces.iter().filter(|piece| piece.kind == Kind::Usable);
    let runs = idle.fold((0, 0..0), |(pages, run): (u64, Range<u64>), piece| {
        if run.end == piece.address {
            return (pages, run.start..piece.end());
        }
        (pages + pages_within(&run, page), piece.address..piece.end())
    });
    runs.0 + pages_within(&runs.1, page)
}

fn pages_within(run: &Range<u64>, page: u64) -> u64 {
    (run.end / page).saturating_sub(run.start.div_ceil(page))
}

/// The runs of neighbouring pieces that are not `Pending`.
fn runs(pieces: &[Piece]) -> impl Iterator<Item = RangeInclusive<usize>> {
    let mut next = 0;
    std::iter::from_fn(move || {
        while pieces.get(next)?.kind == Kind::Pending {
            next += 1;
        }
        let first = next;
        next += 1;
        while let Some(piece) = pieces.get(next)
            && piece.kind != Kind::Pending
            && piece.address == pieces[next - 1].end()
        {
            next += 1;
        }
        Some(first..=next - 1)
    })
}

/// Pages that a window needs within a piece.
fn missing_in(piece: &Piece, start: u64, end: u64, page: u64) -> u64 {
    let (start, end) = (start.max(piece.address), end.min(piece.end()));
    let hole = piece.kind == Kind::Hole && start < end;
    if hole { end.div_ceil(page) - start / page } else { 0 }
}

/// Considers every window that begins or ends with a piece of the run `pieces[first..=last]`.
fn best_in_run(
    pieces: &[Piece],
    first: usize,
    last: usize,
    bytes: u64,
    page: u64,
    best: &mut Option<Window>,
) {
    let (run_start, run_end) = (pieces[first].address, pieces[last].end());
    if run_end - run_start < bytes {
        return;
    }
    let pages_in = |piece: &Piece, start, end| missing_in(piece, start, end, page);
    let mut consider = |low: usize, high: usize, between: u64, start: u64| {
        let end = start + bytes;
        let missing = if low == high {
            pages_in(&pieces[low], start, end)
        } else {
            pages_in(&pieces[low], start, end) + between + pages_in(&pieces[high], start, end)
        };
        let window = Window { start, end, first: low, last: high, missing };
        if window.better_than(best) {
            *best = Some(window);
        }
    };
    let whole = |piece: &Piece| pages_in(piece, piece.address, piece.end());

    // Windows that begin with a piece: `between` counts the pages of the pieces inside.
    let (mut high, mut between) = (first, 0);
    for low in first..=last {
        let start = pieces[low].address;
        if start + bytes > run_end {
            break;
        }
        if high < low {
            high = low;
        } else if high > low && low > first {
            between -= whole(&pieces[low]);
        }
        while pieces[high].end() < start + bytes {
            if high > low {
                between += whole(&pieces[high]);
            }
            high += 1;
        }
        consider(low, high, between, start);
    }
    // Windows that end with a piece.
    let (mut low, mut between) = (last, 0);
    for high in (first..=last).rev() {
        let end = pieces[high].end();
        if end - run_start < bytes {
            break;
        }
        let start = end - bytes;
        if low > high {
            low = high;
        } else if low < high && high < last {
            between -= whole(&pieces[high]);
        }
        while pieces[low].address > start {
            if low < high {
                between += whole(&pieces[low]);
            }
            low -= 1;
        }
        consider(low, high, between, start);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const PAGE: u64 = 8;

    /// Pieces from (kind, pages or bytes, gap before); holes are whole pages.
    fn build(spec: &[(u8, u64, bool)]) -> Vec<Piece> {
        let (mut at, mut pieces) = (0, Vec::new());
        for (i, &(kind, size, gap)) in spec.iter().enumerate() {
            let kind = [Kind::Hole, Kind::Usable, Kind::Usable, Kind::Pending][usize::from(kind)];
            if gap {
                at += 3;
            }
            let mut bytes = size;
            if kind == Kind::Hole {
                // A border between memory and a hole is a page border.
                let aligned = u64::next_multiple_of(at, PAGE);
                if aligned > at {
                    pieces.push(piece(i, at, aligned - at, Kind::Usable));
                }
                (at, bytes) = (aligned, size * PAGE);
            } else if spec.get(i + 1).is_some_and(|next| next.0 == 0 && !next.2) {
                bytes = u64::next_multiple_of(at + bytes, PAGE) - at;
            }
            pieces.push(piece(i, at, bytes, kind));
            at += bytes;
        }
        pieces
    }

    fn piece(i: usize, address: u64, bytes: u64, kind: Kind) -> Piece {
        Piece { index: i as u32 + 1, seen: Word(0), address, bytes, kind }
    }

    /// Pages missing from a window at `start`, looked at byte by byte; `None` where it does not lie
    /// in idle memory and holes.
    fn missing(pieces: &[Piece], start: u64, bytes: u64) -> Option<u64> {
        let mut pages = std::collections::BTreeSet::new();
        for at in start..start + bytes {
            let piece = pieces.iter().find(|p| p.address <= at && at < p.end())?;
            match piece.kind {
                Kind::Pending => return None,
                Kind::Hole => drop(pages.insert(at / PAGE)),
                Kind::Usable => {}
            }
        }
        Some(pages.len() as u64)
    }

    /// Whole pages of a run that a window at `start` takes from others.
    fn taken(pieces: &[Piece], start: u64, bytes: u64) -> u64 {
        let idle = |at: u64| {
            let piece = pieces.iter().find(|p| p.address <= at && at < p.end());
            piece.is_some_and(|piece| piece.kind != Kind::Pending)
        };
        let pages = start / PAGE..(start + bytes).div_ceil(PAGE);
        pages.filter(|page| (page * PAGE..(page + 1) * PAGE).all(idle)).count() as u64
    }

    /// Checks what a window says of itself.
    fn fits(pieces: &[Piece], window: &Window, bytes: u64) -> Result<(), TestCaseError> {
        prop_assert_eq!(missing(pieces, window.start, bytes), Some(window.missing));
        prop_assert!(pieces[window.first].address <= window.start);
        prop_assert!(window.start < pieces[window.first].end());
        prop_assert!(pieces[window.last].address < window.end);
        prop_assert!(window.end <= pieces[window.last].end());
        Ok(())
    }

    proptest! {
        #[test]
        fn no_other_window_takes_less_from_others(
            spec in prop::collection::vec((0u8..4, 1u64..6, any::<bool>()), 1..12),
            bytes in 1u64..60,
        ) {
            let pieces = build(&spec);
            let end = pieces.last().unwrap().end();
            let want = (0..end)
                .filter(|&start| missing(&pieces, start, bytes).is_some())
                .map(|start| taken(&pieces, start, bytes))
                .min();
            let found = tightest_window(&pieces, bytes, PAGE, |_| 0);
            prop_assert_eq!(found.map(|w| taken(&pieces, w.start, bytes)), want);
            found.map_or(Ok(()), |window| fits(&pieces, &window, bytes))?;
        }

        #[test]
        fn no_other_window_needs_less(
            spec in prop::collection::vec((0u8..4, 1u64..6, any::<bool>()), 1..12),
            bytes in 1u64..60,
        ) {
            let pieces = build(&spec);
            let end = pieces.last().unwrap().end();
            let want = (0..end).filter_map(|start| missing(&pieces, start, bytes)).min();
            let found = best_window(&pieces, bytes, PAGE);
            prop_assert_eq!(found.map(|w| w.missing), want);
            found.map_or(Ok(()), |window| fits(&pieces, &window, bytes))?;
        }

        /// By all windows from idle piece to idle piece around the largest: one that was not taken needs too
        /// much, or is no larger on one side.
        #[test]
        fn the_largest_grows_as_far_as_it_may(
            spec in prop::collection::vec((0u8..4, 1u64..30, any::<bool>()), 1..12),
            most in 0u64..40,
        ) {
            let pieces = build(&spec);
            let idle: Vec<_> = pieces.iter().filter(|piece| piece.kind == Kind::Usable).collect();
            let Some(largest) = idle.iter().map(|piece| piece.bytes).max() else { return Ok(()) };
            let all = (0..pieces.last().unwrap().end() / PAGE + 1).filter(|page| {
                (page * PAGE..(page + 1) * PAGE).all(|at| {
                    idle.iter().any(|piece| piece.address <= at && at < piece.end())
                })
            });
            let all: Vec<u64> = all.collect();
            let may = |start: u64, end: u64| {
                // Whole pages that lie outside by half are nobody's to take either.
                let outside = |page: &&u64| **page * PAGE >= end || (**page + 1) * PAGE <= start;
                let outside = all.iter().filter(outside).count() as u64;
                missing(&pieces, start, end - start).is_some_and(|pages| pages <= most.min(outside))
            };
            match widest_window(&pieces, PAGE, most) {
                Some(window) => {
                    let Window { start, end, .. } = window;
                    fits(&pieces, &window, end - start)?;
                    prop_assert!(window.missing > 0 && may(start, end), "too much: {:?}", window);
                    let inside = |piece: &&&Piece| start <= piece.address && piece.end() <= end;
                    prop_assert!(idle.iter().filter(inside).any(|piece| piece.bytes == largest));
                    let below = idle.iter().rfind(|piece| piece.end() <= start);
                    prop_assert!(below.is_none_or(|piece| !may(piece.address, end)));
                    let above = idle.iter().find(|piece| piece.address >= end);
                    prop_assert!(above.is_none_or(|piece| !may(start, piece.end())));
                }
                None => {
                    // It, and what touches it.
                    let largest = idle.iter().rposition(|piece| piece.bytes == largest).unwrap();
                    let touch = |at: usize| idle[at].end() == idle[at + 1].address;
                    let low = (0..largest).rev().find(|&at| !touch(at)).map_or(0, |at| at + 1);
                    let high = (largest..idle.len() - 1).find(|&at| !touch(at));
                    let high = high.unwrap_or(idle.len() - 1);
                    let (start, end) = (idle[low].address, idle[high].end());
                    let below = low.checked_sub(1).map(|at| (idle[at].address, end));
                    let above = idle.get(high + 1).map(|piece| (start, piece.end()));
                    for (start, end) in below.into_iter().chain(above) {
                        prop_assert!(!may(start, end), "{}..{}", start, end);
                    }
                }
            }
        }
    }
}
