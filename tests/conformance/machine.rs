//! The machines that the suite runs on, and what a case needs of one.

use crate::support::Watched;
use millpond::driver::sim::SimDriver;
use millpond::driver::{Driver, StreamHandle};
use millpond::{Buffer, Builder, DeviceId, Error, Lifetime, OutOfMemory, Pool, Result, Stream};
use millpond_simgpu::{Completion, Sim, Touch};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// A machine with GPUs, fresh for one case.
pub trait Machine: Sync {
    /// Its driver.
    fn driver(&self) -> Arc<dyn Driver>;

    /// Gives a stream work that writes `label` all over a range.
    fn write(&self, stream: StreamHandle, address: u64, bytes: u64, label: u64);

    /// Gives a stream work that reads a range and expects `label` there.
    fn read(&self, stream: StreamHandle, address: u64, bytes: u64, label: u64);

    /// Lets all work submitted so far get done, without anybody observing that it is.
    fn pass_time(&self);

    /// Whether work stays undone until `pass_time` or a host wait.
    fn holds_work(&self) -> bool;

    /// Holds a stream up: the work that it was given is not done, whatever time passes, before
    /// `let_go`.
    fn hold(&self, stream: StreamHandle);

    /// Lets a stream go on that was held up.
    fn let_go(&self, stream: StreamHandle);

    /// What went wrong with the work so far; empty where nothing did.
    fn hazards(&self) -> Vec<String>;

    /// What was taken from the driver and not given back, if anything.
    fn leaks(&self) -> Option<String>;

    /// The mechanism of the pools on it.
    fn set_up(&self, builder: Builder) -> Builder {
        builder
    }

    /// Why there is not what a case needs; none where there is.
    fn lacks(&self, _: Need) -> Option<&'static str> {
        None
    }
}

/// What not every machine has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// Devices of the size that was asked for, all of it the case's.
    OwnDevice,
    /// Work that touches what it may not is told of, and that is all.
    Faults,
    /// Plain allocations one after the other in the device's addresses.
    Neighbours,
    /// Memory is taken when it is needed, as much as is, and goes back when it is not.
    OnDemand,
    /// Pages are moved rather than taken.
    Stitching,
    /// What is idle is the heap's, to cut and to merge.
    Open,
    /// Threads have bins, and streams caches.
    Caches,
    /// Blocks are extents of the heap's.
    Extents,
    /// No block moves where nothing says so.
    Still,
}

/// Carries why a case is skipped out of it.
struct Skipped(String);

/// Ends a case that cannot run here, as one that passed.
pub fn skip(why: &str) -> ! {
    std::panic::resume_unwind(Box::new(Skipped(why.into())))
}

/// Runs a case; says so where it is skipped.
pub fn run(case: impl FnOnce()) {
    let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(case));
    if let Err(panic) = outcome {
        match panic.downcast::<Skipped>() {
            Ok(skipped) => println!("skipped: {}", skipped.0),
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }
}

/// Simulated devices with the race oracle on.
pub struct Simulated {
    sim: Sim,
    completion: Completion,
    virtual_memory: bool,
    mechanism: fn(Builder) -> Builder,
    lacks: &'static [Need],
}

impl Simulated {
    pub fn new(completion: Completion, seed: u64, page: u64, devices: u16, bytes: u64) -> Self {
        let sim = Sim::builder()
            .devices(devices)
            .capacity(bytes)
            .granularity(page)
            .completion(completion)
            .seed(seed)
            .oracle(true)
            .build()
            .unwrap();
        Self { sim, completion, virtual_memory: true, mechanism: |builder| builder, lacks: &[] }
    }

    /// The same, with pools of another mechanism, which do not have what cases may need.
    pub fn with(self, mechanism: fn(Builder) -> Builder, lacks: &'static [Need]) -> Self {
        Self { mechanism, lacks, ..self }
    }

    /// The same without virtual memory management.
    pub fn plain(self) -> Self {
        Self { virtual_memory: false, ..self }
    }
}

impl Machine for Simulated {
    fn driver(&self) -> Arc<dyn Driver> {
        let sim = self.sim.clone();
        Arc::new(match self.virtual_memory {
            true => SimDriver::new(sim),
            false => SimDriver::without_virtual_memory(sim),
        })
    }

    fn write(&self, stream: StreamHandle, address: u64, bytes: u64, label: u64) {
        self.sim.launch(stream.into(), &[Touch::write(address, bytes).label(label)]).unwrap();
    }

