//! What a device could still serve, computed from addresses alone. Shares nothing with the pool.
//!
//! The reservation is a row of *places*, each the size of a page. A byte is *blocked* while a block
//! that is live covers it, or while work may still touch it that the asking stream neither runs
//! after nor can wait for.
//!
//! ```text
//! free pages         = limit - places with a blocked byte      (idle, spare or not created: no matter)
//! cost of a window   = places it lies in that have no blocked byte
//! a request is possible  <=>  some window of its region has no blocked byte and costs <= free pages
//! ```
//!
//! A place with a blocked byte has its page already, so the rest of that page costs nothing. All
//! other pages can go anywhere, since whole idle pages can be moved; so it does not matter where
//! they are now, which is why the model need not know.

use std::collections::BTreeMap;
use std::ops::Range;

/// A set of streams, by their numbers in the test.
pub type Streams = u8;

const QUANTUM: u64 = 512;
const KIB: u64 = 1 << 10;

/// Requests up to this size live in the region of small blocks.
const SMALL: u64 = 992 * KIB;

/// The size of the block that a request gets: up to 16 KiB multiples of 512 B, then 16 sizes between
/// a power of two and the next, above 992 KiB multiples of 512 B again.
pub fn rounded(bytes: u64) -> u64 {
    let step = match bytes {
        0..=0x4000 => QUANTUM,
        _ if bytes > SMALL => QUANTUM,
        _ => bytes.next_power_of_two() / 32,
    };
    bytes.div_ceil(step) * step
}

/// A block that somebody holds.
struct Held {
    end: u64,
    stream: usize,
    requested: u64,
    /// Streams whose work has touched it.
    users: Streams,
}

/// Idle bytes, and the streams whose work was the last to touch them, or may be. Where the page has
/// moved away since, the mark stays: then the model takes one page to be lost, and asks for less.
#[derive(Clone, Copy)]
struct Mark {
    end: u64,
    users: Streams,
}

/// Idle memory that cannot be had: what work of these streams was the last to touch.
#[derive(Clone, Copy, Debug)]
pub struct Avoided {
    pub streams: Streams,
    /// Also where such memory fills a page.
    pub whole_pages: bool,
}

impl Avoided {
    pub const NOTHING: Self = Self { streams: 0, whole_pages: false };
}

/// What it takes to serve a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// Free pages that the cheapest window needs. None where no window is free of blocked bytes.
    pub cost: Option<i64>,
    /// Less than none where marks have been left behind by pages that moved away.
    pub free_pages: i64,
    /// Pages of a window that begins with one.
    pub pages: i64,
}

impl Verdict {
    pub fn possible(&self) -> bool {
        self.cost.is_some_and(|cost| cost <= self.free_pages)
    }

    /// Whether it is possible even if no page can be put next to what is blocked.
    pub fn possible_anywhere(&self) -> bool {
        self.cost == Some(0) || self.cost.is_some() && self.pages <= self.free_pages
    }
}

pub struct Model {
    page: u64,
    limit: u64,
    /// Addresses for small blocks, and for the others.
    regions: [Range<u64>; 2],
    live: BTreeMap<u64, Held>,
    marks: BTreeMap<u64, Mark>,
}

impl Model {
    /// `limit` is in pages.
    pub fn new(page: u64, limit: u64, regions: [Range<u64>; 2]) -> Self {
        for region in &regions {
            assert!(region.start.is_multiple_of(page) && region.end.is_multiple_of(page));
        }
        Self { page, limit, regions, live: BTreeMap::new(), marks: BTreeMap::new() }
    }

    fn region(&self, bytes: u64) -> Range<u64> {
        self.regions[usize::from(bytes > SMALL)].clone()
    }

