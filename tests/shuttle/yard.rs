//! A pool over simulated devices, and threads that allocate, use and free at random.

use crate::support::Ledger;
use millpond::driver::sim::SimDriver;
use millpond::{Buffer, Builder, DeviceId, Error, Lifetime, Pool, Reuse, Stats, Stream};
use millpond_simgpu::{Completion, Sim, Touch};
use shuttle::rand::{Rng, thread_rng};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// So that blocks of whole pages are large ones.
pub const PAGE: u64 = 1 << 20;

/// What threads share; the standard library's locks in it are held for no step of theirs.
pub struct Yard {
    pub sim: Sim,
    ledger: Mutex<Ledger>,
    /// Blocks on their way to another thread.
    passed: Mutex<Vec<Held>>,
    pages: u64,
}

/// A block with the pattern that was written to it.
pub struct Held {
    pub buffer: Buffer,
    pub home: Stream,
    label: u64,
    /// Streams that use it until its free.
    users: Vec<Stream>,
}

/// A number below `end`, replayed with the order of steps.
pub fn below(end: u64) -> u64 {
    thread_rng().gen_range(0..end)
}

impl Yard {
    /// Two devices of so many pages, and a pool over them.
    pub fn new(pages: u64, reuse: Reuse, completion: Completion) -> (Arc<Self>, Pool) {
        Self::with(pages, completion, |builder| builder.reuse(reuse))
    }

    /// The same with a pool that `set` sets up.
    pub fn with(
        pages: u64,
        completion: Completion,
        set: impl FnOnce(Builder) -> Builder,
    ) -> (Arc<Self>, Pool) {
        let sim = Sim::builder()
            .devices(2)
            .capacity(pages * PAGE)
            .granularity(PAGE)
            .completion(completion)
            .seed(below(u64::MAX))
            .oracle(true)
            .build()
            .expect("a simulator");
        let driver = SimDriver::new(sim.clone());
        // Simulated waits take no time: no deadline comes between two runs of one order.
        let patience = Duration::from_secs(3600);
        let pool = set(Pool::builder(driver).host_wait(patience)).build();
        let yard = Self { sim, ledger: Mutex::default(), passed: Mutex::default(), pages };
        (Arc::new(yard), pool.expect("a pool"))
    }

    fn with_ledger(&self, body: impl FnOnce(&mut Ledger)) {
        body(&mut self.ledger.lock().unwrap_or_else(PoisonError::into_inner));
    }

