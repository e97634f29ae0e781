//! Blocks that move while the driver breaks: each is where it was, or where it went, with what was in it.

use crate::rig::{CODES, MIB, Rig, Setup, works_again};
use millpond::driver::Driver;
use millpond::{
    Budget, Defragmentation, DeviceId, Error, Level, Movable, Pool, Reuse, StepTiming, Stream,
};
use millpond_simgpu::{Call, Completion, ErrorCode, Fault, Touch};
use std::sync::Arc;

const DEVICE: DeviceId = DeviceId(0);
const BYTES: u64 = 5 * MIB / 4;

const SETUPS: [Setup; 5] = [
    Setup::lag(0, Reuse::Wait),
    Setup::lag(5, Reuse::Wait),
    Setup::lag(0, Reuse::Completed).plain(),
    Setup::lag(5, Reuse::Wait).plain(),
    Setup::scheduled(Reuse::Wait).plain(),
];

struct Yard {
    rig: Rig,
    pool: Pool,
    s: Stream,
    t: Stream,
    kept: Vec<(u64, Movable)>,
}

impl Yard {
    /// Holes as large as the blocks between them, with all work done.
    fn new(setup: Setup) -> Self {
        let rig = Rig::new(setup);
        let driver: Arc<dyn Driver> = Arc::<crate::support::Watched>::clone(&rig.driver);
        let pool = Pool::builder_shared(driver)
            .reuse(setup.reuse)
            .defragmentation(Defragmentation::Compaction { budget: Budget::Unlimited })
            .step_timing(StepTiming::Measured)
            .build()
            .unwrap();
        let [s, t] = [0; 2].map(|_| pool.stream(DEVICE).unwrap());
        let mut kept = Vec::new();
        for label in 0..16 {
            let block = s.alloc_movable::<u8>(BYTES as usize).unwrap();
            let pin = block.pin(&s).unwrap();
            let touch = Touch::write(pin.address(), BYTES).label(label);
            rig.sim.launch(s.handle().into(), &[touch]).unwrap();
            drop(pin);
            kept.push((label, block));
        }
        kept.retain(|(label, _)| label % 2 == 0);
        t.wait(&s).unwrap();
        rig.pass_time();
        Self { rig, pool, s, t, kept }
    }

    /// Reads all blocks on a stream, as far as the driver lets it.
    fn read(&self, stream: &Stream) -> usize {
        let mut done = 0;
        for (label, block) in &self.kept {
            let pin = match block.pin(stream) {
                // About the copy's stream the driver has given no answer.
                Err(Error::CannotWait { .. }) if self.pool.stats().poisoned_streams > 0 => None,
                pin => self.rig.noted(pin),
            };
            if let Some(pin) = pin {
                let touch = Touch::read(pin.address(), BYTES).label(*label);
                done += usize::from(self.rig.sim.launch(stream.handle().into(), &[touch]).is_ok());
            }
        }
        done
    }

    /// Two gaps with pins between them, while whatever was injected goes on; then all is well again.
    fn run(self, what: &str) -> (u64, u64) {
        let before = self.rig.sim.total_calls();
        for stream in [&self.s, &self.t] {
            self.rig.noted(self.pool.step_gap(&self.s));
            self.read(stream);
            self.rig.pass_time();
        }
        let calls = self.rig.sim.total_calls() - before;
        self.rig.sim.clear_faults();
        self.pool.check_invariants_at(Level::Full);
        self.rig.assert_quiet(what);
        let poisoned = self.pool.stats().poisoned_streams > 0;
        let moved = self.pool.stats().devices[0].moves.blocks;
        let read = self.read(&self.s);
        assert!(read == 8 || poisoned, "{what}: {read} of 8 blocks are there");
        self.t.wait(&self.s).unwrap();
        let live = self.pool.stats().devices[0].live_bytes;
        assert_eq!(live, 8 * BYTES, "{what}");
        let Self { rig, pool, s, t, kept } = self;
        drop((kept, s, t));
        assert_eq!(pool.stats().devices[0].live_bytes, 0, "{what}");
        works_again(&rig, &pool, DEVICE, what);
        drop(pool);
        rig.assert_quiet(what);
        if !poisoned {
            let lost = rig.lost(DEVICE);
            assert!(lost.is_empty(), "{what}: {lost}");
        }
        (calls, moved)
    }
}

