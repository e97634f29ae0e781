//! One line to one operation, by hand over bytes: a line that is an operation allocates nothing
//! (a phase of an unknown name apart).

use crate::error::{TraceErrorKind, excerpt};
use crate::op::{MAX_DEVICE, MAX_SIZE, Op};
use crate::phase::Phase;

/// What a line is.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Line<'l> {
    /// Nothing but blanks.
    Blank,
    /// A `#` line: the text behind the sign.
    Comment(&'l [u8]),
    /// An operation.
    Op(Op),
}

const ALLOC: &str = "a <id> <device> <stream> <size>";
const FREE: &str = "f <id> <stream>";
const USE: &str = "u <id> <stream>";
const WAIT: &str = "w <device> <waiter> <signaller>";
const ACROSS: &str = "x <device> <waiter> <device> <signaller>";
const MARK: &str = "m step <n>` or `m phase <name>";
const STEP: &str = "m step <n>";
const PHASE: &str = "m phase <name>";

/// Reads one line, given without its newline.
pub(crate) fn line(bytes: &[u8]) -> Result<Line<'_>, TraceErrorKind> {
    let mut fields = Fields { rest: bytes, shape: "" };
    let Some(verb) = fields.next() else {
        return Ok(Line::Blank);
    };
    let op = match verb {
        b"a" => {
            fields.shape = ALLOC;
            Op::Alloc {
                id: fields.id()?,
                device: fields.device()?,
                stream: fields.stream("stream")?,
                bytes: fields.size()?,
            }
        }
        b"f" => {
            fields.shape = FREE;
            Op::Free { id: fields.id()?, stream: fields.stream("stream")? }
        }
        b"u" => {
            fields.shape = USE;
            Op::Use { id: fields.id()?, stream: fields.stream("stream")? }
        }
        b"w" => {
            fields.shape = WAIT;
            Op::Wait {
                device: fields.device()?,
                waiter: fields.stream("waiter")?,
                signaller: fields.stream("signaller")?,
            }
        }
        b"x" => {
            fields.shape = ACROSS;
            Op::WaitAcross {
                device: fields.device()?,
                waiter: fields.stream("waiter")?,
                other: fields.device()?,
                signaller: fields.stream("signaller")?,
            }
        }
        b"m" => {
            fields.shape = MARK;
            fields.mark()?
        }
        _ if verb[0] == b'#' => {
            let start = bytes.iter().position(|&b| b == b'#').unwrap_or(0);
            return Ok(Line::Comment(&bytes[start + 1..]));
        }
        _ => return Err(TraceErrorKind::UnknownVerb(excerpt(verb))),
    };
    fields.end()?;
    op.check()?;
    Ok(Line::Op(op))
}

/// The fields of a line that are still to be read.
struct Fields<'l> {
    rest: &'l [u8],
    /// What the line should look like, for messages.
    shape: &'static str,
}

