//! Programs with one bug each: the oracle must find it, and nothing else.

use super::*;

#[track_caller]
fn assert_only(o: &Oracle, kind: HazardKind) {
    assert_eq!(kinds(o), [kind], "{:#?}", o.hazards());
}

#[test]
fn reuse_at_once_on_another_stream() {
    let (mut o, [a, b]) = written();
    o.submit(a, &[read(4096..8192)]);
    o.submit(b, &[write(4096..8192)]);
    assert_eq!(
        o.hazards(),
        [Hazard::Unordered {
            earlier: Touch { stream: a, work: 2, access: Access::Read, address: BASE + 4096 },
            later: Touch { stream: b, work: 1, access: Access::Write, address: BASE + 4096 },
            bytes: 4096,
        }]
    );
}

/// The event had in fact completed, as at lag 0 it always has; but nobody asked.
#[test]
fn completion_that_nobody_observed_orders_nothing() {
    let (mut o, [a, b]) = written();
    o.submit(a, &[read(0..4096)]);
    let _completed = o.record(a);
    o.submit(b, &[write(0..4096)]);
    assert_only(&o, HazardKind::Unordered);
}

#[test]
fn an_observation_after_the_submission_comes_too_late() {
    let (mut o, [a, b]) = written();
    o.submit(a, &[read(0..4096)]);
    let event = o.record(a);
    o.submit(b, &[write(0..4096)]);
    o.observed(&event);
    assert_only(&o, HazardKind::Unordered);
}

#[test]
fn a_wait_after_the_submission_comes_too_late() {
    let (mut o, [a, b]) = written();
    o.submit(a, &[read(0..4096)]);
    let event = o.record(a);
    o.submit(b, &[write(0..4096)]);
    o.wait(b, &event);
    assert_only(&o, HazardKind::Unordered);
}

#[test]
fn a_wait_on_an_event_recorded_before_the_work() {
    let (mut o, [a, b]) = written();
    let early = o.record(a);
    o.submit(a, &[write(0..4096)]);
    o.wait(b, &early);
    o.submit(b, &[read(0..4096)]);
    assert_only(&o, HazardKind::Unordered);
}

#[test]
fn an_observation_of_an_event_recorded_before_the_work() {
    let (mut o, [a, b]) = written();
    let early = o.record(a);
    o.submit(a, &[write(0..4096)]);
    o.observed(&early);
    o.submit(b, &[read(0..4096)]);
    assert_only(&o, HazardKind::Unordered);
}

#[test]
fn a_wait_on_the_wrong_stream() {
    let (mut o, [a, b, c]) = written();
    o.submit(a, &[write(0..4096)]);
    let event = o.record(a);
    o.wait(c, &event);
    o.submit(b, &[write(0..4096)]);
    assert_only(&o, HazardKind::Unordered);
}

/// The chain a → b is there, but the event b → c was recorded before b waited.
#[test]
fn a_chain_recorded_in_the_wrong_order() {
    let (mut o, [a, b, c]) = written();
    o.submit(a, &[write(0..4096)]);
    let first = o.record(a);
    let second = o.record(b);
    o.wait(b, &first);
    o.wait(c, &second);
    o.submit(c, &[write(0..4096)]);
    assert_only(&o, HazardKind::Unordered);
}

#[test]
fn a_rendezvous_without_the_one_that_wrote() {
    let (mut o, [a, b, c]) = written();
    o.submit(a, &[write(0..4096)]);
    o.rendezvous(&[b, c]);
    o.submit(b, &[read(0..4096)]);
    assert_only(&o, HazardKind::Unordered);
}

#[test]
fn work_after_a_rendezvous_is_not_ordered_by_it() {
    let (mut o, [a, b]) = written();
    o.rendezvous(&[a, b]);
    o.submit(a, &[write(0..4096)]);
    o.submit(b, &[read(0..4096)]);
    assert_only(&o, HazardKind::Unordered);
}

#[test]
fn unordered_reads_are_fine_but_a_write_after_one_of_them_is_not() {
    let (mut o, [a, b, c]) = written();
    for s in [a, b, c] {
        o.submit(s, &[read(0..4096)]);
    }
    assert_silent(&o);
    let event = o.record(b);
    o.wait(a, &event);
    // Stream a comes after b's read and its own, but not after c's.
    o.submit(a, &[write(0..4096)]);
    assert_only(&o, HazardKind::Unordered);
    assert!(matches!(
        o.hazards()[0],
        Hazard::Unordered { earlier, .. } if earlier.stream == c
    ));
}

/// A read in between, ordered after the write, must not hide the write from a third stream.
#[test]
fn a_read_does_not_hide_the_write_before_it() {
    let (mut o, [a, b, c]) = written();
    o.submit(a, &[write(0..4096)]);
    let event = o.record(a);
    o.wait(b, &event);
    o.submit(b, &[read(0..4096)]);
    o.submit(c, &[read(0..4096)]);
    assert_only(&o, HazardKind::Unordered);
    assert!(matches!(
        o.hazards()[0],
        Hazard::Unordered { earlier, .. } if earlier.stream == a
    ));
}

