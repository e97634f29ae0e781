//! Dynamic storage allocation: places in one range of bytes for blocks whose lifetimes are known.
//!
//! The problem is NP-hard. Here blocks are placed one after the other, each at the lowest place, or in
//! the tightest gap, that the blocks placed before it leave throughout its lifetime; which of several
//! orders is best differs from program to program, so all are tried: by size (the greedy of Pisarchyk
//! and Lee, *Efficient Memory Management for Deep Neural Net Inference*, 2020), by size times lifetime
//! (theirs by breadth is close to it), by lifetime (the longest first, as the best fit of Sekiyama and
//! others, *Profile-guided memory optimization for deep neural networks*, 2018, breaks its ties) and by
//! birth. The best of them is then improved: blocks that lie at the top are tried earlier, as long as
//! that helps and the budget lasts. The budget counts comparisons, not time, so that a plan does not
//! depend on the machine that made it.
//!
//! Time is a circle of slots. A block holds its bytes from slot `first` to slot `last`, both included,
//! around the end if `last < first`.
//!
//! ```text
//! two blocks that share a slot share no byte;  offset + bytes <= Packing::bytes
//! ```

use std::cmp::Reverse;

/// Tries in vain, and as many more for each block, after which nothing better is looked for.
const TRIES: usize = 1000;
const TRIES_EACH: usize = 20;

/// A block to be placed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Item {
    pub bytes: u64,
    pub first: u32,
    pub last: u32,
}

impl Item {
    /// Slots that it is alive in.
    fn slots(&self, period: u32) -> u32 {
        if self.first <= self.last {
            self.last - self.first + 1
        } else {
            period - self.first + self.last + 1
        }
    }
}

/// Where the blocks lie.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Packing {
    /// By item.
    pub offsets: Vec<u64>,
    /// The end of the range.
    pub bytes: u64,
}

/// The most bytes that are alive in one slot: no packing is smaller.
pub(super) fn peak(items: &[Item], period: u32) -> u64 {
    debug_assert!(items.iter().all(|item| item.first.max(item.last) < period));
    // Changes in the order of their slots, in each the ends first; what goes around is alive in slot 0.
    // By items and not by slots, of which a file may claim many.
    let mut changes: Vec<(u64, bool, u64)> = Vec::with_capacity(2 * items.len());
    let mut live = 0_u64;
    for item in items {
        changes.push((u64::from(item.first), true, item.bytes));
        changes.push((u64::from(item.last) + 1, false, item.bytes));
        if item.last < item.first {
            live += item.bytes;
        }
    }
    changes.sort_unstable();
    changes
        .iter()
        .fold((live, live), |(peak, live), &(_, born, bytes)| {
            let live = if born { live + bytes } else { live - bytes };
            (peak.max(live), live)
        })
        .0
}

/// Places the items, in about `budget` comparisons of two blocks (but one order is always finished), until
/// the range is within `slack`, a share, of the least that it could be.
/// The caller sees to it that the sum of all bytes fits 64 bits, and every slot is below `period`.
pub(super) fn pack(items: &[Item], period: u32, budget: u64, slack: f64) -> Packing {
    let least = peak(items, period);
    let enough = least + (least as f64 * slack) as u64;
    let mut packer = Packer { items, placed: Vec::with_capacity(items.len()), spent: 0 };
    let mut best = Packing { offsets: Vec::new(), bytes: u64::MAX };
    let mut best_order = Vec::new();
    let mut best_fit = Fit::Lowest;
    for order in orders(items, period) {
        for fit in [Fit::Lowest, Fit::Tightest] {
            if best.bytes <= enough || (packer.spent > budget && best.bytes < u64::MAX) {
                return best;
            }
            let packing = packer.place(&order, fit, best.bytes);
            if let Some(packing) = packing {
                (best, best_order, best_fit) = (packing, order.clone(), fit);
            }
        }
    }
    packer.improve(best, best_order, best_fit, enough, budget)
}

/// Whether a block goes to the lowest gap that it fits, or to the smallest.
#[derive(Clone, Copy)]
enum Fit {
    Lowest,
    Tightest,
}

