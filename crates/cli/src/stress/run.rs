//! A run from the first step to the last: starts the threads, hands out steps, ends everything, and
//! looks at what is left.

use super::StressArgs;
use super::goal::{Goal, Progress};
use super::lanes::Lanes;
use super::machine::{Machine, Setup};
use super::report::Report;
use super::rng::Rng;
use super::schedule::{Schedule, Shape};
use super::worker::{Crew, Halt, Message, Step, Worker};
use crate::gpus::Gpus;
use anyhow::anyhow;
use millpond::{Pool, Result as PoolResult};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};
use std::time::Instant;

/// The invariants are checked after one in so many steps.
const CHECKED: u64 = 4;

/// What a thread tells the run.
enum News {
    /// A step is done.
    Done,
    /// The thread has ended; why, if something failed.
    Ended(Option<String>),
}

/// Runs all steps and reports.
pub(super) fn run(
    args: &StressArgs,
    gpus: &mut Gpus,
    schedule: Schedule,
    goal: Goal,
    seed: u64,
) -> anyhow::Result<Report> {
    let shape = Shape::new(schedule, usize::from(args.devices()), args.threads());
    let setup = Setup {
        devices: args.devices(),
        capacity: args.capacity.map(|bytes| bytes.0),
        plain: args.plain,
        completion: args.completion(),
        oracle: args.oracle,
        coverage: args.coverage(),
        seed,
    };
    let machine = Machine::new(&setup, gpus)?;
    let devices = Arc::clone(&machine.devices);
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
    let course = drive(args, goal, &crew, receivers);
    let elapsed = start.elapsed();

    let mut report = Report::new(args, gpus.name(), &crew, seed, course.steps, elapsed);
    report.failures = course.failures;
    report.invariant_checks = course.checks;
    report.failures.extend(devices.settle().err().map(|error| format!("{error:#}")));
    report.add_invariants(guarded(|| crew.machine.pool.check_invariants()));
    drop(crew);
    report.add_findings(devices.findings());
    Ok(report)
}

/// How a run went.
#[derive(Default)]
struct Course {
    /// Steps done.
    steps: u64,
    /// Times that the invariants were checked between steps.
    checks: u64,
    /// What failed.
    failures: Vec<String>,
    /// Threads that have ended.
    ended: usize,
}

/// Runs the threads.
fn drive(
    args: &StressArgs,
    goal: Goal,
    crew: &Arc<Crew>,
    receivers: Vec<Receiver<Message>>,
) -> Course {
    let (news, heard) = mpsc::channel();
    let mut course = Course::default();
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
        let outcome = steps(args, goal, crew, &heard, &mut course);
        course.failures.extend(outcome.err().map(|error| format!("{error:#}")));
        for inbox in &crew.inboxes {
            // A thread that has failed is gone already.
            let _ = inbox.send(Message::Quit);
        }
        while course.ended < crew.inboxes.len() {
            match heard.recv() {
                Ok(News::Ended(why)) => {
                    course.ended += 1;
                    course.failures.extend(why);
                }
                Ok(News::Done) => {}
                Err(_) => break,
            }
        }
    });
    course
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
    goal: Goal,
    crew: &Crew,
    heard: &Receiver<News>,
    course: &mut Course,
) -> anyhow::Result<()> {
    let progress = Progress::new(goal);
    let shape = &crew.shape;
    let pool = &crew.machine.pool;
    let mut lanes = (0..shape.pipelines * shape.devices)
        .map(|at| Lanes::new(pool, at % shape.devices, args.streams))
        .collect::<PoolResult<Vec<_>>>()?;
    while !progress.is_over(course.steps, crew.machine.ledger.operations()) {
        let mut rng = Rng::of(&[crew.seed, 0, course.steps]);
        let order = shape.order(&mut rng);
        let step = Arc::new(Step { number: course.steps, order, lanes: lanes.clone() });
        for inbox in &crew.inboxes[..crew.drivers] {
            // A thread that has failed says so itself.
            let _ = inbox.send(Message::Begin(Arc::clone(&step)));
        }
        for _ in 0..crew.drivers {
            match heard.recv()? {
                News::Done => {}
                News::Ended(why) => {
                    course.ended += 1;
                    course.failures.extend(why);
                    return Ok(());
                }
            }
        }
        course.steps += 1;
        between(crew, args, &mut lanes, &mut rng)?;
        // Blocks are still being freed for others meanwhile.
        if rng.once_in(CHECKED) {
            course.checks += 1;
            guarded(|| pool.check_invariants())
                .map_err(|why| anyhow!("a broken invariant: {why}"))?;
        }
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
    let Machine { devices, pool, .. } = &crew.machine;
    if rng.once_in(2) {
        let all: Vec<_> = lanes.iter().map(|lanes| lanes.compute(0)).collect();
        devices.meet(&all)?;
    }
    if rng.once_in(8) {
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