#[test]
fn one_byte_in_common_is_enough() {
    let (mut o, [a, b]) = written();
    o.submit(a, &[write(0..4097)]);
    o.submit(b, &[write(4096..8192)]);
    assert!(matches!(
        o.hazards(),
        [Hazard::Unordered { bytes: 1, later, .. }] if later.address == BASE + 4096
    ));
}

#[test]
fn aliases_are_the_same_bytes() {
    let (mut o, [a, b]) = written();
    o.submit(a, &[write(0..4096)]);
    o.submit(b, &[alias(read(1024..2048))]);
    let [Hazard::Unordered { earlier, later, .. }] = o.hazards() else {
        panic!("{:?}", o.hazards());
    };
    assert_eq!(earlier.address, BASE + 1024);
    assert_eq!(later.address, alias(read(1024..2048)).address);
}

#[test]
fn a_read_of_bytes_never_written() {
    let mut o = Oracle::new();
    let s = o.stream_created();
    o.memory_created(0..8192);
    o.submit(s, &[write(0..4096)]);
    o.submit(s, &[read(0..5000)]);
    let reader = Touch { stream: s, work: 2, access: Access::Read, address: BASE + 4096 };
    assert_eq!(o.hazards(), [Hazard::NeverWritten { reader, bytes: 904 }]);
}

#[test]
fn freed_memory_comes_back_unwritten() {
    let (mut o, [s]) = written();
    o.retire(0..4096, Retire::Release, BASE);
    o.memory_created(0..4096);
    o.submit(s, &[read(0..4096)]);
    assert_only(&o, HazardKind::NeverWritten);
}

/// Two live blocks share bytes, and one stream uses both: everything is ordered, and wrong.
#[test]
fn overlapping_live_blocks_on_one_stream() {
    let (mut o, [s]) = written();
    o.submit(s, &[touch(Access::Write, 0..4096, Some(1))]);
    o.submit(s, &[touch(Access::Write, 2048..6144, Some(2))]);
    o.submit(s, &[touch(Access::Read, 0..4096, Some(1))]);
    assert_eq!(
        o.hazards(),
        [Hazard::StaleContent {
            reader: Touch { stream: s, work: 4, access: Access::Read, address: BASE + 2048 },
            expected: 1,
            found: Some(2),
            writer: s,
            writer_address: BASE + 2048,
            bytes: 2048,
        }]
    );
}

#[test]
fn a_write_without_label_takes_the_label_away() {
    let (mut o, [s]) = written();
    o.submit(s, &[touch(Access::Write, 0..4096, Some(1))]);
    o.submit(s, &[write(100..200)]);
    o.submit(s, &[touch(Access::Read, 0..4096, Some(1))]);
    assert!(matches!(o.hazards(), [Hazard::StaleContent { found: None, bytes: 100, .. }]));
}

/// What the host knows complete is forgotten; the label is not.
#[test]
fn a_label_outlives_what_is_forgotten() {
    let (mut o, [a, b]) = written();
    o.submit(a, &[touch(Access::Write, 0..4096, Some(1))]);
    let event = o.record(a);
    o.observed(&event);
    o.submit(b, &[touch(Access::Read, 0..4096, Some(1))]);
    assert_silent(&o);
    o.submit(b, &[touch(Access::Read, 0..4096, Some(2))]);
    assert_only(&o, HazardKind::StaleContent);
}

/// A stream wait orders the device's work; the host unmaps now.
#[test]
fn a_wait_taken_for_completion() {
    let (mut o, [a, b]) = written();
    o.submit(a, &[write(0..4096)]);
    let event = o.record(a);
    o.wait(b, &event);
    o.retire(0..4096, Retire::Unmap, BASE);
    assert_eq!(
        o.hazards(),
        [Hazard::InFlight {
            what: Retire::Unmap,
            address: BASE,
            touch: Touch { stream: a, work: 2, access: Access::Write, address: BASE },
            bytes: 4096,
        }]
    );
}

#[test]
fn free_and_release_in_flight() {
    for what in [Retire::Free, Retire::Release] {
        let (mut o, [a, _]) = written::<2>();
        o.submit(a, &[read(1000..2000)]);
        o.retire(0..4096, what, BASE);
        assert_only(&o, HazardKind::InFlight);
    }
}

/// Freeing minds every alias, unlike unmapping.
#[test]
fn release_with_an_alias_in_flight() {
    let (mut o, [a]) = written();
    o.submit(a, &[alias(write(0..4096))]);
    o.retire(0..4096, Retire::Unmap, BASE);
    assert_silent(&o);
    o.retire(0..4096, Retire::Release, BASE);
    assert_only(&o, HazardKind::InFlight);
}

/// A later touch through another alias, although ordered after the first, must not stand for it.
#[test]
fn an_alias_does_not_hide_what_the_mapping_has_in_flight() {
    let (mut o, [a]) = written();
    o.submit(a, &[write(0..4096)]);
    o.submit(a, &[alias(write(0..4096))]);
    o.retire(0..4096, Retire::Unmap, BASE);
    assert_only(&o, HazardKind::InFlight);
}

