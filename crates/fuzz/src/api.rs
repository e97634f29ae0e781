//! A program of calls to the pool, against a model of what is live.
//!
//! ```text
//! after every operation   no two live blocks overlap; stats say what the model says, and what the
//!                         devices say; invariants hold; no hazard; errors only where they are due
//! at the end              nothing is left with the devices
//! ```
//!
//! Contents are labels that the race oracle follows: a block is written when it is allocated, and
//! read by all who used it before it is freed.
//!
//! Excused is what a failed driver call leaves no way to do: a stream whose destruction failed stays,
//! and so does memory of streams that the driver gave no answer about.

use crate::machine::{Machine, foreign};
use crate::program::{Op, Program, Verb};
use millpond::{Buffer, DeviceId, Error, Pin, Stream, size};
use millpond_simgpu::{Call, ErrorCode, Event, Fault, Touch};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering::Relaxed;

const KINDS: [Call; 16] = [
    Call::Create,
    Call::Map,
    Call::SetAccess,
    Call::Unmap,
    Call::Release,
    Call::Reserve,
    Call::Unreserve,
    Call::EventCreate,
    Call::EventDestroy,
    Call::EventRecord,
    Call::EventQuery,
    Call::StreamWait,
    Call::StreamCreate,
    Call::StreamDestroy,
    Call::Sync,
    Call::Launch,
];
const CODES: [ErrorCode; 3] = [ErrorCode::OutOfMemory, ErrorCode::LaunchFailed, ErrorCode::Unknown];

/// What a program can reach, by name: the corpus has all of it.
pub const OUTCOMES: [&str; 31] = [
    "served: thread",
    "served: stream",
    "served: shard",
    "served: heap",
    "ladder: fitted",
    "ladder: completed",
    "ladder: created",
    "ladder: moved",
    "ladder: waited",
    "ladder: gathered",
    "ladder: host wait",
    "across streams",
    "waits inserted",
    "trimmed",
    "pinned",
    "rescue called",
    "poisoned",
    "used on another stream",
    "freed on a thread of its own",
    "freed on a thread that lives on",
    "freed after its pool",
    "freed by address as a buffer",
    "a stream hangs",
    "error: zero",
    "error: too large",
    "error: out of memory",
    "error: driver",
    "error: unknown address",
    "error: not allocated",
    "error: foreign stream",
    "error: no such device",
];

/// Runs a program; panics with what is wrong. Returns what it reached of [`OUTCOMES`].
pub fn run(program: &Program) -> BTreeSet<&'static str> {
    let mut run = Run::new(program);
    for op in &program.ops {
        run.step(op);
        run.check(op);
    }
    run.end()
}

/// A block: held as a buffer, or by its address alone.
struct Live {
    buffer: Option<Buffer>,
    address: u64,
    bytes: u64,
    /// What it was filled with, if that could be submitted.
    label: Option<u64>,
    home: Stream,
    /// Streams that use it until the free.
    users: Vec<Stream>,
}

struct Run {
    machine: Machine,
    streams: Vec<Stream>,
    live: Vec<Live>,
    /// Starts and ends of what is live.
    ranges: BTreeMap<u64, u64>,
    freed: Vec<u64>,
    pins: Vec<Pin>,
    labels: u64,
    served: u64,
    /// Events that a driver did not destroy.
    events: Vec<Event>,
    /// Driver calls have been made to fail; they are now; a stream hangs now.
    faulted: bool,
    failing: bool,
    hangs: bool,
    reached: RefCell<BTreeSet<&'static str>>,
}

impl Run {
    fn new(program: &Program) -> Self {
        let machine = Machine::new(&program.settings);
        let streams = [0, 0, 1].map(|device| machine.pool.stream(DeviceId(device)).unwrap());
        Self {
            machine,
            streams: streams.into(),
            live: Vec::new(),
            ranges: BTreeMap::new(),
            freed: Vec::new(),
            pins: Vec::new(),
            labels: 0,
            served: 0,
            events: Vec::new(),
            faulted: false,
            failing: false,
            hangs: false,
            reached: RefCell::default(),
        }
    }

    fn reach(&self, outcome: &'static str) {
        debug_assert!(OUTCOMES.contains(&outcome), "{outcome}");
        self.reached.borrow_mut().insert(outcome);
    }

    fn stream(&self, nth: u64) -> Option<Stream> {
        self.streams.get((nth % self.streams.len().max(1) as u64) as usize).cloned()
    }

