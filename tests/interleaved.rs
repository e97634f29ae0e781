//! What other threads do while the pool is inside a driver call, made to happen exactly then.
#![cfg(feature = "sim")]

mod support;

use millpond::driver::Driver;
use millpond::driver::sim::SimDriver;
use millpond::{Buffer, DeviceId, Error, Pool, Reuse, Stream};
use millpond_simgpu::{Completion, Sim, Touch};
use std::sync::{Arc, Mutex};
use support::Watched;

const MIB: u64 = 1 << 20;
const D0: DeviceId = DeviceId(0);

struct Rig {
    sim: Sim,
    driver: Arc<Watched>,
}

impl Rig {
    fn new(completion: Completion, bytes: u64) -> Self {
        let sim =
            Sim::builder().capacity(bytes).completion(completion).oracle(true).build().unwrap();
        let driver = Watched::new(Arc::new(SimDriver::new(sim.clone())));
        Self { sim, driver }
    }

    fn pool(&self, reuse: Reuse) -> Pool {
        let driver: Arc<dyn Driver> = Arc::<Watched>::clone(&self.driver);
        Pool::builder_shared(driver).reuse(reuse).build().unwrap()
    }

    fn done(self, pool: Pool) {
        assert!(!self.driver.is_armed(), "the call that was to be interrupted never came");
        pool.check_invariants_at(millpond::Level::Full);
        drop(pool);
        let hazards = self.sim.hazards();
        assert!(hazards.is_empty(), "{hazards:#?}");
        assert!(self.sim.leaks().is_empty(), "{}", self.sim.leaks());
    }
}

/// Allocates, writes all of it, and frees.
fn touch(sim: &Sim, stream: &Stream, bytes: u64) {
    let buffer = stream.alloc::<u8>(bytes as usize).unwrap();
    write(sim, stream, &buffer);
}

fn write(sim: &Sim, stream: &Stream, buffer: &Buffer) {
    let touch = Touch::write(buffer.address(), buffer.bytes());
    sim.launch(stream.handle().into(), &[touch]).unwrap();
}

/// A block passes the arena's fence check; before the arena takes it, its own stream takes it from
/// its cache, uses it and frees it again. The arena must not have it on the strength of the old
/// fences.
#[test]
fn a_block_that_came_and_went_during_the_fence_check() {
    for bytes in [2 * MIB, 4 * MIB, 4 * MIB + 512] {
        for reuse in [Reuse::Completed, Reuse::Wait] {
            let rig = Rig::new(Completion::Lag(0), 256 * MIB);
            let pool = rig.pool(reuse);
            let [s, t] = [0; 2].map(|_| pool.stream(D0).unwrap());
            // The stream's cache gets a table at the second miss of a size.
            for _ in 0..3 {
                touch(&rig.sim, &s, bytes);
            }
            let (sim, theirs) = (rig.sim.clone(), s.clone());
            rig.driver.during("query", move || {
                // The work that the query was about is done; this work, no query was about.
                if let Ok(buffer) = theirs.try_alloc::<u8>(bytes as usize) {
                    write(&sim, &theirs, &buffer);
                }
            });
            touch(&rig.sim, &t, bytes);
            drop((s, t));
            rig.done(pool);
        }
    }
}

/// As above, while pages are taken back: a block that came and went keeps its pages.
#[test]
fn a_block_that_came_and_went_while_trimming() {
    let rig = Rig::new(Completion::Lag(0), 256 * MIB);
    let pool = rig.pool(Reuse::Completed);
    let s = pool.stream(D0).unwrap();
    for _ in 0..3 {
        touch(&rig.sim, &s, 4 * MIB);
    }
    let (sim, theirs) = (rig.sim.clone(), s.clone());
    let kept = Arc::new(Mutex::new(None));
    let keep = Arc::clone(&kept);
    rig.driver.during("query", move || {
        // What the trim looks at is the arena's by now, and the arena is busy.
        let outcome = theirs.try_alloc::<u8>(4 * MIB as usize);
        if let Ok(buffer) = &outcome {
            write(&sim, &theirs, buffer);
        }
        *keep.lock().unwrap() = Some(outcome);
    });
    pool.trim(D0, 0).unwrap();
    let outcome = kept.lock().unwrap().take().unwrap();
    match &outcome {
        Ok(buffer) => write(&rig.sim, &s, buffer),
        Err(error) => assert_eq!(*error, Error::Busy { device: D0 }),
    }
    drop(outcome);
    drop(s);
    rig.done(pool);
}

/// `try_alloc` does not wait for the thread that is in the arena, and serves hits all the same.
#[test]
fn try_alloc_answers_busy_instead_of_waiting() {
    let rig = Rig::new(Completion::Lag(0), 256 * MIB);
    let pool = rig.pool(Reuse::Wait);
    let [s, t] = [0; 2].map(|_| pool.stream(D0).unwrap());
    for _ in 0..3 {
        touch(&rig.sim, &s, 800);
    }
    let (theirs, other) = (s.clone(), t.clone());
    rig.driver.during("create_page", move || {
        assert_eq!(theirs.try_alloc::<u8>(5_000_000).unwrap_err(), Error::Busy { device: D0 });
        assert_eq!(other.try_alloc::<u8>(800).unwrap_err(), Error::Busy { device: D0 });
        // What the thread has cached needs no arena, and neither do frees.
        drop(theirs.try_alloc::<u8>(800).unwrap());
    });
    touch(&rig.sim, &s, 20 * MIB);
    drop(t.try_alloc::<u8>(20 * MIB as usize).unwrap());
    drop((s, t));
    rig.done(pool);
}

/// Blocks of all sizes are freed while the arena is busy with fresh pages.
#[test]
fn frees_while_the_arena_is_busy() {
    for call in ["create_page", "map", "set_access"] {
        let rig = Rig::new(Completion::Lag(3), 256 * MIB);
        let pool = rig.pool(Reuse::Wait);
        let [s, t] = [0; 2].map(|_| pool.stream(D0).unwrap());
        let held: Vec<Buffer> = [500, 80_000, 2 * MIB, 6 * MIB, 2 * MIB]
            .map(|bytes| s.alloc::<u8>(bytes as usize).unwrap())
            .into();
        held.iter().for_each(|buffer| write(&rig.sim, &s, buffer));
        held[2].record_use(&t).unwrap();
        rig.driver.during(call, move || drop(held));
        touch(&rig.sim, &t, 30 * MIB);
        touch(&rig.sim, &t, 10 * MIB);
        drop((s, t));
        rig.done(pool);
    }
}

/// A stream ends on another thread while the pool seals it.
#[test]
fn a_stream_ends_while_it_is_sealed() {
    for call in ["record", "query"] {
        let rig = Rig::new(Completion::Lag(2), 64 * MIB);
        let pool = rig.pool(Reuse::Completed);
        let [s, t] = [0; 2].map(|_| pool.stream(D0).unwrap());
        touch(&rig.sim, &s, 4 * MIB);
        let handle = s.handle();
        rig.driver.during(call, move || drop(s));
        touch(&rig.sim, &t, 4 * MIB);
        // The handle is destroyed, once, as soon as nobody uses it.
        assert_eq!(rig.driver.calls("destroy_stream"), 1);
        let next = pool.stream(D0).unwrap();
        assert_eq!(next.handle(), handle);
        touch(&rig.sim, &next, 4 * MIB);
        touch(&rig.sim, &t, 4 * MIB);
        drop((t, next));
        rig.done(pool);
    }
}
