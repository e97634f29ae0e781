//! A machine, a pool over it, and one run of the workload with some trouble.

use crate::ground::{Ground, Over};
use crate::support::{Watched, slow};
use crate::workload::{get, workload};
use millpond::driver::{Driver, StreamHandle};
use millpond::{DeviceId, Error, Headroom, Level, Pool, Reuse, Stream};
use millpond_simgpu::{Completion, ErrorCode, Leaks, Sim};
use std::ops::Sub;
use std::sync::{Arc, Mutex};

pub const MIB: u64 = 1 << 20;
pub const CAPACITY: u64 = 32 * MIB;
pub const DEVICES: [DeviceId; 2] = [DeviceId(0), DeviceId(1)];

/// What a run is like but for its trouble.
#[derive(Clone, Copy, Debug)]
pub struct Setup {
    pub completion: Completion,
    pub reuse: Reuse,
    pub stuck: Option<Stuck>,
    /// Whether the pool gives back, moves and shares memory whenever it can.
    pub restless: bool,
    /// Whether memory cannot be mapped.
    pub plain: bool,
    pub over: Over,
}

/// A stream of the workload's that hangs.
#[derive(Clone, Copy, Debug)]
pub struct Stuck {
    /// Which, in the order of their creation.
    pub stream: usize,
    /// After which of the pool's calls; with 0 from its creation.
    pub at: u64,
    /// Whether it goes on when the workload is over.
    pub goes_on: bool,
}

impl Setup {
    pub const fn lag(lag: u64, reuse: Reuse) -> Self {
        let completion = Completion::Lag(lag);
        Self { completion, reuse, stuck: None, restless: false, plain: false, over: Over::Sim }
    }

    pub const fn scheduled(reuse: Reuse) -> Self {
        Self { completion: Completion::Scheduled, ..Self::lag(0, reuse) }
    }

    pub const fn restless(self) -> Self {
        Self { restless: true, ..self }
    }

    pub const fn plain(self) -> Self {
        Self { plain: true, ..self }
    }

    pub const fn stuck(self, stuck: Stuck) -> Self {
        Self { stuck: Some(stuck), ..self }
    }

    #[cfg(all(feature = "cuda", unix))]
    pub const fn cuda(self, current: bool) -> Self {
        Self { over: Over::Cuda { current }, ..self }
    }

    /// The calls of a run in which nothing fails, up to the end of the workload.
    pub fn calls(self) -> Calls {
        let rig = Rig::new(self);
        let pool = rig.pool().unwrap();
        workload(&rig, &pool);
        assert!(rig.driver.failed().is_empty(), "{:?}", rig.driver.failed());
        rig.assert_quiet("");
        rig.calls()
    }
}

/// How many calls a run made.
pub struct Calls {
    /// Those that may fail, by kind: the pool's, and what the program calls where that fails too.
    pub kinds: Vec<(&'static str, u64)>,
    /// The pool's, of its driver.
    pub pools: u64,
}

impl Sub for Calls {
    type Output = Self;

    /// Calls made since `before`.
    fn sub(mut self, before: Self) -> Self {
        self.kinds.iter_mut().zip(before.kinds).for_each(|(now, then)| now.1 -= then.1);
        self.pools -= before.pools;
        self
    }
}

impl Calls {
    /// Calls of any kind.
    pub fn total(&self) -> u64 {
        self.kinds.iter().map(|(_, calls)| calls).sum()
    }

    /// Calls of one kind.
    pub fn of(&self, kind: &str) -> u64 {
        self.kinds.iter().find(|(name, _)| *name == kind).map_or(0, |(_, calls)| *calls)
    }
}

/// The streams of the workload, and the one that is to hang.
#[derive(Default)]
struct Streams {
    handles: Vec<StreamHandle>,
    to_hang: Option<usize>,
}

pub struct Rig {
    pub sim: Sim,
    pub driver: Arc<Watched>,
    pub setup: Setup,
    streams: Arc<Mutex<Streams>>,
    // Goes after what stands on it.
    pub ground: Box<dyn Ground>,
}

impl Rig {
    pub fn new(setup: Setup) -> Self {
        let ground = setup.over.ground(setup);
        let sim = ground.sim();
        let driver = Watched::new(ground.driver());
        let streams = Arc::<Mutex<Streams>>::default();
        if let Some(Stuck { stream, at, .. }) = setup.stuck {
            let (sim, theirs) = (sim.clone(), Arc::clone(&streams));
            let hang = move || {
                let mut streams = theirs.lock().unwrap();
                match streams.handles.get(stream) {
                    // It may have ended before.
                    Some(&handle) => drop(sim.hang(handle.into())),
                    None => streams.to_hang = Some(stream),
                }
            };
            if at == 0 { hang() } else { driver.at(at, hang) }
        }
        Self { sim, driver, setup, streams, ground }
    }

