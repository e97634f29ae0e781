//! Segments: the plain allocations that a device's memory is taken in where it cannot be mapped.
//!
//! ```text
//! segments do not overlap; each lies in one region, whose extents with memory are those within segments
//! no extent lies in two segments, also where these are neighbours
//! ```
//!
//! The second line keeps a block within one allocation: to the driver, a range over two is none.

/// A plain allocation.
#[derive(Clone, Copy, Debug)]
pub(super) struct Segment {
    pub address: u64,
    pub bytes: u64,
    pub region: u8,
    /// Holders of pins: while there are any it is not given back.
    pub pins: u32,
}

impl Segment {
    pub fn end(&self) -> u64 {
        self.address + self.bytes
    }
}

/// A device's segments, by address. There are few, and each costs a driver call.
#[derive(Default)]
pub(super) struct Segments(Vec<Segment>);

impl Segments {
    /// The number of segments that start at or before `address`.
    fn up_to(&self, address: u64) -> usize {
        self.0.partition_point(|segment| segment.address <= address)
    }

    /// The place in the list of the segment that `address` lies in.
    pub fn place_of(&self, address: u64) -> Option<usize> {
        let place = self.up_to(address).checked_sub(1)?;
        (address < self.0[place].end()).then_some(place)
    }

    /// The segment that `address` lies in.
    pub fn at(&self, address: u64) -> Option<&Segment> {
        Some(&self.0[self.place_of(address)?])
    }

    /// Whether a segment starts at `address`.
    pub fn start_at(&self, address: u64) -> bool {
        self.up_to(address).checked_sub(1).is_some_and(|place| self.0[place].address == address)
    }

    /// All of them, by address.
    pub fn all(&self) -> &[Segment] {
        &self.0
    }

    pub fn insert(&mut self, segment: Segment) {
        self.0.insert(self.up_to(segment.address), segment);
    }

    /// Takes out the segment that starts at `address`.
    pub fn remove(&mut self, address: u64) {
        self.0.retain(|segment| segment.address != address);
    }

    /// Keeps the segment that `address` lies in from being given back, or no longer.
    pub fn pin(&mut self, address: u64, on: bool) {
        if let Some(place) = self.place_of(address) {
            let pins = &mut self.0[place].pins;
            // So many that they cannot be counted stay for good.
            *pins = match (on, *pins) {
                (_, u32::MAX) => u32::MAX,
                (true, before) => before + 1,
                (false, before) => before.saturating_sub(1),
            };
        }
    }

    /// Physical bytes held.
    pub fn held(&self) -> u64 {
        self.0.iter().map(|segment| segment.bytes).sum()
    }

    /// Whether a range lies in one segment of a region, if it is `backed`, or else in none of it.
    pub fn agree(&self, region: u8, address: u64, bytes: u64, backed: bool) -> bool {
        let end = address + bytes;
        if backed {
            return self.place_of(address).is_some_and(|place| {
                let segment = &self.0[place];
                segment.region == region && end <= segment.end()
            });
        }
        self.touching(address, end).iter().all(|segment| segment.region != region)
    }

    /// Whether a range touches no segment.
    pub fn are_clear_of(&self, address: u64, bytes: u64) -> bool {
        self.touching(address, address.saturating_add(bytes)).is_empty()
    }

    fn touching(&self, start: u64, end: u64) -> &[Segment] {
        let first = self.0.partition_point(|segment| segment.end() <= start);
        let count = self.0[first..].partition_point(|segment| segment.address < end);
        &self.0[first..first + count]
    }

    /// Checks that no two overlap.
    pub fn check(&self) {
        let apart = |pair: &[Segment]| pair[0].end() <= pair[1].address;
        assert!(self.0.windows(2).all(apart), "segments overlap: {:?}", self.0);
    }

    /// Host memory held, in bytes.
    pub fn bytes(&self) -> u64 {
        (self.0.capacity() * size_of::<Segment>()) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn some() -> Segments {
        let mut segments = Segments::default();
        for (address, bytes, region) in [(8192, 1024, 0), (0, 512, 1), (9216, 512, 0)] {
            segments.insert(Segment { address, bytes, region, pins: 0 });
        }
        segments.check();
        segments
    }

    #[test]
    fn addresses_lead_to_their_segments() {
        let segments = some();
        let places =
            [0, 511, 512, 8191, 8192, 9215, 9216, 9727, 9728].map(|a| segments.place_of(a));
        let want = [Some(0), Some(0), None, None, Some(1), Some(1), Some(2), Some(2), None];
        assert_eq!(places, want);
        assert!(segments.start_at(9216) && !segments.start_at(8704) && !segments.start_at(512));
        assert_eq!(segments.held(), 2048);
    }

    #[test]
    fn ranges_agree_with_what_is_there() {
        let segments = some();
        assert!(segments.agree(0, 8192, 1024, true) && segments.agree(0, 8704, 512, true));
        assert!(!segments.agree(0, 8704, 1024, true), "over two segments");
        assert!(!segments.agree(1, 8192, 512, true), "of another region");
        assert!(segments.agree(0, 0, 8192, false) && segments.agree(1, 512, 1 << 20, false));
        assert!(!segments.agree(0, 0, 8193, false), "not a hole");
        assert!(segments.are_clear_of(512, 7680) && segments.are_clear_of(9728, u64::MAX));
        assert!(!segments.are_clear_of(511, 1) && !segments.are_clear_of(512, 7681));
    }

    #[test]
    fn pins_add_up_and_never_wrap() {
        let mut segments = some();
        let pins = |segments: &Segments| segments.all()[1].pins;
        (0..2).for_each(|_| segments.pin(8200, true));
        segments.pin(9000, false);
        assert_eq!(pins(&segments), 1);
        segments.pin(5000, true);
        (0..3).for_each(|_| segments.pin(8192, false));
        assert_eq!(pins(&segments), 0);
        segments.0[1].pins = u32::MAX - 1;
        (0..2).for_each(|_| segments.pin(8192, true));
        segments.pin(8192, false);
        assert_eq!(pins(&segments), u32::MAX);
    }
}
