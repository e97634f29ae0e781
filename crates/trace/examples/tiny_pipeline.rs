//! Writes a small pipeline-parallel training run to standard output: four stages on four devices,
//! four microbatches in the 1F1B order (one forward, one backward), three steps. Each device has a
//! compute, a send and a receive stream; a stage's receive stream waits for its neighbour's send
//! stream, across devices.
//!
//! ```text
//! cargo run -p millpond-trace --example tiny_pipeline > examples/traces/tiny_pipeline.trace
//! ```

use std::collections::{HashMap, VecDeque};
use std::io::{StdoutLock, stdout};

use millpond_trace::{Encoding, Header, Op, Phase, TraceError, Writer};

const STAGES: u16 = 4;
const MICROBATCHES: u16 = 4;
const STEPS: u64 = 3;

const COMPUTE: u32 = 0;
const SEND: u32 = 1;
const RECEIVE: u32 = 2;

const WEIGHTS: [u64; 4] = [16_777_216, 33_554_432, 8_192, 2_048];
const TOKENS: u64 = 16_384;
const BOUNDARY: u64 = 4_194_304;
const SCRATCH: u64 = 12_582_912;
const SAVED: [u64; 4] = [4_194_304, 6_291_456, 262_144, 1_000];

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Task {
    Forward(u16),
    Backward(u16),
}

#[derive(Clone, Copy)]
struct Block {
    id: u64,
    stream: u32,
}

struct Run {
    out: Writer<StdoutLock<'static>>,
    next_id: u64,
    /// What a forward leaves for its backward, by stage and microbatch.
    saved: HashMap<(u16, u16), Vec<Block>>,
}

fn main() -> Result<(), TraceError> {
    let mut header = Header::new();
    for (key, value) in [
        ("trace", "1"),
        ("source", "crates/trace/examples/tiny_pipeline.rs"),
        ("schedule", "1F1B, 4 stages, 4 microbatches"),
        ("streams", "0 compute, 1 send, 2 receive on each device"),
        ("steps", "3"),
        ("devices", "4"),
    ] {
        assert!(header.push(key, value), "{key} does not fit the format");
    }
    let out = Writer::new("standard output", stdout().lock(), Encoding::Plain, &header)?;
    let mut run = Run { out, next_id: 1, saved: HashMap::new() };
    for stage in 0..STAGES {
        for bytes in WEIGHTS {
            run.alloc(stage, COMPUTE, bytes)?;
        }
    }
    for step in 1..=STEPS {
        run.step(step)?;
    }
    run.out.finish().map(drop)
}

impl Run {
    fn step(&mut self, step: u64) -> Result<(), TraceError> {
        self.out.write(&Op::Step(step))?;
        self.out.write(&Op::Phase(Phase::Forward))?;
        let mut queues: Vec<VecDeque<Task>> = (0..STAGES).map(one_f_one_b).collect();
        let mut done: Vec<(u16, Task)> = Vec::new();
        let mut backward_begun = false;
        while queues.iter().any(|queue| !queue.is_empty()) {
            // One round: every stage whose next task's input was ready before the round runs it.
            let before = done.len();
            for stage in 0..STAGES {
                let queue = &mut queues[usize::from(stage)];
                let Some(&task) = queue.front() else { continue };
                let needs = match task {
                    Task::Forward(_) => stage.checked_sub(1),
                    Task::Backward(_) => Some(stage + 1).filter(|&next| next < STAGES),
                };
                if needs.is_some_and(|from| !done[..before].contains(&(from, task))) {
                    continue;
                }
                queue.pop_front();
                done.push((stage, task));
                match task {
                    Task::Forward(microbatch) => self.forward(stage, microbatch)?,
                    Task::Backward(microbatch) => {
                        if !backward_begun {
                            backward_begun = true;
                            self.out.write(&Op::Phase(Phase::Backward))?;
                        }
                        self.backward(stage, microbatch)?;
                    }
                }
            }
        }
        self.out.write(&Op::Phase(Phase::Optimizer))?;
        for stage in 0..STAGES {
            for bytes in WEIGHTS {
                let update = self.alloc(stage, COMPUTE, bytes)?;
                self.free(update)?;
            }
        }
        Ok(())
    }