    fn block(&self, nth: u64) -> Option<usize> {
        nth.checked_rem(self.live.len() as u64).map(|nth| nth as usize)
    }

    fn step(&mut self, &Op { verb, args: [a, b, c] }: &Op) {
        match verb {
            Verb::Open if self.streams.len() < 5 => {
                match self.machine.pool.stream(DeviceId((a % 2) as u16)) {
                    Ok(stream) => self.streams.push(stream),
                    Err(error) => self.excuse(&error),
                }
            }
            Verb::Open => {}
            Verb::Close => {
                if !self.streams.is_empty() {
                    // Blocks that use it keep it until they are freed.
                    let at = a % self.streams.len() as u64;
                    self.streams.swap_remove(at as usize);
                }
            }
            Verb::Alloc => self.alloc(a, b, c),
            Verb::Free => {
                if let Some(at) = self.block(a) {
                    self.free(at, b % 4);
                }
            }
            Verb::Use | Verb::Last => {
                if let (Some(at), Some(user)) = (self.block(a), self.stream(b)) {
                    self.use_on(at, &user, verb == Verb::Last);
                }
            }
            Verb::Wait => {
                if let (Some(stream), Some(other)) = (self.stream(a), self.stream(b)) {
                    stream.wait(&other).unwrap_or_else(|error| self.excuse(&error));
                }
            }
            Verb::Pin => {
                if let Some(at) = self.block(a).filter(|_| self.pins.len() < 4) {
                    let pin = self.machine.pool.pin(self.live[at].address).unwrap();
                    assert_eq!(pin.address(), self.live[at].address);
                    assert!(pin.bytes() >= self.live[at].bytes);
                    self.reach("pinned");
                    self.pins.push(pin);
                }
            }
            Verb::Unpin => {
                if !self.pins.is_empty() {
                    let at = a % self.pins.len() as u64;
                    self.pins.swap_remove(at as usize);
                }
            }
            Verb::Trim => self.trim(a, b),
            Verb::Tick => (0..a % 100).for_each(|_| self.machine.sim.tick()),
            Verb::Bad => self.bad(a, b, c),
            Verb::Fault => {
                let call = KINDS[(a % KINDS.len() as u64) as usize];
                let code = CODES[(c / 2 % 3) as usize];
                self.machine.sim.inject(Fault { call, nth: b % 24, code, sticky: c % 2 == 1 });
                (self.faulted, self.failing) = (true, true);
            }
            Verb::Hang => {
                if let Some(stream) = self.stream(a) {
                    self.machine.sim.hang(stream.handle().into()).unwrap();
                    self.reach("a stream hangs");
                    self.hangs = true;
                }
            }
            Verb::Heal => self.heal(),
        }
    }

    fn heal(&mut self) {
        self.machine.sim.clear_faults();
        self.machine.sim.unhang_all();
        (self.failing, self.hangs) = (false, false);
    }

    /// An error of a call that is right in itself.
    fn excuse(&self, error: &Error) {
        let driver = matches!(error, Error::Driver(_));
        // A host wait that nothing will end is a failure of the driver's too, while a stream hangs.
        assert!(driver && (self.failing || self.hangs), "not due: {error}");
        self.reach("error: driver");
    }

    fn alloc(&mut self, stream: u64, bytes: u64, how: u64) {
        let Some(home) = self.stream(stream) else { return };
        let (pool, to, thread) = (self.machine.pool.clone(), home.clone(), how / 4 % 4);
        let taken = self.machine.on(thread, move || match how % 4 {
            0 => to.alloc::<u8>(bytes as usize).map(|buffer| (buffer.address(), Some(buffer))),
            1 => to.try_alloc::<u8>(bytes as usize).map(|buffer| (buffer.address(), Some(buffer))),
            2 if bytes.is_multiple_of(8) => {
                let buffer = to.alloc::<u64>(bytes as usize / 8)?.cast().unwrap();
                Ok((buffer.address(), Some(buffer)))
            }
            _ => pool.allocate(bytes, &to).map(|address| (address, None)),
        });
        let (address, buffer) = match taken {
            Ok(taken) => taken,
            Err(error) => return self.refused(&error, &home, bytes),
        };
        assert!(bytes > 0 && bytes <= size::REQUEST_MAX, "{bytes} bytes were granted");
        if let Some(buffer) = &buffer {
            assert_eq!((buffer.bytes(), buffer.stream()), (bytes, home.id()));
            assert!(buffer.granted_bytes() >= bytes);
            assert_eq!(buffer.device(), home.device());
        }
        assert!(address.is_multiple_of(size::QUANTUM));
        let end = address + size::granted(bytes);
        if let Some((other, until)) = self.ranges.range(..end).next_back() {
            assert!(*until <= address, "{address:#x} to {end:#x} overlaps the block at {other:#x}");
        }
        self.ranges.insert(address, end);
        self.freed.retain(|freed| *freed != address);
        self.served += 1;
        self.labels += 1;
        let touch = Touch::write(address, bytes).label(self.labels);
        let filled = self.machine.sim.launch(home.handle().into(), &[touch]);
        assert!(filled.is_ok() || self.failing, "{filled:?}");
        let label = filled.is_ok().then_some(self.labels);
        self.live.push(Live { buffer, address, bytes, label, home, users: Vec::new() });
    }