impl<'l> Fields<'l> {
    fn next(&mut self) -> Option<&'l [u8]> {
        let start = self.rest.iter().position(|&b| !is_blank(b))?;
        let field = &self.rest[start..];
        let len = field.iter().position(|&b| is_blank(b)).unwrap_or(field.len());
        let (field, rest) = field.split_at(len);
        self.rest = rest;
        Some(field)
    }

    fn required(&mut self, field: &'static str) -> Result<&'l [u8], TraceErrorKind> {
        let shape = self.shape;
        self.next().ok_or(TraceErrorKind::MissingField { field, shape })
    }

    /// A number up to `max`.
    fn number(&mut self, field: &'static str, max: u64) -> Result<u64, TraceErrorKind> {
        let text = self.required(field)?;
        match decimal(text) {
            Decimal::Fits(number) if number <= max => Ok(number),
            _ => Err(TraceErrorKind::BadNumber { field, text: excerpt(text), max }),
        }
    }

    fn id(&mut self) -> Result<u64, TraceErrorKind> {
        self.number("id", u64::MAX)
    }

    fn stream(&mut self, field: &'static str) -> Result<u32, TraceErrorKind> {
        // The bound makes the conversion exact.
        self.number(field, u64::from(u32::MAX)).map(|n| n as u32)
    }

    fn device(&mut self) -> Result<u16, TraceErrorKind> {
        let text = self.required("device")?;
        match decimal(text) {
            Decimal::Fits(number) if number <= u64::from(MAX_DEVICE) => Ok(number as u16),
            Decimal::Fits(_) | Decimal::Overflows => {
                Err(TraceErrorKind::DeviceTooLarge(excerpt(text)))
            }
            Decimal::Malformed => Err(TraceErrorKind::BadNumber {
                field: "device",
                text: excerpt(text),
                max: u64::from(MAX_DEVICE),
            }),
        }
    }

    fn size(&mut self) -> Result<u64, TraceErrorKind> {
        let text = self.required("size")?;
        match decimal(text) {
            Decimal::Fits(number) if number <= MAX_SIZE => Ok(number),
            Decimal::Fits(_) | Decimal::Overflows => {
                Err(TraceErrorKind::SizeTooLarge(excerpt(text)))
            }
            Decimal::Malformed => {
                Err(TraceErrorKind::BadNumber { field: "size", text: excerpt(text), max: MAX_SIZE })
            }
        }
    }

    fn mark(&mut self) -> Result<Op, TraceErrorKind> {
        match self.required("mark")? {
            b"step" => {
                self.shape = STEP;
                self.number("step", u64::MAX).map(Op::Step)
            }
            b"phase" => {
                self.shape = PHASE;
                let name = self.required("phase")?;
                std::str::from_utf8(name)
                    .ok()
                    .and_then(Phase::new)
                    .map(Op::Phase)
                    .ok_or_else(|| TraceErrorKind::BadPhase(excerpt(name)))
            }
            other => Err(TraceErrorKind::UnknownMark(excerpt(other))),
        }
    }

    fn end(&mut self) -> Result<(), TraceErrorKind> {
        match self.next() {
            None => Ok(()),
            Some(surplus) => {
                Err(TraceErrorKind::SurplusField { text: excerpt(surplus), shape: self.shape })
            }
        }
    }
}

/// `\r` counts as a blank, so that a file with Windows line ends reads like any other.
fn is_blank(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\r')
}

/// What a field is as an unsigned decimal number.
#[derive(Debug, PartialEq, Eq)]
enum Decimal {
    Fits(u64),
    Overflows,
    Malformed,
}

fn decimal(text: &[u8]) -> Decimal {
    if text.is_empty() || !text.iter().all(u8::is_ascii_digit) {
        return Decimal::Malformed;
    }
    let number = text
        .iter()
        .try_fold(0u64, |n, &digit| n.checked_mul(10)?.checked_add(u64::from(digit - b'0')));
    number.map_or(Decimal::Overflows, Decimal::Fits)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn op(text: &str) -> Op {
        match line(text.as_bytes()) {
            Ok(Line::Op(op)) => op,
            other => panic!("{text:?} gave {other:?}"),
        }
    }

    #[test]
    fn reads_every_operation() {
        let alloc =
            Op::Alloc { id: u64::MAX, device: MAX_DEVICE, stream: u32::MAX, bytes: MAX_SIZE };
        assert_eq!(op("a 18446744073709551615 1023 4294967295 9223372036854775807"), alloc);
        assert_eq!(op("f 3 1"), Op::Free { id: 3, stream: 1 });
        assert_eq!(op("u 3 2"), Op::Use { id: 3, stream: 2 });
        let wait = Op::Wait { device: 1, waiter: 2, signaller: 3 };
        assert_eq!(op("w 1 2 3"), wait);
        let across = Op::WaitAcross { device: 1, waiter: 2, other: 3, signaller: 2 };
        assert_eq!(op("x 1 2 3 2"), across);
        assert_eq!(op("m step 9"), Op::Step(9));
        assert_eq!(op("m phase backward"), Op::Phase(Phase::Backward));
        assert_eq!(op("m phase éval").to_string(), "m phase éval");
    }

    #[test]
    fn forgives_what_editors_do() {
        assert_eq!(op("  f\t007   1 \r"), Op::Free { id: 7, stream: 1 });
        assert_eq!(line(b" \t\r").expect("blank"), Line::Blank);
        assert_eq!(line(b"").expect("blank"), Line::Blank);
        assert_eq!(line(b" # k=v").expect("comment"), Line::Comment(b" k=v"));
        assert_eq!(line(b"#k=v").expect("comment"), Line::Comment(b"k=v"));
    }

    #[test]
    fn tells_overflow_from_nonsense() {
        assert_eq!(decimal(b"18446744073709551615"), Decimal::Fits(u64::MAX));
        assert_eq!(decimal(b"18446744073709551616"), Decimal::Overflows);
        for text in ["", "+1", "-1", "1e3", "0x10", "1.0", "١"] {
            assert_eq!(decimal(text.as_bytes()), Decimal::Malformed, "{text:?}");
        }
    }
}
