//! Recorded programs where the command's own replays do not go, under the race oracle: on devices
//! without virtual memory management, and through CUDA's functions. What is reserved there, and that
//! nothing is reused too early.
#![cfg(feature = "sim")]

use millpond::driver::sim::SimDriver;
use millpond::driver::{Driver, StreamHandle};
use millpond::{Buffer, DeviceId, Level, Pool, Stream};
use millpond_simgpu::{Completion, Sim, Touch};
use millpond_trace::{Op, Trace};
use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

/// Devices, seen through a driver.
struct Machine {
    sim: Sim,
    driver: Arc<dyn Driver>,
    #[cfg(all(feature = "cuda", unix))]
    fake: Option<fakecuda::Fake>,
}

impl Machine {
    fn plain(devices: u16, lag: u64) -> Self {
        let builder = Sim::builder().devices(devices).capacity(80 << 30);
        let sim = builder.completion(Completion::Lag(lag)).oracle(true).build().unwrap();
        let driver = Arc::new(SimDriver::without_virtual_memory(sim.clone()));
        Self {
            sim,
            driver,
            #[cfg(all(feature = "cuda", unix))]
            fake: None,
        }
    }

    /// Through CUDA, with work done at once or in an order that is drawn.
    #[cfg(all(feature = "cuda", unix))]
    fn cuda(devices: u16, seed: Option<u64>) -> Self {
        use millpond::driver::cuda::CudaDriver;
        let builder =
            Sim::builder().devices(devices).capacity(80 << 30).contents(true).oracle(true);
        let fake = fakecuda::start(match seed {
            Some(seed) => builder.completion(Completion::Scheduled).seed(seed),
            None => builder,
        });
        let fake = fake.unwrap();
        let driver = CudaDriver::all().unwrap();
        driver.contexts()[0].bind_to_thread().unwrap();
        Self { sim: fake.sim().clone(), driver: Arc::new(driver), fake: Some(fake) }
    }

    /// The simulated stream behind a handle.
    fn stream(&self, handle: StreamHandle) -> millpond_simgpu::Stream {
        #[cfg(all(feature = "cuda", unix))]
        if let Some(fake) = &self.fake {
            return fake.stream(std::ptr::with_exposed_provenance_mut(handle.0 as usize)).unwrap();
        }
        handle.into()
    }

    /// Nothing raced, nothing was misused, and everything went back.
    fn finish(self) {
        let hazards = self.sim.hazards();
        assert!(hazards.is_empty(), "{} hazards, first {}", hazards.len(), hazards[0]);
        assert_eq!(self.sim.device_faults(), 0);
        drop(self.driver);
        #[cfg(all(feature = "cuda", unix))]
        if let Some(fake) = self.fake {
            assert_eq!(fake.violations(), Vec::<String>::new());
            assert!(fake.leaks().is_empty(), "{}", fake.leaks());
            return;
        }
        assert!(self.sim.leaks().is_empty(), "{}", self.sim.leaks());
    }
}

/// A stream, and the simulated one behind it.
type Both = (Stream, millpond_simgpu::Stream);

struct Replay {
    machine: Machine,
    pool: Pool,
    streams: HashMap<(u16, u32), Both>,
    /// Blocks with the streams that they are used on.
    blocks: HashMap<u64, (Buffer, Vec<Both>)>,
}

impl Replay {
    fn new(machine: Machine) -> Self {
        let pool = Pool::builder_shared(Arc::clone(&machine.driver)).build().unwrap();
        Self { machine, pool, streams: HashMap::new(), blocks: HashMap::new() }
    }

    fn stream(&mut self, device: u16, number: u32) -> Both {
        let (pool, machine) = (&self.pool, &self.machine);
        let open = || {
            let stream = pool.stream(DeviceId(device)).unwrap();
            let behind = machine.stream(stream.handle());
            (stream, behind)
        };
        self.streams.entry((device, number)).or_insert_with(open).clone()
    }

    fn touch(&self, stream: &Both, touch: Touch) {
        self.machine.sim.launch(stream.1, &[touch]).unwrap();
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
                let buffer = stream.0.alloc::<u8>(bytes as usize).unwrap();
                self.touch(&stream, Touch::write(buffer.address(), bytes).label(id));
                self.blocks.insert(id, (buffer, vec![stream]));
            }
            Op::Free { id, .. } => self.free(id),
            Op::Use { id, stream } => {
                let device = self.blocks[&id].0.device().0;
                let user = self.stream(device, stream);
                let (buffer, users) = self.blocks.get_mut(&id).unwrap();
                buffer.record_use(&user.0).unwrap();
                users.push(user);
            }
            Op::Wait { device, waiter, signaller } => {
                let from = self.stream(device, signaller);
                self.stream(device, waiter).0.wait(&from.0).unwrap();
            }
            Op::WaitAcross { device, waiter, other, signaller } => {
                let from = self.stream(other, signaller);
                self.stream(device, waiter).0.wait(&from.0).unwrap();
            }
            _ => return,
        }
        self.machine.sim.tick();
    }

    /// Bytes reserved at the devices' peaks.
    fn finish(mut self) -> u64 {
        let ids: Vec<u64> = self.blocks.keys().copied().collect();
        ids.into_iter().for_each(|id| self.free(id));
        self.pool.check_invariants_at(Level::Full);
        let devices = self.pool.stats().devices;
        let reserved = devices.iter().map(|device| device.peak_reserved_bytes).sum();
        let Self { machine, pool, streams, .. } = self;
        drop((streams, pool));
        machine.finish();
        reserved
    }
}

/// Reserved over live of the programs that come with the sources, as a geometric mean over all that
/// `each` runs them on.
fn replay_all(each: impl Fn(u16) -> Vec<(String, Machine)>) -> f64 {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/traces");
    let mut ratios: Vec<f64> = Vec::new();
    for name in
        ["fsdp1_llama3b", "gpt2_1p3b_bf16", "pp1f1b_4x8", "prefetch_4loaders", "resnet50_b32"]
    {
        let trace = Trace::load(folder.join(format!("{name}.trace.zst"))).unwrap();
        let devices = &trace.summary().devices;
        let live: u64 = devices.iter().map(|device| device.peak_live_bytes).sum();
        for (what, machine) in each(devices.len() as u16) {
            let mut replay = Replay::new(machine);
            trace.ops().iter().for_each(|op| replay.step(op));
            let ratio = replay.finish() as f64 / live as f64;
            println!("{name}, {what}: reserved / live {ratio:.3}");
            ratios.push(ratio);
        }
    }
    let sum: f64 = ratios.iter().map(|ratio| ratio.ln()).sum();
    (sum / ratios.len() as f64).exp()
}

#[test]
fn without_virtual_memory() {
    let lags = |devices| [0, 7].map(|lag| (format!("lag {lag}"), Machine::plain(devices, lag)));
    let mean = replay_all(|devices| lags(devices).into());
    assert!(mean < 1.13, "{mean}");
}

#[cfg(all(feature = "cuda", unix))]
#[test]
fn through_cuda_at_once() {
    let mean = replay_all(|devices| vec![("at once".into(), Machine::cuda(devices, None))]);
    assert!(mean < 1.02, "{mean}");
}

#[cfg(all(feature = "cuda", unix))]
#[test]
fn through_cuda_in_a_drawn_order() {
    let mean = replay_all(|devices| vec![("scheduled".into(), Machine::cuda(devices, Some(1)))]);
    assert!(mean < 1.04, "{mean}");
}
