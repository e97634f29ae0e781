//! The bytes of device memory, held in host memory where a program asks for contents.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ops::Range;

/// A page's or a plain allocation's.
#[derive(Debug)]
struct Block {
    len: usize,
    /// None before the first write: zeros.
    bytes: Option<Box<[u8]>>,
}

/// Bytes by physical address. Physical addresses are never reused, so neither are the bytes.
#[derive(Debug, Default)]
pub(super) struct Contents {
    /// By the physical address of the first byte.
    blocks: BTreeMap<u64, Block>,
}

impl Contents {
    /// Backs `phys` with zeros, which cost the host no memory until they are written to.
    pub(super) fn create(&mut self, phys: &Range<u64>) {
        let len = (phys.end - phys.start) as usize;
        self.blocks.insert(phys.start, Block { len, bytes: None });
    }

    /// Drops the block that starts at `phys.start`.
    pub(super) fn destroy(&mut self, phys: &Range<u64>) {
        self.blocks.remove(&phys.start);
    }

    /// The bytes of a range that lies in one block, to be written.
    pub(super) fn bytes_mut(&mut self, phys: &Range<u64>) -> Option<&mut [u8]> {
        let (&start, block) = self.blocks.range_mut(..=phys.start).next_back()?;
        let bytes = block.bytes.get_or_insert_with(|| vec![0; block.len].into_boxed_slice());
        bytes.get_mut((phys.start - start) as usize..(phys.end - start) as usize)
    }

    /// The bytes of a range that lies in one block.
    pub(super) fn bytes(&self, phys: &Range<u64>) -> Option<Cow<'_, [u8]>> {
        let (&start, block) = self.blocks.range(..=phys.start).next_back()?;
        let range = (phys.start - start) as usize..(phys.end - start) as usize;
        match &block.bytes {
            Some(bytes) => bytes.get(range).map(Cow::Borrowed),
            None => (range.end <= block.len).then(|| vec![0; range.len()].into()),
        }
    }
}

/// The bytes of a fill from the byte `offset` of the filled range on.
pub(super) fn phase(pattern: u64, offset: u64) -> [u8; 8] {
    pattern.rotate_right(8 * (offset % 8) as u32).to_le_bytes()
}

/// Repeats `word` over `bytes`.
pub(super) fn fill(bytes: &mut [u8], word: [u8; 8]) {
    for chunk in bytes.chunks_mut(8) {
        chunk.copy_from_slice(&word[..chunk.len()]);
    }
}

/// Offset of the first byte that is not as [`fill`] leaves it, with what is there instead.
pub(super) fn differs(bytes: &[u8], word: [u8; 8]) -> Option<(u64, u8)> {
    for (at, chunk) in bytes.chunks(8).enumerate() {
        if chunk != &word[..chunk.len()] {
            let within = chunk.iter().zip(word).position(|(is, ought)| *is != ought)?;
            return Some(((at * 8 + within) as u64, chunk[within]));
        }
    }
    None
}
