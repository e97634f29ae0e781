//! Calls that fail: one, all from some moment on, and those of a kind.

use crate::ground::Over;
use crate::rig::{CAPACITY, CODES, Calls, MIB, Rig, Setup, cases, lasting_cases, run};
use crate::support::slow;
use crate::workload::get;
use millpond::{DeviceId, Error, Level, Reuse};
use millpond_simgpu::{Call, ErrorCode, Fault};

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

/// The same by way of CUDA, with and without a context that is current to the thread. Late is late by a
/// seed there, since a lagging clock stands still while the host asks.
#[cfg(all(feature = "cuda", unix))]
const OVER_CUDA: [Setup; 4] = [
    AT_ONCE.restless().cuda(true),
    PLAIN_AT_ONCE.restless().cuda(false),
    SCHEDULED.cuda(false),
    PLAIN_SCHEDULED.cuda(true),
];
#[cfg(not(all(feature = "cuda", unix)))]
const OVER_CUDA: [Setup; 0] = [];

/// Runs `each` in every setup, or in the first four of them, and by way of CUDA.
fn in_setups(each: impl Fn(Setup, Calls)) {
    let some = &SETUPS[..if slow() { SETUPS.len() } else { 4 }];
    some.iter().chain(&OVER_CUDA).for_each(|setup| each(*setup, setup.calls()));
}

/// The workload reaches what it is meant to, in a number of calls that can be gone through.
#[test]
fn the_workload_is_worth_failing() {
    for setup in SETUPS.into_iter().chain(OVER_CUDA) {
        let calls = setup.calls();
        let rig = Rig::new(setup);
        let pool = rig.pool().unwrap();
        crate::workload::workload(&rig, &pool);
        let most = if setup.over == Over::Sim { 400 } else { 2000 };
        assert!((120..=most).contains(&calls.total()), "{} calls in {setup:?}", calls.total());
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
        let kinds = calls.kinds.iter().filter(|(_, calls)| *calls > 0).count();
        let want = if setup.plain { 10 } else { 14 };
        assert!(kinds >= want, "{kinds} kinds of calls in {setup:?}");
        if setup.over != Over::Sim {
            for own in OF_CUDAS_OWN {
                assert!(calls.of(own) > 0, "no {own} in {setup:?}");
            }
        }
    }
}

/// Calls that the pool knows nothing of.
const OF_CUDAS_OWN: [&str; 4] = [
    "cuCtxGetCurrent",
    "cuCtxSetCurrent",
    "cuStreamIsCapturing",
    "cuThreadExchangeStreamCaptureMode",
];

/// The n-th call fails, for every n.
#[test]
fn each_call_fails_once() {
    in_setups(|setup, calls| {
        for (n, code) in cases(setup, calls.total(), 10, 0) {
            run(setup, &format!("call {n}: {code}"), |rig| rig.ground.fail_any(n, code));
        }
    });
}

/// Every call fails from the n-th on, for every n.
#[test]
fn every_call_fails_from_each_on() {
    in_setups(|setup, calls| {
        for (n, code) in lasting_cases(setup, calls.total(), 10, 0) {
            let what = format!("every call from {n} on: {code}");
            run(setup, &what, |rig| rig.ground.fail_all(n, code));
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
        for (place, &(call, calls)) in calls.kinds.iter().enumerate() {
            for (nth, code) in lasting_cases(setup, calls, 10, place) {
                let what = format!("{call} from number {nth} on: {code}");
                run(setup, &what, |rig| rig.ground.fail(call, nth, code, true));
            }
        }
    });
}

/// Two kinds fail together, so that what undoes a failed call fails too.
#[test]
fn undoing_fails_as_well() {
    let calls = AT_ONCE.calls();
    for undo in [Call::Unmap, Call::Release] {
        for call in [Call::Create, Call::Map, Call::SetAccess] {
            for nth in 1..=calls.of(call.name()) {
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
