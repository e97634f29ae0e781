//! Every call of the driver fails once, or from some moment on; streams hang. The pool answers with
//! errors, gives nothing away too early, and works when the trouble is over.
#![cfg(feature = "sim")]

mod support;

use millpond::driver::Driver;
use millpond::driver::sim::SimDriver;
use millpond::{Buffer, DeviceId, Error, Pool, Reuse, Stream};
use millpond_simgpu::{Call, Completion, ErrorCode, Fault, Leaks, Sim, Touch};
use std::sync::Arc;
use std::time::Duration;
use support::Watched;

const MIB: u64 = 1 << 20;
const CAPACITY: u64 = 32 * MIB;
const CODES: [ErrorCode; 3] = [ErrorCode::OutOfMemory, ErrorCode::LaunchFailed, ErrorCode::Unknown];

struct Rig {
    sim: Sim,
    driver: Arc<Watched>,
}

impl Rig {
    fn new(lag: u64) -> Self {
        let sim = Sim::builder()
            .devices(2)
            .capacity(CAPACITY)
            .completion(Completion::Lag(lag))
            .oracle(true)
            .build()
            .unwrap();
        let driver = Watched::new(Arc::new(SimDriver::new(sim.clone())));
        Self { sim, driver }
    }

    fn pool(&self, reuse: Reuse) -> Result<Pool, Error> {
        let driver: Arc<dyn Driver> = Arc::<Watched>::clone(&self.driver);
        Pool::builder_shared(driver).reuse(reuse).host_wait(Duration::from_millis(20)).build()
    }

    #[track_caller]
    fn assert_quiet(&self, what: &str) {
        let hazards = self.sim.hazards();
        assert!(hazards.is_empty(), "{what}: {} hazards, first {}", hazards.len(), hazards[0]);
    }
}

/// A block, written to if its stream could be given work.
fn get(sim: &Sim, stream: &Stream, bytes: u64) -> Result<Buffer, Error> {
    let buffer = stream.alloc::<u8>(bytes as usize)?;
    let _ = sim.launch(stream.handle().into(), &[Touch::write(buffer.address(), bytes)]);
    Ok(buffer)
}

fn again(sim: &Sim, stream: &Stream, buffer: &Buffer) {
    let touch = Touch::write(buffer.address(), buffer.bytes());
    let _ = sim.launch(stream.handle().into(), &[touch]);
}

/// Runs one stream after another by an event of the program's own; false where that fails.
fn order(sim: &Sim, before: &Stream, after: &Stream) -> bool {
    let Ok(event) = sim.event_create(before.device().0) else { return false };
    let ordered = sim.event_record(event, before.handle().into()).is_ok()
        && sim.stream_wait(after.handle().into(), event).is_ok();
    while sim.event_destroy(event).is_err() {
        sim.clear_faults();
    }
    ordered
}

/// Pages go to other blocks and come back, for two streams in turn: all of a device is in use, or
/// idle in pieces too small.
fn move_pages(sim: &Sim, s: &Stream, t: &Stream) {
    const PAGE: u64 = 2 * MIB;
    let filler = get(sim, s, CAPACITY - 8 * PAGE);
    let guard = get(sim, s, PAGE);
    for gatherer in [t, t, s] {
        let mut row = [1, 2, 1, 2, 1].map(|pages| get(sim, s, pages * PAGE).ok());
        for place in [0, 2, 4] {
            row[place] = None;
        }
        // From three places behind the guard, where there is none.
        let gathered = get(sim, gatherer, 3 * PAGE);
        row = Default::default();
        drop((row, gathered));
        (0..3).for_each(|_| sim.tick());
        // And back: all of the row in one.
        drop(get(sim, s, 7 * PAGE));
        (0..3).for_each(|_| sim.tick());
    }
    drop((guard, filler));
}

