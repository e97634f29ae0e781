//! The operations of a trace, and the rules that one operation must keep by itself.

use std::fmt;

use crate::error::TraceErrorKind;
use crate::phase::Phase;

/// The highest device ordinal that a trace may name.
pub const MAX_DEVICE: u16 = 1023;

/// The largest size in bytes that an allocation may ask for: 2^63 - 1.
pub const MAX_SIZE: u64 = i64::MAX as u64;

/// One operation.
///
/// `id` names a block: as written in the file where a reader yields the operation, a dense index
/// where it comes from a [`Trace`](crate::Trace).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Op {
    /// `a`: allocates a block.
    Alloc {
        /// The block.
        id: u64,
        /// The device that holds it.
        device: u16,
        /// The stream it is allocated on.
        stream: u32,
        /// Its size as asked for, from 1 to [`MAX_SIZE`].
        bytes: u64,
    },
    /// `f`: frees a block.
    Free {
        /// The block.
        id: u64,
        /// The stream it was allocated on.
        stream: u32,
    },
    /// `u`: the block is used on another stream of its device too, until its free.
    Use {
        /// The block.
        id: u64,
        /// The stream that uses it.
        stream: u32,
    },
    /// `w`: a stream waits for all work given so far to another stream of its device.
    Wait {
        /// The device of both streams.
        device: u16,
        /// The stream that waits.
        waiter: u32,
        /// The stream waited for.
        signaller: u32,
    },
    /// `x`: a stream waits for all work given so far to a stream of another device.
    WaitAcross {
        /// The device of the waiting stream.
        device: u16,
        /// The stream that waits.
        waiter: u32,
        /// The device of the stream waited for.
        other: u16,
        /// The stream waited for.
        signaller: u32,
    },
    /// `m step`: a step begins; it lasts to the next one, or to the end.
    Step(
        /// The step's number, as written.
        u64,
    ),
    /// `m phase`: a phase begins.
    Phase(
        /// Which one.
        Phase,
    ),
}

impl Op {
    /// Whether this is a mark (`m`), which asks nothing of a pool and does not count as an
    /// operation in any figure.
    #[must_use]
    pub fn is_mark(&self) -> bool {
        matches!(self, Op::Step(_) | Op::Phase(_))
    }

    /// Checks the rules that concern this operation alone: sizes, devices, who waits for whom.
    ///
    /// Whether an id is live is a matter of the whole trace; [`Reader`](crate::Reader) checks that.
    ///
    /// # Errors
    /// The first rule broken.
    pub fn check(&self) -> Result<(), TraceErrorKind> {
        let device_fits = |device: u16| {
            if device > MAX_DEVICE {
                return Err(TraceErrorKind::DeviceTooLarge(device.to_string()));
            }
            Ok(())
        };
        match *self {
            Op::Alloc { device, bytes, .. } => {
                device_fits(device)?;
                match bytes {
                    0 => Err(TraceErrorKind::SizeZero),
                    1..=MAX_SIZE => Ok(()),
                    _ => Err(TraceErrorKind::SizeTooLarge(bytes.to_string())),
                }
            }
            Op::Wait { device, waiter, signaller } => {
                device_fits(device)?;
                if waiter == signaller {
                    return Err(TraceErrorKind::SelfWait { device, stream: waiter });
                }
                Ok(())
            }
            Op::WaitAcross { device, waiter, other, signaller } => {
                device_fits(device)?;
                device_fits(other)?;
                if device != other {
                    return Ok(());
                }
                Err(if waiter == signaller {
                    TraceErrorKind::SelfWait { device, stream: waiter }
                } else {
                    TraceErrorKind::AcrossOneDevice(device)
                })
            }
            Op::Free { .. } | Op::Use { .. } | Op::Step(_) | Op::Phase(_) => Ok(()),
        }
    }
}

/// The operation as its line in the format, without the newline.
impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Op::Alloc { id, device, stream, bytes } => {
                write!(f, "a {id} {device} {stream} {bytes}")
            }
            Op::Free { id, stream } => write!(f, "f {id} {stream}"),
            Op::Use { id, stream } => write!(f, "u {id} {stream}"),
            Op::Wait { device, waiter, signaller } => write!(f, "w {device} {waiter} {signaller}"),
            Op::WaitAcross { device, waiter, other, signaller } => {
                write!(f, "x {device} {waiter} {other} {signaller}")
            }
            Op::Step(step) => write!(f, "m step {step}"),
            Op::Phase(phase) => write!(f, "m phase {phase}"),
        }
    }
}

/// An operation and where it stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// The line, from 1.
    pub line: u64,
    /// The operation.
    pub op: Op,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stays_small() {
        assert!(size_of::<Op>() <= 24, "{} bytes an operation", size_of::<Op>());
    }

    #[test]
    fn check_knows_the_limits() {
        let alloc = |device, bytes| Op::Alloc { id: 0, device, stream: 0, bytes };
        assert!(alloc(MAX_DEVICE, MAX_SIZE).check().is_ok());
        assert!(matches!(alloc(MAX_DEVICE + 1, 1).check(), Err(TraceErrorKind::DeviceTooLarge(_))));
        assert!(matches!(alloc(0, 0).check(), Err(TraceErrorKind::SizeZero)));
        assert!(matches!(alloc(0, MAX_SIZE + 1).check(), Err(TraceErrorKind::SizeTooLarge(_))));
    }
}