    /// A block was handed out.
    pub fn enter(&mut self, address: u64, granted: u64, requested: u64, stream: usize) {
        let end = address + granted;
        assert!(granted >= rounded(requested), "{granted} bytes for {requested}");
        assert!(requested > SMALL || granted == rounded(requested), "{granted} for {requested}");
        assert!(address.is_multiple_of(QUANTUM) && granted.is_multiple_of(QUANTUM));
        let region = self.region(requested);
        assert!(region.start <= address && end <= region.end, "{address:#x} is in no region");
        if let Some((other, held)) = self.live.range(..end).next_back() {
            assert!(held.end <= address, "{address:#x} overlaps the live block at {other:#x}");
        }
        let users = 1 << stream;
        self.live.insert(address, Held { end, stream, requested, users });
        self.unmark(address, end);
        // The page it ends in may have come with it: then nothing but this stream's later work is
        // known to come after whatever the page did before.
        let (low, high) = (address / self.page * self.page, end.next_multiple_of(self.page));
        self.mark_more(low, address, users);
        self.mark_more(end, high, users);
    }

    /// A stream asks for memory. It may take idle neighbours of its own memory together with it: they
    /// then wait for its work as well.
    pub fn asked(&mut self, stream: usize) {
        let marks: Vec<(u64, Mark)> = self.marks.iter().map(|(&at, &mark)| (at, mark)).collect();
        for chain in marks.chunk_by(|a, b| a.1.end == b.0) {
            if chain.iter().any(|(_, mark)| mark.users & (1 << stream) != 0) {
                for (at, mark) in chain {
                    self.marks.insert(*at, Mark { users: mark.users | 1 << stream, ..*mark });
                }
            }
        }
    }

    /// Other work touches a block.
    pub fn used_by(&mut self, address: u64, stream: usize) {
        self.live.get_mut(&address).expect("a live block").users |= 1 << stream;
    }

    /// A block was freed.
    pub fn leave(&mut self, address: u64) {
        let Held { end, users, .. } = self.live.remove(&address).expect("a live block");
        self.unmark(address, end);
        self.marks.insert(address, Mark { end, users });
    }

    /// Cuts a mark in two.
    fn cut(&mut self, at: u64) {
        if let Some((&start, mark)) = self.marks.range_mut(..at).next_back()
            && mark.end > at
        {
            let upper = *mark;
            mark.end = at;
            debug_assert!(start < at);
            self.marks.insert(at, upper);
        }
    }

    fn unmark(&mut self, start: u64, end: u64) {
        self.cut(start);
        self.cut(end);
        while let Some((&at, _)) = self.marks.range(start..end).next() {
            self.marks.remove(&at);
        }
    }

    /// Adds streams to what is idle in a range.
    fn mark_more(&mut self, start: u64, end: u64, users: Streams) {
        self.cut(start);
        self.cut(end);
        let mut at = start;
        while at < end {
            if let Some(mark) = self.marks.get_mut(&at) {
                mark.users |= users;
                at = mark.end;
                continue;
            }
            if let Some((_, held)) = self.live.range(..=at).next_back().filter(|h| h.1.end > at) {
                at = held.end;
                continue;
            }
            let mark = self.marks.range(at..end).next().map_or(end, |(&at, _)| at);
            let block = self.live.range(at..end).next().map_or(end, |(&at, _)| at);
            let until = mark.min(block);
            self.marks.insert(at, Mark { end: until, users });
            at = until;
        }
    }

    /// Blocked ranges in address order: live blocks, and what `avoided` streams touched last.
    fn blocked(&self, avoided: Avoided) -> Vec<Range<u64>> {
        let mut ranges: Vec<Range<u64>> =
            self.live.iter().map(|(&at, held)| at..held.end).collect();
        for (&at, &Mark { end, users }) in &self.marks {
            if users & avoided.streams != 0 {
                let (low, high) = (at.next_multiple_of(self.page), end / self.page * self.page);
                if avoided.whole_pages || low >= high {
                    ranges.push(at..end);
                } else {
                    ranges.extend([at..low, high..end]);
                }
            }
        }
        ranges.retain(|range| !range.is_empty());
        ranges.sort_unstable_by_key(|range| range.start);
        ranges
    }

