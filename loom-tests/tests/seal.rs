//! The seal protocol: what the pool believes about streams is true in the driver.
#![cfg(loom)]

use loom::sync::atomic::{AtomicU64, Ordering};
use loom_tests::device::Streams;
use loom_tests::{Outcomes, explore, role};
use millpond::internals::Fence;
use std::sync::Arc;

/// A free's stamp against a seal against a query.
///
/// The bug would be: the stamp reads the old number though its work was submitted after the
/// record; the seal's event is done before that work has run, and the stamp counts as completed.
#[test]
fn stamp_against_seal_against_poll() {
    static SEEN: Outcomes = Outcomes::new();
    explore("stamp_against_seal_against_poll", || {
        let streams = Streams::new();
        let s = streams.open();
        let first = streams.fences.stamp(s.id);
        let stamp = Arc::new(AtomicU64::new(0));
        let (on, to) = (streams.clone(), stamp.clone());
        let free = role(move || to.store(on.work(s, 7).0, Ordering::Release));
        let on = streams.clone();
        let seal = role(move || assert!(on.seal(first)));
        let on = streams.clone();
        let poll = role(move || {
            on.driver.run(s.handle);
            SEEN.reached_if(0, on.poll(first));
            let fence = Fence(stamp.load(Ordering::Acquire));
            if !fence.is_none() {
                let done = on.check_completed(s, 7, fence);
                SEEN.reached(if done { 1 } else { 2 });
            }
        });
        for role in [free, seal, poll] {
            role.join().unwrap();
        }
    });
    SEEN.assert_all(3);
}

/// Two threads seal one stream at once while its earlier seal is settled and its event recycled.
///
/// The bugs would be: an event recorded for one number and published for another; an event given
/// back before its answer is known and recorded anew, so that its "done" speaks of other work.
#[test]
fn two_sealers_with_a_recycled_event() {
    static SEEN: Outcomes = Outcomes::new();
    explore("two_sealers_with_a_recycled_event", || {
        let streams = Streams::new();
        let (s, other) = (streams.open(), streams.open());
        let first = streams.work(s, 1);
        assert!(streams.seal(first));
        let roles = [(s, 2), (other, 3)].map(|(own, work)| {
            let on = streams.clone();
            role(move || {
                on.poll(first);
                SEEN.reached_if(0, on.check_completed(s, 1, first));
                let fence = on.work(own, work);
                on.seal(fence);
                on.poll(fence);
                SEEN.reached_if(work, on.check_completed(own, work, fence));
            })
        });
        let on = streams.clone();
        let device = role(move || [s, other].map(|s| on.driver.run(s.handle)));
        for role in roles {
            role.join().unwrap();
        }
        device.join().unwrap();
        SEEN.reached_if(1, streams.driver.events() < 3);
        streams.check_completed(s, 1, first);
        // Whatever was left pending does not keep a later seal from covering it all.
        let all = streams.fences.stamp(s.id);
        streams.driver.run(s.handle);
        assert!(streams.seal(all) || streams.poll(first) && streams.seal(all), "no seal left");
        streams.driver.run(s.handle);
        assert!(streams.poll(all) && streams.check_completed(s, 2, all));
    });
    SEEN.assert_all(4);
}

/// T waits for S while T is sealed and U waits for T.
///
/// The bugs would be: T says that it runs after S before its wait was submitted; U joins what T
/// knows now, or knew after the record, instead of what it knew when its event was recorded.
#[test]
fn wait_against_a_seal_of_the_waiter() {
    static SEEN: Outcomes = Outcomes::new();
    explore("wait_against_a_seal_of_the_waiter", || {
        let streams = Streams::new();
        let (s, t, u) = (streams.open(), streams.open(), streams.open());
        let (from, middle) = (streams.work(s, 5), streams.fences.stamp(t.id));
        assert!(streams.seal(from));
        let on = streams.clone();
        let wait = role(move || assert!(on.wait(t, from)));
        let on = streams.clone();
        let seal = role(move || assert!(on.seal(middle)));
        let on = streams.clone();
        let chain = role(move || {
            assert!(on.wait(u, middle));
            let (far, near) = (on.check_order(u, s, 5, from), on.check_order(t, s, 5, from));
            SEEN.reached_if(0, far);
            SEEN.reached_if(1, near && !far);
            SEEN.reached_if(2, !near);
        });
        for role in [wait, seal, chain] {
            role.join().unwrap();
        }
        assert!(streams.check_order(t, s, 5, from));
        streams.check_order(u, s, 5, from);
    });
    SEEN.assert_all(3);
}

