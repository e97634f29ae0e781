//! The oracle's own tests: every hazard planted and found, legal programs silent, and random
//! programs judged as an independent checker judges them.

mod legal;
mod planted;
mod reachability;

use super::*;

/// Where the one mapping of most tests begins; physical addresses begin at 0.
const BASE: u64 = 0x10_0000;

fn touch(access: Access, phys: Range<u64>, label: Option<u64>) -> PhysTouch {
    PhysTouch { address: BASE + phys.start, phys, access, label }
}

fn read(phys: Range<u64>) -> PhysTouch {
    touch(Access::Read, phys, None)
}

fn write(phys: Range<u64>) -> PhysTouch {
    touch(Access::Write, phys, None)
}

/// The same bytes through a second mapping.
fn alias(touch: PhysTouch) -> PhysTouch {
    PhysTouch { address: touch.address + 0x100_0000, ..touch }
}

/// An oracle with `N` streams and 1 MiB of memory that stream 0 has written and the host has seen
/// written.
fn written<const N: usize>() -> (Oracle, [StreamKey; N]) {
    let mut o = Oracle::new();
    let streams = [(); N].map(|()| o.stream_created());
    o.memory_created(0..1 << 20);
    o.submit(streams[0], &[write(0..1 << 20)]);
    let done = o.record(streams[0]);
    o.observed(&done);
    (o, streams)
}

fn kinds(o: &Oracle) -> Vec<HazardKind> {
    o.history.check_invariants();
    o.hazards().iter().map(Hazard::kind).collect()
}

#[track_caller]
fn assert_silent(o: &Oracle) {
    let messages: Vec<_> = o.hazards().iter().map(Hazard::to_string).collect();
    assert!(messages.is_empty(), "{messages:#?}");
    o.history.check_invariants();
}
