//! Random programs that keep a device nearly full, and what has to be true of them.

use crate::model::{Avoided, Model, Streams, Verdict};
use crate::support::Rng;
use millpond::driver::sim::SimDriver;
use millpond::{Buffer, DeviceId, Error, Headroom, OutOfMemory, Pool, Reuse, Stream};
use millpond_simgpu::{Completion, Page, Sim, Touch};
use std::time::Duration;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const D0: DeviceId = DeviceId(0);

/// What a run is, apart from its steps.
#[derive(Clone, Debug)]
pub struct Setup {
    seed: u64,
    reuse: Reuse,
    headroom: Option<Headroom>,
    lag: u64,
    streams: usize,
    page: u64,
    /// Pages that the pool can have.
    pages: u64,
    /// Pages that it may have too, but others do.
    others: u64,
    /// The device's memory, which decides how much address space there is, as a multiple of these.
    memory: u64,
    hangs: bool,
    oracle: bool,
    steps: u64,
}

impl Setup {
    pub fn draw(seed: u64) -> Self {
        let rng = &mut Rng::new(seed);
        let pick = |rng: &mut Rng, from: &[u64]| from[rng.index(from.len())];
        let reuse = [Reuse::SameStream, Reuse::Completed, Reuse::Wait][rng.index(3)];
        let page = pick(rng, &[64 * KIB, 512 * KIB, 2 * MIB]);
        // A few pages of any size, and at least room for some blocks of the large region.
        let pages = (4 + rng.below(40)).max(3 * MIB / page + rng.below(40));
        let others = if rng.below(4) == 0 { 1 + rng.below(6) } else { 0 };
        let hangs = others == 0 && rng.below(3) == 0;
        let headroom = [None, None, Some(Headroom::Automatic), Some(Headroom::Share(0.0))];
        let headroom = headroom[rng.index(4)];
        Self {
            seed,
            reuse,
            headroom,
            others,
            lag: pick(rng, &[0, 7, 50]),
            streams: 1 + rng.index(4),
            page,
            pages,
            // Where work that hangs still uses an old mapping no other page can come: then there are
            // addresses enough to do without.
            memory: match (hangs, others) {
                (true, _) => 64,
                (false, 0) => pick(rng, &[1, 1, 2, 8]),
                (false, _) => 1,
            },
            hangs,
            oracle: rng.below(3) == 0,
            steps: 60 + rng.below(140),
        }
    }
}

/// How often what was reached.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tally {
    pub served: u64,
    pub refused: u64,
    /// Refused although it would have been possible but for streams that hang.
    pub refused_behind_hangs: u64,
    /// Refused for want of addresses.
    pub refused_for_addresses: u64,
    /// Served, and not one more quantum could have been.
    pub served_at_the_edge: u64,
    /// Served while some stream was behind a hang.
    pub served_while_stuck: u64,
    pub moved: u64,
    pub host_waits: u64,
    pub stream_waits: u64,
}

impl Tally {
    pub fn add(&mut self, other: Self) {
        self.served += other.served;
        self.refused += other.refused;
        self.refused_behind_hangs += other.refused_behind_hangs;
        self.refused_for_addresses += other.refused_for_addresses;
        self.served_at_the_edge += other.served_at_the_edge;
        self.served_while_stuck += other.served_while_stuck;
        self.moved += other.moved;
        self.host_waits += other.host_waits;
        self.stream_waits += other.stream_waits;
    }
}

struct Block {
    buffer: Buffer,
    home: usize,
    /// Other streams that use it until the free.
    users: Vec<usize>,
}

/// What has happened so far, told when a run fails.
struct Log {
    setup: Setup,
    steps: Vec<String>,
}

impl Log {
    fn note(&mut self, step: impl FnOnce() -> String) {
        self.steps.push(step());
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("MILLPOND_SHORTAGE_SEED={}: {:?}", self.setup.seed, self.setup);
            const SHOWN: usize = 200;
            let skipped = self.steps.len().saturating_sub(SHOWN);
            for (number, step) in self.steps.iter().enumerate().skip(skipped) {
                eprintln!("{number:4} {step}");
            }
        }
    }
}