#[test]
fn one_of_two_streams_observed_is_not_enough_to_free() {
    let (mut o, [a, b]) = written();
    o.submit(a, &[read(0..4096)]);
    o.submit(b, &[read(0..4096)]);
    let event = o.record(a);
    o.observed(&event);
    o.retire(0..4096, Retire::Free, BASE);
    assert!(matches!(
        o.hazards(),
        [Hazard::InFlight { touch, .. }] if touch.stream == b
    ));
}

/// Keys are never reused, so a stream created after another was destroyed is not taken for it.
#[test]
fn a_destroyed_streams_work_is_still_in_flight() {
    let (mut o, [a, _]) = written::<2>();
    o.submit(a, &[write(0..4096)]);
    o.stream_destroyed(a);
    let heir = o.stream_created();
    assert_ne!(heir, a);
    o.submit(heir, &[write(0..4096)]);
    assert_only(&o, HazardKind::Unordered);
}

#[test]
fn touches_of_no_memory() {
    let (mut o, [s]) = written();
    for why in [Invalid::Unmapped, Invalid::Freed, Invalid::NoAccess] {
        o.invalid_touch(s, 0xdead_0000, 512, why);
    }
    assert_eq!(kinds(&o), [HazardKind::Unmapped, HazardKind::Freed, HazardKind::NoAccess]);
}

#[test]
fn work_on_a_stream_that_is_not_there() {
    let (mut o, [a, b]) = written();
    o.stream_destroyed(a);
    o.submit(a, &[write(0..4096)]);
    assert_only(&o, HazardKind::DeadStream);
    let nothing = o.record(a);
    o.wait(b, &nothing);
    o.observed(&nothing);
    o.submit(StreamKey(u32::MAX), &[]);
    assert_eq!(o.hazard_count(), 2);
}

#[test]
fn a_touch_over_many_pieces_is_one_hazard() {
    let (mut o, [a, b]) = written();
    for i in 0..64 {
        o.submit(a, &[write(i * 100..i * 100 + 100)]);
    }
    o.submit(b, &[read(50..6000)]);
    assert!(matches!(
        o.hazards(),
        [Hazard::Unordered { bytes: 5950, later, .. }] if later.address == BASE + 50
    ));
}

#[test]
fn details_are_kept_of_the_first_thousand() {
    let (mut o, [a, b]) = written();
    for _ in 0..1000 {
        o.submit(a, &[write(0..1)]);
        o.submit(b, &[write(0..1)]);
    }
    assert_eq!(o.hazards().len(), 1000);
    assert_eq!(o.hazard_count(), 1999);
}

#[test]
fn senseless_input_does_no_harm() {
    let (mut o, [s]) = written();
    #[allow(clippy::reversed_empty_ranges)]
    for phys in [0..0, 10..5, u64::MAX..u64::MAX, u64::MAX..0] {
        let touch =
            PhysTouch { phys: phys.clone(), address: u64::MAX, access: Access::Write, label: None };
        o.submit(s, &[touch]);
        o.memory_created(phys.clone());
        o.retire(phys, Retire::Free, 0);
    }
    assert_silent(&o);
    o.rendezvous(&[]);
    o.rendezvous(&[s, s, StreamKey(77), s]);
    o.stream_destroyed(StreamKey(u32::MAX));
    let all = PhysTouch {
        phys: 0..u64::MAX,
        address: u64::MAX - 5,
        access: Access::Write,
        label: Some(0),
    };
    o.submit(s, &[all]);
    o.retire(7..u64::MAX, Retire::Unmap, 0);
    o.retire(0..u64::MAX, Retire::Release, 0);
    assert_only(&o, HazardKind::InFlight);
}

#[test]
fn messages_name_streams_addresses_and_sizes() {
    let (mut o, [a, b]) = written();
    o.submit(a, &[touch(Access::Write, 0..4096, Some(7))]);
    o.submit(b, &[touch(Access::Read, 0..4096, Some(8))]);
    o.retire(0..4096, Retire::Unmap, BASE);
    o.invalid_touch(b, 0x40, 512, Invalid::NoAccess);
    let messages: Vec<_> = o.hazards().iter().map(Hazard::to_string).collect();
    assert_eq!(
        messages,
        [
            "stale content: work 1 of stream 1, which reads at 0x100000, expects label 8 and finds \
             label 7 in 4096 bytes, written by stream 0 at 0x100000",
            "unordered touches: nothing orders work 1 of stream 1, which reads at 0x100000, after \
             work 2 of stream 0, which writes at 0x100000 (4096 bytes in common)",
            "memory given up in flight: unmap at 0x100000, but the host has not learnt that work 2 \
             of stream 0, which writes at 0x100000 (4096 bytes of it), has completed",
            "memory given up in flight: unmap at 0x100000, but the host has not learnt that work 1 \
             of stream 1, which reads at 0x100000 (4096 bytes of it), has completed",
            "touch without access: stream 1 touches 512 bytes at 0x40",
        ]
    );
}