/// Two devices, three streams, everything the pool does with a driver. Errors are passed over.
fn workload(rig: &Rig, pool: &Pool) {
    let sim = &rig.sim;
    let streams = [0, 0, 1].map(|device| pool.stream(DeviceId(device)));
    let [Ok(a), Ok(b), Ok(c)] = &streams else { return };
    for bytes in [900, 70_000, 3 * MIB] {
        let (x, y, z) = (get(sim, a, bytes), get(sim, a, bytes), get(sim, c, 2 * bytes));
        if let Ok(x) = &x
            && x.record_use(b).is_ok()
            && order(sim, a, b)
        {
            again(sim, b, x);
        }
        drop((x, z));
        drop(get(sim, b, bytes));
        let _ = b.wait(a);
        drop(y);
        drop(get(sim, b, bytes));
        let _ = c.wait(b);
        drop(get(sim, c, 3 * bytes));
        (0..2).for_each(|_| sim.tick());
    }
    // Memory runs short: pages are moved and waited for.
    let mut held: Vec<_> = (0..6).map(|_| get(sim, a, 5 * MIB)).collect();
    held.swap_remove(1).into_iter().for_each(drop);
    held.swap_remove(3).into_iter().for_each(drop);
    held.push(get(sim, b, 9 * MIB));
    if let Ok(d) = pool.stream(DeviceId(1)) {
        move_pages(sim, c, &d);
    }
    let _ = pool.trim(DeviceId(1), 2 * MIB);
    let late = get(sim, b, 6000);
    drop(streams);
    drop(late);
    let _ = pool.trim_all(4 * MIB);
    drop(held);
    if let Ok(d) = pool.stream(DeviceId(0)) {
        drop(get(sim, &d, 7 * MIB));
    }
}

/// With the trouble over the pool serves again, on each device, and across streams. Where the driver
/// gave no answer about streams, their memory, which may be all there is, stays away from others.
fn works_again(rig: &Rig, pool: &Pool, poisoned: u64, what: &str) {
    for device in [0, 1].map(DeviceId) {
        let [s, t] = [0; 2].map(|_| pool.stream(device).unwrap());
        for bytes in [900, 70_000, 3 * MIB, CAPACITY] {
            for stream in [&s, &t] {
                let buffer = get(&rig.sim, stream, bytes);
                let short = poisoned > 0 && matches!(buffer, Err(Error::OutOfMemory(_)));
                assert!(short || buffer.is_ok(), "{what}: {bytes} bytes on {device}: {buffer:?}");
            }
        }
        t.wait(&s).unwrap();
        (0..60).for_each(|_| rig.sim.tick());
        pool.trim(device, 0).unwrap();
    }
    pool.check_invariants_at(millpond::Level::Full);
}

/// What may be missing after a run: what the failed call itself was to give back, and memory of
/// streams about which the driver gave no answer.
fn excused(rig: &Rig, poisoned: u64) -> impl Fn(Leaks) -> Leaks {
    let failed = rig.driver.failed();
    let streams = failed.iter().filter(|name| **name == "destroy_stream").count();
    move |mut leaks| {
        leaks.streams = leaks.streams.saturating_sub(streams);
        if poisoned > 0 {
            (leaks.pages, leaks.mappings, leaks.reservations, leaks.bytes) = (0, 0, 0, 0);
        }
        leaks
    }
}

/// One run with the trouble that `inject` makes; false where it made none.
fn run(lag: u64, reuse: Reuse, what: &str, inject: impl Fn(&Sim)) {
    let rig = Rig::new(lag);
    inject(&rig.sim);
    let pool = rig.pool(reuse);
    let pool = match pool {
        Ok(pool) => {
            workload(&rig, &pool);
            pool.check_invariants_at(millpond::Level::Full);
            pool
        }
        Err(error) => {
            assert!(matches!(error, Error::Driver(_)), "{what}: {error}");
            rig.sim.clear_faults();
            assert!(rig.sim.leaks().is_empty(), "{what}: {}", rig.sim.leaks());
            rig.pool(reuse).unwrap()
        }
    };
    rig.sim.clear_faults();
    rig.assert_quiet(what);
    let poisoned = pool.stats().poisoned_streams;
    works_again(&rig, &pool, poisoned, what);
    let excuse = excused(&rig, poisoned);
    drop(pool);
    rig.assert_quiet(what);
    let leaks = excuse(rig.sim.leaks());
    assert!(leaks.is_empty(), "{what}: {leaks}; failed: {:?}", rig.driver.failed());
}

