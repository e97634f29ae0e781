//! How large a segment to take, and which to give back: pure functions.

use crate::size;

const MIB: u64 = 1 << 20;

/// Small blocks come from segments of this size.
const SMALL_SEGMENT: u64 = 2 * MIB;
/// A large request below `SHARING` shares a segment of this size with others, as in PyTorch.
const LARGE_SEGMENT: u64 = 20 * MIB;
const SHARING: u64 = 10 * MIB;
/// A segment has at least this share of what is reserved by then, to be cut for many; and where it is
/// larger, one of so many sizes of its power of two, so that another request like the first finds it
/// large enough. Over 25 traces, reserved over live: exact sizes 1.248, with the first rule 1.194,
/// with both 1.151.
const SHARE: u64 = 16;
const STEPS: u64 = 8;

/// The least that serves a request.
pub(super) fn least(bytes: u64, page: u64) -> u64 {
    bytes.next_multiple_of(page)
}

/// What serves it best, where so much is reserved.
fn preferred(bytes: u64, page: u64, reserved: u64) -> u64 {
    let share = (reserved / SHARE).max(LARGE_SEGMENT);
    let shared = match bytes {
        _ if size::is_small(bytes) => SMALL_SEGMENT,
        _ if bytes < SHARING => share,
        _ => {
            // Not so much more that a first large request would take a part of the device with it.
            let step = (bytes.next_power_of_two() / STEPS).min(1 << share.ilog2());
            bytes.next_multiple_of(step).max(reserved / SHARE)
        }
    };
    shared.next_multiple_of(page)
}

/// The sizes to try for a request of `bytes`, where so much is `reserved` and there is `room` for so
/// much more: the best one, or all of the room; then the least. None where not even that fits.
pub(super) fn sizes(bytes: u64, page: u64, reserved: u64, room: u64) -> impl Iterator<Item = u64> {
    let (least, room) = (least(bytes, page), room / page * page);
    let best = preferred(bytes, page, reserved).min(room);
    let second = (least < best).then_some(least);
    (least <= room).then_some(best).into_iter().chain(second.filter(|_| least <= room))
}

/// Which of the idle segments, by their sizes, to give back for at least `bytes`: few, since each call
/// may wait for the device; the largest first, and last the smallest that does. All where they are
/// too few.
pub(super) fn choose(idle: &[u64], bytes: u64) -> Vec<usize> {
    let mut left: Vec<usize> = (0..idle.len()).collect();
    left.sort_unstable_by_key(|&at| idle[at]);
    let (mut chosen, mut rest) = (Vec::new(), bytes);
    while rest > 0 && !left.is_empty() {
        let enough = left.partition_point(|&at| idle[at] < rest).min(left.len() - 1);
        let at = left.remove(enough);
        rest = rest.saturating_sub(idle[at]);
        chosen.push(at);
    }
    chosen
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const PAGE: u64 = 2 * MIB;

    fn of(bytes: u64, room: u64) -> Vec<u64> {
        sizes(bytes, PAGE, 0, room).collect()
    }

    #[test]
    fn requests_share_segments_or_have_their_own() {
        assert_eq!(of(512, 80 * MIB), [2 * MIB]);
        assert_eq!(of(2 * MIB, 80 * MIB), [20 * MIB, 2 * MIB]);
        assert_eq!(of(10 * MIB - 512, 80 * MIB), [20 * MIB, 10 * MIB]);
        assert_eq!(of(10 * MIB, 80 * MIB), [10 * MIB]);
        assert_eq!(of(33 * MIB, 80 * MIB), [40 * MIB, 34 * MIB]);
        assert_eq!(of(1 << 30, 2 << 30), [1 << 30]);
        assert_eq!(of((1 << 30) + 512, 2 << 30), [1040 * MIB, 1026 * MIB]);
        // The more is reserved, the more is taken.
        let many = |bytes| sizes(bytes, PAGE, 16 << 30, 80 << 30).collect::<Vec<_>>();
        assert_eq!(many(4 * MIB), [1 << 30, 4 * MIB]);
        assert_eq!(many(700 * MIB), [1 << 30, 700 * MIB]);
        assert_eq!(many((5 << 30) + 1), [6 << 30, (5 << 30) + PAGE]);
        assert_eq!(many(5000), [PAGE]);
        // As much as there is room for.
        assert_eq!(of(3 * MIB, 13 * MIB), [12 * MIB, 4 * MIB]);
        assert_eq!(of(3 * MIB, 5 * MIB), [4 * MIB]);
        assert_eq!(of(3 * MIB, 4 * MIB - 1), [0_u64; 0]);
        assert_eq!(of(1, 2 * MIB - 1), [0_u64; 0]);
    }

    #[test]
    fn few_go_and_no_more_than_it_takes() {
        let idle = [2, 20, 8, 20, 64];
        let sizes = |bytes| choose(&idle, bytes).into_iter().map(|at| idle[at]).collect::<Vec<_>>();
        assert_eq!(sizes(0), [0_u64; 0]);
        assert_eq!(sizes(1), [2]);
        assert_eq!(sizes(9), [20]);
        assert_eq!(sizes(64), [64]);
        assert_eq!(sizes(65), [64, 2]);
        assert_eq!(sizes(93), [64, 20, 20]);
        assert_eq!(sizes(1000), [64, 20, 20, 8, 2]);
        assert!(choose(&[], 5).is_empty());
    }

    proptest! {
        /// Every size serves the request, is whole pages, and fits; there is one wherever one fits.
        #[test]
        fn sizes_serve_and_fit(
            quanta in 1u64..1 << 18,
            page in prop::sample::select(vec![64u64 << 10, 2 * MIB, 64 * MIB]),
            reserved in 0u64..2 << 30,
            room in 0u64..200 * MIB,
        ) {
            let bytes = size::granted(quanta * size::QUANTUM);
            let sizes: Vec<u64> = sizes(bytes, page, reserved, room).collect();
            prop_assert_eq!(sizes.is_empty(), least(bytes, page) > room);
            prop_assert!(sizes.is_sorted_by(|a, b| a > b));
            if let Some(&last) = sizes.last() {
                prop_assert!(last == least(bytes, page) || sizes.len() == 1);
            }
            for size in sizes {
                prop_assert!(size >= bytes && size <= room && size.is_multiple_of(page));
                // Sixteen such segments are never more than what was there, or a little.
                let more = size - least(bytes, page);
                prop_assert!(more <= (reserved / SHARE).max(LARGE_SEGMENT) + page);
            }
        }

        /// What is chosen is enough wherever all of it is; without any one of it, it is not; and no
        /// fewer would be.
        #[test]
        fn the_choice_is_enough_and_minimal(
            idle in prop::collection::vec(1u64..100, 0..12),
            bytes in 0u64..600,
        ) {
            let chosen = choose(&idle, bytes);
            let sum: u64 = chosen.iter().map(|&at| idle[at]).sum();
            let all: u64 = idle.iter().sum();
            prop_assert!(sum >= bytes.min(all));
            let mut largest = idle.clone();
            largest.sort_unstable_by(|a, b| b.cmp(a));
            let mut total = 0;
            let fewest = largest.iter().take_while(|&&size| {
                let needed = total < bytes;
                total += size;
                needed
            });
            prop_assert_eq!(chosen.len(), fewest.count());
            if sum >= bytes {
                prop_assert!(chosen.iter().all(|&at| sum - idle[at] < bytes));
            }
            let mut once = chosen;
            once.sort_unstable();
            prop_assert!(once.is_sorted_by(|a, b| a < b));
        }
    }
}