pub struct Run {
    setup: Setup,
    rng: Rng,
    sim: Sim,
    others: Vec<Page>,
    pool: Pool,
    streams: Vec<Stream>,
    blocks: Vec<Block>,
    model: Model,
    /// The stream that was made to hang, and whether it has asked for memory since.
    hung: Option<(usize, bool)>,
    /// Bytes freed since then for which it was in use.
    stuck_bytes: u64,
    tally: Tally,
    log: Log,
}

impl Run {
    pub fn new(seed: u64) -> Self {
        let setup = Setup::draw(seed);
        let limit = (setup.pages + setup.others) * setup.page;
        let sim = Sim::builder()
            .capacity(limit * setup.memory)
            .granularity(setup.page)
            .completion(Completion::Lag(setup.lag))
            .oracle(setup.oracle)
            .build()
            .unwrap();
        let others = (0..setup.others).map(|_| sim.page_create(0, setup.page).unwrap()).collect();
        let mut rng = Rng::new(!seed);
        // Rounded down to pages.
        let capacity = limit + rng.below(setup.page);
        let builder = Pool::builder(SimDriver::new(sim.clone())).capacity(capacity);
        let builder = builder.reuse(setup.reuse);
        let builder = match setup.headroom {
            Some(headroom) => builder.headroom(headroom),
            None => builder,
        };
        let pool = builder.build().unwrap();
        let streams: Vec<Stream> = (0..setup.streams).map(|_| pool.stream(D0).unwrap()).collect();

        // The first block of each region lies where the region begins.
        let probe = |bytes: u64| streams[0].alloc::<u8>(bytes as usize).unwrap().address();
        let starts = [probe(512), probe(MIB)];
        // Twice the addresses that the device has memory for small blocks, five times for others.
        let memory = limit * setup.memory;
        assert_eq!(starts[0] + 2 * memory, starts[1]);
        let regions = [starts[0]..starts[1], starts[1]..starts[1] + 5 * memory];
        let mut model = Model::new(setup.page, setup.pages, regions);
        for (start, bytes) in starts.into_iter().zip([512, MIB]) {
            model.enter(start, bytes, bytes, 0);
            model.leave(start);
        }
        let log = Log { setup: setup.clone(), steps: Vec::new() };
        let mut run = Self {
            rng,
            sim,
            others,
            pool,
            streams,
            blocks: Vec::new(),
            model,
            hung: None,
            stuck_bytes: 0,
            tally: Tally::default(),
            log,
            setup,
        };
        run.empty();
        run
    }

    pub fn finish(mut self) -> Tally {
        for _ in 0..self.setup.steps {
            self.step();
        }
        self.end()
    }

    fn step(&mut self) {
        match self.rng.below(100) {
            0..52 => {
                let stream = self.rng.index(self.streams.len());
                let bytes = self.size(stream);
                let served = self.request(stream, bytes);
                // While pages that moved for it are still in use where they were.
                if served && self.rng.below(6) == 0 {
                    let stream = self.rng.index(self.streams.len());
                    let bytes = self.most(stream);
                    self.request(stream, bytes);
                }
            }
            52..80 if !self.blocks.is_empty() => {
                let place = self.rng.index(self.blocks.len());
                self.free(place);
            }
            80..87 if !self.blocks.is_empty() && self.streams.len() > 1 => {
                let place = self.rng.index(self.blocks.len());
                let user = self.rng.index(self.streams.len());
                let last = self.rng.below(2) == 0;
                self.use_on(place, user, last);
            }
            87..93 => {
                let ticks = self.rng.below(2 * self.setup.lag + 1);
                self.log.note(|| format!("{ticks} ticks"));
                (0..ticks).for_each(|_| self.sim.tick());
            }
            93..95 => {
                let target = self.rng.below(self.setup.pages + 1) * self.setup.page;
                self.log.note(|| format!("trim to {target}"));
                let kept = self.pool.trim(D0, target).unwrap();
                assert!(kept >= self.model.places_in_use() * self.setup.page);
            }
            95 => self.empty(),
            96..98 if self.setup.hangs && self.hung.is_none() => {
                let stream = self.rng.index(self.streams.len());
                self.log.note(|| format!("stream {stream} hangs"));
                self.sim.hang(self.streams[stream].handle().into()).unwrap();
                (self.hung, self.stuck_bytes) = (Some((stream, false)), 0);
            }
            98 => self.go_on(),
            _ => {}
        }
    }

