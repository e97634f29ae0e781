//! Random programs against a simple model: what is live never overlaps, nothing races, the heap
//! stays in order, and at the end everything is back.
#![cfg(feature = "sim")]

mod support;

use millpond::driver::sim::SimDriver;
use millpond::{Buffer, DeviceId, Error, Pool, Reuse, Stream};
use millpond_simgpu::{Completion, Sim, Touch};
use proptest::prelude::*;
use support::Ledger;

const MIB: u64 = 1 << 20;
const CAPACITY: u64 = 24 * MIB;

#[derive(Clone, Debug)]
enum Op {
    /// A new stream on a device, where there are fewer than four.
    Open {
        device: u16,
    },
    Close {
        stream: usize,
    },
    Alloc {
        stream: usize,
        bytes: u64,
        raw: bool,
    },
    Free {
        block: usize,
    },
    RecordUse {
        block: usize,
        stream: usize,
    },
    LastUse {
        block: usize,
        stream: usize,
    },
    Wait {
        stream: usize,
        other: usize,
    },
    Trim {
        device: u16,
        target: u64,
    },
    Tick {
        times: u8,
    },
}

fn bytes() -> impl Strategy<Value = u64> {
    prop_oneof![1u64..3000, 1u64..MIB, MIB - 40_000..3 * MIB, (1u64..4).prop_map(|n| n * 2 * MIB)]
}

fn op() -> impl Strategy<Value = Op> {
    let (stream, block) = (0usize..4, 0usize..16);
    prop_oneof![
        1 => (0u16..2).prop_map(|device| Op::Open { device }),
        1 => stream.clone().prop_map(|stream| Op::Close { stream }),
        8 => (stream.clone(), bytes(), any::<bool>())
            .prop_map(|(stream, bytes, raw)| Op::Alloc { stream, bytes, raw }),
        6 => block.clone().prop_map(|block| Op::Free { block }),
        2 => (block.clone(), stream.clone())
            .prop_map(|(block, stream)| Op::RecordUse { block, stream }),
        2 => (block, stream.clone()).prop_map(|(block, stream)| Op::LastUse { block, stream }),
        2 => (stream.clone(), stream).prop_map(|(stream, other)| Op::Wait { stream, other }),
        1 => (0u16..2, 0..CAPACITY).prop_map(|(device, target)| Op::Trim { device, target }),
        1 => (0u8..9).prop_map(|times| Op::Tick { times }),
    ]
}

/// A block: held as a buffer or by its address alone.
struct Live {
    buffer: Option<Buffer>,
    address: u64,
    bytes: u64,
    label: u64,
    home: Stream,
    /// Streams that use it until the free.
    users: Vec<Stream>,
}

struct Run {
    sim: Sim,
    pool: Pool,
    streams: Vec<Stream>,
    live: Vec<Live>,
    ledger: Ledger,
    labels: u64,
}

impl Run {
    fn new(lag: Option<u64>, seed: u64, page: u64, reuse: Reuse) -> Self {
        let completion = lag.map_or(Completion::Scheduled, Completion::Lag);
        let sim = Sim::builder()
            .devices(2)
            .capacity(CAPACITY)
            .granularity(page)
            .completion(completion)
            .seed(seed)
            .oracle(true)
            .build()
            .unwrap();
        let pool = Pool::builder(SimDriver::new(sim.clone())).reuse(reuse).build().unwrap();
        let streams = vec![pool.stream(DeviceId(0)).unwrap()];
        Self { sim, pool, streams, live: Vec::new(), ledger: Ledger::default(), labels: 0 }
    }

    fn stream(&self, place: usize) -> Option<Stream> {
        self.streams.get(place % self.streams.len().max(1)).cloned()
    }

    fn read(&self, stream: &Stream, live: &Live) {
        let touch = Touch::read(live.address, live.bytes).label(live.label);
        self.sim.launch(stream.handle().into(), &[touch]).unwrap();
    }

    /// Orders by an event that the pool does not see.
    fn order(&self, before: &Stream, after: &Stream) {
        let event = self.sim.event_create(before.device().0).unwrap();
        self.sim.event_record(event, before.handle().into()).unwrap();
        self.sim.stream_wait(after.handle().into(), event).unwrap();
        self.sim.event_destroy(event).unwrap();
    }

    fn live_bytes(&self, device: u16) -> u64 {
        let on = |live: &&Live| live.home.device().0 == device;
        self.live.iter().filter(on).map(|live| live.bytes).sum()
    }