fn calls(lag: u64, reuse: Reuse) -> u64 {
    let rig = Rig::new(lag);
    let pool = rig.pool(reuse).unwrap();
    workload(&rig, &pool);
    let calls = rig.sim.total_calls();
    assert!(rig.driver.failed().is_empty(), "{:?}", rig.driver.failed());
    let ladder = pool.stats().devices[1].ladder;
    assert!(ladder.moved + ladder.waited >= 6, "pages are to move: {ladder:?}");
    calls
}

fn each_call_fails_once(lag: u64, reuse: Reuse) {
    let calls = calls(lag, reuse);
    assert!((150..=400).contains(&calls), "the workload makes {calls} calls");
    for n in 1..=calls {
        for code in CODES {
            run(lag, reuse, &format!("call {n}, {code}"), |sim| sim.inject_any(n, code));
        }
    }
}

#[test]
fn each_call_fails_once_at_once() {
    each_call_fails_once(0, Reuse::Wait);
}

#[test]
fn each_call_fails_once_lagging() {
    each_call_fails_once(5, Reuse::Wait);
}

#[test]
fn each_call_fails_once_without_waits() {
    each_call_fails_once(5, Reuse::Completed);
}

const KINDS: [Call; 14] = [
    Call::Create,
    Call::Map,
    Call::SetAccess,
    Call::Unmap,
    Call::Release,
    Call::Reserve,
    Call::EventCreate,
    Call::EventRecord,
    Call::EventQuery,
    Call::StreamWait,
    Call::StreamCreate,
    Call::StreamDestroy,
    Call::Sync,
    Call::Launch,
];

/// Calls of one kind fail from the n-th on, until the trouble is over.
#[test]
fn calls_of_a_kind_fail_from_some_moment_on() {
    for call in KINDS {
        for nth in [1, 2, 3, 5, 8, 13, 21] {
            for (lag, reuse) in [(0, Reuse::Wait), (5, Reuse::Completed)] {
                let what = format!("{call:?} from number {nth} on");
                let code = ErrorCode::Unknown;
                run(lag, reuse, &what, |sim| sim.inject(Fault { call, nth, code, sticky: true }));
            }
        }
    }
}

/// Two kinds fail together, so that what undoes a failed call fails too.
#[test]
fn undoing_fails_as_well() {
    for undo in [Call::Unmap, Call::Release] {
        for call in [Call::Create, Call::Map, Call::SetAccess] {
            for nth in 1..12 {
                let what = format!("{call:?} number {nth}, and {undo:?} always");
                let code = ErrorCode::Unknown;
                run(0, Reuse::Wait, &what, |sim| {
                    sim.inject(Fault { call, nth, code, sticky: false });
                    sim.inject(Fault { call: undo, nth: 1, code, sticky: true });
                });
            }
        }
    }
}

/// Calls fail while the pool ends, or the whole driver is gone: nothing panics, nothing hangs.
#[test]
fn the_end_comes_while_calls_fail() {
    for call in KINDS {
        for nth in [1, 2, 5] {
            let rig = Rig::new(3);
            let pool = rig.pool(Reuse::Wait).unwrap();
            let stream = pool.stream(DeviceId(0)).unwrap();
            let held = get(&rig.sim, &stream, 3 * MIB).unwrap();
            workload(&rig, &pool);
            let code = ErrorCode::LaunchFailed;
            rig.sim.inject(Fault { call, nth, code, sticky: true });
            drop((pool, stream));
            drop(held);
            rig.assert_quiet("");
        }
    }
    let rig = Rig::new(3);
    let pool = rig.pool(Reuse::Wait).unwrap();
    let stream = pool.stream(DeviceId(0)).unwrap();
    let held = get(&rig.sim, &stream, 3 * MIB).unwrap();
    rig.sim.shutdown();
    assert!(matches!(stream.alloc::<u8>(9 << 20), Err(Error::Driver(_))));
    assert!(pool.stream(DeviceId(1)).is_err());
    drop((pool, stream));
    drop(held);
    rig.assert_quiet("");
}