/// The n-th call fails, for every n, and every call from it on.
#[test]
fn calls_fail_while_blocks_move() {
    for setup in SETUPS {
        let (calls, moved) = Yard::new(setup).run("no fault");
        assert!(moved > 0 && calls > 20, "{moved} blocks in {calls} calls in {setup:?}");
        for n in 1..=calls {
            for code in [CODES[0], CODES[1], CODES[2], CODES[3]] {
                let yard = Yard::new(setup);
                yard.rig.sim.inject_any(n, code);
                yard.run(&format!("call {n}: {code}, {setup:?}"));
            }
            let yard = Yard::new(setup);
            yard.rig.sim.inject_all(n, ErrorCode::Unknown);
            yard.run(&format!("every call from {n} on, {setup:?}"));
        }
    }
}

/// The copy itself fails: the caller is told, nothing has moved, and the next gap moves it.
#[test]
fn a_copy_that_fails_moves_nothing() {
    for setup in SETUPS {
        if setup.completion == Completion::Scheduled {
            continue;
        }
        let yard = Yard::new(setup);
        let code = ErrorCode::Unknown;
        yard.rig.sim.inject(Fault { call: Call::Copy, nth: 1, code, sticky: true });
        let addresses = |yard: &Yard| -> Vec<u64> {
            let pins = yard.kept.iter().map(|(_, block)| block.pin(&yard.s).unwrap().address());
            pins.collect()
        };
        let before = addresses(&yard);
        yard.rig.pass_time();
        // What is asked first need not be over.
        let gaps = [0; 2].map(|_| {
            let gap = yard.pool.step_gap(&yard.s);
            yard.rig.pass_time();
            gap
        });
        let said = |gap: &Result<_, Error>| matches!(gap, Err(Error::Driver(error)) if error.code == code.number());
        assert!(gaps.iter().any(said), "a copy that failed says {gaps:?}");
        assert_eq!(addresses(&yard), before);
        yard.rig.sim.clear_faults();
        yard.t.wait(&yard.s).unwrap();
        yard.rig.pass_time();
        let (_, moved) = yard.run("after the copy failed");
        assert!(moved > 0);
    }
}

/// About a stream whose driver has failed to answer nobody can tell when its copies are over: nothing is
/// moved by them, and every stream still gets what it could before.
#[test]
fn a_stream_without_answers_moves_nothing() {
    for setup in SETUPS {
        if setup.completion == Completion::Scheduled {
            continue;
        }
        let yard = Yard::new(setup);
        let Yard { rig, pool, s, t, .. } = &yard;
        // Somebody asks about it, in vain.
        let lost = pool.stream(DEVICE).unwrap();
        drop(lost.alloc::<u8>(3 << 20).unwrap());
        let code = ErrorCode::Unknown;
        rig.sim.inject(Fault { call: Call::EventQuery, nth: 1, code, sticky: true });
        drop(t.alloc::<u8>(3 << 20).unwrap());
        rig.sim.clear_faults();
        assert_eq!(pool.stats().poisoned_streams, 1, "{setup:?}");
        rig.pass_time();
        for _ in 0..2 {
            let gap = pool.step_gap(&lost).unwrap();
            rig.pass_time();
            assert_eq!(gap.blocks, 0, "moved where no other stream can follow: {setup:?}");
        }
        assert_eq!((yard.read(s), yard.read(t)), (8, 8), "{setup:?}");
        // Other streams do move them, once two have been asked about.
        rig.pass_time();
        let gaps = [0; 3].map(|_| {
            let gap = pool.step_gap(s).unwrap();
            rig.pass_time();
            gap.blocks
        });
        assert!(gaps.iter().sum::<u64>() > 0, "{setup:?}");
        rig.assert_quiet("");
    }
}
