//! What the oracle reports, in a form that a program can match on and a person can act on.

use std::fmt;

use super::clock::StreamKey;

/// How a piece of work touches bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Access {
    /// The bytes are read.
    Read,
    /// The bytes are overwritten.
    Write,
}

impl fmt::Display for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Access::Read => "reads",
            Access::Write => "writes",
        })
    }
}

/// How the host gives bytes up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Retire {
    /// One mapping goes; the physical bytes stay, and so do their other mappings.
    Unmap,
    /// A plain allocation is freed.
    Free,
    /// The physical bytes of a handle are given back.
    Release,
}

impl fmt::Display for Retire {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Retire::Unmap => "unmap",
            Retire::Free => "free",
            Retire::Release => "release",
        })
    }
}

/// Why a touch reached no physical bytes it may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Invalid {
    /// Nothing is mapped at the address.
    Unmapped,
    /// The address belonged to an allocation that has been freed.
    Freed,
    /// The mapping gives the stream's device no access.
    NoAccess,
}

/// One touch, as a hazard describes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Touch {
    /// The stream whose work it was.
    pub stream: StreamKey,
    /// Which piece of the stream's work, counted from 1 in the order of submission.
    pub work: u64,
    /// What it did.
    pub access: Access,
    /// The virtual address, in the mapping this touch went through, of the first byte concerned.
    pub address: u64,
}

impl fmt::Display for Touch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Touch { stream, work, access, address } = self;
        write!(f, "work {work} of {stream}, which {access} at {address:#x}")
    }
}

/// A broken rule, found at the submission or the host call that broke it.
///
/// One touch that breaks one rule against one other stream in many places is one hazard: `bytes`
/// adds the places up, and the addresses are those of the first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Hazard {
    /// Two touches of the same bytes, at least one a write, that nothing orders.
    Unordered {
        /// The touch submitted first.
        earlier: Touch,
        /// The touch submitted second, at whose submission the hazard was found.
        later: Touch,
        /// How many bytes the two have in common.
        bytes: u64,
    },
    /// A read of bytes that no work has written since they came into being.
    NeverWritten {
        /// The read.
        reader: Touch,
        /// How many of its bytes were never written.
        bytes: u64,
    },
    /// A read that expects one label and finds the content of another write.
    StaleContent {
        /// The read.
        reader: Touch,
        /// The label it expects.
        expected: u64,
        /// The label on the bytes; none if the last write had no label.
        found: Option<u64>,
        /// The stream that wrote what was found.
        writer: StreamKey,
        /// The virtual address it wrote through.
        writer_address: u64,
        /// How many bytes hold the other content.
        bytes: u64,
    },
    /// Memory given up while the host does not know that a touch of it has completed.
    InFlight {
        /// How it was given up.
        what: Retire,
        /// Where: the address the host named.
        address: u64,
        /// The touch that may still run.
        touch: Touch,
        /// How many bytes of the retired range it touches.
        bytes: u64,
    },
    /// A touch of an address where there is no memory the stream may use.
    Invalid {
        /// The stream whose work it was.
        stream: StreamKey,
        /// The first address concerned.
        address: u64,
        /// How many bytes are concerned.
        bytes: u64,
        /// What is wrong there.
        why: Invalid,
    },
    /// Work given to a stream that was destroyed or never created. It orders and records nothing.
    DeadStream {
        /// The stream.
        stream: StreamKey,
    },
}

/// The kinds of [`Hazard`], for counting and for matching without the details.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum HazardKind {
    /// See [`Hazard::Unordered`].
    Unordered,
    /// See [`Hazard::NeverWritten`].
    NeverWritten,
    /// See [`Hazard::StaleContent`].
    StaleContent,
    /// See [`Hazard::InFlight`].
    InFlight,
    /// See [`Invalid::Unmapped`].
    Unmapped,
    /// See [`Invalid::Freed`].
    Freed,
    /// See [`Invalid::NoAccess`].
    NoAccess,
    /// See [`Hazard::DeadStream`].
    DeadStream,
}

impl fmt::Display for HazardKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            HazardKind::Unordered => "unordered touches",
            HazardKind::NeverWritten => "read of bytes never written",
            HazardKind::StaleContent => "stale content",
            HazardKind::InFlight => "memory given up in flight",
            HazardKind::Unmapped => "touch of unmapped memory",
            HazardKind::Freed => "touch of freed memory",
            HazardKind::NoAccess => "touch without access",
            HazardKind::DeadStream => "work on a dead stream",
        })
    }
}