    fn go_on(&mut self) {
        if self.hung.take().is_some() {
            self.log.note(|| "it goes on".into());
            self.sim.unhang_all();
        }
    }

    /// A size: anything, around whole pages, or the most that is possible and a little more.
    fn size(&mut self, stream: usize) -> u64 {
        let (page, rng) = (self.setup.page, &mut self.rng);
        let most = page * self.setup.pages;
        let around = |rng: &mut Rng, bytes: u64| match rng.below(4) {
            0 => bytes,
            1 => bytes + 1 + rng.below(1024),
            2 => bytes.saturating_sub(1 + rng.below(1024)),
            _ => bytes.saturating_sub(rng.below(page)),
        };
        let bytes = match rng.below(12) {
            0..3 => 1 + rng.below(4 * KIB),
            3 | 4 => rng.size(MIB),
            5 => MIB - 40 * KIB + rng.below(16 * KIB),
            6 => rng.size(most),
            7 => {
                let pages = 1 + rng.below(self.setup.pages / 4);
                around(rng, pages * page)
            }
            8 => {
                let pages = 1 + rng.below(self.setup.pages);
                around(rng, pages * page)
            }
            9 => {
                let free_pages = self.setup.pages - self.model.places_in_use();
                around(rng, free_pages * page)
            }
            _ => self.most(stream),
        };
        bytes.clamp(1, most + page)
    }

    /// The most that is possible, of large sizes or of small ones, or a little more.
    fn most(&mut self, stream: usize) -> u64 {
        let small = self.rng.below(4) == 0;
        let largest = match self.stuck() {
            0 => self.model.largest(small, Avoided::NOTHING, Verdict::possible),
            stuck => {
                let avoided = self.avoided(stream, stuck);
                self.model.largest(small, avoided, Verdict::possible_anywhere)
            }
        };
        largest.max(1) + [0, 0, 0, 1, self.setup.page][self.rng.index(5)]
    }

    /// The streams that are behind a hang, by asking the simulation.
    fn stuck(&self) -> Streams {
        if self.hung.is_none() {
            return 0;
        }
        let mut stuck = 0;
        for (number, stream) in self.streams.iter().enumerate() {
            let event = self.sim.event_create(0).unwrap();
            self.sim.event_record(event, stream.handle().into()).unwrap();
            let timeout = Duration::from_nanos(1);
            if !self.sim.event_synchronize(event, Some(timeout)).unwrap() {
                stuck |= 1 << number;
            }
            self.sim.event_destroy(event).unwrap();
        }
        stuck
    }

    /// The memory that the pool cannot serve from. A stream's own memory needs no waiting for. With the
    /// policy `Wait` it can be put behind others, whether they hang or not; but memory of several
    /// streams that shares a page is only brought together once their work is over.
    fn avoided(&self, stream: usize, stuck: Streams) -> Avoided {
        let streams = stuck & !(1 << stream);
        Avoided { streams, whole_pages: self.setup.reuse != Reuse::Wait }
    }

