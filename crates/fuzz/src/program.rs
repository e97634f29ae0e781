//! Programs: settings and operations, as text and from any bytes. Pure.
//!
//! ```text
//! # why this program is kept
//! pool reuse=2 lag=3 page=1 ...     settings; what is not named is 0
//! alloc 0 4096 1                    an operation and up to three numbers
//! ```
//!
//! Numbers that name a stream or a block count among those there are, round and round, so that a
//! program stays one when lines are taken out.

use millpond::size;
use std::fmt;

/// What an operation does; its numbers are `a`, `b` and `c`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// A stream on device `a`, where there are fewer than five.
    Open,
    /// Drops stream `a`.
    Close,
    /// `b` bytes on stream `a`; `c` says how (buffer, address, `try_alloc`) and on which thread.
    Alloc,
    /// Frees block `a` on thread `b`.
    Free,
    /// Block `a` is used on stream `b` until its free.
    Use,
    /// Block `a` is used on stream `b` for the last time.
    Last,
    /// Stream `a` waits for stream `b`.
    Wait,
    /// Pins block `a`.
    Pin,
    /// Drops pin `a`.
    Unpin,
    /// Trims device `a` to `b` bytes; all devices where `a` is 2.
    Trim,
    /// The clock of completion goes on by `a`.
    Tick,
    /// A wrong call of kind `a`, with numbers `b` and `c`.
    Bad,
    /// Driver calls of kind `a` fail from the `b`-th on; only that one where `c` is even.
    Fault,
    /// Stream `a` hangs.
    Hang,
    /// What hangs goes on, and calls fail no longer.
    Heal,
}

impl Verb {
    const NAMED: [(Verb, &str, u8); 15] = [
        (Verb::Open, "open", 12),
        (Verb::Close, "close", 8),
        (Verb::Alloc, "alloc", 80),
        (Verb::Free, "free", 56),
        (Verb::Use, "use", 16),
        (Verb::Last, "last", 16),
        (Verb::Wait, "wait", 16),
        (Verb::Pin, "pin", 5),
        (Verb::Unpin, "unpin", 5),
        (Verb::Trim, "trim", 7),
        (Verb::Tick, "tick", 7),
        (Verb::Bad, "bad", 14),
        (Verb::Fault, "fault", 6),
        (Verb::Hang, "hang", 2),
        (Verb::Heal, "heal", 6),
    ];

    /// The verb that a byte stands for; each has a share of the 256.
    fn of(byte: u8) -> Self {
        let mut left = byte;
        for (verb, _, share) in Self::NAMED {
            match left.checked_sub(share) {
                Some(rest) => left = rest,
                None => return verb,
            }
        }
        Self::Tick
    }

    fn name(self) -> &'static str {
        Self::NAMED.iter().find(|(verb, ..)| *verb == self).map_or("", |(_, name, _)| name)
    }
}

/// One operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Op {
    /// What it does.
    pub verb: Verb,
    /// Its numbers.
    pub args: [u64; 3],
}

/// How the pool and the devices are, each a small number; what they stand for is said in `machine`.
pub const SETTINGS: [&str; 10] =
    ["reuse", "headroom", "capacity", "page", "marks", "lag", "seed", "rescue", "peers", "end"];

/// Settings and operations.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Program {
    /// By their places in [`SETTINGS`].
    pub settings: [u64; SETTINGS.len()],
    /// In order.
    pub ops: Vec<Op>,
}

/// Most operations of a program made from bytes.
const MOST: usize = 160;
/// Bytes of an operation.
const WIDTH: usize = 5;

impl Program {
    /// Reads a program's text; makes something of any other bytes.
    pub fn of(bytes: &[u8]) -> Self {
        let text = std::str::from_utf8(bytes).ok();
        text.and_then(|text| Self::parse(text).ok()).unwrap_or_else(|| Self::decode(bytes))
    }

