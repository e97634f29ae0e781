//! The places of a reservation: what is mapped at each. A table in chunks, since few of many places
//! are ever used, and those of small and of large blocks lie far apart.

use super::pages::PageId;
use crate::block::Fence;

/// Places in a chunk.
const CHUNK: usize = 256;

/// What is mapped at a place.
#[derive(Clone, Copy)]
pub(super) struct Place {
    pub page: PageId,
    /// Holders of pins: while there are any the page stays.
    pub pins: u16,
    pub accessible: bool,
    /// Of a dormant mapping: when nothing in flight uses it any more.
    pub fence: Fence,
}

impl Place {
    pub const EMPTY: Self = Self { page: 0, pins: 0, accessible: false, fence: Fence::NONE };
}

/// All places; those never used are empty.
#[derive(Default)]
pub(super) struct Places {
    chunks: Vec<Option<Box<[Place; CHUNK]>>>,
}

impl Places {
    pub fn get(&self, place: usize) -> Place {
        match self.chunks.get(place / CHUNK) {
            Some(Some(chunk)) => chunk[place % CHUNK],
            _ => Place::EMPTY,
        }
    }

    pub fn get_mut(&mut self, place: usize) -> &mut Place {
        let chunk = place / CHUNK;
        if chunk >= self.chunks.len() {
            self.chunks.resize_with(chunk + 1, || None);
        }
        &mut self.chunks[chunk].get_or_insert_with(|| Box::new([Place::EMPTY; CHUNK]))
            [place % CHUNK]
    }

    /// The numbers of the places in chunks that were ever used, ascending.
    pub fn numbers(&self) -> impl Iterator<Item = usize> {
        let used = self.chunks.iter().enumerate().filter(|(_, chunk)| chunk.is_some());
        used.flat_map(|(chunk, _)| chunk * CHUNK..(chunk + 1) * CHUNK)
    }

    /// Host memory held, in bytes.
    pub fn bytes(&self) -> usize {
        let used = self.chunks.iter().flatten().count();
        self.chunks.capacity() * size_of::<Option<Box<[Place; CHUNK]>>>()
            + used * size_of::<[Place; CHUNK]>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_far_apart_cost_little() {
        let mut places = Places::default();
        assert_eq!(places.get(1_000_000).page, 0);
        places.get_mut(3).page = 7;
        places.get_mut(1_000_000).page = 8;
        let used: Vec<usize> = places.numbers().filter(|&at| places.get(at).page > 0).collect();
        assert_eq!(used, [3, 1_000_000]);
        assert!(places.bytes() < 64 << 10);
    }
}
