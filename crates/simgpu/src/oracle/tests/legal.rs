//! Programs whose touches are all ordered: the oracle must say nothing.

use super::*;

#[test]
fn one_stream_needs_nothing() {
    let (mut o, [s]) = written();
    for _ in 0..3 {
        o.submit(s, &[write(0..4096)]);
        o.submit(s, &[read(0..4096), write(4096..8192)]);
        o.submit(s, &[read(2048..6000), write(2048..6000)]);
    }
    assert_silent(&o);
}

#[test]
fn an_event_orders_two_streams() {
    let (mut o, [a, b]) = written();
    o.submit(a, &[write(0..4096)]);
    let event = o.record(a);
    o.wait(b, &event);
    o.submit(b, &[read(0..4096)]);
    o.submit(b, &[write(0..4096)]);
    assert_silent(&o);
}

#[test]
fn one_event_serves_many_waiters_and_many_waits() {
    let (mut o, [a, b, c]) = written();
    o.submit(a, &[write(0..4096)]);
    let event = o.record(a);
    for s in [b, c, b] {
        o.wait(s, &event);
        o.submit(s, &[read(0..4096)]);
    }
    assert_silent(&o);
}

#[test]
fn an_event_may_be_recorded_after_more_work_than_needed() {
    let (mut o, [a, b]) = written();
    o.submit(a, &[write(0..4096)]);
    o.submit(a, &[write(8192..9000)]);
    let event = o.record(a);
    o.submit(a, &[write(9000..9001)]);
    o.wait(b, &event);
    o.submit(b, &[write(0..9000)]);
    assert_silent(&o);
}

#[test]
fn waits_are_transitive() {
    let (mut o, [a, b, c]) = written();
    o.submit(a, &[write(0..4096)]);
    let first = o.record(a);
    o.wait(b, &first);
    // Stream b does no work in between: the order passes through all the same.
    let second = o.record(b);
    o.wait(c, &second);
    o.submit(c, &[write(0..4096)]);
    let third = o.record(c);
    o.wait(a, &third);
    o.submit(a, &[read(0..4096)]);
    assert_silent(&o);
}

/// To the oracle devices are streams and physical ranges: a pipeline over four of them, each stage
/// with a compute, a send and a receive stream, copies included.
#[test]
fn a_pipeline_over_devices() {
    const DEVICE: u64 = 1 << 40;
    let mut o = Oracle::new();
    let stages: Vec<[StreamKey; 3]> =
        (0..4).map(|_| [(); 3].map(|()| o.stream_created())).collect();
    for device in 0..4 {
        o.memory_created(device * DEVICE..(device + 1) * DEVICE);
    }
    for micro_batch in 0..6 {
        let labelled = |access, phys| touch(access, phys, Some(micro_batch));
        for device in 0..4_u64 {
            let [compute, send, _] = stages[device as usize];
            let block = device * DEVICE..device * DEVICE + 4096;
            if device == 0 {
                o.submit(compute, &[labelled(Access::Write, block.clone())]);
            }
            let out = block.end..block.end + 4096;
            o.submit(
                compute,
                &[labelled(Access::Read, block.clone()), labelled(Access::Write, out.clone())],
            );
            let Some(&[next_compute, _, receive]) = stages.get(device as usize + 1) else {
                continue;
            };
            // The copy runs on the sender's stream, into memory the receiver has done with.
            let free = o.record(next_compute);
            o.wait(receive, &free);
            let ready = o.record(compute);
            o.wait(send, &ready);
            let posted = o.record(receive);
            o.wait(send, &posted);
            let next = (device + 1) * DEVICE..(device + 1) * DEVICE + 4096;
            o.submit(send, &[labelled(Access::Read, out), labelled(Access::Write, next)]);
            let sent = o.record(send);
            o.wait(receive, &sent);
            o.wait(compute, &sent);
            let received = o.record(receive);
            o.wait(next_compute, &received);
        }
    }
    assert_silent(&o);
}

#[test]
fn observed_completion_orders_every_stream() {
    let (mut o, [a, b, c]) = written();
    o.submit(a, &[write(0..4096)]);
    let event = o.record(a);
    o.observed(&event);
    o.submit(b, &[read(0..4096)]);
    o.submit(c, &[read(0..4096)]);
    let late = o.stream_created();
    o.submit(late, &[read(0..4096)]);
    assert_silent(&o);
}

#[test]
fn observation_covers_what_the_event_came_after() {
    let (mut o, [a, b, c]) = written();
    o.submit(a, &[write(0..4096)]);
    let first = o.record(a);
    o.wait(b, &first);
    let second = o.record(b);
    o.observed(&second);
    o.submit(c, &[write(0..4096)]);
    assert_silent(&o);
}

#[test]
fn a_rendezvous_orders_its_participants() {
    let (mut o, [a, b, c]) = written();
    o.submit(a, &[write(0..1000)]);
    o.submit(b, &[write(1000..2000)]);
    o.rendezvous(&[a, b, c]);
    for s in [a, b, c] {
        o.submit(s, &[read(0..2000)]);
    }
    o.rendezvous(&[c, b, a]);
    o.submit(b, &[write(0..2000)]);
    assert_silent(&o);
}