    /// Reads text.
    ///
    /// # Errors
    /// The first line that is none of a program.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut program = Self::default();
        for line in text.lines().map(str::trim) {
            let bad = || line.to_owned();
            let mut words = line.split_whitespace();
            match words.next() {
                None => {}
                Some(word) if word.starts_with('#') => {}
                Some("pool") => {
                    for word in words {
                        let (key, value) = word.split_once('=').ok_or_else(bad)?;
                        let at = SETTINGS.iter().position(|name| *name == key).ok_or_else(bad)?;
                        program.settings[at] = value.parse().map_err(|_| bad())?;
                    }
                }
                Some(name) => {
                    let named = Verb::NAMED.iter().find(|(_, known, _)| *known == name);
                    let &(verb, ..) = named.ok_or_else(bad)?;
                    let mut args = [0; 3];
                    for (at, word) in words.enumerate() {
                        *args.get_mut(at).ok_or_else(bad)? = word.parse().map_err(|_| bad())?;
                    }
                    program.ops.push(Op { verb, args });
                }
            }
        }
        Ok(program)
    }

    fn decode(bytes: &[u8]) -> Self {
        let mut program = Self::default();
        let (head, rest) = bytes.split_at(bytes.len().min(SETTINGS.len()));
        for (setting, byte) in program.settings.iter_mut().zip(head) {
            *setting = u64::from(*byte);
        }
        program.ops = rest.chunks_exact(WIDTH).take(MOST).map(op).collect();
        program
    }
}

fn op(bytes: &[u8]) -> Op {
    let [verb, a, b, c, d] = [0, 1, 2, 3, 4].map(|at| bytes[at]);
    let verb = Verb::of(verb);
    let (low, high) = (u64::from(u16::from_le_bytes([b, c])), u64::from(d));
    let [a, b, c] = [a, b, c].map(u64::from);
    let args = match verb {
        Verb::Alloc => [(a % 16).saturating_sub(8), bytes_of(low), high % 16],
        Verb::Trim => [a % 3, low << 10, 0],
        Verb::Bad => [a, b, bytes_of(low)],
        Verb::Open | Verb::Tick => [a % 12, 0, 0],
        // Mostly soon: the call that is to fail should belong to the operations that follow.
        Verb::Fault => [a, if b < 200 { b % 4 } else { b }, c],
        _ => [a, b, c],
    };
    Op { verb, args }
}

/// A size: one that comes again and again, small, near the border of a class, of the regions, or of
/// pages.
fn bytes_of(drawn: u64) -> u64 {
    let (kind, number) = (drawn % 8, drawn / 8);
    let near = |border: u64| border + number % 3 - 1;
    match kind {
        0 | 1 => [512, 700, 4096, 40_000][number as usize % 4],
        2 => [900_000, 2 << 20, 3 << 20, 9 << 20][number as usize % 4],
        3 => near(size::class_bytes((number / 3) as usize % size::CLASSES)),
        4 if number % 2 == 0 => near(size::SMALL_MAX + 512 * (number / 3 % 4)),
        4 => 1 + number % 3000,
        5 => near((1 + number / 3 % 6) << 20),
        6 => near((1 + number / 3 % 20) << 16),
        _ => 1 + number * 1024,
    }
}

impl fmt::Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("# why\npool")?;
        for (name, value) in SETTINGS.iter().zip(self.settings) {
            if value != 0 {
                write!(f, " {name}={value}")?;
            }
        }
        writeln!(f)?;
        for Op { verb, args } in &self.ops {
            writeln!(f, "{} {} {} {}", verb.name(), args[0], args[1], args[2])?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_is_a_verb_and_every_verb_has_bytes() {
        assert_eq!(Verb::NAMED.iter().map(|(.., share)| u32::from(*share)).sum::<u32>(), 256);
        for (verb, ..) in Verb::NAMED {
            assert!((0..=u8::MAX).any(|byte| Verb::of(byte) == verb), "{verb:?}");
        }
    }

    #[test]
    fn text_reads_back() {
        let bytes: Vec<u8> = (0..600u32).map(|n| (n * 37 % 251) as u8).collect();
        let program = Program::of(&bytes);
        assert!(program.ops.len() > 100);
        assert_eq!(Program::of(program.to_string().as_bytes()), program);
    }
}
