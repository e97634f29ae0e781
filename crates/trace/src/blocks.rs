//! The blocks of a trace: which id is which, and whether it is live.
//!
//! Invariants, with `n` the blocks allocated so far:
//! - `blocks.len() == index.len() == n`, and `index[blocks[i].id] == i`: blocks are numbered
//!   densely in the order of their allocation;
//! - an entry is never removed, so an id that comes again is known, live or not.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use crate::error::TraceErrorKind;

/// What is known of one block.
#[derive(Debug, Clone)]
pub(crate) struct Block {
    pub(crate) id: u64,
    pub(crate) bytes: u64,
    pub(crate) device: u16,
    stream: u32,
    allocated_line: u64,
    /// 0 while the block is live.
    freed_line: u64,
}

/// All blocks, by id and by number.
#[derive(Debug, Default)]
pub(crate) struct Blocks {
    index: HashMap<u64, u32>,
    blocks: Vec<Block>,
}

impl Blocks {
    /// Numbers a new block.
    pub(crate) fn alloc(
        &mut self,
        id: u64,
        device: u16,
        stream: u32,
        bytes: u64,
        line: u64,
    ) -> Result<u32, TraceErrorKind> {
        let number = u32::try_from(self.blocks.len())
            .ok()
            .filter(|&n| n < u32::MAX)
            .ok_or(TraceErrorKind::TooManyBlocks)?;
        match self.index.entry(id) {
            Entry::Occupied(known) => {
                let first_line = self.blocks[*known.get() as usize].allocated_line;
                Err(TraceErrorKind::DuplicateId { id, first_line })
            }
            Entry::Vacant(vacant) => {
                vacant.insert(number);
                self.blocks.push(Block {
                    id,
                    bytes,
                    device,
                    stream,
                    allocated_line: line,
                    freed_line: 0,
                });
                Ok(number)
            }
        }
    }

    /// Marks a live block as freed.
    pub(crate) fn free(
        &mut self,
        id: u64,
        stream: u32,
        line: u64,
    ) -> Result<(u32, &Block), TraceErrorKind> {
        let Some((number, block)) = self.find(id) else {
            return Err(TraceErrorKind::FreeOfUnknownId(id));
        };
        if block.freed_line != 0 {
            let freed_line = block.freed_line;
            return Err(TraceErrorKind::DoubleFree { id, freed_line });
        }
        if block.stream != stream {
            let allocated_on = block.stream;
            return Err(TraceErrorKind::WrongStream { id, stream, allocated_on });
        }
        block.freed_line = line;
        Ok((number, block))
    }

    /// Finds a live block to be used.
    pub(crate) fn touch(&mut self, id: u64) -> Result<(u32, &Block), TraceErrorKind> {
        match self.find(id) {
            None => Err(TraceErrorKind::UseOfUnknownId(id)),
            Some((_, block)) if block.freed_line != 0 => {
                let freed_line = block.freed_line;
                Err(TraceErrorKind::UseAfterFree { id, freed_line })
            }
            Some((number, block)) => Ok((number, block)),
        }
    }

    /// The ids by number.
    pub(crate) fn into_ids(self) -> Vec<u64> {
        self.blocks.into_iter().map(|block| block.id).collect()
    }

    fn find(&mut self, id: u64) -> Option<(u32, &mut Block)> {
        let number = *self.index.get(&id)?;
        Some((number, self.blocks.get_mut(number as usize)?))
    }
}