/// U waits for a seal of T whose event is settled, recycled, and recorded again on T after T has
/// learnt more.
///
/// The bug would be: U joins the snapshot of the later recording, though the wait it stands for
/// was not submitted to U, or though U's place in the order is the earlier one.
#[test]
fn snapshot_of_a_recycled_event() {
    static SEEN: Outcomes = Outcomes::new();
    explore("snapshot_of_a_recycled_event", || {
        let streams = Streams::new();
        let (s, t, u) = (streams.open(), streams.open(), streams.open());
        let (from, middle) = (streams.work(s, 5), streams.fences.stamp(t.id));
        assert!(streams.seal(from) && streams.seal(middle));
        streams.driver.run(t.handle);
        let on = streams.clone();
        let recycle = role(move || {
            assert!(on.poll(middle));
            assert!(on.wait(t, from));
            on.seal(on.fences.stamp(t.id));
        });
        let on = streams.clone();
        let wait = role(move || {
            let waited = on.wait(u, middle);
            SEEN.reached(u32::from(on.check_order(u, s, 5, from)));
            waited
        });
        recycle.join().unwrap();
        // The slot may be found empty: then its number has completed.
        let waited = wait.join().unwrap() || streams.fences.completed(middle);
        assert!(waited, "a wait for a sealed fence was in vain");
        SEEN.reached_if(2, streams.driver.events() == 2);
        streams.check_order(u, s, 5, from);
    });
    SEEN.assert_all(3);
}

/// T waits for a seal of S that is settled at the same moment, its event recorded for X.
///
/// The bugs would be: the slot is emptied before its number counts as completed, so that T's wait
/// is in vain; T takes itself for ordered after work of S that its wait does not cover.
#[test]
fn wait_against_a_poll() {
    static SEEN: Outcomes = Outcomes::new();
    explore("wait_against_a_poll", || {
        let streams = Streams::new();
        let (s, t, x) = (streams.open(), streams.open(), streams.open());
        let from = streams.work(s, 5);
        assert!(streams.seal(from));
        let on = streams.clone();
        let wait = role(move || {
            let waited = on.wait(t, from);
            assert!(on.check_order(t, s, 5, from) || !waited, "a wait was not remembered");
            waited
        });
        let on = streams.clone();
        let poll = role(move || {
            SEEN.reached(u32::from(on.poll(from)));
            let other = on.work(x, 6);
            assert!(on.seal(other));
            SEEN.reached_if(2, on.driver.events() == 1);
        });
        let on = streams.clone();
        let device = role(move || on.driver.run(s.handle));
        poll.join().unwrap();
        device.join().unwrap();
        // The slot may be found empty: then its number has completed.
        let waited = wait.join().unwrap() || streams.fences.completed(from);
        assert!(waited, "a wait for a sealed fence was in vain");
        streams.check_completed(s, 5, from);
        let other = streams.fences.stamp(x.id);
        streams.check_order(t, x, 6, other);
    });
    SEEN.assert_all(3);
}

/// A user makes T wait for S, whose slots are all pending, while they are settled and S is sealed.
///
/// The bug would be: the wait's event, published nowhere or settled at once, is recorded anew
/// before T's wait was submitted, and T takes itself for ordered after work that it is not.
#[test]
fn user_wait_without_a_slot() {
    static SEEN: Outcomes = Outcomes::new();
    explore("user_wait_without_a_slot", || {
        let streams = Streams::new();
        let (s, t) = (streams.open(), streams.open());
        let first = streams.work(s, 1);
        assert!(streams.seal(first));
        let second = streams.work(s, 2);
        assert!(streams.seal(second));
        streams.driver.run(s.handle);
        let last = streams.work(s, 3);
        let on = streams.clone();
        let wait = role(move || {
            on.fences.wait_for_all(t.id, s.id).unwrap();
            assert!(on.check_order(t, s, 3, last), "a user's wait is remembered");
        });
        let on = streams.clone();
        let poll = role(move || {
            SEEN.reached_if(0, !on.seal(last));
            assert!(on.poll(second));
            SEEN.reached_if(1, on.seal(last));
        });
        wait.join().unwrap();
        poll.join().unwrap();
        streams.check_completed(s, 3, last);
        assert!(streams.check_order(t, s, 3, last));
    });
    SEEN.assert_all(2);
}