    /// Says whether it was served.
    fn request(&mut self, stream: usize, bytes: u64) -> bool {
        // Whatever hangs, no pool can do more.
        let bound = self.model.judge(bytes, Avoided::NOTHING);
        self.model.asked(stream);
        let edge = !self.model.judge(bytes + 512, Avoided::NOTHING).possible();
        match self.streams[stream].alloc::<u8>(bytes as usize) {
            Ok(buffer) => {
                let (address, granted) = (buffer.address(), buffer.granted_bytes());
                self.log
                    .note(|| format!("{bytes} on {stream}: {address:#x} + {granted}, {bound:?}"));
                assert!(bound.possible(), "the model is wrong");
                self.tally.served += 1;
                self.tally.served_at_the_edge += u64::from(edge);
                self.tally.served_while_stuck += u64::from(self.hung.is_some());
                if let Some((hung, asked)) = &mut self.hung {
                    *asked |= *hung == stream;
                }
                self.model.enter(address, granted, bytes, stream);
                if self.setup.oracle {
                    let touch = Touch::write(address, bytes);
                    self.sim.launch(self.streams[stream].handle().into(), &[touch]).unwrap();
                }
                self.blocks.push(Block { buffer, home: stream, users: Vec::new() });
                true
            }
            Err(Error::OutOfMemory(report)) => {
                let stuck = self.stuck();
                let verdict = self.model.judge(bytes, self.avoided(stream, stuck));
                self.log
                    .note(|| format!("{bytes} on {stream}: refused, {verdict:?}, stuck {stuck:b}"));
                // Addresses where work that hangs still uses an old mapping are out of use.
                let possible = match stuck {
                    0 => verdict.possible(),
                    _ => verdict.possible_anywhere(),
                };
                assert!(
                    !possible,
                    "{bytes} bytes refused to stream {stream}: {verdict:?}, stuck {stuck:b}; {report}"
                );
                self.tally.refused += 1;
                self.tally.refused_behind_hangs += u64::from(bound.possible());
                self.tally.refused_for_addresses += u64::from(bound.cost.is_none());
                self.check_report(&report, stream, bytes, stuck);
                self.check();
                self.after_refusal(stream, bytes, bound);
                false
            }
            Err(error) => panic!("{error}"),
        }
    }

    /// Some room is made; now and then just as much as it takes.
    fn after_refusal(&mut self, stream: usize, bytes: u64, bound: Verdict) {
        if bytes <= self.setup.pages * self.setup.page && self.rng.below(3) == 0 {
            while !self.model.judge(bytes, Avoided::NOTHING).possible() {
                let place = self.rng.index(self.blocks.len());
                self.free(place);
            }
            if bound.possible() || self.rng.below(2) == 0 {
                self.go_on();
            }
            self.request(stream, bytes);
        } else {
            for _ in 0..self.rng.index(self.blocks.len() + 1) {
                let place = self.rng.index(self.blocks.len());
                self.free(place);
            }
        }
    }

    fn check_report(&self, report: &OutOfMemory, stream: usize, bytes: u64, stuck: Streams) {
        let OutOfMemory { live, reserved, limit, free, cached, largest_free, in_flight, .. } =
            *report;
        let page = self.setup.page;
        assert_eq!((report.device, report.stream), (D0, self.streams[stream].id()));
        assert_eq!((report.requested, live), (bytes, self.model.requested()));
        assert_eq!(limit, (self.setup.pages + self.setup.others) * page);
        assert!(reserved <= self.setup.pages * page, "{report:?}");
        assert!(reserved.is_multiple_of(page), "{report:?}");
        assert!(reserved >= self.model.places_in_use() * page, "{report:?}");
        assert_eq!(reserved, self.pool.stats().devices[0].reserved_bytes);
        assert_eq!(free + self.model.granted(), reserved, "{report:?}");
        assert!(cached <= free && largest_free <= free && in_flight <= free, "{report:?}");

        let numbers = |id| self.streams.iter().position(|stream| stream.id() == id).unwrap();
        for list in [&report.held, &report.pending] {
            assert!(list.is_sorted_by(|a, b| a.bytes >= b.bytes), "{report:?}");
            let mut names: Vec<usize> = list.iter().map(|entry| numbers(entry.stream)).collect();
            names.sort_unstable();
            assert!(names.is_sorted_by(|a, b| a < b), "{report:?}");
        }
        let bytes_of = |list: &[millpond::StreamBytes], number: usize| {
            let entry = list.iter().find(|entry| entry.stream == self.streams[number].id());
            entry.map_or(0, |entry| entry.bytes)
        };
        for number in 0..self.streams.len() {
            assert_eq!(bytes_of(&report.held, number), self.model.held_by(number), "{report:?}");
            let pending = bytes_of(&report.pending, number);
            // What was merely in flight has been waited for, if that could help.
            let hopeless = bytes > limit;
            assert!(hopeless || pending == 0 || stuck & (1 << number) != 0, "{report:?}");
            assert!(pending <= in_flight, "{report:?}");
        }
        let pending: u64 = report.pending.iter().map(|entry| entry.bytes).sum();
        assert!(pending >= in_flight, "{report:?}");
        if let Some((hung, false)) = self.hung
            && self.setup.reuse != Reuse::Wait
        {
            assert!(bytes_of(&report.pending, hung) >= self.stuck_bytes, "{report:?}");
        }
    }