    pub fn pool(&self) -> Result<Pool, Error> {
        let driver: Arc<dyn Driver> = Arc::<Watched>::clone(&self.driver);
        let mut builder = Pool::builder_shared(driver).reuse(self.setup.reuse);
        if self.setup.restless {
            let restless = builder.headroom(Headroom::Share(0.0)).watermarks(4 * MIB, 8 * MIB);
            builder = restless.peer_access(true);
        }
        builder.host_wait(self.setup.over.host_wait(self.setup.completion)).build()
    }

    /// The calls so far.
    pub fn calls(&self) -> Calls {
        Calls { kinds: self.ground.calls(), pools: self.driver.total() }
    }

    /// What was not given back.
    pub fn leaks(&self) -> Leaks {
        DEVICES.iter().map(|device| self.ground.leaks_of(device.0)).sum()
    }

    /// A stream of the workload's; it hangs if it is to.
    pub fn stream(&self, pool: &Pool, device: DeviceId) -> Option<Stream> {
        let stream = self.noted(pool.stream(device))?;
        let mut streams = self.streams.lock().unwrap();
        if streams.to_hang == Some(streams.handles.len()) {
            self.sim.hang(self.ground.stream(stream.handle())).unwrap();
        }
        streams.handles.push(stream.handle());
        Some(stream)
    }

    /// What a call answered, if it did; an error has to be one that a broken driver explains.
    #[track_caller]
    pub fn noted<T>(&self, answer: Result<T, Error>) -> Option<T> {
        match answer {
            Ok(answer) => Some(answer),
            Err(error) => {
                self.assert_typed(&error);
                None
            }
        }
    }

    #[track_caller]
    pub fn assert_typed(&self, error: &Error) {
        let typed = matches!(error, Error::Driver(_) | Error::OutOfMemory(_));
        assert!(typed, "{error:?}");
        assert!(!error.to_string().is_empty());
    }

    #[track_caller]
    pub fn assert_quiet(&self, what: &str) {
        let hazards = self.sim.hazards();
        assert!(hazards.is_empty(), "{what}: {} hazards, first {}", hazards.len(), hazards[0]);
        assert_eq!(self.sim.device_faults(), 0, "{what}");
        assert_eq!(self.ground.misuse(), Vec::<String>::new(), "{what}");
    }

    /// Lets time pass, whichever way it does.
    pub fn pass_time(&self) {
        (0..60).for_each(|_| self.sim.tick());
        if self.setup.completion == Completion::Scheduled {
            DEVICES.into_iter().for_each(|device| drop(self.sim.device_synchronize(device.0)));
        }
    }

    /// What a device has lost, beyond what the failed calls themselves were to give back, and memory
    /// of streams about which the driver gave no answer.
    pub fn lost(&self, device: DeviceId) -> Leaks {
        let failed = self.driver.failed();
        let of = |name| failed.iter().filter(|&&call| call == (name, device)).count();
        let mut leaks = self.ground.leaks_of(device.0);
        leaks.streams = leaks.streams.saturating_sub(of("destroy_stream"));
        leaks.events = leaks.events.saturating_sub(of("destroy_event"));
        leaks.reservations = leaks.reservations.saturating_sub(of("unreserve"));
        let asked = |&&(name, of): &&(&str, DeviceId)| {
            // What a graph touches any stream may touch, of whatever device, and there is a graph.
            (of == device || self.setup.over != Over::Sim)
                && ["query", "synchronize"].contains(&name)
        };
        if failed.iter().any(|call| asked(&call)) {
            leaks = without_memory(leaks);
        }
        leaks
    }

