//! Recorded programs on devices without virtual memory management, under the race oracle: what is
//! reserved there, and that nothing is reused too early.
#![cfg(feature = "sim")]

use millpond::driver::sim::SimDriver;
use millpond::{Buffer, DeviceId, Level, Pool, Stream};
use millpond_simgpu::{Completion, Sim, Touch};
use millpond_trace::{Op, Trace};
use std::collections::HashMap;
use std::path::Path;

struct Replay {
    sim: Sim,
    pool: Pool,
    streams: HashMap<(u16, u32), Stream>,
    /// Blocks with the streams that they are used on.
    blocks: HashMap<u64, (Buffer, Vec<Stream>)>,
}

impl Replay {
    fn new(devices: u16, lag: u64) -> Self {
        let builder = Sim::builder().devices(devices).capacity(80 << 30);
        let sim = builder.completion(Completion::Lag(lag)).oracle(true).build().unwrap();
        let pool = Pool::new(SimDriver::without_virtual_memory(sim.clone())).unwrap();
        Self { sim, pool, streams: HashMap::new(), blocks: HashMap::new() }
    }

    fn stream(&mut self, device: u16, number: u32) -> Stream {
        let pool = &self.pool;
        let open = || pool.stream(DeviceId(device)).unwrap();
        self.streams.entry((device, number)).or_insert_with(open).clone()
    }

    fn touch(&self, stream: &Stream, touch: Touch) {
        self.sim.launch(stream.handle().into(), &[touch]).unwrap();
    }

    fn free(&mut self, id: u64) {
        let (buffer, users) = self.blocks.remove(&id).unwrap();
        for stream in users {
            self.touch(&stream, Touch::read(buffer.address(), buffer.bytes()).label(id));
        }
    }

    fn step(&mut self, op: &Op) {
        match *op {
            Op::Alloc { id, device, stream, bytes } => {
                let stream = self.stream(device, stream);
                let buffer = stream.alloc::<u8>(bytes as usize).unwrap();
                self.touch(&stream, Touch::write(buffer.address(), bytes).label(id));
                self.blocks.insert(id, (buffer, vec![stream]));
            }
            Op::Free { id, .. } => self.free(id),
            Op::Use { id, stream } => {
                let device = self.blocks[&id].0.device().0;
                let user = self.stream(device, stream);
                let (buffer, users) = self.blocks.get_mut(&id).unwrap();
                buffer.record_use(&user).unwrap();
                users.push(user);
            }
            Op::Wait { device, waiter, signaller } => {
                let from = self.stream(device, signaller);
                self.stream(device, waiter).wait(&from).unwrap();
            }
            Op::WaitAcross { device, waiter, other, signaller } => {
                let from = self.stream(other, signaller);
                self.stream(device, waiter).wait(&from).unwrap();
            }
            _ => return,
        }
        self.sim.tick();
    }

    /// Bytes reserved at the devices' peaks.
    fn finish(mut self) -> u64 {
        let ids: Vec<u64> = self.blocks.keys().copied().collect();
        ids.into_iter().for_each(|id| self.free(id));
        self.pool.check_invariants_at(Level::Full);
        let devices = self.pool.stats().devices;
        let reserved = devices.iter().map(|device| device.peak_reserved_bytes).sum();
        let Self { sim, pool, streams, .. } = self;
        drop((streams, pool));
        let hazards = sim.hazards();
        assert!(hazards.is_empty(), "{} hazards, first {}", hazards.len(), hazards[0]);
        assert_eq!(sim.device_faults(), 0);
        assert!(sim.leaks().is_empty(), "{}", sim.leaks());
        reserved
    }
}

#[test]
fn recorded_programs_run_without_hazards() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/traces");
    let mut ratios = Vec::new();
    for name in
        ["fsdp1_llama3b", "gpt2_1p3b_bf16", "pp1f1b_4x8", "prefetch_4loaders", "resnet50_b32"]
    {
        let trace = Trace::load(folder.join(format!("{name}.trace.zst"))).unwrap();
        let devices = &trace.summary().devices;
        let live: u64 = devices.iter().map(|device| device.peak_live_bytes).sum();
        for lag in [0, 7] {
            let mut replay = Replay::new(devices.len() as u16, lag);
            trace.ops().iter().for_each(|op| replay.step(op));
            let ratio = replay.finish() as f64 / live as f64;
            println!("{name}, lag {lag}: reserved / live {ratio:.3}");
            ratios.push(ratio);
        }
    }
    let sum: f64 = ratios.iter().map(|ratio| ratio.ln()).sum();
    let mean = (sum / ratios.len() as f64).exp();
    println!("geometric mean: {mean:.3}");
    assert!(mean < 1.13, "{mean}");
}
