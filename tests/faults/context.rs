//! The context of one device is destroyed; the other goes on.

use crate::rig::{DEVICES, MIB, Rig, Setup, Stuck, works_again};
use crate::support::slow;
use crate::workload::{get, workload};
use millpond::{Error, Level, Reuse};
use millpond_simgpu::ErrorCode;

const SETUPS: [Setup; 6] = [
    Setup::lag(5, Reuse::Wait).restless(),
    Setup::lag(5, Reuse::Wait).restless().plain(),
    Setup::lag(0, Reuse::Wait),
    Setup::lag(5, Reuse::Completed),
    Setup::scheduled(Reuse::Wait),
    Setup::lag(5, Reuse::SameStream),
];

fn is_gone(error: &Error) -> bool {
    matches!(error, Error::Driver(error) if error.code == ErrorCode::ContextDestroyed.number())
}

/// One run with the context of `gone` destroyed after the pool's `nth` call.
fn run(setup: Setup, gone: u16, nth: u64) {
    let what = format!("device {gone} is gone from call {nth} on, {setup:?}");
    let rig = Rig::new(setup);
    let sim = rig.sim.clone();
    rig.driver.at(nth, move || sim.destroy_context(gone));
    let (gone, other) = (DEVICES[usize::from(gone)], DEVICES[usize::from(1 - gone)]);
    match rig.pool() {
        Ok(pool) => {
            workload(&rig, &pool);
            assert!(is_gone(&pool.stream(gone).unwrap_err()), "{what}");
            works_again(&rig, &pool, other, &what);
            let both = pool.trim_all(0);
            assert!(both.is_ok() || both.is_err_and(|error| is_gone(&error)), "{what}");
            pool.check_invariants_at(Level::Full);
        }
        Err(error) => assert!(is_gone(&error), "{what}: {error}"),
    }
    rig.assert_quiet(&what);
    let lost = rig.sim.leaks_of(other.0);
    assert!(lost.is_empty(), "{what}: {other}: {lost}; {:?}", rig.driver.failed());
}

#[test]
fn a_context_goes_after_each_call() {
    for setup in &SETUPS[..if slow() { 6 } else { 5 }] {
        let calls = setup.calls().pools;
        for gone in [0, 1] {
            (1..=calls).for_each(|nth| run(*setup, gone, nth));
        }
    }
}

/// What is held when the context goes can be freed, and serves its own stream; all else about the
/// device is an error that says so.
#[test]
fn what_was_held_when_the_context_went() {
    let rig = Rig::new(Setup::lag(2, Reuse::Wait));
    let pool = rig.pool().unwrap();
    let [s, t] = [0; 2].map(|_| pool.stream(DEVICES[0]).unwrap());
    let other = pool.stream(DEVICES[1]).unwrap();
    let [small, large] = [900, 3 * MIB].map(|bytes| get(&rig, &s, bytes).unwrap());
    let elsewhere = get(&rig, &other, 3 * MIB).unwrap();
    elsewhere.record_use(&s).unwrap();
    rig.sim.destroy_context(0);
    // Recorded in the pool's own memory.
    large.record_use(&t).unwrap();
    let address = small.address();
    drop((small, large));
    assert_eq!(s.alloc::<u8>(900).unwrap().address(), address, "from the thread's own bins");
    for bytes in [3 * MIB, 9 * MIB] {
        assert!(is_gone(&s.alloc::<u8>(bytes as usize).unwrap_err()));
    }
    assert!(is_gone(&s.wait(&t).unwrap_err()));
    assert!(is_gone(&other.wait(&t).unwrap_err()), "an event of a context that is gone");
    assert!(is_gone(&pool.stream(DEVICES[0]).unwrap_err()));
    assert!(is_gone(&rig.pool().unwrap_err()), "a pool is over all devices of its driver");
    t.wait(&other).unwrap_err();
    // Memory of the other device that was used from the lost one: nobody can say when that is over.
    drop(elsewhere);
    let rest = other.alloc::<u8>(28 << 20).unwrap();
    assert!(matches!(other.alloc::<u8>(3 << 20), Err(Error::OutOfMemory(_))));
    drop(rest);
    pool.check_invariants_at(Level::Full);
    drop((s, t, other, pool));
    rig.assert_quiet("");
    let lost = rig.sim.leaks_of(1);
    assert_eq!((lost.streams, lost.events), (0, 0), "{lost}");
    assert!((3 * MIB..=4 * MIB).contains(&lost.bytes), "{lost}");
}

/// Both at once: a stream of one device hangs, the context of the other goes.
#[test]
fn a_stream_hangs_and_a_context_goes() {
    for (stream, gone) in [(0, 1), (2, 0)] {
        let stuck = Stuck { stream, at: 0, goes_on: true };
        let setup = Setup::lag(2, Reuse::Completed).stuck(stuck);
        let calls = setup.calls().pools;
        for nth in 1..=calls {
            let rig = Rig::new(setup);
            let pool = rig.pool().unwrap();
            let sim = rig.sim.clone();
            rig.driver.at(nth.max(rig.driver.total() + 1), move || sim.destroy_context(gone));
            workload(&rig, &pool);
            pool.check_invariants_at(Level::Full);
            rig.sim.unhang_all();
            let other = DEVICES[usize::from(1 - gone)];
            works_again(&rig, &pool, other, &format!("{stream} hangs, {gone} is gone"));
            drop(pool);
            rig.assert_quiet("");
            let lost = rig.sim.leaks_of(other.0);
            assert!(lost.is_empty(), "{lost}");
        }
    }
}