    fn passed<R>(&self, body: impl FnOnce(&mut Vec<Held>) -> R) -> R {
        body(&mut self.passed.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Enters a block that was just allocated, and writes to it.
    pub fn enter(&self, buffer: Buffer, home: &Stream) -> Held {
        let label = below(u64::MAX);
        // Asked for outside of the ledger's lock: each look is a step.
        let (address, granted, bytes) = (buffer.address(), buffer.granted_bytes(), buffer.bytes());
        self.with_ledger(|ledger| ledger.enter(address, granted));
        let touch = Touch::write(address, bytes).label(label);
        self.sim.launch(home.handle().into(), &[touch]).expect("work on a live block");
        Held { buffer, home: home.clone(), label, users: Vec::new() }
    }

    /// Allocates; nothing where there is no memory, or the arena is busy.
    pub fn allocate(&self, home: &Stream, bytes: u64, wait: bool) -> Option<Held> {
        let len = bytes as usize;
        let outcome = match wait {
            true if below(4) == 0 => home.alloc_as::<u8>(len, Lifetime::Persistent),
            true => home.alloc::<u8>(len),
            false => home.try_alloc::<u8>(len),
        };
        match outcome {
            Ok(buffer) => Some(self.enter(buffer, home)),
            Err(Error::OutOfMemory(_)) => None,
            Err(Error::Busy { .. }) if !wait => None,
            Err(error) => panic!("{error}"),
        }
    }

    /// As `allocate`, for a block that is not to last.
    pub fn allocate_transient(&self, home: &Stream, bytes: u64) -> Option<Held> {
        match home.alloc::<u8>(bytes as usize) {
            Ok(buffer) => Some(self.enter(buffer, home)),
            Err(Error::OutOfMemory(_)) => None,
            Err(error) => panic!("{error}"),
        }
    }

    fn read(&self, held: &Held, on: &Stream) {
        let touch = Touch::read(held.buffer.address(), held.buffer.bytes()).label(held.label);
        self.sim.launch(on.handle().into(), &[touch]).expect("work on a live block");
    }

    /// Uses a block on another stream of its device, in order: until its free, or until now.
    pub fn use_on(&self, held: &mut Held, user: &Stream, last: bool) {
        if user.device() != held.home.device() || user.id() == held.home.id() {
            return;
        }
        user.wait(&held.home).expect("an order");
        self.read(held, user);
        let declare = if last { held.buffer.last_use(user) } else { held.buffer.record_use(user) };
        declare.expect("a stream of this pool");
        held.users.retain(|known| known.id() != user.id());
        if !last {
            held.users.push(user.clone());
        }
    }

    /// Reads a block for the last time on all streams that may use it, and frees it.
    pub fn free(&self, held: Held) {
        for stream in [&held.home].into_iter().chain(&held.users) {
            self.read(&held, stream);
        }
        let address = held.buffer.address();
        self.with_ledger(|ledger| ledger.leave(address));
        // The streams first: they may be the pool's last handles, and the block a late one.
        let Held { buffer, home, users, .. } = held;
        drop((home, users));
        drop(buffer);
    }

    /// Leaves a block for another thread to free.
    pub fn pass(&self, held: Held) {
        self.passed(|passed| passed.push(held));
    }

    /// Frees what others have left.
    pub fn free_passed(&self) {
        while let Some(held) = self.passed(Vec::pop) {
            self.free(held);
        }
    }

    /// A number of steps of a thread that has `home` and may use `others`: `small` bytes at most, or
    /// whole pages.
    pub fn work(&self, home: &Stream, others: &[Stream], steps: u64, small: u64) {
        let mut held: Vec<Held> = Vec::new();
        for _ in 0..steps {
            match below(10) {
                0..=3 => {
                    let large = small == 0 || below(2) == 0;
                    let most = (self.pages / 3).max(2);
                    let bytes = if large { PAGE * (1 + below(most)) } else { 1 + below(small) };
                    held.extend(self.allocate(home, bytes, below(4) > 0));
                }
                4..=6 if !held.is_empty() => {
                    let one = held.swap_remove(below(held.len() as u64) as usize);
                    if below(3) == 0 { self.pass(one) } else { self.free(one) }
                }
                7 if !others.is_empty() && !held.is_empty() => {
                    let place = below(held.len() as u64) as usize;
                    let user = &others[below(others.len() as u64) as usize];
                    self.use_on(&mut held[place], user, below(2) == 0);
                }
                8 => self.free_passed(),
                _ => self.sim.tick(),
            }
        }
        held.into_iter().for_each(|one| self.free(one));
    }

    /// With all threads gone: nothing raced, all memory can be had again by whoever asks, and all
    /// of it goes back. Answers the figures of the time before.
    pub fn done(self: Arc<Self>, pool: Pool) -> Stats {
        self.free_passed();
        pool.check_invariants_at(millpond::Level::Full);
        let stats = pool.stats();
        for device in [0, 1].map(DeviceId) {
            let stream = pool.stream(device).expect("a stream");
            let all = stream.alloc::<u8>((self.pages * PAGE) as usize);
            assert!(all.is_ok(), "memory is stranded: {}", all.unwrap_err());
        }
        pool.check_invariants_at(millpond::Level::Full);
        drop(pool);
        self.quiet();
        stats
    }

    /// Nothing raced, and nothing is left of the pool.
    pub fn quiet(&self) {
        let hazards = self.sim.hazards();
        assert!(hazards.is_empty(), "{} hazards, first {}", hazards.len(), hazards[0]);
        assert_eq!(self.sim.content_mismatches() + self.sim.device_faults(), 0);
        assert!(self.sim.leaks().is_empty(), "{}", self.sim.leaks());
    }
}
