//! Delayed recycling, the policy: which freed blocks wait in one piece, and which go back to the heap.
//!
//! Pure: plain data in, decisions out. Blocks are known by their hints; whether one still waits is
//! asked of whoever keeps them ([`Look`]). One that was taken and freed again in the meantime goes to
//! the back of its queue: least recently used, as a clock with a second chance tells (Corbató, "A
//! Paging Experiment with the Multics System", 1968), with nothing to write down at each use.
//!
//! ```text
//! a queue's entries are in the order of `turn`;  bytes[b] = sum of the bytes of bucket b's entries
//! an entry may be out of date: its block was taken by its hint, and maybe freed again
//! ```

use crate::block::Hint;
use crate::config::{BUCKETS, Bucket, Caching, Recycling, Settings};
use crate::size;
use std::collections::VecDeque;
use std::time::Duration;

/// Entries that a queue may always have.
const ROOM: usize = 1024;

/// A moment, by both clocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Now {
    pub step: u64,
    pub time: Duration,
}

/// What a device holds.
#[derive(Clone, Copy, Debug)]
pub struct Usage {
    pub reserved: u64,
    /// Of the reserved bytes, those that no user holds.
    pub idle: u64,
}

/// What became of a block that was to wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Look {
    /// It still does.
    Waits,
    /// Somebody has it.
    Gone,
    /// Somebody had it, and freed it again: it waits under this hint.
    Again(Hint),
}

#[derive(Clone, Copy, Debug)]
struct Waiting {
    hint: Hint,
    bytes: u64,
    since: Now,
    /// By which queues are compared.
    turn: u64,
}

impl Waiting {
    fn look(&self, latest: &[u64], look: &mut impl FnMut(Hint) -> Look) -> Look {
        if latest[self.hint.index() as usize] == self.turn { look(self.hint) } else { Look::Gone }
    }
}

/// Blocks that wait.
#[derive(Debug)]
pub struct Recycler {
    caching: Caching,
    delay: Option<Recycling>,
    queues: [VecDeque<Waiting>; BUCKETS],
    bytes: [u64; BUCKETS],
    /// Entries since all of a queue were looked at.
    unseen: [usize; BUCKETS],
    /// Entries that a queue may have before those leave that a later one of their block has replaced.
    room: [usize; BUCKETS],
    turns: u64,
    /// The last turn of each block, by descriptor: an earlier entry of it counts no more.
    latest: Vec<u64>,
}

impl Recycler {
    /// `None` where these settings keep nothing in one piece.
    pub fn new(settings: &Settings) -> Option<Self> {
        let keeps = matches!(settings.caching, Caching::Simple { .. } | Caching::Bucketed(_));
        (keeps || settings.recycling.is_some()).then(|| Self {
            caching: settings.caching,
            delay: settings.recycling,
            queues: Default::default(),
            bytes: [0; BUCKETS],
            unseen: [0; BUCKETS],
            room: [0; BUCKETS],
            turns: 0,
            latest: Vec::new(),
        })
    }

    /// The largest waiting block that may serve a request of `bytes`; 0 where none may.
    pub fn most(&self, bytes: u64) -> u64 {
        match self.caching {
            Caching::Off => 0,
            Caching::Open | Caching::Simple { .. } => bytes,
            _ if size::is_small(bytes) => bytes,
            Caching::Bucketed(buckets) => {
                let bucket = Bucket::of(bytes);
                let limit = [buckets.small, buckets.medium, buckets.large][bucket as usize];
                let waste = bytes as f64 * limit.slack.clamp(0.0, 0.5);
                // Descriptors say what was granted beyond a request in 31 bits.
                let most = bytes.saturating_add((waste as u64).min(1 << 30));
                // Within its bucket.
                if Bucket::of(most) == bucket { most } else { bytes }
            }
        }
    }

    /// Most bytes that wait in a bucket, and of one block.
    fn limits(&self, bucket: Bucket) -> (u64, u64) {
        let cached = match self.caching {
            Caching::Open | Caching::Off => u64::MAX,
            Caching::Simple { limit } => limit,
            Caching::Bucketed(buckets) => {
                [buckets.small, buckets.medium, buckets.large][bucket as usize].bytes
            }
        };
        (cached, self.delay.map_or(u64::MAX, |delay| delay.threshold).min(cached))
    }

