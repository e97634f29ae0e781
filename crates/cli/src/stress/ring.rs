//! Host memory that comparisons share: bytes are copied there in stream order, and looked at once
//! the copy is over.
//!
//! ```text
//! [0, size)   a ring of copies under way, the oldest at `pending.front()`, the next at `next`
//! ```

use crate::gpus::{guarded, told};
use millpond::driver::DriverError;
use millpond::driver::cuda::cudarc::driver::result::{self, event};
use millpond::driver::cuda::cudarc::driver::{CudaContext, sys};
use std::collections::VecDeque;
use std::ffi::c_void;
use std::sync::Arc;

/// Bytes of a ring.
const SIZE: u64 = 64 << 20;
/// The events of so many copies that are over are kept for later ones.
const EVENTS: usize = 1024;

/// What a part of a filled range should hold: four bytes over and over, and the first of them in a
/// tail of less than four.
#[derive(Clone, Copy, Debug)]
pub(super) struct Expected {
    /// Of the whole range.
    pub address: u64,
    /// Where the part begins in it.
    pub at: u64,
    /// Of the whole range.
    pub bytes: u64,
    pub word: u32,
}

impl Expected {
    /// The byte at an offset of the part.
    pub fn byte(&self, offset: usize) -> u8 {
        let at = self.at + offset as u64;
        let word = self.word.to_le_bytes();
        if at < self.bytes / 4 * 4 { word[(at % 4) as usize] } else { word[0] }
    }

    /// The first offset at which the part is not as it should be.
    pub fn differs(&self, found: &[u8]) -> Option<usize> {
        // Parts begin at multiples of four. Whole words first, quickly.
        let word = self.word.to_le_bytes();
        let whole = usize::try_from((self.bytes / 4 * 4).saturating_sub(self.at));
        let whole = whole.unwrap_or(usize::MAX).min(found.len()) / 4 * 4;
        let wrong = found[..whole].chunks_exact(4).position(|chunk| chunk != word);
        let from = wrong.map_or(whole, |chunk| chunk * 4);
        (from..found.len()).find(|&at| found[at] != self.byte(at))
    }
}

/// A copy under way.
struct Pending {
    at: u64,
    len: u64,
    event: u64,
    expected: Expected,
}

/// The ring of one device.
pub(super) struct Ring {
    context: Arc<CudaContext>,
    /// Host memory that devices write to, as a number.
    memory: u64,
    next: u64,
    pending: VecDeque<Pending>,
    /// Events to be used again.
    events: Vec<u64>,
}

type Answer = Result<(), DriverError>;

impl Ring {
    /// Most bytes of one copy.
    pub const MOST: u64 = SIZE / 4;

    /// A ring for the device whose context it is, which must be current.
    pub fn new(context: &Arc<CudaContext>) -> Result<Self, DriverError> {
        let bytes = SIZE as usize;
        // SAFETY: plain host memory, freed with the ring.
        let memory = guarded("cuMemHostAlloc", || unsafe { result::malloc_host(bytes, 0) })? as u64;
        let (context, pending) = (Arc::clone(context), VecDeque::new());
        Ok(Self { context, memory, next: 0, pending, events: Vec::new() })
    }

    /// Copies `len` bytes of what `expected` speaks of, when the stream comes to it; `compare` is
    /// told of older copies that make room.
    ///
    /// # Safety
    /// The stream is of the ring's context, which is current, and may read the bytes.
    pub unsafe fn copy(
        &mut self,
        stream: sys::CUstream,
        len: u64,
        expected: Expected,
        mut compare: impl FnMut(&[u8], &Expected),
    ) -> Answer {
        let at = loop {
            match self.room(len) {
                Some(at) => break at,
                None => self.finish_oldest(&mut compare)?,
            }
        };
        let event = match self.events.pop() {
            Some(event) => event,
            None => {
                let flags = sys::CUevent_flags::CU_EVENT_DISABLE_TIMING;
                told("cuEventCreate", event::create(flags))? as u64
            }
        };
        // SAFETY: the caller's word for the device's bytes; those of the host are the ring's, and
        // nobody looks at them before the event behind the copy is done.
        unsafe {
            let to = (self.memory + at) as *mut c_void;
            let from = expected.address + expected.at;
            let copied = sys::cuMemcpyDtoHAsync_v2(to, from, len as usize, stream).result();
            told("cuMemcpyDtoHAsync", copied)?;
            told("cuEventRecord", event::record(event as sys::CUevent, stream))?;
        }
        self.pending.push_back(Pending { at, len, event, expected });
        self.next = at + len;
        Ok(())
    }

