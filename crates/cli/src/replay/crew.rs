//! Threads that replay copies of one trace at once.
//!
//! Each has streams and slots of its own and lives for all replays, so that a later replay finds
//! what the thread's caches hold. Jobs go out to all of them and are over when all have answered;
//! a replay starts at one moment on all.

use super::allocator::Allocator;
use super::machine::Machine;
use super::program::Program;
use super::run::{Lagging, Plain, Refused, Slots, clear, replay};
use super::timing::Samples;
use super::watch::{Cold, Gauge, StepPeaks, Touches, Watch};
use crate::gpus::Reading;
use anyhow::{Context, anyhow};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Barrier, Mutex};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

/// What all threads share.
pub(super) struct Stage<A> {
    pub machine: Machine<A>,
    pub program: Program,
    pub gauges: Vec<Mutex<Gauge>>,
    pub lag: bool,
    pub oracle: bool,
    start: Barrier,
}

impl<A: Allocator> Stage<A> {
    pub fn new(
        machine: Machine<A>,
        program: Program,
        threads: u16,
        lag: bool,
        oracle: bool,
    ) -> Self {
        let gauges = program.devices.iter().map(|_| Mutex::default()).collect();
        let start = Barrier::new(usize::from(threads));
        Self { machine, program, gauges, lag, oracle, start }
    }
}

/// What a thread is told to do.
#[derive(Clone, Copy, Debug)]
pub(super) enum Job {
    /// A replay, each call measured.
    Measure,
    /// A replay, timed as a whole.
    Time,
    /// Free what the replay before left.
    Clear,
}

/// What a thread answers.
#[derive(Default)]
pub(super) struct Answer {
    pub time: Duration,
    pub refused: Refused,
    /// From [`Job::Measure`].
    pub alloc: Samples,
    pub free: Samples,
    /// Where each step of the second half began.
    pub steady: Vec<Reading>,
    /// The most bytes in each step, and before the first, by device.
    pub steps: Vec<Vec<StepPeaks>>,
}

struct Worker<A: Allocator> {
    stage: Arc<Stage<A>>,
    streams: Vec<A::Stream>,
    slots: Slots<A>,
    touches: Option<Touches>,
}

impl<A: Allocator> Worker<A> {
    fn new(stage: Arc<Stage<A>>, thread: u16) -> anyhow::Result<Self> {
        let program = &stage.program;
        let streams = stage.machine.streams(&program.streams)?;
        let slots = std::iter::repeat_with(|| None).take(program.slots).collect();
        let touches = stage.oracle.then(|| Touches::new(program, thread));
        Ok(Self { stage, streams, slots, touches })
    }

    fn work(&mut self, job: Job) -> anyhow::Result<Answer> {
        let Self { stage, streams, slots, touches } = self;
        let Stage { machine, program, gauges, lag, .. } = &**stage;
        let (allocator, lag) = (&machine.allocator, *lag);
        let mut watch = Watch { machine, program, lag, cold: None, touches: touches.as_mut() };
        if let Job::Clear = job {
            clear(allocator, program, streams, slots, &mut watch)?;
            return Ok(Answer::default());
        }
        if let Job::Measure = job {
            watch.cold = Some(Cold::new(program, gauges));
        }
        stage.start.wait();
        let start = Instant::now();
        let refused = if watch.cold.is_some() || watch.touches.is_some() {
            replay(allocator, program, streams, slots, &mut watch)
        } else if let (true, Some(sim)) = (lag, &machine.sim) {
            replay(allocator, program, streams, slots, &mut Lagging(sim))
        } else {
            replay(allocator, program, streams, slots, &mut Plain)
        }?;
        let answer = Answer { time: start.elapsed(), refused, ..Answer::default() };
        Ok(match watch.cold {
            Some(Cold { alloc, free, steady, steps, .. }) => {
                Answer { alloc, free, steady, steps, ..answer }
            }
            None => answer,
        })
    }
}

struct Member {
    jobs: Sender<Job>,
    answers: Receiver<anyhow::Result<Answer>>,
    thread: JoinHandle<()>,
}

/// The threads.
pub(super) struct Crew(Vec<Member>);

impl Crew {
    /// Starts threads that wait for jobs.
    pub fn start<A: Allocator>(stage: &Arc<Stage<A>>, threads: u16) -> anyhow::Result<Self> {
        let members = (0..threads).map(|number| {
            let mut worker = Worker::new(Arc::clone(stage), number)?;
            let (jobs, inbox) = channel();
            let (outbox, answers) = channel();
            let work = move || {
                while let Ok(job) = inbox.recv() {
                    if outbox.send(worker.work(job)).is_err() {
                        break;
                    }
                }
            };
            let thread = Builder::new().name(format!("replay-{number}")).spawn(work);
            let thread = thread.context("a thread cannot be started")?;
            Ok(Member { jobs, answers, thread })
        });
        members.collect::<anyhow::Result<_>>().map(Self)
    }

    /// Has all threads do a job; their answers, in order.
    pub fn all(&self, job: Job) -> anyhow::Result<Vec<Answer>> {
        let ended = || anyhow!("a replay thread has ended early");
        for member in &self.0 {
            member.jobs.send(job).map_err(|_| ended())?;
        }
        let answers = self.0.iter().map(|member| member.answers.recv().map_err(|_| ended())?);
        answers.collect()
    }

    /// Ends the threads, whose streams and blocks go with them.
    pub fn end(self) -> anyhow::Result<()> {
        for Member { jobs, thread, .. } in self.0 {
            drop(jobs);
            thread.join().map_err(|_| anyhow!("a replay thread has panicked"))?;
        }
        Ok(())
    }
}