    fn place(&self, address: u64) -> u64 {
        address / self.page
    }

    /// Places that have a byte in one of these ranges.
    fn places(&self, ranges: &[Range<u64>]) -> u64 {
        let (mut count, mut seen) = (0, 0);
        for range in ranges {
            let (first, end) = (self.place(range.start).max(seen), self.place(range.end - 1) + 1);
            count += end.saturating_sub(first);
            seen = seen.max(end);
        }
        count
    }

    /// Places with a byte of a live block: no pool holds less than their pages.
    pub fn places_in_use(&self) -> u64 {
        self.places(&self.blocked(Avoided::NOTHING))
    }

    fn has_live(&self, place: u64) -> bool {
        let below = self.live.range(..(place + 1) * self.page).next_back();
        below.is_some_and(|(_, held)| held.end > place * self.page)
    }

    /// What a window of `bytes` at `start` costs within the gap it lies in.
    fn cost(&self, start: u64, bytes: u64, gap: &Range<u64>) -> i64 {
        let (first, last) = (self.place(start), self.place(start + bytes - 1));
        // Of what is not live the page may have moved away.
        let low = self.place(gap.start) == first && self.has_live(first);
        let high = self.place(gap.end) == last && self.has_live(last);
        let shared = i64::from(low) + i64::from(high);
        (last - first + 1) as i64 - if first == last { shared.min(1) } else { shared }
    }

    /// What it takes to serve a request of `bytes` without the memory that is to be
    /// avoided.
    pub fn judge(&self, bytes: u64, avoided: Avoided) -> Verdict {
        let blocked = self.blocked(avoided);
        let free_pages = self.limit as i64 - self.places(&blocked) as i64;
        let pages = rounded(bytes).div_ceil(self.page) as i64;
        Verdict { cost: self.cheapest(rounded(bytes), &blocked), free_pages, pages }
    }

    fn cheapest(&self, bytes: u64, blocked: &[Range<u64>]) -> Option<i64> {
        let region = self.region(bytes);
        let (mut cost, mut start) = (None, region.start);
        let within = blocked.iter().filter(|range| region.contains(&range.start));
        for range in within.cloned().chain(std::iter::once(region.end..region.end)) {
            let gap = start..range.start;
            start = range.end;
            // Within a gap, one end or the other shares most with pages that are there.
            if gap.end >= gap.start + bytes {
                let at_ends = [gap.start, gap.end - bytes].map(|at| self.cost(at, bytes, &gap));
                cost = at_ends.into_iter().chain(cost).min();
            }
        }
        cost
    }

    /// The largest request of a region whose verdict will do; 0 where there is none.
    pub fn largest(&self, small: bool, avoided: Avoided, will_do: fn(&Verdict) -> bool) -> u64 {
        let (none, mut high) = match small {
            true => (0, SMALL / QUANTUM),
            false => (SMALL / QUANTUM, self.limit * self.page / QUANTUM),
        };
        let mut low = none;
        while low < high {
            let middle = (low + high).div_ceil(2);
            if will_do(&self.judge(middle * QUANTUM, avoided)) {
                low = middle;
            } else {
                high = middle - 1;
            }
        }
        if low == none { 0 } else { low * QUANTUM }
    }

    /// Requested bytes of live blocks.
    pub fn requested(&self) -> u64 {
        self.live.values().map(|held| held.requested).sum()
    }

    /// Granted bytes of live blocks.
    pub fn granted(&self) -> u64 {
        self.live.iter().map(|(at, held)| held.end - at).sum()
    }

    /// Requested bytes of the live blocks of one stream.
    pub fn held_by(&self, stream: usize) -> u64 {
        let held = self.live.values().filter(|held| held.stream == stream);
        held.map(|held| held.requested).sum()
    }
}