    #[track_caller]
    fn assert_nothing_lost(&self, what: &str) {
        for device in DEVICES {
            let leaks = self.lost(device);
            let failed = self.driver.failed();
            assert!(leaks.is_empty(), "{what}: {device}: {leaks}; failed: {failed:?}");
        }
    }
}

/// What is missing but for memory.
pub fn without_memory(leaks: Leaks) -> Leaks {
    Leaks { pages: 0, mappings: 0, reservations: 0, allocations: 0, bytes: 0, ..leaks }
}

/// With the trouble over the pool serves again on a device, and across its streams. Where the driver
/// gave no answer about streams, their memory, which may be all there is, stays away from others.
pub fn works_again(rig: &Rig, pool: &Pool, device: DeviceId, what: &str) {
    let poisoned = pool.stats().poisoned_streams > 0;
    let [s, t] = [0; 2].map(|_| pool.stream(device).unwrap());
    for bytes in [900, 70_000, 3 * MIB, CAPACITY] {
        for stream in [&s, &t] {
            let buffer = get(rig, stream, bytes);
            let short = poisoned && matches!(buffer, Err(Error::OutOfMemory(_)));
            assert!(short || buffer.is_ok(), "{what}: {bytes} bytes on {device}: {buffer:?}");
        }
    }
    t.wait(&s).unwrap();
    rig.pass_time();
    pool.trim(device, 0).unwrap();
    pool.check_invariants_at(Level::Full);
}

/// While a stream hangs the others get what there is, or are told that there is none.
fn answers(rig: &Rig, pool: &Pool, what: &str) {
    for device in DEVICES {
        let [s, t] = [0; 2].map(|_| pool.stream(device).unwrap());
        for bytes in [900, 3 * MIB, CAPACITY] {
            for stream in [&s, &t] {
                if let Err(error) = get(rig, stream, bytes) {
                    assert!(matches!(error, Error::OutOfMemory(_)), "{what}: {error}");
                }
            }
        }
        t.wait(&s).unwrap();
        pool.trim(device, 0).unwrap();
    }
    pool.check_invariants_at(Level::Full);
}

/// One run with the trouble that `inject` makes.
pub fn run(setup: Setup, what: &str, inject: impl Fn(&Rig)) {
    let what = &format!("{what}, {setup:?}");
    let rig = Rig::new(setup);
    inject(&rig);
    let pool = match rig.pool() {
        Ok(pool) => {
            workload(&rig, &pool);
            pool.check_invariants_at(Level::Full);
            pool
        }
        Err(error) => {
            assert!(matches!(error, Error::Driver(_)), "{what}: {error}");
            rig.ground.clear_faults();
            rig.assert_nothing_lost(what);
            rig.pool().unwrap()
        }
    };
    rig.ground.clear_faults();
    rig.driver.disarm();
    rig.assert_quiet(what);
    let stays = setup.stuck.is_some_and(|stuck| !stuck.goes_on);
    if stays {
        answers(&rig, &pool, what);
    } else {
        rig.sim.unhang_all();
        DEVICES.into_iter().for_each(|device| works_again(&rig, &pool, device, what));
    }
    drop(pool);
    rig.assert_quiet(what);
    if !stays {
        rig.assert_nothing_lost(what);
    }
    for device in DEVICES {
        // Whatever hangs: streams and events go back.
        let leaks = without_memory(rig.lost(device));
        assert!(leaks.is_empty(), "{what}: {device}: {leaks}; failed: {:?}", rig.driver.failed());
    }
}

/// Every code that a call of a driver may be thought to answer.
pub const CODES: [ErrorCode; 9] = [
    ErrorCode::OutOfMemory,
    ErrorCode::Unknown,
    ErrorCode::NotReady,
    ErrorCode::LaunchFailed,
    ErrorCode::IllegalAddress,
    ErrorCode::InvalidHandle,
    ErrorCode::InvalidValue,
    ErrorCode::Deinitialized,
    ErrorCode::ContextDestroyed,
];

/// What is to fail: each combination of a call's number and a code. By way of CUDA calls are many, and
/// slow where completion is late: there every so-manieth combination is tried, so that the codes take
/// turns, of which the `first` is not always the same.
pub fn cases(
    setup: Setup,
    calls: u64,
    stride: usize,
    first: usize,
) -> impl Iterator<Item = (u64, ErrorCode)> {
    let stride = match (setup.over, setup.completion) {
        (Over::Sim, _) => 1,
        _ if slow() => 1,
        (_, Completion::Scheduled) => 20 * stride,
        _ => stride,
    };
    assert!(stride == 1 || stride % 3 != 0, "some codes would never be tried");
    let first = if stride == 1 { 0 } else { first % CODES.len() };
    (1..=calls).flat_map(|n| CODES.map(|code| (n, code))).skip(first).step_by(stride)
}

/// The same for calls that go on failing. By way of CUDA, where completion is late, "not ready" is left
/// out: each host wait would take its time.
pub fn lasting_cases(
    setup: Setup,
    calls: u64,
    stride: usize,
    first: usize,
) -> impl Iterator<Item = (u64, ErrorCode)> {
    let late = setup.over != Over::Sim && setup.completion == Completion::Scheduled;
    let skip = move |code| late && code == ErrorCode::NotReady;
    cases(setup, calls, stride, first).filter(move |(_, code)| !skip(*code))
}