    fn read(&self, stream: StreamHandle, address: u64, bytes: u64, label: u64) {
        self.sim.launch(stream.into(), &[Touch::read(address, bytes).label(label)]).unwrap();
    }

    fn pass_time(&self) {
        match self.completion {
            Completion::Lag(lag) => (0..lag).for_each(|_| self.sim.tick()),
            // Any call brings the scheduler on; this one tells nobody anything.
            Completion::Scheduled => {
                (0..2000).for_each(|_| drop(self.sim.memory_info(0)));
            }
        }
    }

    fn holds_work(&self) -> bool {
        matches!(self.completion, Completion::Lag(lag) if lag > 0)
    }

    fn hold(&self, stream: StreamHandle) {
        self.sim.hang(stream.into()).unwrap();
    }

    fn let_go(&self, stream: StreamHandle) {
        self.sim.unhang(stream.into()).unwrap();
    }

    fn set_up(&self, builder: Builder) -> Builder {
        (self.mechanism)(builder)
    }

    fn lacks(&self, need: Need) -> Option<&'static str> {
        self.lacks.contains(&need).then_some("not of this mechanism")
    }

    fn hazards(&self) -> Vec<String> {
        let mut found: Vec<String> = self.sim.hazards().iter().map(ToString::to_string).collect();
        found.extend((self.sim.device_faults() > 0).then(|| "work without memory".into()));
        found
    }

    fn leaks(&self) -> Option<String> {
        let leaks = self.sim.leaks();
        (!leaks.is_empty()).then(|| leaks.to_string())
    }
}

/// Why there was no memory, as there was none.
#[track_caller]
pub fn refusal<T: std::fmt::Debug>(outcome: Result<T>) -> OutOfMemory {
    match outcome {
        Err(Error::OutOfMemory(report)) => *report,
        other => panic!("out of memory was expected, not {other:?}"),
    }
}

/// Bytes reserved of the first device.
pub fn reserved(pool: &Pool) -> u64 {
    pool.stats().devices[0].reserved_bytes
}

/// A machine with what cases do on it.
pub struct Rig<M> {
    pub machine: M,
    pub driver: Arc<Watched>,
    pub page: u64,
    /// Whether pages can be moved.
    pub moves: bool,
    raw: Arc<dyn Driver>,
    bytes: u64,
    labels: AtomicU64,
}

/// A block that was written to.
#[derive(Debug)]
pub struct Block {
    pub buffer: Buffer,
    label: u64,
}

impl Block {
    pub fn address(&self) -> u64 {
        self.buffer.address()
    }
}

pub const D0: DeviceId = DeviceId(0);
pub const D1: DeviceId = DeviceId(1);
pub const MIB: u64 = 1 << 20;

impl<M: Machine> Rig<M> {
    /// A rig on a fresh machine of this many devices, each with so many bytes.
    pub fn new(make: impl Fn(u16, u64) -> M, devices: u16, bytes: u64) -> Self {
        let machine = make(devices, bytes);
        let raw = machine.driver();
        let info = raw.device(D0).unwrap();
        let (page, moves) = (info.granularity, info.virtual_memory);
        let driver = Watched::new(Arc::clone(&raw));
        Self { machine, driver, page, moves, raw, bytes, labels: AtomicU64::new(1) }
    }

    /// A builder of a pool on the watched driver, with the whole device as its capacity.
    pub fn builder(&self) -> Builder {
        let driver: Arc<dyn Driver> = Arc::<Watched>::clone(&self.driver);
        self.machine.set_up(Pool::builder_shared(driver).capacity(self.bytes))
    }

    /// The same without a capacity: the device's size is its limit.
    pub fn plain_builder(&self) -> Builder {
        self.needs(Need::OwnDevice);
        let driver: Arc<dyn Driver> = Arc::<Watched>::clone(&self.driver);
        self.machine.set_up(Pool::builder_shared(driver))
    }

    /// Skips the case where the machine lacks something.
    pub fn needs(&self, need: Need) {
        if let Some(why) = self.machine.lacks(need) {
            skip(why);
        }
    }

    pub fn pool(&self) -> Pool {
        self.builder().build().unwrap()
    }

    /// The driver itself, for what the pool does not do.
    pub fn raw(&self) -> &dyn Driver {
        &*self.raw
    }

