//! The pool ends while calls fail, or the driver is gone before it.

use crate::ground::Over;
use crate::rig::{Calls, DEVICES, MIB, Rig, Setup, cases, lasting_cases, without_memory};
use crate::workload::{get, workload};
use millpond::{Error, Reuse};
use millpond_simgpu::ErrorCode;

const SETUP: Setup = Setup::lag(3, Reuse::Wait);
const SETUPS: [Setup; 2] = [SETUP, SETUP.plain()];
#[cfg(all(feature = "cuda", unix))]
const OVER_CUDA: [Setup; 4] = [
    Setup::lag(0, Reuse::Wait).cuda(false),
    Setup::lag(0, Reuse::Wait).plain().cuda(true),
    Setup::scheduled(Reuse::Wait).cuda(true),
    Setup::scheduled(Reuse::Wait).plain().cuda(false),
];
#[cfg(not(all(feature = "cuda", unix)))]
const OVER_CUDA: [Setup; 0] = [];

/// Ends a pool that was worked with, with a block freed late, after `inject` has made its trouble.
/// Says which calls the end took.
fn end(setup: Setup, inject: impl FnOnce(&Rig)) -> (Rig, Calls) {
    let rig = Rig::new(setup);
    let pool = rig.pool().unwrap();
    let streams = DEVICES.map(|device| pool.stream(device).unwrap());
    let held = streams.each_ref().map(|stream| get(&rig, stream, 3 * MIB).unwrap());
    workload(&rig, &pool);
    let before = rig.calls();
    inject(&rig);
    drop((pool, streams));
    drop(held);
    let calls = rig.calls() - before;
    rig.ground.clear_faults();
    rig.assert_quiet("");
    (rig, calls)
}

/// One call of the end fails: what it was to give back is lost, and nothing else; memory not even
/// that, since it is tried again.
#[test]
fn each_call_of_the_end_fails_once() {
    SETUPS.into_iter().chain(OVER_CUDA).for_each(each_call_fails_once);
}

fn each_call_fails_once(setup: Setup) {
    let (clean, calls) = end(setup, |_| ());
    let enough = if setup.plain { 20 } else { 50 };
    assert!(clean.leaks().is_empty() && calls.total() > enough, "{}", calls.total());
    drop(clean);
    for (n, code) in cases(setup, calls.total(), 10, 0) {
        let (rig, _) = end(setup, |rig| rig.ground.fail_any(n, code));
        let failed = rig.driver.failed();
        let mut lost = rig.leaks();
        let (call, device) = match failed[..] {
            [failed] => failed,
            // The thread's context was not put back, or its mode: no call of the driver's fails.
            [] if setup.over != Over::Sim => ("", DEVICES[0]),
            _ => panic!("{n}: {failed:?}"),
        };
        match call {
            "destroy_stream" => lost.streams -= 1,
            "destroy_event" => lost.events -= 1,
            "unreserve" => lost.reservations -= 1,
            // Nobody knows when that stream's work is over.
            "query" | "synchronize" => {
                let elsewhere = rig.ground.leaks_of(1 - device.0);
                assert!(elsewhere.is_empty(), "{n}: {failed:?}: {elsewhere}");
                lost = without_memory(lost);
            }
            _ => {}
        }
        assert!(lost.is_empty(), "call {n} of the end, {code}: {lost}; {failed:?}");
    }
}

/// Calls of a kind, or all of them, fail from some moment of the end on.
#[test]
fn calls_fail_until_the_end() {
    SETUPS.into_iter().chain(OVER_CUDA).for_each(calls_fail);
}

fn calls_fail(setup: Setup) {
    let (_, calls) = end(setup, |_| ());
    for (place, &(call, count)) in calls.kinds.iter().enumerate() {
        for (nth, code) in lasting_cases(setup, count, 10, place) {
            let (rig, _) = end(setup, |rig| rig.ground.fail(call, nth, code, true));
            let what = format!("{call} number {nth}: {code}, {setup:?}");
            for device in DEVICES {
                let lost = rig.lost(device);
                match call {
                    // Pages that are mapped nowhere do not keep addresses.
                    "cuMemRelease" => assert_eq!((lost.mappings, lost.reservations), (0, 0)),
                    // Nor does memory go of which nobody knows when its work is over.
                    "cuMemUnmap" | "cuMemFree" | "cuEventCreate" | "cuEventRecord" => {}
                    // The same by way of CUDA, and what is called before each of them.
                    "cuMemFree_v2" | "cuStreamIsCapturing" => {}
                    "cuCtxGetCurrent" | "cuCtxSetCurrent" => {}
                    "cuThreadExchangeStreamCaptureMode" => {}
                    // An answer: to the pool it looks as if the stream hung.
                    "cuEventQuery" if code == ErrorCode::NotReady && setup.over != Over::Sim => {}
                    _ => assert!(lost.is_empty(), "{what}: {device}: {lost}"),
                }
                let lost = without_memory(lost);
                assert!(lost.is_empty(), "{what}: {device}: {lost}");
            }
        }
    }
    for (n, code) in lasting_cases(setup, calls.total(), 10, 0) {
        end(setup, |rig| rig.ground.fail_all(n, code));
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
