//! The pool ends while calls fail, or the driver is gone before it.

use crate::rig::{CODES, DEVICES, MIB, Rig, Setup, without_memory};
use crate::workload::{get, workload};
use millpond::{Error, Reuse};
use millpond_simgpu::{Call, ErrorCode, Fault, Leaks};

const SETUP: Setup = Setup::lag(3, Reuse::Wait);
const SETUPS: [Setup; 2] = [SETUP, SETUP.plain()];

/// Ends a pool that was worked with, with a block freed late, after `inject` has made its trouble.
/// Says which calls the end took.
fn end(setup: Setup, inject: impl FnOnce(&Rig)) -> (Rig, millpond_simgpu::Counters) {
    let rig = Rig::new(setup);
    let pool = rig.pool().unwrap();
    let streams = DEVICES.map(|device| pool.stream(device).unwrap());
    let held = streams.each_ref().map(|stream| get(&rig, stream, 3 * MIB).unwrap());
    workload(&rig, &pool);
    let before = rig.sim.counters();
    inject(&rig);
    drop((pool, streams));
    drop(held);
    rig.assert_quiet("");
    let calls = rig.sim.counters() - before;
    (rig, calls)
}

/// One call of the end fails: what it was to give back is lost, and nothing else; memory not even
/// that, since it is tried again.
#[test]
fn each_call_of_the_end_fails_once() {
    SETUPS.into_iter().for_each(each_call_fails_once);
}

fn each_call_fails_once(setup: Setup) {
    let (clean, calls) = end(setup, |_| ());
    let enough = if setup.plain { 20 } else { 50 };
    assert!(clean.sim.leaks().is_empty() && calls.total() > enough, "{}", calls.total());
    for n in 1..=calls.total() {
        for code in CODES {
            let (rig, _) = end(setup, |rig| rig.sim.inject_any(n, code));
            let failed = rig.driver.failed();
            let [(call, device)] = failed[..] else { panic!("{n}: {failed:?}") };
            let mut lost = rig.sim.leaks();
            match call {
                "destroy_stream" => lost.streams -= 1,
                "destroy_event" => lost.events -= 1,
                "unreserve" => lost.reservations -= 1,
                // Nobody knows when that stream's work is over.
                "query" | "synchronize" => {
                    assert_eq!(rig.sim.leaks_of(1 - device.0), Leaks::default(), "{n}: {failed:?}");
                    lost = without_memory(lost);
                }
                _ => {}
            }
            assert!(lost.is_empty(), "call {n} of the end, {code}: {lost}; {failed:?}");
        }
    }
}

/// Calls of a kind, or all of them, fail from some moment of the end on.
#[test]
fn calls_fail_until_the_end() {
    SETUPS.into_iter().for_each(calls_fail);
}

fn calls_fail(setup: Setup) {
    let (_, calls) = end(setup, |_| ());
    for &call in Call::ALL {
        for nth in 1..=calls.get(call) {
            for code in CODES {
                let fault = Fault { call, nth, code, sticky: true };
                let (rig, _) = end(setup, |rig| rig.sim.inject(fault));
                for device in DEVICES {
                    let lost = rig.lost(device);
                    match call {
                        // Pages that are mapped nowhere do not keep addresses.
                        Call::Release => assert_eq!((lost.mappings, lost.reservations), (0, 0)),
                        // Nor does memory go of which nobody knows when its work is over.
                        Call::Unmap | Call::Free | Call::EventCreate | Call::EventRecord => {}
                        _ => assert!(lost.is_empty(), "{fault:?}: {device}: {lost}"),
                    }
                    let lost = without_memory(lost);
                    assert!(lost.is_empty(), "{fault:?}: {device}: {lost}");
                }
            }
        }
    }
    for n in 1..=calls.total() {
        for code in CODES {
            end(setup, |rig| rig.sim.inject_all(n, code));
        }
    }
}

/// The driver is gone, as it is when a process ends.
#[test]
fn the_driver_is_gone() {
    let rig = Rig::new(SETUP);
    let pool = rig.pool().unwrap();
    let [stream, other] = DEVICES.map(|device| pool.stream(device).unwrap());
    let held = get(&rig, &stream, 3 * MIB).unwrap();
    rig.sim.shutdown();
    let gone = |error: Error| match error {
        Error::Driver(error) => error.code == ErrorCode::Deinitialized.number(),
        _ => false,
    };
    assert!(gone(stream.alloc::<u8>(9 << 20).unwrap_err()));
    assert!(gone(pool.stream(DEVICES[1]).unwrap_err()));
    assert!(gone(stream.wait(&other).unwrap_err()));
    assert!(gone(rig.pool().unwrap_err()));
    // What needs no driver goes on: the stream's own block is served from its cache.
    let address = held.address();
    drop(held);
    let again = stream.alloc::<u8>(3 << 20).unwrap();
    assert_eq!(again.address(), address);
    // Nothing is known to be over, so nothing is idle.
    assert_eq!(pool.trim(DEVICES[0], 0), Ok(4 * MIB));
    pool.check_invariants_at(millpond::Level::Full);
    drop((pool, stream, other));
    drop(again);
    rig.assert_quiet("");
}