impl Hazard {
    /// Which rule was broken.
    pub fn kind(&self) -> HazardKind {
        match self {
            Hazard::Unordered { .. } => HazardKind::Unordered,
            Hazard::NeverWritten { .. } => HazardKind::NeverWritten,
            Hazard::StaleContent { .. } => HazardKind::StaleContent,
            Hazard::InFlight { .. } => HazardKind::InFlight,
            Hazard::Invalid { why, .. } => match why {
                Invalid::Unmapped => HazardKind::Unmapped,
                Invalid::Freed => HazardKind::Freed,
                Invalid::NoAccess => HazardKind::NoAccess,
            },
            Hazard::DeadStream { .. } => HazardKind::DeadStream,
        }
    }

    /// Takes `other` in if it is this hazard at another place of the same touch; says whether.
    fn absorb(&mut self, other: &Hazard) -> bool {
        let party = |touch: &Touch| (touch.stream, touch.access);
        match (self, other) {
            (
                Hazard::Unordered { earlier, bytes, .. },
                Hazard::Unordered { earlier: e, bytes: b, .. },
            ) if party(earlier) == party(e) => *bytes += b,
            (Hazard::NeverWritten { bytes, .. }, Hazard::NeverWritten { bytes: b, .. }) => {
                *bytes += b;
            }
            (
                Hazard::StaleContent { found, writer, bytes, .. },
                Hazard::StaleContent { found: f, writer: w, bytes: b, .. },
            ) if (*found, *writer) == (*f, *w) => *bytes += b,
            (
                Hazard::InFlight { touch, bytes, .. },
                Hazard::InFlight { touch: t, bytes: b, .. },
            ) if party(touch) == party(t) => *bytes += b,
            _ => return false,
        }
        true
    }
}

impl fmt::Display for Hazard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.kind())?;
        match self {
            Hazard::Unordered { earlier, later, bytes } => {
                write!(f, "nothing orders {later}, after {earlier} ({bytes} bytes in common)")
            }
            Hazard::NeverWritten { reader, bytes } => {
                write!(f, "{reader}, finds {bytes} bytes that no work has written")
            }
            Hazard::StaleContent { reader, expected, found, writer, writer_address, bytes } => {
                write!(f, "{reader}, expects label {expected} and finds ")?;
                match found {
                    Some(label) => write!(f, "label {label}")?,
                    None => f.write_str("unlabelled content")?,
                }
                write!(f, " in {bytes} bytes, written by {writer} at {writer_address:#x}")
            }
            Hazard::InFlight { what, address, touch, bytes } => write!(
                f,
                "{what} at {address:#x}, but the host has not learnt that {touch} \
                 ({bytes} bytes of it), has completed"
            ),
            Hazard::Invalid { stream, address, bytes, why: _ } => {
                write!(f, "{stream} touches {bytes} bytes at {address:#x}")
            }
            Hazard::DeadStream { stream } => {
                write!(f, "{stream} was destroyed or never created")
            }
        }
    }
}

/// How many hazards are kept in detail; all are counted.
pub(super) const KEPT: usize = 1000;

/// How far back in one touch's findings a finding looks for its like. Unlimited, a touch over many
/// small intervals of different content would cost the square of their number.
const LOOK_BACK: usize = 16;

/// All hazards so far, and those of the touch being checked.
#[derive(Clone, Debug, Default)]
pub(super) struct Log {
    kept: Vec<Hazard>,
    count: u64,
    open: Vec<Hazard>,
}

impl Log {
    /// Notes a hazard of the touch being checked, together with its like of the same touch.
    pub(super) fn note(&mut self, hazard: Hazard) {
        let mut recent = self.open.iter_mut().rev().take(LOOK_BACK);
        if !recent.any(|open| open.absorb(&hazard)) {
            self.open.push(hazard);
        }
    }

    /// Ends the touch being checked.
    pub(super) fn close(&mut self) {
        if self.open.is_empty() {
            return;
        }
        self.count = self.count.saturating_add(self.open.len() as u64);
        let room = KEPT.saturating_sub(self.kept.len());
        self.kept.extend(self.open.drain(..).take(room));
    }

    pub(super) fn kept(&self) -> &[Hazard] {
        &self.kept
    }

    pub(super) fn count(&self) -> u64 {
        self.count
    }
}
