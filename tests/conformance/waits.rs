//! Orders that users make between streams, and what the pool concludes from them.

use crate::machine::{D0, D1, MIB, Machine, Need, Rig};
use millpond::{Reuse, Stream};

/// What was freed before a wait is the waiter's without another word to the driver.
pub fn waits_are_remembered<M: Machine>(make: impl Fn(u16, u64) -> M) {
    let rig = Rig::new(make, 1, 64 * MIB);
    rig.needs(Need::OnDemand);
    let pool = rig.pool();
    let [s, t] = [0; 2].map(|_| pool.stream(D0).unwrap());
    let bytes = 8 * rig.page.max(MIB);
    for _ in 0..5 {
        let freed = rig.touch(&s, bytes);
        t.wait(&s).unwrap();
        let before = rig.driver.event_calls();
        let block = rig.get(&t, bytes);
        assert_eq!(block.address(), freed);
        assert_eq!(rig.driver.event_calls(), before);
        rig.free(&t, block);
        s.wait(&t).unwrap();
    }
    drop((s, t));
    rig.done(pool);
}

/// A wait covers what was freed before it, and nothing that came after.
pub fn waits_cover_nothing_later<M: Machine>(make: impl Fn(u16, u64) -> M) {
    for reuse in [Reuse::SameStream, Reuse::Completed, Reuse::Wait] {
        let rig = Rig::new(&make, 1, 16 * MIB);
        let pool = rig.builder().reuse(reuse).build().unwrap();
        let [s, t] = [0; 2].map(|_| pool.stream(D0).unwrap());
        for bytes in [1000, 100_000, 4 * MIB] {
            for _ in 0..5 {
                rig.touch(&s, bytes);
                t.wait(&s).unwrap();
                rig.touch(&s, bytes);
                rig.touch(&t, bytes);
            }
        }
        drop((s, t));
        rig.done(pool);
    }
}

/// A waits for B, which waited for C: A runs after what C was given by then, and only by then.
pub fn waits_are_transitive<M: Machine>(make: impl Fn(u16, u64) -> M) {
    let rig = Rig::new(make, 1, 64 * MIB);
    let pool = rig.builder().reuse(Reuse::SameStream).build().unwrap();
    let [a, b, c] = [0; 3].map(|_| pool.stream(D0).unwrap());
    let bytes = 2 * rig.page.max(MIB);
    let freed = rig.touch(&c, bytes);
    b.wait(&c).unwrap();
    a.wait(&b).unwrap();
    let before = rig.driver.event_calls();
    let block = rig.get(&a, bytes);
    assert_eq!(block.address(), freed);
    rig.free(&a, block);
    // C goes on: what it frees now, A may not have.
    let later = rig.get(&c, 2 * bytes);
    let there = later.address();
    rig.free(&c, later);
    a.wait(&b).unwrap();
    assert_ne!(rig.touch(&a, 2 * bytes), there);
    assert_eq!(rig.driver.event_calls(), before + 2);
    drop((a, b, c));
    rig.done(pool);
}

/// Waits made the wrong way round conclude nothing: A waited for B before B waited for C.
pub fn transitive_only_in_order<M: Machine>(make: impl Fn(u16, u64) -> M) {
    for reuse in [Reuse::SameStream, Reuse::Completed, Reuse::Wait] {
        let rig = Rig::new(&make, 1, 8 * MIB);
        let pool = rig.builder().reuse(reuse).build().unwrap();
        let [a, b, c] = [0; 3].map(|_| pool.stream(D0).unwrap());
        for bytes in [1000, 4 * MIB] {
            for _ in 0..4 {
                rig.touch(&c, bytes);
                a.wait(&b).unwrap();
                b.wait(&c).unwrap();
                rig.touch(&a, bytes);
                rig.touch(&b, bytes);
            }
        }
        drop((a, b, c));
        rig.done(pool);
    }
}

/// The pool makes A wait for a seal of B's from before B waited for C: that tells nothing of C.
pub fn seals_tell_what_was_known_at_them<M: Machine>(make: impl Fn(u16, u64) -> M) {
    let rig = Rig::new(make, 1, 16 * MIB);
    let pool = rig.pool();
    let [a, b, c, other] = [0; 4].map(|_| pool.stream(D0).unwrap());
    let (of_b, of_c) = (rig.get(&b, 6 * MIB), rig.get(&c, 10 * MIB));
    [&b, &c].into_iter().for_each(|stream| rig.machine.hold(stream.handle()));
    rig.free(&b, of_b);
    rig.free(&c, of_c);
    // The seal, which stays pending.
    other.wait(&b).unwrap();
    b.wait(&c).unwrap();
    // What B freed fits best; then there is only what C freed.
    let held = [6, 10].map(|count| rig.get(&a, count * MIB));
    rig.assert_quiet();
    assert_eq!(pool.stats().cross_stream.waits, 2);
    [&b, &c].into_iter().for_each(|stream| rig.machine.let_go(stream.handle()));
    held.into_iter().for_each(|block| rig.free(&a, block));
    drop((a, b, c, other));
    rig.done(pool);
}

/// Orders go by way of other devices.
pub fn waits_across_devices<M: Machine>(make: impl Fn(u16, u64) -> M) {
    let rig = Rig::new(make, 2, 64 * MIB);
    let pool = rig.builder().reuse(Reuse::SameStream).build().unwrap();
    let (a, c) = (pool.stream(D0).unwrap(), pool.stream(D0).unwrap());
    let b = pool.stream(D1).unwrap();
    let bytes = 2 * rig.page.max(MIB);
    for _ in 0..4 {
        let freed = rig.touch(&c, bytes);
        let other = rig.touch(&b, bytes);
        assert_ne!(freed, other);
        b.wait(&c).unwrap();
        a.wait(&b).unwrap();
        let before = rig.driver.event_calls();
        let block = rig.get(&a, bytes);
        assert_eq!(block.address(), freed);
        assert_eq!(rig.driver.event_calls(), before);
        rig.free(&a, block);
        c.wait(&a).unwrap();
    }
    drop((a, b, c));
    rig.done(pool);
}

/// More streams than a stream remembers: forgetting costs waits, never safety.
pub fn many_streams_wait_for_each_other<M: Machine>(make: impl Fn(u16, u64) -> M) {
    for reuse in [Reuse::SameStream, Reuse::Wait] {
        let rig = Rig::new(&make, 1, 64 * MIB);
        let pool = rig.builder().reuse(reuse).build().unwrap();
        let streams: Vec<Stream> = (0..40).map(|_| pool.stream(D0).unwrap()).collect();
        for round in 1..4 {
            for place in 0..streams.len() {
                let stream = &streams[place];
                rig.touch(stream, 2 * MIB);
                stream.wait(&streams[(place + round * 7) % streams.len()]).unwrap();
                rig.touch(stream, MIB * 5 / 2);
            }
        }
        drop(streams);
        rig.done(pool);
    }
}

/// More seals of one stream pending than it has places for.
pub fn many_seals_at_once<M: Machine>(make: impl Fn(u16, u64) -> M) {
    let rig = Rig::new(make, 1, 64 * MIB);
    let pool = rig.pool();
    let s = pool.stream(D0).unwrap();
    let waiters: Vec<Stream> = (0..20).map(|_| pool.stream(D0).unwrap()).collect();
    for bytes in [5000, 2 * MIB] {
        for waiter in &waiters {
            rig.touch(&s, bytes);
            waiter.wait(&s).unwrap();
        }
        for waiter in &waiters {
            rig.touch(&s, bytes);
            rig.touch(waiter, bytes);
        }
    }
    drop((s, waiters));
    rig.done(pool);
}
