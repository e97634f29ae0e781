//! The rules that hold between the lines of a trace.

use crate::blocks::Blocks;
use crate::error::TraceErrorKind;
use crate::op::Op;
use crate::summary::{Summary, SummaryBuilder};

/// Checks one operation after the other, and sums them up.
#[derive(Debug, Default)]
pub(crate) struct Checker {
    blocks: Blocks,
    summary: SummaryBuilder,
}

impl Checker {
    /// Checks an operation that has passed [`Op::check`], and returns the number of the block that
    /// it names, if it names one.
    ///
    /// After an error the checker must not be used again.
    pub(crate) fn admit(&mut self, op: &Op, line: u64) -> Result<Option<u32>, TraceErrorKind> {
        let number = match *op {
            Op::Alloc { id, device, stream, bytes } => {
                let number = self.blocks.alloc(id, device, stream, bytes, line)?;
                self.summary.alloc(device, stream, bytes).ok_or(TraceErrorKind::TooManyBytes)?;
                Some(number)
            }
            Op::Free { id, stream } => {
                let (number, block) = self.blocks.free(id, stream, line)?;
                self.summary.free(block.device, block.bytes);
                Some(number)
            }
            Op::Use { id, stream } => {
                let (number, block) = self.blocks.touch(id)?;
                self.summary.stream(block.device, stream);
                Some(number)
            }
            Op::Wait { device, waiter, signaller } => {
                self.summary.stream(device, waiter);
                self.summary.stream(device, signaller);
                None
            }
            Op::WaitAcross { device, waiter, other, signaller } => {
                self.summary.stream(device, waiter);
                self.summary.stream(other, signaller);
                None
            }
            Op::Step(_) | Op::Phase(_) => None,
        };
        self.summary.count(op);
        Ok(number)
    }

    /// [`Checker::admit`], after which the operation names its block by number.
    pub(crate) fn admit_numbered(&mut self, op: &mut Op, line: u64) -> Result<(), TraceErrorKind> {
        let number = self.admit(op, line)?;
        if let (Op::Alloc { id, .. } | Op::Free { id, .. } | Op::Use { id, .. }, Some(number)) =
            (op, number)
        {
            *id = u64::from(number);
        }
        Ok(())
    }

    /// Checks what can be told at the end only.
    pub(crate) fn end(&self) -> Result<(), TraceErrorKind> {
        match self.summary.counts().ops() {
            0 => Err(TraceErrorKind::Empty),
            _ => Ok(()),
        }
    }

    /// The summary, and the ids by block number.
    pub(crate) fn finish(self) -> (Summary, Vec<u64>) {
        (self.summary.finish(), self.blocks.into_ids())
    }
}