    fn refused(&self, error: &Error, home: &Stream, bytes: u64) {
        let device = home.device();
        match error {
            Error::ZeroSize => {
                self.reach("error: zero");
                assert_eq!(bytes, 0);
            }
            Error::TooLarge { bytes: asked, max } => {
                self.reach("error: too large");
                assert!(bytes > *max && bytes == *asked);
            }
            Error::OutOfMemory(report) => {
                self.reach("error: out of memory");
                let live = self.live_bytes(device);
                assert_eq!((report.device, report.stream), (device, home.id()));
                assert_eq!((report.requested, report.live), (bytes, live));
                assert!(report.live <= report.reserved && report.reserved <= report.limit);
                assert!(report.largest_free <= report.free && report.cached <= report.free);
                let held: u64 = report.held.iter().map(|held| held.bytes).sum();
                assert_eq!(held, live, "{report}");
                let free = live == 0 && self.pins.is_empty() && !self.hangs && !self.faulted;
                let served = free && self.machine.patient;
                assert!(
                    !(served && size::granted(bytes) <= self.machine.usable),
                    "all is free: {report}"
                );
            }
            Error::Driver(_) => self.excuse(error),
            _ => panic!("not due: {error}"),
        }
    }

    fn read(&self, stream: &Stream, live: &Live) {
        // What could not be written is not read: that would be the program's own mistake.
        let Some(label) = live.label else { return };
        let touch = Touch::read(live.address, live.bytes).label(label);
        let read = self.machine.sim.launch(stream.handle().into(), &[touch]);
        assert!(read.is_ok() || self.failing, "{read:?}");
    }

    fn free(&mut self, at: usize, thread: u64) {
        let live = self.take(at);
        match thread {
            1 => self.reach("freed on a thread of its own"),
            2 => self.reach("freed on a thread that lives on"),
            _ => {}
        }
        let pool = self.machine.pool.clone();
        let freed = self.machine.on(thread, move || match live.buffer {
            Some(buffer) => {
                drop(buffer);
                Ok(())
            }
            None => pool.free(live.address),
        });
        freed.unwrap();
    }

    /// Takes a block out of the model, read by all who used it.
    fn take(&mut self, at: usize) -> Live {
        let live = self.live.swap_remove(at);
        std::iter::once(&live.home).chain(&live.users).for_each(|user| self.read(user, &live));
        assert!(self.ranges.remove(&live.address).is_some());
        self.freed.push(live.address);
        live
    }

    /// Orders by an event that the pool does not see; false where that fails.
    fn order(&mut self, before: &Stream, after: &Stream) -> bool {
        let sim = &self.machine.sim;
        let Ok(event) = sim.event_create(before.device().0) else { return false };
        let ordered = sim.event_record(event, before.handle().into()).is_ok()
            && sim.stream_wait(after.handle().into(), event).is_ok();
        if sim.event_destroy(event).is_err() {
            self.events.push(event);
        }
        ordered
    }

    fn use_on(&mut self, at: usize, user: &Stream, last: bool) {
        let home = self.live[at].home.clone();
        if user.device() != home.device() {
            return;
        }
        if !self.order(&home, user) {
            assert!(self.failing);
            return;
        }
        if user.id() != home.id() {
            self.reach("used on another stream");
        }
        self.read(user, &self.live[at]);
        let live = &mut self.live[at];
        let pool = &self.machine.pool;
        let declare = |last: bool| match (&live.buffer, last) {
            (Some(buffer), true) => buffer.last_use(user),
            (Some(buffer), false) => buffer.record_use(user),
            (None, true) => pool.last_use(live.address, user),
            (None, false) => pool.record_use(live.address, user),
        };
        declare(last).unwrap();
        if last && user.id() == home.id() {
            // It is read there once more before its free: a use until then takes the end back.
            declare(false).unwrap();
        }
        live.users.retain(|known| known.id() != user.id());
        if !last {
            live.users.push(user.clone());
        }
    }

