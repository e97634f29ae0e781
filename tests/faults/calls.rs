//! Calls that fail: one, all from some moment on, and those of a kind.

use crate::rig::{CAPACITY, CODES, MIB, Rig, Setup, run};
use crate::support::slow;
use crate::workload::get;
use millpond::{DeviceId, Error, Level, Reuse};
use millpond_simgpu::{Call, Counters, ErrorCode, Fault};

const AT_ONCE: Setup = Setup::lag(0, Reuse::Wait);
const LAGGING: Setup = Setup::lag(5, Reuse::Wait);
const PATIENT: Setup = Setup::lag(5, Reuse::Completed);
const LONELY: Setup = Setup::lag(5, Reuse::SameStream);
const SCHEDULED: Setup = Setup::scheduled(Reuse::Wait);
const RESTLESS: Setup = Setup::lag(5, Reuse::Wait).restless();
const PLAIN: Setup = Setup::lag(5, Reuse::Wait).restless().plain();
const PLAIN_AT_ONCE: Setup = Setup::lag(0, Reuse::Completed).plain();
const PLAIN_SCHEDULED: Setup = Setup::scheduled(Reuse::SameStream).plain();

const SETUPS: [Setup; 9] =
    [AT_ONCE, PATIENT, RESTLESS, PLAIN, LAGGING, LONELY, SCHEDULED, PLAIN_AT_ONCE, PLAIN_SCHEDULED];

/// Runs `each` in every setup, or in the first four of them.
fn in_setups(each: impl Fn(Setup, Counters)) {
    for setup in &SETUPS[..if slow() { SETUPS.len() } else { 4 }] {
        each(*setup, setup.calls().all);
    }
}

/// The workload reaches what it is meant to, in a number of calls that can be gone through.
#[test]
fn the_workload_is_worth_failing() {
    for setup in SETUPS {
        let rig = Rig::new(setup);
        let pool = rig.pool().unwrap();
        crate::workload::workload(&rig, &pool);
        let calls = rig.sim.total_calls();
        assert!((120..=400).contains(&calls), "{calls} calls in {setup:?}");
        let ladder = pool.stats().devices[1].ladder;
        match setup.plain {
            false => assert!(ladder.moved + ladder.waited >= 6, "pages are to move: {ladder:?}"),
            true => assert!(
                rig.driver.calls("free") >= 3 && ladder.gathered >= 2,
                "segments are to go: {ladder:?}"
            ),
        }
        rig.assert_quiet("");
        // Every kind but plain allocations (or those of pages), copies, fills, collectives, peers, and calls that only
        // come at the end.
        let counters = rig.sim.counters();
        let kinds = Call::ALL.iter().filter(|&&call| counters.get(call) > 0).count();
        let want = if setup.plain { 10 } else { 14 };
        assert!(kinds >= want, "{kinds} kinds of calls in {setup:?}");
    }
}

/// The n-th call fails, for every n.
#[test]
fn each_call_fails_once() {
    in_setups(|setup, calls| {
        for n in 1..=calls.total() {
            for code in CODES {
                run(setup, &format!("call {n}: {code}"), |rig| rig.sim.inject_any(n, code));
            }
        }
    });
}

/// Every call fails from the n-th on, for every n.
#[test]
fn every_call_fails_from_each_on() {
    in_setups(|setup, calls| {
        for n in 1..=calls.total() {
            for code in CODES {
                let what = format!("every call from {n} on: {code}");
                run(setup, &what, |rig| rig.sim.inject_all(n, code));
            }
        }
    });
}

/// The n-th of the pool's calls panics, for every n.
#[test]
fn each_call_panics() {
    for setup in [AT_ONCE, RESTLESS, PLAIN] {
        for n in 1..=setup.calls().pools {
            run(setup, &format!("call {n} panics"), |rig| rig.driver.panic_at(n));
        }
    }
}

/// Calls of one kind fail from each on that the workload makes, until the trouble is over.
#[test]
fn calls_of_a_kind_fail_from_each_on() {
    in_setups(|setup, calls| {
        for &call in Call::ALL {
            for nth in 1..=calls.get(call) {
                for code in CODES {
                    let what = format!("{call:?} from number {nth} on: {code}");
                    let fault = Fault { call, nth, code, sticky: true };
                    run(setup, &what, |rig| rig.sim.inject(fault));
                }
            }
        }
    });
}