/// Events cannot be had any more: memory is not given away without one.
#[test]
fn no_events_left() {
    let rig = Rig::new(1_000_000);
    let pool = rig.pool(Reuse::Wait).unwrap();
    let [s, t] = [0; 2].map(|_| pool.stream(DeviceId(0)).unwrap());
    let block = get(&rig.sim, &s, CAPACITY).unwrap();
    let code = ErrorCode::OutOfMemory;
    rig.sim.inject(Fault { call: Call::EventCreate, nth: 1, code, sticky: true });
    for _ in 0..70_000 {
        assert!(t.wait(&s).is_err());
    }
    rig.sim.clear_faults();
    drop(block);
    // Served, or refused, but not handed over without an order.
    let outcome = get(&rig.sim, &t, CAPACITY);
    rig.assert_quiet(&format!("{outcome:?}"));
    drop(outcome);
    // Failures that are over cost nothing for good.
    t.wait(&s).unwrap();
    drop(get(&rig.sim, &t, CAPACITY).unwrap());
    pool.check_invariants_at(millpond::Level::Full);
    drop((s, t, pool));
    rig.assert_quiet("");
    assert!(rig.sim.leaks().is_empty(), "{}", rig.sim.leaks());
}

/// A stream hangs: what it may still touch goes to nobody, and nobody else is held up.
#[test]
fn a_stream_that_hangs_keeps_its_memory() {
    for reuse in [Reuse::SameStream, Reuse::Completed, Reuse::Wait] {
        let rig = Rig::new(2);
        let pool = rig.pool(reuse).unwrap();
        let [stuck, other, third] = [0; 3].map(|_| pool.stream(DeviceId(0)).unwrap());
        let theirs = [8 * MIB, 900, 60_000].map(|bytes| get(&rig.sim, &stuck, bytes).unwrap());
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
                        let buffer = get(&rig.sim, stream, bytes).unwrap();
                        assert!(!touches(&buffer), "memory of the stream that hangs");
                        (0..3).for_each(|_| rig.sim.tick());
                    }
                }
            }
            // More than is left without it.
            let error = get(&rig.sim, &other, CAPACITY - 4 * MIB).unwrap_err();
            assert!(matches!(error, Error::OutOfMemory(_)), "{error}");
            drop(get(&rig.sim, &other, 12 * MIB).unwrap());
            (0..3).for_each(|_| rig.sim.tick());
            pool.trim(DeviceId(0), 0).unwrap();
            assert!(pool.stats().devices[0].reserved_bytes >= 8 * MIB);
        }
        pool.check_invariants_at(millpond::Level::Full);
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
        let rig = Rig::new(2);
        let pool = rig.pool(reuse).unwrap();
        let [stuck, other] = [0; 2].map(|_| pool.stream(DeviceId(0)).unwrap());
        drop(get(&rig.sim, &stuck, 20 * MIB).unwrap());
        rig.sim.hang(stuck.handle().into()).unwrap();
        if reuse != Reuse::Wait {
            for _ in 0..30 {
                assert!(matches!(get(&rig.sim, &other, 20 * MIB), Err(Error::OutOfMemory(_))));
                drop(get(&rig.sim, &stuck, 20 * MIB).unwrap());
            }
        }
        rig.sim.unhang_all();
        drop(get(&rig.sim, &other, CAPACITY).unwrap());
        drop((stuck, other));
        pool.check_invariants_at(millpond::Level::Full);
        drop(pool);
        rig.assert_quiet("");
        assert!(rig.sim.leaks().is_empty(), "{}", rig.sim.leaks());
    }
}