    fn trim(&mut self, device: u64, target: u64) {
        let pool = &self.machine.pool;
        let reserved = || pool.stats().devices.iter().map(|of| of.reserved_bytes).sum::<u64>();
        let before = reserved();
        let trimmed = if device % 3 == 2 {
            pool.trim_all(target)
        } else {
            let device = DeviceId((device % 3) as u16);
            pool.trim(device, target).map(|kept| assert!(kept >= self.live_bytes(device)))
        };
        trimmed.unwrap_or_else(|error| self.excuse(&error));
        if reserved() < before {
            self.reach("trimmed");
        }
    }

    /// Wrong calls get the documented error and change nothing; odd ones are as good as others.
    fn bad(&mut self, kind: u64, pick: u64, number: u64) {
        let before = self.machine.pool.stats().hits;
        let pool = self.machine.pool.clone();
        let Some(stream) = self.stream(pick) else { return };
        let device = DeviceId(2 + (number % 3) as u16);
        match kind % 8 {
            0 => {
                let at = (pick as usize).checked_rem(self.freed.len());
                let Some(address) = at.map(|at| self.freed[at]) else { return };
                self.unknown(address, &stream, true);
            }
            1 => {
                let Some(live) = self.block(pick).map(|at| &self.live[at]) else { return };
                let inside = live.address + 1 + number % (size::granted(live.bytes) - 1);
                self.unknown(inside, &stream, false);
                self.unknown(number, &stream, false);
            }
            2 => {
                let zero = [pool.allocate(0, &stream).map(drop), stream.alloc::<()>(9).map(drop)];
                self.reach("error: zero");
                assert!(zero.into_iter().all(|answer| answer == Err(Error::ZeroSize)));
            }
            3 => {
                let max = size::REQUEST_MAX;
                self.reach("error: too large");
                let bytes = max + 1 + number;
                let error = Error::TooLarge { bytes, max };
                assert_eq!(pool.allocate(bytes, &stream), Err(error));
                for bytes in [max - number, (1 << 40) + number] {
                    let error = pool.allocate(bytes, &stream).expect_err("no device has that");
                    self.refused(&error, &stream, bytes);
                }
            }
            4 => {
                self.reach("error: foreign stream");
                let error = Err(Error::ForeignStream { stream: foreign().id() });
                assert_eq!(pool.allocate(number, foreign()).map(drop), error);
                assert_eq!(stream.wait(foreign()), error);
                if let Some(live) = self.live.first() {
                    assert_eq!(pool.record_use(live.address, foreign()), error);
                    assert_eq!(pool.last_use(live.address, foreign()), error);
                }
                assert!(foreign().wait(&stream).is_err());
            }
            5 => {
                self.reach("error: no such device");
                let error = Error::NoSuchDevice { device, count: 2 };
                assert_eq!(pool.stream(device).map(drop), Err(error.clone()));
                assert_eq!(pool.trim(device, number), Err(error));
            }
            6 => {
                // A buffer's block freed by its address: the buffer owns nothing any more.
                let Some(at) = self.block(pick) else { return };
                let live = self.take(at);
                pool.free(live.address).unwrap();
                if live.buffer.is_some() {
                    self.reach("freed by address as a buffer");
                }
                drop(live.buffer);
            }
            _ => {
                // A buffer that becomes an address, by way of elements that do not fit.
                let Some(live) = self.block(pick).map(|at| &mut self.live[at]) else { return };
                let Some(buffer) = live.buffer.take() else { return };
                let fits = live.bytes.is_multiple_of(24);
                let address = match buffer.cast::<[u64; 3]>() {
                    Ok(buffer) => (buffer.into_address(), true),
                    Err(buffer) => (buffer.into_address(), false),
                };
                assert_eq!(address, (live.address, fits));
            }
        }
        assert_eq!(self.machine.pool.stats().hits, before);
    }

    /// No live block starts at the address.
    fn unknown(&self, address: u64, stream: &Stream, was_one: bool) {
        if self.ranges.contains_key(&address) {
            return;
        }
        let pool = &self.machine.pool;
        for answer in [
            pool.free(address),
            pool.record_use(address, stream),
            pool.last_use(address, stream),
            pool.pin(address).map(drop),
        ] {
            match answer {
                Err(Error::UnknownAddress { address: at }) => {
                    self.reach("error: unknown address");
                    assert_eq!(at, address);
                }
                Err(Error::NotAllocated { address: at }) => {
                    self.reach("error: not allocated");
                    assert!(was_one && at == address);
                }
                other => panic!("{address:#x} is no live block's: {other:?}"),
            }
        }
    }

