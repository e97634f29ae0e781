//! A training step over four GPUs: one stage on each, a thread for each stage, the 1F1B schedule.
//!
//! ```sh
//! cargo run --example pipeline
//! ```
//!
//! Every stage has a stream to compute, one to send and one to receive. Activations go forward,
//! gradients back, as copies between devices; no host thread ever waits for a device. The simulated
//! devices hold real bytes and run their streams in an order as adverse as they can: if a block were
//! handed out too early, the checks would find other contents, and the race oracle a hazard.

use millpond::driver::sim::SimDriver;
use millpond::{Buffer, DeviceId, Pool, Stream};
use millpond_simgpu::{Completion, Sim};
use std::collections::VecDeque;
use std::iter::repeat_with;
use std::sync::mpsc::{Receiver, Sender, channel};

type Result<T = ()> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

const STAGES: usize = 4;
const MICROBATCHES: usize = 8;
const STEPS: usize = 3;

/// A block on its way to another stage: to be touched after what `stream` has been given so far.
struct Parcel {
    block: Buffer<u8>,
    pattern: u64,
    stream: Stream,
}

/// A stage: its streams, and the channels to and from its neighbours.
struct Stage {
    sim: Sim,
    number: usize,
    compute: Stream,
    send: Stream,
    receive: Stream,
    /// From the stage before, and to the next.
    forward: (Receiver<Parcel>, Sender<Parcel>),
    /// From the next stage, and to the one before.
    backward: (Receiver<Parcel>, Sender<Parcel>),
}

impl Stage {
    /// Forward passes are this far ahead of backward ones; then both take turns.
    fn run(&self) -> Result {
        for step in 0..STEPS {
            let mut saved = VecDeque::new();
            let ahead = (STAGES - self.number).min(MICROBATCHES);
            for turn in 0..MICROBATCHES + ahead {
                if turn >= ahead {
                    self.backward(saved.pop_front())?;
                }
                if turn < MICROBATCHES {
                    saved.push_back(self.forward((step * MICROBATCHES + turn) as u64)?);
                }
            }
        }
        Ok(())
    }

    /// Takes the activation in, computes, sends the result on; keeps what the way back needs.
    fn forward(&self, microbatch: u64) -> Result<(Buffer<u8>, u64)> {
        // Sequences have different lengths.
        let bytes = 200_000 + 77_777 * (microbatch as usize * 5 % 7);
        let input = if self.number > 0 {
            self.take(self.forward.0.recv()?)?
        } else {
            (self.computed(bytes, microbatch)?, microbatch)
        };
        self.check(&self.compute, &input.0, input.1)?;
        // Scratch: used by what is submitted here, and gone. The next kernel gets the same memory.
        drop(self.computed(1 << 20, !0)?);
        if self.number + 1 < STAGES {
            self.give(bytes, microbatch << 8 | self.number as u64, &self.forward.1)?;
        }
        Ok(input)
    }

    /// Takes the gradient in, uses what was saved, sends the gradient on.
    fn backward(&self, saved: Option<(Buffer<u8>, u64)>) -> Result {
        let Some((saved, pattern)) = saved else { return Ok(()) };
        if self.number + 1 < STAGES {
            let (gradient, pattern) = self.take(self.backward.0.recv()?)?;
            self.check(&self.compute, &gradient, pattern)?;
        }
        self.check(&self.compute, &saved, pattern)?;
        if self.number > 0 {
            self.give(saved.len(), !pattern, &self.backward.1)?;
        }
        Ok(())
    }

    /// Computes a block and passes it on: from here the send stream uses it as well.
    fn give(&self, bytes: usize, pattern: u64, outbox: &Sender<Parcel>) -> Result {
        let block = self.computed(bytes, pattern)?;
        self.send.wait(&self.compute)?;
        self.check(&self.send, &block, pattern)?;
        block.last_use(&self.send)?;
        Ok(outbox.send(Parcel { block, pattern, stream: self.send.clone() })?)
    }

    /// Copies a block over from its device and frees it there, from this thread.
    fn take(&self, parcel: Parcel) -> Result<(Buffer<u8>, u64)> {
        let Parcel { block: theirs, pattern, stream } = parcel;
        self.receive.wait(&stream)?;
        let ours = self.receive.alloc(theirs.len())?;
        let stream = self.receive.handle().into();
        self.sim.copy(stream, ours.address(), theirs.address(), theirs.bytes())?;
        // Its device must not reuse the block before this copy, on another device, is done.
        theirs.last_use(&self.receive)?;
        drop(theirs);
        self.compute.wait(&self.receive)?;
        ours.record_use(&self.compute)?;
        Ok((ours, pattern))
    }

    /// A block that a kernel writes, all of it.
    fn computed(&self, bytes: usize, pattern: u64) -> Result<Buffer<u8>> {
        let block = self.compute.alloc(bytes)?;
        self.sim.fill(self.compute.handle().into(), block.address(), block.bytes(), pattern)?;
        Ok(block)
    }

    /// Compares a block with its pattern when the stream comes to it.
    fn check(&self, stream: &Stream, block: &Buffer<u8>, pattern: u64) -> Result {
        let stream = stream.handle().into();
        Ok(self.sim.check_fill(stream, block.address(), block.bytes(), pattern)?)
    }
}

fn main() -> Result {
    let sim = Sim::builder().devices(STAGES as u16).completion(Completion::Scheduled);
    let sim = sim.contents(true).oracle(true).seed(1).build()?;
    // Every device may read the others' memory: stages copy from their neighbours.
    let pool = Pool::builder(SimDriver::new(sim.clone())).peer_access(true).build()?;
    // A channel each way into every stage, and past the last one.
    let links = || repeat_with(channel).take(STAGES + 1).unzip::<_, _, Vec<_>, Vec<_>>();
    let ((onward, ahead), (back, behind)) = (links(), links());
    let inboxes = ahead.into_iter().zip(behind.into_iter().skip(1));
    let mut stages = Vec::new();
    for (number, (from_before, from_next)) in inboxes.enumerate() {
        let stream = || pool.stream(DeviceId(number as u16));
        stages.push(Stage {
            sim: sim.clone(),
            number,
            compute: stream()?,
            send: stream()?,
            receive: stream()?,
            forward: (from_before, onward[number + 1].clone()),
            backward: (from_next, back[number].clone()),
        });
    }
    drop((onward, back));
    std::thread::scope(|scope| -> Result {
        let threads: Vec<_> =
            stages.into_iter().map(|stage| scope.spawn(move || stage.run())).collect();
        threads.into_iter().try_for_each(|thread| thread.join().map_err(|_| "a stage panicked")?)
    })?;
    for device in 0..sim.device_count() {
        sim.device_synchronize(device)?;
    }
    println!("{:?}", pool.stats().hits);
    println!("{} hazards, {} wrong contents", sim.hazard_count(), sim.content_mismatches());
    drop(pool);
    println!("not given back: {}", sim.leaks());
    Ok(())
}