    /// Allocates, and writes a label of its own to every byte.
    pub fn try_get(&self, stream: &Stream, bytes: u64) -> Result<Block> {
        self.try_get_as(stream, bytes, Lifetime::Transient)
    }

    /// The same for a block that is to live so long.
    pub fn try_get_as(&self, stream: &Stream, bytes: u64, lifetime: Lifetime) -> Result<Block> {
        let buffer = stream.alloc_as::<u8>(bytes as usize, lifetime)?;
        let label = self.labels.fetch_add(1, Ordering::Relaxed);
        self.machine.write(stream.handle(), buffer.address(), bytes, label);
        Ok(Block { buffer, label })
    }

    #[track_caller]
    pub fn get(&self, stream: &Stream, bytes: u64) -> Block {
        self.try_get(stream, bytes).unwrap()
    }

    /// Reads all of a block on a stream.
    pub fn read(&self, stream: &Stream, block: &Block) {
        let Block { buffer, label } = block;
        self.machine.read(stream.handle(), buffer.address(), buffer.bytes(), *label);
    }

    /// Reads a block for the last time on its own stream, and frees it.
    pub fn free(&self, stream: &Stream, block: Block) {
        self.read(stream, &block);
        drop(block);
    }

    /// Allocates, writes, reads and frees; returns where it was.
    pub fn touch(&self, stream: &Stream, bytes: u64) -> u64 {
        let block = self.get(stream, bytes);
        let address = block.address();
        self.free(stream, block);
        address
    }

    /// Orders one stream after another by an event that the pool knows nothing of.
    pub fn order(&self, before: &Stream, after: &Stream) {
        let event = self.raw.create_event(before.device()).unwrap();
        self.raw.record(before.device(), event, before.handle()).unwrap();
        self.raw.wait(after.device(), after.handle(), event).unwrap();
        self.raw.destroy_event(before.device(), event).unwrap();
    }

    /// Whether all that a stream has been given so far gets done, however long it takes.
    pub fn gets_done(&self, stream: &Stream) -> bool {
        let event = self.raw.create_event(stream.device()).unwrap();
        self.raw.record(stream.device(), event, stream.handle()).unwrap();
        self.machine.pass_time();
        // What does not hang is over long before, also on a busy host.
        let timeout = Duration::from_secs(10);
        let done = self.raw.synchronize(stream.device(), event, timeout).unwrap();
        self.raw.destroy_event(stream.device(), event).unwrap();
        done
    }

    /// Calls so far that change what is mapped where, or take memory.
    pub fn mapping_calls(&self) -> u64 {
        ["create_page", "map", "set_access", "unmap", "release_page"]
            .iter()
            .map(|name| self.driver.calls(name))
            .sum()
    }

    /// Lets the work of some streams get done where the pool can learn that it is: from events
    /// that it recorded before, since it was told to order another stream after them.
    pub fn settle(&self, streams: &[&Stream], other: &Stream) {
        streams.iter().for_each(|stream| other.wait(stream).unwrap());
        streams.iter().for_each(|stream| assert!(self.gets_done(stream)));
    }

    /// Reads a block on another stream than its own.
    pub fn use_on(&self, user: &Stream, home: &Stream, block: &Block) {
        self.order(home, user);
        self.read(user, block);
    }

    /// Trims when all work is done. The pool learns that it is by events that it records when it is
    /// first asked, so they take their time too.
    pub fn trim_idle(&self, pool: &Pool, device: DeviceId, target: u64) -> u64 {
        pool.trim(device, target).unwrap();
        self.machine.pass_time();
        pool.trim(device, target).unwrap()
    }

    /// Panics with the first hazards, if there are any.
    #[track_caller]
    pub fn assert_quiet(&self) {
        let hazards = self.machine.hazards();
        let first: Vec<_> = hazards.iter().take(5).collect();
        assert!(hazards.is_empty(), "{} hazards: {first:#?}", hazards.len());
    }

    #[track_caller]
    pub fn assert_nothing_leaked(&self) {
        assert_eq!(self.machine.leaks(), None);
    }

    /// The end of a case: the heap is in order, its end gives everything back, nothing raced.
    #[track_caller]
    pub fn done(self, pool: Pool) {
        pool.check_invariants_at(millpond::Level::Full);
        drop(pool);
        self.assert_quiet();
        self.assert_nothing_leaked();
    }
}