/// Two kinds fail together, so that what undoes a failed call fails too.
#[test]
fn undoing_fails_as_well() {
    let calls = AT_ONCE.calls().all;
    for undo in [Call::Unmap, Call::Release] {
        for call in [Call::Create, Call::Map, Call::SetAccess] {
            for nth in 1..=calls.get(call) {
                for code in [ErrorCode::Unknown, ErrorCode::OutOfMemory] {
                    let what = format!("{call:?} number {nth}, and {undo:?} always: {code}");
                    run(AT_ONCE, &what, |rig| {
                        rig.sim.inject(Fault { call, nth, code, sticky: false });
                        rig.sim.inject(Fault { call: undo, nth: 1, code, sticky: true });
                    });
                }
            }
        }
    }
}

/// What failed is said with the driver's own code and call.
#[test]
fn errors_keep_the_drivers_words() {
    for (code, setup) in CODES.into_iter().flat_map(|code| [(code, AT_ONCE), (code, PLAIN)]) {
        let rig = Rig::new(setup);
        let pool = rig.pool().unwrap();
        let stream = pool.stream(DeviceId(0)).unwrap();
        rig.sim.inject_all(1, code);
        let error = get(&rig, &stream, 3 * MIB).unwrap_err();
        match error {
            Error::Driver(error) => {
                let call = if setup.plain { "cuMemAlloc" } else { "cuMemCreate" };
                assert_eq!((error.code, error.call), (code.number(), call), "{error}");
            }
            Error::OutOfMemory(_) => assert_eq!(code, ErrorCode::OutOfMemory),
            error => panic!("{error:?}"),
        }
    }
}

/// A trim that the driver fails says so; what was not given back is there still.
#[test]
fn a_failed_trim_says_so() {
    for (call, setup) in
        [(Call::Unmap, AT_ONCE), (Call::Release, AT_ONCE), (Call::Free, PLAIN_AT_ONCE)]
    {
        let rig = Rig::new(setup);
        let pool = rig.pool().unwrap();
        let stream = pool.stream(DeviceId(0)).unwrap();
        drop(get(&rig, &stream, 12 * MIB).unwrap());
        let code = ErrorCode::Unknown;
        rig.sim.inject(Fault { call, nth: 1, code, sticky: true });
        for outcome in [pool.trim(DeviceId(0), 0).map(drop), pool.trim_all(0)] {
            let said = matches!(&outcome, Err(Error::Driver(error)) if error.code == code.number());
            assert!(said, "{call:?}: a trim that failed says {outcome:?}");
        }
        assert_eq!(pool.stats().devices[0].reserved_bytes, 12 * MIB);
        rig.sim.clear_faults();
        assert_eq!(pool.trim(DeviceId(0), 0).unwrap(), 0);
        pool.check_invariants_at(Level::Full);
    }
}

/// Events cannot be had any more: memory is not given away without one.
#[test]
fn no_events_left() {
    let rig = Rig::new(Setup::lag(1_000_000, Reuse::Wait));
    let pool = rig.pool().unwrap();
    let [s, t] = [0; 2].map(|_| pool.stream(DeviceId(0)).unwrap());
    let block = get(&rig, &s, CAPACITY).unwrap();
    let code = ErrorCode::OutOfMemory;
    rig.sim.inject(Fault { call: Call::EventCreate, nth: 1, code, sticky: true });
    for _ in 0..70_000 {
        assert!(t.wait(&s).is_err());
    }
    rig.sim.clear_faults();
    drop(block);
    // Served, or refused, but not handed over without an order.
    let outcome = get(&rig, &t, CAPACITY);
    rig.assert_quiet(&format!("{outcome:?}"));
    drop(outcome);
    // Failures that are over cost nothing for good.
    t.wait(&s).unwrap();
    drop(get(&rig, &t, CAPACITY).unwrap());
    pool.check_invariants_at(Level::Full);
    drop((s, t, pool));
    rig.assert_quiet("");
    assert!(rig.sim.leaks().is_empty(), "{}", rig.sim.leaks());
}
