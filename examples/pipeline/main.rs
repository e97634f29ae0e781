//! A training step over all GPUs: one stage on each, a thread for each stage, the 1F1B schedule.
//!
//! ```sh
//! cargo run --example pipeline                                            # four simulated GPUs
//! cargo run --example pipeline --features cuda-12080 -- --driver fake     # the same, seen through CUDA
//! cargo run --example pipeline --features cuda-12080 -- --driver cuda     # the GPUs of this machine
//! ```
//!
//! Every stage has a stream to compute, one to send and one to receive. Activations go forward,
//! gradients back, as copies between devices; no host thread ever waits for a device. All that a block
//! holds is checked where it is used and at the end.

#[cfg(feature = "cuda")]
mod cuda;
mod gpu;

use gpu::{Gpu, Simulated};
use millpond::{Buffer, DeviceId, Pool, Stream};
use std::collections::VecDeque;
use std::iter::repeat_with;
use std::sync::mpsc::{Receiver, Sender, channel};

type Result<T = ()> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

const MICROBATCHES: usize = 8;
const STEPS: usize = 3;

/// A block on its way to another stage: to be touched after what `stream` has been given so far.
struct Parcel {
    block: Buffer<u8>,
    pattern: u32,
    stream: Stream,
}

/// A stage: its streams, and the channels to and from its neighbours.
struct Stage<'g> {
    gpu: &'g dyn Gpu,
    pool: &'g Pool,
    number: usize,
    stages: usize,
    compute: Stream,
    send: Stream,
    receive: Stream,
    /// From the stage before, and to the next.
    forward: (Receiver<Parcel>, Sender<Parcel>),
    /// From the next stage, and to the one before.
    backward: (Receiver<Parcel>, Sender<Parcel>),
}

impl Stage<'_> {
    /// Forward passes are this far ahead of backward ones; then both take turns.
    fn run(&self) -> Result {
        for step in 0..STEPS {
            let mut saved = VecDeque::new();
            let ahead = (self.stages - self.number).min(MICROBATCHES);
            for turn in 0..MICROBATCHES + ahead {
                if turn >= ahead {
                    self.backward(saved.pop_front())?;
                }
                if turn < MICROBATCHES {
                    saved.push_back(self.forward((step * MICROBATCHES + turn) as u32)?);
                }
            }
        }
        Ok(())
    }

    /// Takes the activation in, computes, sends the result on; keeps what the way back needs.
    fn forward(&self, microbatch: u32) -> Result<(Buffer<u8>, u32)> {
        // Sequences have different lengths.
        let bytes = 200_000 + 77_776 * (microbatch as usize * 5 % 7);
        let input = if self.number > 0 {
            self.take(self.forward.0.recv()?)?
        } else {
            (self.computed(bytes, microbatch)?, microbatch)
        };
        self.check(&self.compute, &input.0, input.1)?;
        // Scratch: used by what is submitted here, and gone. The next kernel gets the same memory.
        drop(self.computed(1 << 20, !0)?);
        if self.number + 1 < self.stages {
            self.give(bytes, microbatch << 8 | self.number as u32, &self.forward.1)?;
        }
        Ok(input)
    }

    /// Takes the gradient in, uses what was saved, sends the gradient on.
    fn backward(&self, saved: Option<(Buffer<u8>, u32)>) -> Result {
        let Some((saved, pattern)) = saved else { return Ok(()) };
        if self.number + 1 < self.stages {
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
    fn give(&self, bytes: usize, pattern: u32, outbox: &Sender<Parcel>) -> Result {
        let block = self.computed(bytes, pattern)?;
        self.send.wait(&self.compute)?;
        self.check(&self.send, &block, pattern)?;
        block.last_use(&self.send)?;
        Ok(outbox.send(Parcel { block, pattern, stream: self.send.clone() })?)
    }

    /// Copies a block over from its device and frees it there, from this thread.
    fn take(&self, parcel: Parcel) -> Result<(Buffer<u8>, u32)> {
        let Parcel { block: theirs, pattern, stream } = parcel;
        self.receive.wait(&stream)?;
        let ours = self.receive.alloc(theirs.len())?;
        let (to, from) = (ours.address(), theirs.address());
        let (device, receive) = (self.receive.device(), self.receive.handle());
        self.pool.driver().copy(device, receive, to, from, theirs.bytes())?;
        // Its device must not reuse the block before this copy, on another device, is done.
        theirs.last_use(&self.receive)?;
        drop(theirs);
        self.compute.wait(&self.receive)?;
        ours.record_use(&self.compute)?;
        Ok((ours, pattern))
    }

    /// A block that a kernel writes, all of it.
    fn computed(&self, bytes: usize, pattern: u32) -> Result<Buffer<u8>> {
        let block = self.compute.alloc(bytes)?;
        self.gpu.fill(&self.compute, &block, pattern)?;
        Ok(block)
    }

    /// Compares a block with its pattern when the stream comes to it.
    fn check(&self, stream: &Stream, block: &Buffer<u8>, pattern: u32) -> Result {
        self.gpu.check(stream, block, pattern)
    }
}

/// The GPUs that the command line names, and how many they are.
fn gpus() -> Result<Box<dyn Gpu>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        [] | ["--driver", "sim"] => Ok(Box::new(Simulated::new(4)?)),
        #[cfg(feature = "cuda")]
        ["--driver", "cuda"] => Ok(Box::new(cuda::Cuda::new()?)),
        #[cfg(feature = "cuda")]
        ["--driver", "fake"] => Ok(Box::new(cuda::Fake::new(4)?)),
        _ => Err("expected --driver sim, or with the feature `cuda` --driver cuda or fake".into()),
    }
}

fn main() -> Result {
    run(&*gpus()?)
}

/// The whole run on some GPUs; an error where anything went wrong.
fn run(gpu: &dyn Gpu) -> Result {
    // Every device may read the others' memory: stages copy from their neighbours.
    let pool = Pool::builder_shared(gpu.driver()).peer_access(true).build()?;
    let stages = usize::from(pool.device_count());
    println!("{stages} stages on {:?}", pool);
    // A channel each way into every stage, and past the last one.
    let links = || repeat_with(channel).take(stages + 1).unzip::<_, _, Vec<_>, Vec<_>>();
    let ((onward, ahead), (back, behind)) = (links(), links());
    let inboxes = ahead.into_iter().zip(behind.into_iter().skip(1));
    let mut crew = Vec::new();
    for (number, (from_before, from_next)) in inboxes.enumerate() {
        let stream = || pool.stream(DeviceId(number as u16));
        crew.push(Stage {
            gpu,
            pool: &pool,
            number,
            stages,
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
            crew.into_iter().map(|stage| scope.spawn(move || stage.run())).collect();
        threads.into_iter().try_for_each(|thread| thread.join().map_err(|_| "a stage panicked")?)
    })?;
    let wrong = gpu.finish()?;
    println!("{:?}", pool.stats().hits);
    match wrong.first() {
        None => println!("all contents as they should be"),
        Some(first) => return Err(format!("{} things went wrong: {first}", wrong.len()).into()),
    }
    Ok(())
}

#[test]
fn on_simulated_gpus() {
    run(&Simulated::new(4).unwrap()).unwrap();
}

#[cfg(feature = "cuda")]
#[test]
fn seen_through_cuda() {
    run(&cuda::Fake::new(3).unwrap()).unwrap();
}
