//! The packed words of a descriptor: its state word, hints, and fences.

use std::fmt;

/// What a block is at this moment. Whoever moves the word owns the transition:
///
/// ```text
///            carve                    free                     claim by hint
///   Spare ─────────► Claimed ─► Live ───────► Cached ─────────────────────────► Live
///     ▲                 ▲ │                     │  claim by the arena
///     │ merged away     │ └─► Free ◄────────────┘  (coalescing, best fit)
///     └─────────────────┴──────┘
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum State {
    /// A descriptor that describes nothing.
    Spare = 0,
    /// A resident extent that only the arena knows.
    Free = 1,
    /// An address range with no memory behind it.
    Hole = 2,
    /// Freed by its user; goes to whoever wins the CAS.
    Cached = 3,
    /// In the hands of one thread that is about to make it something else.
    Claimed = 4,
    /// Held by a user.
    Live = 5,
    /// An extent that the buddy system cuts up, or a plan has for its places.
    Chunk = 6,
}

impl State {
    const fn from_bits(bits: u64) -> Self {
        match bits & Word::STATE {
            1 => Self::Free,
            2 => Self::Hole,
            3 => Self::Cached,
            4 => Self::Claimed,
            5 => Self::Live,
            6 => Self::Chunk,
            _ => Self::Spare,
        }
    }
}

/// A descriptor's state word:
/// `tag:40 | unused:16 | planned:1 | apart:1 | indexed:1 | uses:1 | state:4`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Word(pub u64);

impl Word {
    const STATE: u64 = 0xf;
    /// Streams other than the block's own were recorded: the free takes the long path.
    pub const USES: u64 = 1 << 4;
    /// The arena's index, or its list of notes, holds the block.
    pub const INDEXED: u64 = 1 << 5;
    /// The block lies in a chunk of the buddy system's: it is no extent.
    pub const APART: u64 = 1 << 6;
    /// A plan's range, or a place in one: see `heap/planned.rs`.
    pub const PLANNED: u64 = 1 << 7;
    const TAG_SHIFT: u32 = Hint::INDEX_BITS;
    const TAG: u64 = u64::MAX << Self::TAG_SHIFT;

    pub const fn state(self) -> State {
        State::from_bits(self.0)
    }

    /// The word with another state; tag and flags stay.
    pub const fn with_state(self, state: State) -> Self {
        Self(self.0 & !Self::STATE | state as u64)
    }

    /// The word with the next tag: every hint to the block so far goes stale.
    pub const fn next_tag(self) -> Self {
        Self(self.0.wrapping_add(1 << Self::TAG_SHIFT))
    }

    pub const fn has(self, flag: u64) -> bool {
        self.0 & flag != 0
    }

    pub const fn with(self, flag: u64) -> Self {
        Self(self.0 | flag)
    }

    pub const fn without(self, flag: u64) -> Self {
        Self(self.0 & !flag)
    }

    /// The hint to the block at `index` that this word's tag makes good.
    pub const fn hint(self, index: u32) -> Hint {
        Hint(self.0 & Self::TAG | index as u64)
    }

    /// The word of a cached block under the hint's tag, without flags.
    #[inline]
    pub const fn cached(hint: Hint) -> Self {
        Self(hint.0 & Self::TAG | State::Cached as u64)
    }

    /// The word of a live block under the hint's tag, without flags.
    #[inline]
    pub const fn live(hint: Hint) -> Self {
        Self(hint.0 & Self::TAG | State::Live as u64)
    }

    /// Whether the word carries the hint's tag.
    #[inline]
    pub const fn matches(self, hint: Hint) -> bool {
        (self.0 ^ hint.0) & Self::TAG == 0
    }
}

impl fmt::Debug for Word {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (uses, indexed) = (self.has(Self::USES), self.has(Self::INDEXED));
        write!(f, "{:?}#{:x}", self.state(), self.0 >> Self::TAG_SHIFT)?;
        write!(f, "{}{}", if uses { "+uses" } else { "" }, if indexed { "+indexed" } else { "" })?;
        f.write_str(if self.has(Self::APART) { "+apart" } else { "" })
    }
}