/// A stream ends while another thread seals it, and a block of it is freed late.
///
/// The bugs would be: a record on the destroyed handle; a last seal that is published nowhere; a
/// late fence that counts as completed before the stream's work, or never does.
#[test]
fn retire_against_a_seal_and_a_late_free() {
    static SEEN: Outcomes = Outcomes::new();
    explore("retire_against_a_seal_and_a_late_free", || {
        let streams = Streams::new();
        let s = streams.open();
        let fence = streams.work(s, 1);
        let on = streams.clone();
        let retire = role(move || on.fences.retire(s.id));
        let on = streams.clone();
        let seal = role(move || SEEN.reached(u32::from(on.seal(fence))));
        let on = streams.clone();
        let late = role(move || {
            let fence = on.fences.stamp(s.id);
            let done = on.poll(fence);
            assert!(!done || on.driver.is_done(s.handle, 1), "completed claims work not run");
            SEEN.reached_if(2, on.fences.has_ended(s.id));
            fence
        });
        retire.join().unwrap();
        seal.join().unwrap();
        let late = late.join().unwrap();
        assert!(streams.fences.has_ended(s.id), "nobody ended the stream");
        assert!(streams.driver.is_destroyed(s.handle), "the handle was leaked");
        let last = streams.fences.stamp(s.id);
        for fence in [fence, late, last] {
            assert!(streams.seal(fence), "the last seal does not cover a late free");
        }
        SEEN.reached_if(3, !streams.poll(last));
        streams.driver.run(s.handle);
        for fence in [last, late, fence] {
            assert!(streams.poll(fence), "a late free never completes");
        }
    });
    SEEN.assert_all(4);
}

/// A stream's id is given to the next stream while a late free of the old one is asked about.
///
/// The bug would be: the id comes out of quarantine before the old stream's work is done, or a
/// query mixes the two: a fence of the old stream counts as completed before its work.
#[test]
fn id_reuse_against_a_late_fence() {
    static SEEN: Outcomes = Outcomes::new();
    explore("id_reuse_against_a_late_fence", || {
        let streams = Streams::new();
        let old = streams.open();
        let fence = streams.work(old, 1);
        streams.fences.retire(old.id);
        let late = streams.fences.stamp(old.id);
        let on = streams.clone();
        let reuse = role(move || {
            let new = on.open();
            let fence = on.work(new, 2);
            on.seal(fence);
            on.driver.run(new.handle);
            on.poll(fence);
            SEEN.reached_if(3, on.check_completed(new, 2, fence));
            SEEN.reached(u32::from(new.id == old.id));
        });
        let on = streams.clone();
        let ask = role(move || {
            for fence in [late, fence] {
                if on.seal(fence) && on.poll(fence) {
                    assert!(on.driver.is_done(old.handle, 1), "completed claims work not run");
                    SEEN.reached(2);
                }
            }
        });
        let on = streams.clone();
        let device = role(move || on.driver.run(old.handle));
        for role in [reuse, ask, device] {
            role.join().unwrap();
        }
        streams.check_completed(old, 1, fence);
    });
    SEEN.assert_all(4);
}

/// A stream ends whose id had another stream before, while a thread has just seen that one's last
/// seal done and has not yet emptied its place.
///
/// The bug would be: the new stream's last seal finds the place taken. Its memory is then kept from
/// others until its end is tried again; if the handle is the caller's, for good.
#[test]
fn last_seal_against_that_of_the_stream_before() {
    static SEEN: Outcomes = Outcomes::new();
    explore("last_seal_against_that_of_the_stream_before", || {
        let streams = Streams::new();
        let old = streams.open();
        let fence = streams.work(old, 1);
        streams.fences.retire(old.id);
        streams.driver.run(old.handle);
        let on = streams.clone();
        let ask = role(move || on.poll(fence));
        let on = streams.clone();
        let reuse = role(move || {
            let new = on.open();
            SEEN.reached_if(0, new.id == old.id);
            on.fences.retire(new.id);
            assert!(on.fences.has_ended(new.id), "a stream's end finds no place");
            SEEN.reached_if(1, on.driver.is_destroyed(new.handle));
        });
        SEEN.reached_if(2, ask.join().unwrap());
        reuse.join().unwrap();
    });
    SEEN.assert_all(3);
}
