//! A run from the first step to the last: starts the threads, hands out steps, ends everything, and
//! looks at what is left.

use super::StressArgs;
use super::lanes::Lanes;
use super::machine::{Machine, Setup};
use super::report::Report;
use super::rng::Rng;
use super::schedule::Shape;
use super::worker::{Crew, Halt, Message, Step, Worker};
use crate::output;
use indicatif::ProgressBar;
use millpond::{Pool, Result as PoolResult};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};
use std::time::{Duration, Instant};

/// What a thread tells the run.
enum News {
    /// A step is done.
    Done,
    /// The thread has ended; why, if something failed.
    Ended(Option<String>),
}

/// Runs all steps and reports.
pub(super) fn run(args: &StressArgs, seed: u64) -> anyhow::Result<Report> {
    let shape = Shape::new(args.schedule, usize::from(args.devices), args.threads());
    let setup = Setup {
        devices: args.devices,
        capacity: args.capacity.0,
        completion: args.completion(),
        oracle: args.oracle,
        seed,
    };
    let machine = Machine::new(&setup)?;
    let sim = machine.sim.clone();
    let (inboxes, receivers): (Vec<_>, Vec<_>) =
        (0..=args.threads()).map(|_| mpsc::channel()).unzip();
    let crew = Arc::new(Crew {
        machine,
        shape,
        seed,
        drivers: args.threads(),
        foreign_frees: args.foreign_frees,
        inboxes,
    });

    let start = Instant::now();
    let (steps, failures) = drive(args, &crew, receivers);
    let elapsed = start.elapsed();

    let mut report = Report::new(args, &crew, seed, steps, elapsed);
    report.failures = failures;
    for device in 0..args.devices {
        if let Err(error) = sim.device_synchronize(device) {
            report.failures.push(error.to_string());
        }
    }
    report.add_invariants(guarded(|| crew.machine.pool.check_invariants()));
    drop(crew);
    report.add_findings(&sim, args.oracle);
    Ok(report)
}

/// Runs the threads; the number of steps done, and what failed.
fn drive(
    args: &StressArgs,
    crew: &Arc<Crew>,
    receivers: Vec<Receiver<Message>>,
) -> (u64, Vec<String>) {
    let (news, heard) = mpsc::channel();
    let mut done = 0;
    let mut failures = Vec::new();
    std::thread::scope(|scope| {
        for (id, inbox) in receivers.into_iter().enumerate() {
            let (mut worker, news) = (Worker::new(id, crew, inbox), news.clone());
            scope.spawn(move || {
                let why = work(&mut worker, &news);
                drop(worker);
                // The run listens until all threads have ended.
                let _ = news.send(News::Ended(why));
            });
        }
        let mut ended = 0;
        let outcome = steps(args, crew, &heard, &mut done, &mut failures, &mut ended);
        failures.extend(outcome.err().map(|error| format!("{error:#}")));
        for inbox in &crew.inboxes {
            // A thread that has failed is gone already.
            let _ = inbox.send(Message::Quit);
        }
        while ended < crew.inboxes.len() {
            match heard.recv() {
                Ok(News::Ended(why)) => {
                    ended += 1;
                    failures.extend(why);
                }
                Ok(News::Done) => {}
                Err(_) => break,
            }
        }
    });
    (done, failures)
}

/// One thread's work; why it failed, if it did. A panic is a failure like others.
fn work(worker: &mut Worker, news: &Sender<News>) -> Option<String> {
    let done = || {
        // As above: somebody listens.
        let _ = news.send(News::Done);
    };
    match catch_unwind(AssertUnwindSafe(|| worker.run(done))) {
        Ok(Ok(()) | Err(Halt::Told)) => None,
        Ok(Err(Halt::Failed(error))) => Some(format!("{error:#}")),
        Err(panic) => Some(describe(&*panic)),
    }
}

fn describe(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
    format!("panicked: {}", text.unwrap_or_default())
}

/// Runs `check`; what it panics with is an error.
fn guarded(check: impl FnOnce()) -> Result<(), String> {
    catch_unwind(AssertUnwindSafe(check)).map_err(|panic| describe(&*panic))
}

/// Hands out step after step, and counts those done; stops when a thread has ended.
fn steps(
    args: &StressArgs,
    crew: &Crew,
    heard: &Receiver<News>,
    done: &mut u64,
    failures: &mut Vec<String>,
    ended: &mut usize,
) -> anyhow::Result<()> {
    let progress = Progress::new(args);
    let shape = &crew.shape;
    let pool = &crew.machine.pool;
    let mut lanes = (0..shape.pipelines * shape.devices)
        .map(|at| Lanes::new(pool, at % shape.devices, args.streams))
        .collect::<PoolResult<Vec<_>>>()?;
    while !progress.is_over(*done) {
        let mut rng = Rng::of(&[crew.seed, 0, *done]);
        let order = shape.order(&mut rng);
        let step = Arc::new(Step { number: *done, order, lanes: lanes.clone() });
        for inbox in &crew.inboxes[..crew.drivers] {
            // A thread that has failed says so itself.
            let _ = inbox.send(Message::Begin(Arc::clone(&step)));
        }
        for _ in 0..crew.drivers {
            match heard.recv()? {
                News::Done => {}
                News::Ended(why) => {
                    *ended += 1;
                    failures.extend(why);
                    return Ok(());
                }
            }
        }
        *done += 1;
        between(crew, args, &mut lanes, &mut rng)?;
    }
    Ok(())
}

/// What happens between steps, now and then: devices meet as in a collective, memory goes back to
/// the driver, streams are replaced by new ones. With fresh streams all are, each time.
fn between(
    crew: &Crew,
    args: &StressArgs,
    lanes: &mut [Lanes],
    rng: &mut Rng,
) -> anyhow::Result<()> {
    let Machine { sim, pool, .. } = &crew.machine;
    if rng.once_in(2) {
        let all: Vec<_> = lanes.iter().map(|lanes| lanes.compute(0).handle().into()).collect();
        sim.rendezvous(&all)?;
    }
    if rng.once_in(4) {
        trim(pool, rng)?;
    }
    for (at, lanes) in lanes.iter_mut().enumerate() {
        // Drawn in any case: the same seed asks for the same with and without fresh streams.
        let replace = rng.once_in(6);
        if args.streams_fresh {
            *lanes = lanes.renewed(&crew.machine)?;
        } else if replace {
            *lanes = Lanes::new(pool, at % crew.shape.devices, args.streams)?;
        }
    }
    Ok(())
}

fn trim(pool: &Pool, rng: &mut Rng) -> PoolResult<()> {
    let reserved = pool.stats().devices.iter().map(|device| device.reserved_bytes).max();
    pool.trim_all(rng.below(reserved.unwrap_or(0).max(1)))
}

/// How far the run has come, for a person to see.
struct Progress {
    bar: ProgressBar,
    start: Instant,
    steps: u64,
    time: Option<Duration>,
}

impl Progress {
    fn new(args: &StressArgs) -> Self {
        let time = args.seconds.map(Duration::from_secs_f64);
        let len = time.map_or(args.steps, |time| time.as_millis() as u64);
        let bar = output::progress(len, "stress");
        Self { bar, start: Instant::now(), steps: args.steps, time }
    }

    /// Whether `done` steps are enough.
    fn is_over(&self, done: u64) -> bool {
        match self.time {
            Some(time) => {
                let elapsed = self.start.elapsed();
                self.bar.set_position((elapsed.min(time)).as_millis() as u64);
                elapsed >= time
            }
            None => {
                self.bar.set_position(done);
                done >= self.steps
            }
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