/// Says where a block may be had and owns nothing: `tag:40 | index:24`. Index 0 is never used, so
/// zero is no hint. A tag moves at each claim. Claims of one block alone, at 10 ns each, bring a 40-bit
/// tag round in three hours, a 32-bit one in 43 seconds; a hint that slept meanwhile is good again if it
/// is then looked at between two claims in a trillion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hint(pub u64);

impl Hint {
    pub const INDEX_BITS: u32 = 24;

    /// The hint of the next tag.
    #[inline]
    pub const fn next(self) -> Self {
        Self(self.0.wrapping_add(1 << Self::INDEX_BITS))
    }

    #[inline]
    pub const fn index(self) -> u32 {
        (self.0 & ((1 << Self::INDEX_BITS) - 1)) as u32
    }
}

/// A stream of the pool, by a small number that no two streams share while either can still be
/// referred to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StreamId(pub(crate) u16);

impl StreamId {
    /// The number, for messages and tables.
    pub const fn get(self) -> u16 {
        self.0
    }
}

impl fmt::Display for StreamId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "stream {}", self.0)
    }
}

/// "All work that stream S had been given when its number was q": `stream:16 | q:48`.
/// Stream 0 does not exist, so zero is no fence.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Fence(pub u64);

impl Fence {
    pub const NONE: Self = Self(0);
    pub const Q_BITS: u32 = 48;
    pub const Q_MAX: u64 = (1 << Self::Q_BITS) - 1;

    #[inline]
    pub const fn new(stream: StreamId, q: u64) -> Self {
        debug_assert!(q <= Self::Q_MAX);
        Self((stream.0 as u64) << Self::Q_BITS | q)
    }

    /// A use whose stamp is written at the free.
    pub const fn open(stream: StreamId) -> Self {
        Self::new(stream, 0)
    }

    #[inline]
    pub const fn stream(self) -> StreamId {
        StreamId((self.0 >> Self::Q_BITS) as u16)
    }

    #[inline]
    pub const fn q(self) -> u64 {
        self.0 & Self::Q_MAX
    }

    #[inline]
    pub const fn is_none(self) -> bool {
        self.0 == 0
    }

    /// The later of two fences of one stream.
    #[inline]
    pub const fn later(self, other: Self) -> Self {
        if other.0 > self.0 { other } else { self }
    }

    /// Whether it is still to be stamped.
    #[inline]
    pub const fn is_open(self) -> bool {
        self.q() == 0
    }
}

impl fmt::Debug for Fence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "({}, {})", self.stream().0, self.q())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const STATES: [State; 7] = [
        State::Spare,
        State::Free,
        State::Hole,
        State::Cached,
        State::Claimed,
        State::Live,
        State::Chunk,
    ];

    proptest! {
        #[test]
        fn fields_of_a_word_do_not_touch(bits in any::<u64>(), state in 0usize..7, index in 1u32..1 << 24) {
            let word = Word(bits).with_state(STATES[state]);
            prop_assert_eq!(word.state(), STATES[state]);
            prop_assert!(word.matches(word.hint(index)));
            prop_assert_eq!(word.hint(index).index(), index);
            let next = word.next_tag();
            prop_assert_eq!(next.state(), word.state());
            prop_assert_eq!(next.has(Word::USES), word.has(Word::USES));
            prop_assert!(!next.matches(word.hint(index)));
            prop_assert_eq!(next.has(Word::APART), word.has(Word::APART));
            let flagged = word.with(Word::INDEXED).without(Word::USES);
            prop_assert!(flagged.has(Word::INDEXED) && !flagged.has(Word::USES));
            prop_assert_eq!(flagged.hint(index), word.hint(index));
        }

        #[test]
        fn a_fence_keeps_its_fields(stream in 1u16.., q in 0u64..=Fence::Q_MAX) {
            let fence = Fence::new(StreamId(stream), q);
            prop_assert_eq!((fence.stream().0, fence.q()), (stream, q));
            prop_assert!(!fence.is_none());
            prop_assert_eq!(fence.is_open(), q == 0);
        }
    }
}