    fn check(&self) {
        self.pool.check_invariants_at(millpond::Level::Full);
        let hazards = self.sim.hazards();
        assert!(hazards.is_empty(), "{}", hazards[0]);
    }

    fn free(&mut self, place: usize) {
        let Block { buffer, home, users } = self.blocks.swap_remove(place);
        let address = buffer.address();
        self.log.note(|| format!("free {address:#x} of {home}, used by {users:?}"));
        if self.setup.oracle {
            let touch = Touch::read(address, buffer.bytes());
            for &user in std::iter::once(&home).chain(&users) {
                self.sim.launch(self.streams[user].handle().into(), &[touch]).unwrap();
            }
        }
        if self.hung.is_some_and(|(hung, _)| hung == home || users.contains(&hung)) {
            self.stuck_bytes += buffer.granted_bytes();
        }
        self.model.leave(address);
        drop(buffer);
    }

    /// Another stream uses a block: until its free, or for the last time.
    fn use_on(&mut self, place: usize, user: usize, last: bool) {
        let Block { buffer, home, users } = &mut self.blocks[place];
        if user == *home {
            return;
        }
        let address = buffer.address();
        self.log.note(|| format!("{user} uses {address:#x}, the last time: {last}"));
        // Ordered by an event that the pool does not see.
        let [before, after] = [*home, user].map(|number| self.streams[number].handle().into());
        let event = self.sim.event_create(0).unwrap();
        self.sim.event_record(event, before).unwrap();
        self.sim.stream_wait(after, event).unwrap();
        self.sim.event_destroy(event).unwrap();
        if self.setup.oracle {
            self.sim.launch(after, &[Touch::read(address, buffer.bytes())]).unwrap();
        }
        users.retain(|&known| known != user);
        if last {
            buffer.last_use(&self.streams[user]).unwrap();
        } else {
            buffer.record_use(&self.streams[user]).unwrap();
            users.push(user);
        }
        self.model.used_by(address, user);
    }

    /// All work is over, and nothing idle is kept.
    fn empty(&mut self) {
        if self.hung.is_some() {
            return;
        }
        self.log.note(|| "all is over, trim to 0".into());
        // The pool learns it from events that it records when it is first asked.
        for _ in 0..2 {
            (0..=self.setup.lag).for_each(|_| self.sim.tick());
            self.pool.trim(D0, 0).unwrap();
        }
        (0..=self.setup.lag).for_each(|_| self.sim.tick());
        let kept = self.pool.trim(D0, 0).unwrap();
        let used = self.model.places_in_use() * self.setup.page;
        // With `SameStream` nobody is asked about blocks smaller than a page, so those on one page
        // need not become one.
        let exact = self.setup.reuse != Reuse::SameStream;
        assert!(kept == used || !exact && kept > used, "{kept} bytes kept, {used} in use");
    }

    /// In the end every stream can have everything.
    fn end(mut self) -> Tally {
        self.go_on();
        while !self.blocks.is_empty() {
            self.free(self.blocks.len() - 1);
        }
        for stream in 0..self.streams.len() {
            self.request(stream, self.setup.pages * self.setup.page);
            self.free(0);
        }
        self.check();
        let stats = self.pool.stats();
        let ladder = stats.devices[0].ladder;
        assert_eq!(ladder.refused, self.tally.refused);
        (self.tally.moved, self.tally.host_waits) = (ladder.moved, ladder.host_waits);
        self.tally.stream_waits = stats.cross_stream.waits;
        self.streams.clear();
        drop(self.pool);
        self.others.iter().for_each(|&page| self.sim.page_release(page).unwrap());
        assert_eq!(self.sim.hazard_count(), 0);
        assert!(self.sim.leaks().is_empty(), "{}", self.sim.leaks());
        self.tally
    }
}