    fn alloc(&mut self, home: Stream, bytes: u64, raw: bool) {
        let taken = if raw {
            self.pool.allocate(bytes, &home).map(|address| (None, address))
        } else {
            let buffer = home.alloc::<u8>(bytes as usize);
            buffer.map(|buffer| {
                let address = buffer.address();
                (Some(buffer), address)
            })
        };
        let (buffer, address) = match taken {
            Ok(taken) => taken,
            Err(Error::OutOfMemory(report)) => {
                assert_eq!(report.live, self.live_bytes(home.device().0));
                assert!(report.live > 0, "nothing is held, and no memory: {report}");
                return;
            }
            Err(error) => panic!("{error}"),
        };
        self.ledger.enter(address, millpond::size::granted(bytes));
        self.labels += 1;
        let label = self.labels;
        let touch = Touch::write(address, bytes).label(label);
        self.sim.launch(home.handle().into(), &[touch]).unwrap();
        self.live.push(Live { buffer, address, bytes, label, home, users: Vec::new() });
    }

    fn free(&mut self, place: usize) {
        let live = self.live.swap_remove(place);
        for user in std::iter::once(&live.home).chain(&live.users) {
            self.read(user, &live);
        }
        self.ledger.leave(live.address);
        match live.buffer {
            Some(buffer) => drop(buffer),
            None => self.pool.free(live.address).unwrap(),
        }
    }

    fn use_on(&mut self, place: usize, user: Stream, last: bool) {
        let live = &self.live[place];
        if user.device() != live.home.device() {
            return;
        }
        self.order(&live.home, &user);
        self.read(&user, live);
        let declared = match (&live.buffer, last) {
            (Some(buffer), true) => buffer.last_use(&user),
            (Some(buffer), false) => buffer.record_use(&user),
            (None, true) => self.pool.last_use(live.address, &user),
            (None, false) => self.pool.record_use(live.address, &user),
        };
        declared.unwrap();
        let users = &mut self.live[place].users;
        users.retain(|known| known.id() != user.id());
        if !last {
            users.push(user);
        } else if user.id() == self.live[place].home.id() {
            // The end of use on its own stream too: a use until the free takes that back.
            let live = &self.live[place];
            let again = match &live.buffer {
                Some(buffer) => buffer.record_use(&user),
                None => self.pool.record_use(live.address, &user),
            };
            again.unwrap();
        }
    }

    fn step(&mut self, op: Op) {
        match op {
            Op::Open { device } if self.streams.len() < 4 => {
                self.streams.push(self.pool.stream(DeviceId(device)).unwrap());
            }
            Op::Close { stream } if !self.streams.is_empty() => {
                // Blocks that use it keep it alive until they are freed.
                self.streams.swap_remove(stream % self.streams.len());
            }
            Op::Alloc { stream, bytes, raw } => {
                if let Some(home) = self.stream(stream) {
                    self.alloc(home, bytes, raw);
                }
            }
            Op::Free { block } if !self.live.is_empty() => self.free(block % self.live.len()),
            Op::RecordUse { block, stream } | Op::LastUse { block, stream }
                if !self.live.is_empty() =>
            {
                if let Some(user) = self.stream(stream) {
                    let last = matches!(op, Op::LastUse { .. });
                    self.use_on(block % self.live.len(), user, last);
                }
            }
            Op::Wait { stream, other } => {
                if let (Some(stream), Some(other)) = (self.stream(stream), self.stream(other)) {
                    stream.wait(&other).unwrap();
                }
            }
            Op::Trim { device, target } => {
                let kept = self.pool.trim(DeviceId(device), target).unwrap();
                assert!(kept >= self.live_bytes(device));
            }
            Op::Tick { times } => (0..times).for_each(|_| self.sim.tick()),
            _ => {}
        }
        self.check();
    }

    fn check(&self) {
        self.pool.check_invariants_at(millpond::Level::Full);
        let stats = self.pool.stats();
        for (of, device) in stats.devices.iter().zip(0..) {
            assert_eq!(of.live_bytes, self.live_bytes(device));
            assert!(of.live_bytes <= of.reserved_bytes && of.reserved_bytes <= CAPACITY);
        }
        let hazards = self.sim.hazards();
        assert!(hazards.is_empty(), "{}", hazards[0]);
    }

    fn done(mut self) {
        while !self.live.is_empty() {
            self.free(self.live.len() / 2);
        }
        self.check();
        self.streams.clear();
        drop(self.pool);
        assert_eq!(self.sim.hazard_count() + self.sim.device_faults(), 0);
        assert!(self.sim.leaks().is_empty(), "{}", self.sim.leaks());
    }
}

fn reuse() -> impl Strategy<Value = Reuse> {
    prop_oneof![Just(Reuse::SameStream), Just(Reuse::Completed), Just(Reuse::Wait)]
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 300,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn random_programs_keep_to_the_model(
        lag in prop_oneof![Just(None), Just(Some(0)), Just(Some(3)), Just(Some(60))],
        seed in any::<u64>(),
        page in prop_oneof![Just(2 * MIB), Just(64 << 10)],
        reuse in reuse(),
        ops in prop::collection::vec(op(), 1..120),
    ) {
        let mut run = Run::new(lag, seed, page, reuse);
        ops.into_iter().for_each(|op| run.step(op));
        run.done();
    }
}