    /// Looks at what is there already.
    pub fn look(&mut self, mut compare: impl FnMut(&[u8], &Expected)) -> Answer {
        while let Some(oldest) = self.pending.front() {
            // SAFETY: the event was recorded when the copy was made.
            match unsafe { event::query(oldest.event as sys::CUevent) } {
                Ok(()) => self.finish_oldest(&mut compare)?,
                Err(error) if error.0 == sys::CUresult::CUDA_ERROR_NOT_READY => break,
                Err(error) => return told("cuEventQuery", Err(error)),
            }
        }
        Ok(())
    }

    /// Waits for all copies and looks at them.
    pub fn settle(&mut self, mut compare: impl FnMut(&[u8], &Expected)) -> Answer {
        while !self.pending.is_empty() {
            self.finish_oldest(&mut compare)?;
        }
        Ok(())
    }

    /// Where `len` bytes are free, if they are.
    fn room(&mut self, len: u64) -> Option<u64> {
        let Some(oldest) = self.pending.front().map(|oldest| oldest.at) else {
            self.next = 0;
            return Some(0);
        };
        // `next` never catches up with the oldest: a full ring would look empty.
        if self.next > oldest {
            if SIZE - self.next >= len {
                return Some(self.next);
            }
            return (oldest > len).then_some(0);
        }
        (oldest - self.next > len).then_some(self.next)
    }

    fn finish_oldest(&mut self, compare: &mut impl FnMut(&[u8], &Expected)) -> Answer {
        let Some(oldest) = self.pending.pop_front() else { return Ok(()) };
        let event = oldest.event as sys::CUevent;
        // SAFETY: the event was recorded behind the copy.
        told("cuEventSynchronize", unsafe { event::synchronize(event) })?;
        let bytes = (self.memory + oldest.at) as *const u8;
        // SAFETY: the copy is over, and nobody writes here before `next` comes round again.
        let found = unsafe { std::slice::from_raw_parts(bytes, oldest.len as usize) };
        compare(found, &oldest.expected);
        if self.events.len() < EVENTS {
            self.events.push(oldest.event);
            return Ok(());
        }
        // SAFETY: nobody else knows the event.
        told("cuEventDestroy", unsafe { event::destroy(event) })
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // Copies may still be under way where a run was given up: the memory must outlive them.
        if self.context.synchronize().is_err() {
            return;
        }
        let pending = self.pending.drain(..).map(|pending| pending.event);
        for event in pending.chain(self.events.drain(..)) {
            // SAFETY: the ring's own, and destroyed once.
            let _ = unsafe { event::destroy(event as sys::CUevent) };
        }
        // SAFETY: allocated with the ring; no copy is under way.
        let _ = unsafe { result::free_host(self.memory as *mut c_void) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_of_a_part_counts() {
        let word = 0x0403_0201_u32;
        for bytes in 1..40_u64 {
            let whole = Expected { address: 0, at: 0, bytes, word };
            let right: Vec<u8> = (0..bytes as usize).map(|at| whole.byte(at)).collect();
            let tail = bytes as usize / 4 * 4;
            assert!(right[tail..].iter().all(|&byte| byte == 1));
            assert!(right[..tail].iter().zip([1, 2, 3, 4].iter().cycle()).all(|(a, b)| a == b));
            for at in (0..bytes).step_by(8) {
                let part = Expected { at, ..whole };
                let found = &right[at as usize..];
                assert_eq!(part.differs(found), None, "{bytes} from {at}");
                for wrong in 0..found.len() {
                    let mut found = found.to_vec();
                    found[wrong] ^= 0x80;
                    assert_eq!(part.differs(&found), Some(wrong), "{bytes} from {at}");
                }
            }
        }
    }
}