    /// Takes in a block that was freed. False where it is not to wait.
    pub fn admit(&mut self, hint: Hint, bytes: u64, now: Now) -> bool {
        let bucket = Bucket::of(bytes);
        let waits = bytes <= self.limits(bucket).1;
        if waits {
            self.push(bucket, hint, bytes, now);
        }
        waits
    }

    fn push(&mut self, bucket: Bucket, hint: Hint, bytes: u64, since: Now) {
        self.turns += 1;
        let index = hint.index() as usize;
        if self.latest.len() <= index {
            self.latest.resize((index + 1).next_power_of_two(), 0);
        }
        self.latest[index] = self.turns;
        self.queues[bucket as usize].push_back(Waiting { hint, bytes, since, turn: self.turns });
        self.bytes[bucket as usize] += bytes;
        self.unseen[bucket as usize] += 1;
        if self.queues[bucket as usize].len() > self.room[bucket as usize] {
            self.thin_out(bucket);
        }
    }

    /// Drops the entries of blocks that have later ones: a block that the heap hands out and gets back
    /// again and again has one each time, and no bound may ever be met.
    fn thin_out(&mut self, bucket: Bucket) {
        let at = bucket as usize;
        let (bytes, latest) = (&mut self.bytes[at], &self.latest);
        self.queues[at].retain(|waiting| {
            let stays = latest[waiting.hint.index() as usize] == waiting.turn;
            *bytes -= if stays { 0 } else { waiting.bytes };
            stays
        });
        self.room[at] = 2 * self.queues[at].len() + ROOM;
    }

    /// Host memory held, in bytes.
    pub fn heap_bytes(&self) -> u64 {
        let entries: usize = self.queues.iter().map(VecDeque::capacity).sum();
        (entries * size_of::<Waiting>() + self.latest.capacity() * size_of::<u64>()) as u64
    }

    /// Bytes and blocks that wait, by bucket. Entries that are out of date count.
    pub fn waiting(&self) -> [(u64, usize); BUCKETS] {
        Bucket::ALL.map(|b| (self.bytes[b as usize], self.queues[b as usize].len()))
    }

    /// The blocks that go back now, as their bounds say.
    pub fn due(&mut self, now: Now, usage: Usage, mut look: impl FnMut(Hint) -> Look) -> Vec<Hint> {
        let mut due = Vec::new();
        for bucket in Bucket::ALL {
            let most = match self.caching {
                // One limit for all of them.
                Caching::Simple { .. } => continue,
                _ => self.limits(bucket).0,
            };
            if self.bytes[bucket as usize] > most {
                self.sweep(bucket, now, &mut look);
            }
            while self.bytes[bucket as usize] > most
                && let Some(waiting) = self.oldest(&[bucket], now, &mut look)
            {
                due.push(waiting.hint);
            }
        }
        if let Caching::Simple { limit } = self.caching {
            self.shrink(limit, now, &mut due, &mut look);
        }
        let Some(delay) = self.delay else { return due };
        let share = |share: f64| (usage.reserved as f64 * share) as u64;
        if self.total() > share(delay.high) {
            self.shrink(share(delay.low), now, &mut due, &mut look);
        }
        if usage.idle > share(delay.fragmentation) {
            self.shrink(0, now, &mut due, &mut look);
        }
        while self.blocks() > delay.blocks
            && let Some(waiting) = self.oldest(&Bucket::ALL, now, &mut look)
        {
            due.push(waiting.hint);
        }
        let old = |waiting: &Waiting| {
            now.time.saturating_sub(waiting.since.time) > delay.age
                || now.step.saturating_sub(waiting.since.step) > delay.steps
        };
        let count = |queue: &VecDeque<Waiting>| queue.iter().take_while(|w| old(w)).count();
        if self.queues.iter().map(count).sum::<usize>() >= delay.batch.max(1) {
            for bucket in Bucket::ALL {
                for _ in 0..count(&self.queues[bucket as usize]) {
                    match self.pop(bucket, now, &mut look) {
                        Some(Some(waiting)) => due.push(waiting.hint),
                        Some(None) => {}
                        None => break,
                    }
                }
            }
        }
        due
    }