#[test]
fn a_rendezvous_passes_on_what_came_before_it() {
    let (mut o, [a, b, c, d]) = written();
    o.submit(a, &[write(0..1000)]);
    let event = o.record(a);
    o.wait(b, &event);
    o.rendezvous(&[b, c]);
    let event = o.record(c);
    o.wait(d, &event);
    o.submit(d, &[write(0..1000)]);
    assert_silent(&o);
}

#[test]
fn reads_need_no_order_among_themselves() {
    let (mut o, [a, b, c]) = written();
    for s in [a, b, c, a, b] {
        o.submit(s, &[read(0..4096)]);
    }
    assert_silent(&o);
}

#[test]
fn disjoint_writes_need_no_order() {
    let (mut o, [a, b]) = written();
    o.submit(a, &[write(0..4096)]);
    o.submit(b, &[write(4096..8192)]);
    o.submit(a, &[write(8192..8193)]);
    o.submit(b, &[write(8193..8194)]);
    assert_silent(&o);
}

#[test]
fn one_piece_of_work_does_not_race_with_itself() {
    let (mut o, [s]) = written();
    let in_place = [write(0..100), read(0..100), alias(write(50..150))];
    o.submit(s, &in_place);
    assert_silent(&o);
}

#[test]
fn aliases_are_coherent_when_ordered() {
    let (mut o, [a, b]) = written();
    o.submit(a, &[touch(Access::Write, 0..4096, Some(3))]);
    let event = o.record(a);
    o.wait(b, &event);
    o.submit(b, &[alias(touch(Access::Read, 0..4096, Some(3)))]);
    assert_silent(&o);
}

#[test]
fn unmap_and_free_after_observation() {
    let (mut o, [a, b]) = written();
    o.submit(a, &[write(0..4096)]);
    o.submit(b, &[write(4096..8192)]);
    for s in [a, b] {
        let event = o.record(s);
        o.observed(&event);
    }
    o.retire(0..4096, Retire::Unmap, BASE);
    o.retire(0..4096, Retire::Release, BASE);
    o.retire(4096..8192, Retire::Free, BASE + 4096);
    assert_silent(&o);
}

#[test]
fn an_unmap_minds_its_own_mapping_only() {
    let (mut o, [a]) = written();
    o.submit(a, &[alias(write(0..4096))]);
    o.retire(0..4096, Retire::Unmap, BASE);
    assert_silent(&o);
}

#[test]
fn the_same_physical_bytes_come_back_as_new_memory() {
    let (mut o, [a, b]) = written();
    o.submit(a, &[touch(Access::Write, 0..4096, Some(1))]);
    let event = o.record(a);
    o.observed(&event);
    o.retire(0..4096, Retire::Free, BASE);
    o.memory_created(0..4096);
    o.submit(b, &[touch(Access::Write, 0..4096, Some(2))]);
    o.submit(b, &[touch(Access::Read, 0..4096, Some(2))]);
    assert_silent(&o);
}

#[test]
fn labels_follow_the_bytes() {
    let (mut o, [s]) = written();
    o.submit(s, &[touch(Access::Write, 0..1000, Some(1))]);
    o.submit(s, &[touch(Access::Write, 1000..2000, Some(2))]);
    o.submit(s, &[touch(Access::Read, 0..1000, Some(1)), read(500..1500)]);
    o.submit(s, &[touch(Access::Read, 1000..2000, Some(2))]);
    assert_silent(&o);
}

#[test]
fn a_destroyed_streams_work_can_still_be_waited_for() {
    let (mut o, [a, b]) = written();
    o.submit(a, &[write(0..4096)]);
    let event = o.record(a);
    o.stream_destroyed(a);
    o.wait(b, &event);
    o.submit(b, &[write(0..4096)]);
    assert_silent(&o);
}

/// Equal neighbours are one interval, however they came to be: the map does not remember the cuts.
#[test]
fn history_stays_small() {
    let (mut o, [a, b]) = written();
    for i in 0..256 {
        o.submit(a, &[write(i * 4096..(i + 1) * 4096)]);
    }
    let event = o.record(a);
    o.wait(b, &event);
    o.submit(b, &[write(0..1 << 20)]);
    assert_eq!(o.history.len(), 1);
    for i in 0..256 {
        o.submit(b, &[read(i * 4096..(i + 1) * 4096)]);
    }
    assert_eq!(o.history.len(), 256);
    let event = o.record(b);
    o.observed(&event);
    o.submit(b, &[read(0..1 << 20)]);
    assert_eq!(o.history.len(), 1);
    o.retire(0..4096, Retire::Free, BASE);
    assert_eq!(o.history.len(), 1);
    o.memory_created(0..1 << 20);
    assert_eq!(o.history.len(), 0);
}