/// The orders to be tried.
fn orders(items: &[Item], period: u32) -> [Vec<u32>; 4] {
    let by = |key: &dyn Fn(&Item) -> (u128, u64)| {
        let mut order: Vec<u32> = (0..items.len() as u32).collect();
        order.sort_by_key(|&index| Reverse(key(&items[index as usize])));
        order
    };
    let slots = |item: &Item| u64::from(item.slots(period));
    [
        by(&|item| (u128::from(item.bytes), slots(item))),
        by(&|item| (u128::from(item.bytes) * u128::from(slots(item)), item.bytes)),
        by(&|item| (u128::from(slots(item)), item.bytes)),
        by(&|item| (u128::from(period - item.first), slots(item))),
    ]
}

/// A block in its place.
#[derive(Clone, Copy)]
struct Placed {
    offset: u64,
    end: u64,
    first: u32,
    last: u32,
    item: u32,
}

struct Packer<'a> {
    items: &'a [Item],
    /// By offset.
    placed: Vec<Placed>,
    /// Comparisons so far.
    spent: u64,
}

impl Packer<'_> {
    /// Places the items in this order; `None` when the range would be no smaller than `bound`.
    fn place(&mut self, order: &[u32], fit: Fit, bound: u64) -> Option<Packing> {
        self.placed.clear();
        let mut top = 0;
        for &index in order {
            let item = self.items[index as usize];
            self.spent += self.placed.len() as u64;
            let (offset, at) = self.find(&item, fit);
            let end = offset + item.bytes;
            top = top.max(end);
            if top >= bound {
                return None;
            }
            let Item { first, last, .. } = item;
            self.placed.insert(at, Placed { offset, end, first, last, item: index });
        }
        let mut offsets = vec![0; self.items.len()];
        for placed in &self.placed {
            offsets[placed.item as usize] = placed.offset;
        }
        Some(Packing { offsets, bytes: top })
    }

    /// Where an item goes: its offset, and its index among the placed.
    fn find(&self, item: &Item, fit: Fit) -> (u64, usize) {
        let mut free_from = 0;
        let mut found: Option<(u64, u64)> = None;
        for placed in &self.placed {
            if !share_a_slot(item, placed) {
                continue;
            }
            if placed.offset >= free_from {
                let gap = placed.offset - free_from;
                if gap >= item.bytes && found.is_none_or(|(least, _)| gap < least) {
                    found = Some((gap, free_from));
                    if matches!(fit, Fit::Lowest) {
                        break;
                    }
                }
            }
            free_from = free_from.max(placed.end);
        }
        let offset = found.map_or(free_from, |(_, offset)| offset);
        (offset, self.placed.partition_point(|placed| placed.offset < offset))
    }

    /// Tries the blocks that lie at the top earlier.
    fn improve(
        &mut self,
        mut best: Packing,
        mut order: Vec<u32>,
        fit: Fit,
        enough: u64,
        budget: u64,
    ) -> Packing {
        let mut random = Random(0x9e37_79b9_7f4a_7c15);
        let (mut vain, most) = (0, TRIES + TRIES_EACH * order.len());
        while best.bytes > enough && self.spent < budget && vain < most {
            let at_top = |index: u32| {
                let index = index as usize;
                best.offsets[index] + self.items[index].bytes == best.bytes
            };
            let top = order.iter().position(|&index| at_top(index)).filter(|&at| at > 0);
            // At the front already: another block goes before it.
            let from = top.unwrap_or_else(|| random.below(order.len()));
            let to = random.below(from.max(1));
            let mut tried = order.clone();
            tried[to..=from].rotate_right(1);
            if random.below(4) == 0 {
                let (a, b) = (random.below(tried.len()), random.below(tried.len()));
                tried.swap(a, b);
            }
            if let Some(packing) = self.place(&tried, fit, best.bytes) {
                (best, order, vain) = (packing, tried, 0);
            } else {
                vain += 1;
            }
        }
        best
    }
}

/// Whether both are alive in some slot: one of them is when the other begins.
#[inline]
fn share_a_slot(item: &Item, placed: &Placed) -> bool {
    alive_at(item.first, item.last, placed.first) || alive_at(placed.first, placed.last, item.first)
}