    /// Blocks of `bytes` in all, the longest unused first; fewer where fewer wait.
    pub fn evict(&mut self, bytes: u64, now: Now, mut look: impl FnMut(Hint) -> Look) -> Vec<Hint> {
        let (mut evicted, mut left) = (Vec::new(), bytes);
        while left > 0
            && let Some(waiting) = self.oldest(&Bucket::ALL, now, &mut look)
        {
            left = left.saturating_sub(waiting.bytes);
            evicted.push(waiting.hint);
        }
        evicted
    }

    fn total(&self) -> u64 {
        self.bytes.iter().sum()
    }

    fn blocks(&self) -> usize {
        self.queues.iter().map(VecDeque::len).sum()
    }

    /// Lets the oldest go until at most `target` bytes wait.
    fn shrink(
        &mut self,
        target: u64,
        now: Now,
        due: &mut Vec<Hint>,
        look: &mut impl FnMut(Hint) -> Look,
    ) {
        if self.total() > target {
            Bucket::ALL.into_iter().for_each(|bucket| self.sweep(bucket, now, look));
        }
        while self.total() > target
            && let Some(waiting) = self.oldest(&Bucket::ALL, now, look)
        {
            due.push(waiting.hint);
        }
    }

    /// Drops entries that are out of date, once as many as half of a queue are new in it.
    fn sweep(&mut self, bucket: Bucket, now: Now, look: &mut impl FnMut(Hint) -> Look) {
        let at = bucket as usize;
        if self.unseen[at] * 2 < self.queues[at].len() {
            return;
        }
        self.unseen[at] = 0;
        let mut again = Vec::new();
        let (bytes, latest) = (&mut self.bytes[at], &self.latest);
        self.queues[at].retain(|waiting| match waiting.look(latest, look) {
            Look::Waits => true,
            other => {
                *bytes -= waiting.bytes;
                if let Look::Again(hint) = other {
                    again.push((hint, waiting.bytes));
                }
                false
            }
        });
        again.into_iter().for_each(|(hint, bytes)| self.push(bucket, hint, bytes, now));
    }

    /// Takes the block out that waits longest in any of these buckets.
    fn oldest(
        &mut self,
        of: &[Bucket],
        now: Now,
        look: &mut impl FnMut(Hint) -> Look,
    ) -> Option<Waiting> {
        // A block that is used again and again goes all the same the second time round.
        for _ in 0..=self.blocks() {
            let first = |bucket: &Bucket| self.queues[*bucket as usize].front().map(|w| w.turn);
            let bucket = of.iter().copied().filter(|b| first(b).is_some()).min_by_key(first)?;
            if let Some(waiting) = self.pop(bucket, now, look)? {
                return Some(waiting);
            }
        }
        None
    }