    fn forward(&mut self, stage: u16, microbatch: u16) -> Result<(), TraceError> {
        let input = match stage.checked_sub(1) {
            None => self.alloc(stage, COMPUTE, TOKENS)?,
            Some(previous) => self.receive(stage, previous)?,
        };
        let mut saved = vec![input];
        for bytes in SAVED {
            // Microbatches differ a little in length, and every step in the same way.
            let block = self.alloc(stage, COMPUTE, bytes + 512 * u64::from(microbatch))?;
            let scratch = self.alloc(stage, COMPUTE, SCRATCH)?;
            self.free(scratch)?;
            saved.push(block);
        }
        self.saved.insert((stage, microbatch), saved);
        if stage + 1 < STAGES {
            self.send(stage)?;
        }
        Ok(())
    }

    fn backward(&mut self, stage: u16, microbatch: u16) -> Result<(), TraceError> {
        let gradient = if stage + 1 < STAGES {
            self.receive(stage, stage + 1)?
        } else {
            self.alloc(stage, COMPUTE, BOUNDARY)?
        };
        let saved = self.saved.remove(&(stage, microbatch)).unwrap_or_default();
        for block in saved.into_iter().rev() {
            let scratch = self.alloc(stage, COMPUTE, SCRATCH)?;
            self.free(block)?;
            self.free(scratch)?;
        }
        self.free(gradient)?;
        if stage > 0 {
            self.send(stage)?;
        }
        Ok(())
    }

    /// Computes a boundary tensor and gives it to the send stream, which reads it until its free.
    fn send(&mut self, stage: u16) -> Result<(), TraceError> {
        let block = self.alloc(stage, COMPUTE, BOUNDARY)?;
        self.out.write(&Op::Wait { device: stage, waiter: SEND, signaller: COMPUTE })?;
        self.hand_to(block, SEND)?;
        self.free(block)
    }

    /// Takes a boundary tensor on the receive stream and gives it to the compute stream.
    fn receive(&mut self, stage: u16, from: u16) -> Result<Block, TraceError> {
        let block = self.alloc(stage, RECEIVE, BOUNDARY)?;
        self.out.write(&Op::WaitAcross {
            device: stage,
            waiter: RECEIVE,
            other: from,
            signaller: SEND,
        })?;
        self.out.write(&Op::Wait { device: stage, waiter: COMPUTE, signaller: RECEIVE })?;
        self.hand_to(block, COMPUTE)?;
        Ok(block)
    }

    fn alloc(&mut self, device: u16, stream: u32, bytes: u64) -> Result<Block, TraceError> {
        let id = self.next_id;
        self.next_id += 1;
        self.out.write(&Op::Alloc { id, device, stream, bytes })?;
        Ok(Block { id, stream })
    }

    fn hand_to(&mut self, block: Block, stream: u32) -> Result<(), TraceError> {
        self.out.write(&Op::Use { id: block.id, stream })
    }

    fn free(&mut self, block: Block) -> Result<(), TraceError> {
        self.out.write(&Op::Free { id: block.id, stream: block.stream })
    }
}

/// A stage's tasks: forwards until the pipeline below it is full, then one forward for each
/// backward, then the backwards left over.
fn one_f_one_b(stage: u16) -> VecDeque<Task> {
    let ahead = (STAGES - stage - 1).min(MICROBATCHES);
    let mut tasks: VecDeque<Task> = (0..ahead).map(Task::Forward).collect();
    for microbatch in 0..MICROBATCHES {
        if microbatch + ahead < MICROBATCHES {
            tasks.push_back(Task::Forward(microbatch + ahead));
        }
        tasks.push_back(Task::Backward(microbatch));
    }
    tasks
}