#[inline]
fn alive_at(first: u32, last: u32, slot: u32) -> bool {
    if first <= last { first <= slot && slot <= last } else { slot >= first || slot <= last }
}

/// Xorshift: the same numbers each time.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % bound.max(1) as u64) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const PERIOD: u32 = 24;

    fn items() -> impl Strategy<Value = Vec<Item>> {
        let item = (1_u64..50, 0..PERIOD, 0..PERIOD).prop_map(|(quanta, first, last)| Item {
            bytes: quanta * 512,
            first,
            last,
        });
        prop::collection::vec(item, 0..40)
    }

    /// The slots of an item, one by one.
    fn slots(item: &Item) -> Vec<u32> {
        let mut slots = vec![item.first];
        while slots.last() != Some(&item.last) {
            slots.push((slots.last().unwrap() + 1) % PERIOD);
        }
        slots
    }

    proptest! {
        /// Paints every block's units in each of its slots, and looks whether one was painted before.
        #[test]
        fn blocks_alive_together_share_no_byte(items in items(), budget in 0_u64..20_000) {
            let packing = pack(&items, PERIOD, budget, 0.0);
            let mut painted = std::collections::HashSet::new();
            let mut load = [0_u64; PERIOD as usize];
            prop_assert_eq!(packing.offsets.len(), items.len());
            for (item, &offset) in items.iter().zip(&packing.offsets) {
                prop_assert_eq!(offset % 512, 0);
                prop_assert!(offset + item.bytes <= packing.bytes);
                for slot in slots(item) {
                    load[slot as usize] += item.bytes;
                    for unit in offset / 512..(offset + item.bytes) / 512 {
                        prop_assert!(painted.insert((slot, unit)), "slot {} unit {}", slot, unit);
                    }
                }
            }
            let most = load.into_iter().max().unwrap_or(0);
            prop_assert_eq!(peak(&items, PERIOD), most);
            prop_assert!(packing.bytes >= most);
        }
    }

    #[test]
    fn nested_lifetimes_take_no_more_than_their_peak() {
        // Forward and backward: the first born dies last.
        let layers = 200;
        let item = |n: u32| Item {
            bytes: 512 * (1 + u64::from(n * 7919 % 97)),
            first: n,
            last: 2 * layers - 1 - n,
        };
        let items: Vec<_> = (0..layers).map(item).collect();
        let packing = pack(&items, 2 * layers, 1_000_000, 0.0);
        assert_eq!(packing.bytes, peak(&items, 2 * layers));
    }

    #[test]
    fn improvement_helps_and_ends_with_the_budget() {
        let mut random = Random(7);
        let items: Vec<_> = (0..60)
            .map(|_| {
                let first = random.below(100) as u32;
                let bytes = 512 * (1 + random.below(200) as u64);
                Item { bytes, first, last: (first + random.below(30) as u32) % 100 }
            })
            .collect();
        let quick = pack(&items, 100, 0, 0.0).bytes;
        let thorough = pack(&items, 100, 20_000_000, 0.0).bytes;
        assert!(thorough < quick, "{thorough} instead of less than {quick}");
        let rough = pack(&items, 100, 20_000_000, 1.0).bytes;
        assert!(rough >= thorough, "more work for a worse plan");
        let least = peak(&items, 100);
        assert!(thorough as f64 <= least as f64 * 1.05, "{thorough} over {least}");
        assert_eq!(pack(&items, 100, 20_000_000, 0.0).bytes, thorough, "another plan each time");
    }

    /// What a file claims there are takes no memory.
    #[test]
    fn a_peak_is_found_among_many_slots() {
        let last = u32::MAX - 1;
        let item = |first, last| Item { bytes: 512, first, last };
        let items = [item(0, 0), item(last, last), item(last, 0), item(7, last - 1)];
        assert_eq!(peak(&items, u32::MAX), 1024);
    }

    #[test]
    fn nothing_takes_nothing() {
        assert_eq!(pack(&[], 1, 100, 0.0), Packing { offsets: vec![], bytes: 0 });
    }
}