    /// Takes the first entry of a queue, and its block out if it still waits.
    fn pop(
        &mut self,
        bucket: Bucket,
        now: Now,
        look: &mut impl FnMut(Hint) -> Look,
    ) -> Option<Option<Waiting>> {
        let waiting = self.queues[bucket as usize].pop_front()?;
        self.bytes[bucket as usize] -= waiting.bytes;
        Some(match waiting.look(&self.latest, look) {
            Look::Waits => Some(waiting),
            Look::Gone => None,
            Look::Again(hint) => {
                self.push(bucket, hint, waiting.bytes, now);
                None
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{BucketLimit, Buckets};
    use proptest::prelude::*;
    use std::collections::HashMap;

    const MIB: u64 = 1 << 20;
    const USAGE: Usage = Usage { reserved: 1000 * MIB, idle: 0 };

    fn recycler(caching: Caching, delay: Option<Recycling>) -> Recycler {
        Recycler {
            caching,
            delay,
            queues: Default::default(),
            bytes: [0; BUCKETS],
            unseen: [0; BUCKETS],
            room: [0; BUCKETS],
            turns: 0,
            latest: Vec::new(),
        }
    }

    fn delayed(change: impl FnOnce(&mut Recycling)) -> Recycler {
        let mut delay = Recycling { low: 0.1, high: 0.2, batch: 1, ..Recycling::default() };
        change(&mut delay);
        recycler(Caching::Open, Some(delay))
    }

    /// With bounds that are never met, what a recycler knows of a block is known once.
    #[test]
    fn what_was_replaced_does_not_stay() {
        let mut recycler = recycler(Caching::Simple { limit: u64::MAX }, None);
        for turn in 1..100_000 {
            for number in 1..=3 {
                assert!(recycler.admit(Hint(turn << Hint::INDEX_BITS | number), MIB, at(turn, 0)));
            }
            assert!(recycler.due(at(turn, 0), USAGE, |_| Look::Waits).is_empty());
        }
        let [(_, small), (bytes, medium), _] = recycler.waiting();
        assert!(small + medium <= ROOM + 8, "{} entries of three blocks", small + medium);
        assert_eq!(bytes, medium as u64 * MIB);
        assert!(recycler.heap_bytes() < 1 << 20);
    }

    fn hint(number: u64) -> Hint {
        Hint(1 << Hint::INDEX_BITS | number)
    }

    fn at(step: u64, seconds: u64) -> Now {
        Now { step, time: Duration::from_secs(seconds) }
    }

    fn fill(recycler: &mut Recycler, blocks: std::ops::Range<u64>, bytes: u64, now: Now) {
        blocks.for_each(|number| assert!(recycler.admit(hint(number), bytes, now)));
    }

    fn numbers(hints: Vec<Hint>) -> Vec<u64> {
        hints.iter().map(|hint| u64::from(hint.index())).collect()
    }

    const STAYS: fn(Hint) -> Look = |_| Look::Waits;

    #[test]
    fn watermarks_take_the_oldest_down_to_the_low_one() {
        let mut waiting = delayed(|_| {});
        fill(&mut waiting, 1..21, 10 * MIB, at(0, 0));
        assert!(waiting.due(at(0, 0), USAGE, STAYS).is_empty(), "200 MiB may wait");
        fill(&mut waiting, 21..22, 10 * MIB, at(0, 0));
        let due = numbers(waiting.due(at(0, 0), USAGE, STAYS));
        assert_eq!(due, (1..12).collect::<Vec<_>>(), "down to 100 MiB");
    }

    #[test]
    fn age_counts_by_either_clock_and_in_batches() {
        for late in [at(0, 11), at(5, 0)] {
            let mut waiting = delayed(|delay| delay.batch = 3);
            fill(&mut waiting, 1..3, MIB, at(0, 0));
            assert!(waiting.due(late, USAGE, STAYS).is_empty(), "two are no batch");
            fill(&mut waiting, 3..4, MIB, at(0, 0));
            fill(&mut waiting, 4..5, MIB, late);
            assert_eq!(numbers(waiting.due(late, USAGE, STAYS)), [1, 2, 3]);
        }
    }

    #[test]
    fn the_threshold_the_count_and_fragmentation_are_bounds() {
        let mut waiting = delayed(|delay| (delay.threshold, delay.blocks) = (MIB, 2));
        assert!(!waiting.admit(hint(9), MIB + 1, at(0, 0)), "too large to wait");
        fill(&mut waiting, 1..4, MIB, at(0, 0));
        assert_eq!(numbers(waiting.due(at(0, 0), USAGE, STAYS)), [1]);
        let scattered = Usage { reserved: 1000 * MIB, idle: 301 * MIB };
        assert_eq!(numbers(waiting.due(at(0, 0), scattered, STAYS)), [2, 3]);
    }

    #[test]
    fn what_was_used_again_gets_a_second_chance() {
        let mut waiting = delayed(|delay| delay.blocks = 2);
        fill(&mut waiting, 1..4, MIB, at(0, 0));
        let look = |hint: Hint| match hint.index() {
            1 if hint == self::hint(1) => Look::Again(hint.next()),
            _ => Look::Waits,
        };
        assert_eq!(numbers(waiting.due(at(0, 0), USAGE, look)), [2]);
        assert_eq!(numbers(waiting.evict(MIB, at(0, 0), look)), [3], "1 went to the back");
        let gone = |_| Look::Gone;
        assert!(waiting.evict(MIB, at(0, 0), gone).is_empty());
        assert_eq!(waiting.total(), 0);
    }

    #[test]
    fn a_block_counts_once() {
        let mut waiting = delayed(|_| {});
        fill(&mut waiting, 1..3, MIB, at(0, 0));
        // Its arena had lost sight of it, and heard of its next free.
        assert!(waiting.admit(hint(1).next(), MIB, at(0, 0)));
        let look = |hint: Hint| match hint.index() {
            1 if hint == self::hint(1) => Look::Again(hint.next()),
            _ => Look::Waits,
        };
        assert_eq!(numbers(waiting.evict(MIB * 9, at(0, 0), look)), [2, 1]);
        assert_eq!(waiting.total(), 0);
    }

    #[test]
    fn what_is_gone_makes_no_room() {
        let mut waiting = delayed(|_| {});
        fill(&mut waiting, 1..4, MIB, at(0, 0));
        let look = |hint: Hint| if hint.index() < 3 { Look::Gone } else { Look::Waits };
        assert_eq!(numbers(waiting.evict(1, at(0, 0), look)), [3]);
    }

    #[test]
    fn each_bucket_has_its_limit_and_its_slack() {
        let limit = |bytes, slack| BucketLimit { bytes, slack };
        let buckets = Buckets {
            small: limit(MIB, 0.5),
            medium: limit(10 * MIB, 0.25),
            large: limit(400 * MIB, 0.0),
        };
        let mut kept = recycler(Caching::Bucketed(buckets), None);
        assert_eq!(kept.most(512), 512, "small blocks have classes");
        assert_eq!(kept.most(4 * MIB), 5 * MIB);
        assert_eq!(kept.most(99 * MIB), 99 * MIB, "not from the next bucket");
        assert_eq!(kept.most(200 * MIB), 200 * MIB);
        assert!(!kept.admit(hint(1), 11 * MIB, at(0, 0)));
        fill(&mut kept, 2..4, 6 * MIB, at(0, 0));
        fill(&mut kept, 4..5, 200 * MIB, at(0, 0));
        assert_eq!(numbers(kept.due(at(0, 0), USAGE, STAYS)), [2]);
        let simple = recycler(Caching::Simple { limit: 10 }, None);
        assert_eq!(simple.most(4 * MIB), 4 * MIB);
        assert_eq!(recycler(Caching::Off, None).most(512), 0);
    }

    proptest! {
        /// Whatever comes and goes: sums are true, nothing is given twice, bounds hold afterwards.
        #[test]
        fn sums_are_true(ops in prop::collection::vec((0u8..4, 1u64..64, 1u64..40), 1..300)) {
            let mut waiting = delayed(|delay| delay.blocks = 20);
            let mut state: HashMap<u32, Look> = HashMap::new();
            let mut next = 0;
            for (step, (op, number, mib)) in ops.into_iter().enumerate() {
                let now = at(step as u64 / 8, 0);
                match op {
                    0 | 1 => {
                        next += 1;
                        state.insert(next, Look::Waits);
                        prop_assert!(waiting.admit(hint(u64::from(next)), mib * MIB, now));
                    }
                    2 => {
                        let other = [Look::Gone, Look::Waits][number as usize % 2];
                        if let Some(look) = state.get_mut(&(number as u32)) {
                            *look = other;
                        }
                    }
                    _ => {
                        let look = |hint: Hint| state.get(&hint.index()).copied().unwrap_or(Look::Gone);
                        for hint in waiting.due(now, USAGE, look) {
                            prop_assert_eq!(state.remove(&hint.index()), Some(Look::Waits));
                        }
                        prop_assert!(waiting.total() <= 200 * MIB && waiting.blocks() <= 20);
                    }
                }
                for bucket in Bucket::ALL {
                    let sum: u64 = waiting.queues[bucket as usize].iter().map(|w| w.bytes).sum();
                    prop_assert_eq!(sum, waiting.bytes[bucket as usize]);
                    let turns = waiting.queues[bucket as usize].iter().map(|w| w.turn);
                    prop_assert!(turns.is_sorted());
                }
            }
        }
    }
}