    fn live_bytes(&self, device: DeviceId) -> u64 {
        let on = self.live.iter().filter(|live| live.home.device() == device);
        on.map(|live| live.bytes).sum()
    }

    fn check(&self, op: &Op) {
        let Machine { pool, sim, .. } = &self.machine;
        pool.check_invariants();
        let stats = pool.stats();
        for of in &stats.devices {
            assert_eq!(of.live_bytes, self.live_bytes(of.device), "{op:?}: {of:?}");
            assert!(of.live_bytes <= of.reserved_bytes, "{op:?}: {of:?}");
            assert!(of.reserved_bytes <= of.peak_reserved_bytes, "{op:?}: {of:?}");
            assert!(of.peak_reserved_bytes <= of.limit_bytes, "{op:?}: {of:?}");
        }
        let reserved: u64 = stats.devices.iter().map(|of| of.reserved_bytes).sum();
        let physical = sim.leaks().bytes;
        assert!(reserved == physical || self.faulted, "{op:?}: {reserved} of {physical} reserved");
        let hits = stats.hits;
        assert_eq!(
            hits.thread + hits.stream + hits.shard + hits.buddy + hits.heap,
            self.served,
            "{op:?}"
        );
        assert!(stats.poisoned_streams == 0 || self.faulted);
        let refused: u64 = stats.devices.iter().map(|of| of.ladder.refused).sum();
        assert!(self.machine.rescues.load(Relaxed) <= refused, "asked for nothing");
        if sim.hazard_count() > 0 {
            panic!("{op:?}: {}", sim.hazards()[0]);
        }
        assert_eq!(sim.device_faults(), 0, "{op:?}");
    }

    /// What the pool's own figures say was reached.
    fn tally(&self) {
        let stats = self.machine.pool.stats();
        let rescues = self.machine.rescues.load(Relaxed);
        let mut found = vec![
            ("served: thread", stats.hits.thread),
            ("served: stream", stats.hits.stream),
            ("served: shard", stats.hits.shard),
            ("served: heap", stats.hits.heap),
            ("across streams", stats.cross_stream.hits),
            ("waits inserted", stats.cross_stream.waits),
            ("poisoned", stats.poisoned_streams),
            ("rescue called", rescues),
        ];
        for ladder in stats.devices.iter().map(|of| of.ladder) {
            found.extend([
                ("ladder: fitted", ladder.fitted),
                ("ladder: completed", ladder.completed),
                ("ladder: created", ladder.created),
                ("ladder: moved", ladder.moved),
                ("ladder: waited", ladder.waited),
                ("ladder: gathered", ladder.gathered),
                ("ladder: host wait", ladder.host_waits),
            ]);
        }
        found.iter().filter(|(_, times)| *times > 0).for_each(|(outcome, _)| self.reach(outcome));
    }

    fn end(mut self) -> BTreeSet<&'static str> {
        self.tally();
        self.heal();
        for event in std::mem::take(&mut self.events) {
            self.machine.sim.event_destroy(event).unwrap();
        }
        let outlive = self.machine.end / 2 % 2 == 1;
        let mut left = Vec::new();
        while !self.live.is_empty() {
            if outlive && self.live[0].buffer.is_some() {
                left.push(self.take(0).buffer);
                self.reach("freed after its pool");
            } else {
                self.free(0, 0);
            }
        }
        let poisoned = self.machine.pool.stats().poisoned_streams;
        self.pins.clear();
        self.streams.clear();
        if !self.machine.patient {
            // A pool that may not wait keeps what is still in use when it ends.
            (0..2).for_each(|device| self.machine.sim.device_synchronize(device).unwrap());
        }
        let sim = self.machine.close();
        drop(left);
        assert_eq!(sim.device_faults(), 0);
        if sim.hazard_count() > 0 {
            panic!("at the end: {}", sim.hazards()[0]);
        }
        let mut leaks = sim.leaks();
        if self.faulted {
            leaks.streams = 0;
        }
        if poisoned > 0 {
            (leaks.pages, leaks.mappings, leaks.reservations, leaks.bytes) = (0, 0, 0, 0);
        }
        assert!(leaks.is_empty(), "not given back: {leaks}");
        self.reached.into_inner()
    }
}
