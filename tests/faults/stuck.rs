//! Streams that hang, for a while or for good, alone and while calls fail.

use crate::rig::{CAPACITY, CODES, MIB, Rig, Setup, Stuck, run};
use crate::support::slow;
use crate::workload::get;
use millpond::{Buffer, DeviceId, Error, Level, Reuse};
use std::time::Duration;

/// The streams of the workload.
const STREAMS: usize = 5;

const SETUPS: [Setup; 7] = [
    Setup::lag(2, Reuse::Completed),
    Setup::lag(2, Reuse::Wait),
    Setup::lag(2, Reuse::Completed).restless().plain(),
    Setup::lag(2, Reuse::Wait).plain(),
    Setup::lag(2, Reuse::SameStream),
    Setup::scheduled(Reuse::Wait),
    Setup::lag(2, Reuse::Completed).restless(),
];

/// Each stream of the workload hangs, from its creation and from each of the pool's calls on.
#[test]
fn each_stream_hangs_from_each_call_on() {
    for setup in SETUPS {
        let calls = setup.calls().pools;
        for stream in 0..STREAMS {
            for at in 0..=calls {
                for goes_on in [false, true] {
                    let stuck = Stuck { stream, at, goes_on };
                    run(setup.stuck(stuck), "nothing fails", |_| ());
                }
            }
        }
    }
}

/// The same while each call fails, once and from then on.
#[test]
fn calls_fail_while_a_stream_hangs() {
    let (setups, codes, points) = match slow() {
        true => (&SETUPS[..], &CODES[..3], 3),
        false => (&SETUPS[..3], &CODES[1..2], 2),
    };
    for setup in setups {
        let part = setup.calls().pools / points;
        for (stream, point) in (0..STREAMS).flat_map(|s| (0..points).map(move |p| (s, p))) {
            let stuck = Stuck { stream, at: point * part, goes_on: true };
            for n in 1..=setup.stuck(stuck).calls().total() {
                // Both for each call, or in turn.
                for goes_on in [false, true].into_iter().filter(|on| slow() || *on == (n % 2 == 0))
                {
                    let setup = setup.stuck(Stuck { goes_on, ..stuck });
                    for &code in codes {
                        let what = format!("call {n}: {code}");
                        run(setup, &what, |rig| rig.sim.inject_any(n, code));
                        let what = format!("every call from {n} on: {code}");
                        run(setup, &what, |rig| rig.sim.inject_all(n, code));
                    }
                }
            }
        }
    }
}

/// A stream hangs: what it may still touch goes to nobody, and nobody else is held up.
#[test]
fn a_stream_that_hangs_keeps_its_memory() {
    for reuse in [Reuse::SameStream, Reuse::Completed, Reuse::Wait] {
        let rig = Rig::new(Setup::lag(2, reuse));
        let pool = rig.pool().unwrap();
        let [stuck, other, third] = [0; 3].map(|_| pool.stream(DeviceId(0)).unwrap());
        let theirs = [8 * MIB, 900, 60_000].map(|bytes| get(&rig, &stuck, bytes).unwrap());
        let ranges = theirs.each_ref().map(|buffer| (buffer.address(), buffer.granted_bytes()));
        rig.sim.hang(stuck.handle().into()).unwrap();
        drop(theirs);
        let touches = |buffer: &Buffer| {
            let (start, end) = (buffer.address(), buffer.address() + buffer.granted_bytes());
            ranges.iter().any(|&(address, bytes)| start < address + bytes && address < end)
        };
        // Policy `Wait` would make the other streams hang too; that is what it says it does.
        if reuse != Reuse::Wait {
            for _ in 0..40 {
                for stream in [&other, &third] {
                    for bytes in [900, 60_000, 8 * MIB] {
                        let buffer = get(&rig, stream, bytes).unwrap();
                        assert!(!touches(&buffer), "memory of the stream that hangs");
                        (0..3).for_each(|_| rig.sim.tick());
                    }
                }
            }
            // More than is left without it.
            let error = get(&rig, &other, CAPACITY - 4 * MIB).unwrap_err();
            assert!(matches!(error, Error::OutOfMemory(_)), "{error}");
            drop(get(&rig, &other, 12 * MIB).unwrap());
            (0..3).for_each(|_| rig.sim.tick());
            pool.trim(DeviceId(0), 0).unwrap();
            assert!(pool.stats().devices[0].reserved_bytes >= 8 * MIB);
        }
        pool.check_invariants_at(Level::Full);
        rig.assert_quiet("");
        let start = std::time::Instant::now();
        drop((stuck, other, third, pool));
        assert!(start.elapsed() < Duration::from_secs(5), "the end of the pool hangs");
        rig.assert_quiet("");
        let leaks = rig.sim.leaks();
        assert!(leaks.pages > 0, "memory in use was given back");
        assert_eq!((leaks.streams, leaks.events), (0, 0), "{leaks}");
    }
}

/// A stream that hung and goes on: its memory is back.
#[test]
fn a_stream_that_goes_on_again() {
    for reuse in [Reuse::SameStream, Reuse::Completed, Reuse::Wait] {
        let rig = Rig::new(Setup::lag(2, reuse));
        let pool = rig.pool().unwrap();
        let [stuck, other] = [0; 2].map(|_| pool.stream(DeviceId(0)).unwrap());
        drop(get(&rig, &stuck, 20 * MIB).unwrap());
        rig.sim.hang(stuck.handle().into()).unwrap();
        if reuse != Reuse::Wait {
            for _ in 0..30 {
                assert!(matches!(get(&rig, &other, 20 * MIB), Err(Error::OutOfMemory(_))));
                drop(get(&rig, &stuck, 20 * MIB).unwrap());
            }
        }
        rig.sim.unhang_all();
        drop(get(&rig, &other, CAPACITY).unwrap());
        drop((stuck, other));
        pool.check_invariants_at(Level::Full);
        drop(pool);
        rig.assert_quiet("");
        assert!(rig.sim.leaks().is_empty(), "{}", rig.sim.leaks());
    }
}
