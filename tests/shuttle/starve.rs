//! A scheduler that stops one thread after its k-th step until all others are through.
//!
//! A run has a victim, which does one operation, and others, which do theirs. From the moment at
//! which the victim begins, the scheduler lets it take k steps and no further one while another
//! thread can run. If the others come to a point where only the victim can run, or need more steps
//! than they are allowed, the victim has held them up: they are not free of it. Then, and when the
//! others are through, the victim goes on, so that every run ends in order. k grows from 0 until the
//! operation ends before its k-th step, so that the victim has been stopped at every one.

use crate::explore::config;
use shuttle::scheduler::{DataSource, RandomDataSource, Schedule, Scheduler, Task, TaskId};
use shuttle::sync::Barrier;
use shuttle::{Runner, thread};
use std::io::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};

/// What roles and scheduler tell each other. Not shuttle's atomics: a look is no step.
#[derive(Default)]
struct Board {
    victim: AtomicUsize,
    /// The victim is in its operation.
    begun: AtomicBool,
    ended: AtomicBool,
    /// Others that are not through, by the bit of their place.
    left: AtomicUsize,
}

/// What a search found.
#[derive(Debug, Default)]
pub struct Found {
    /// Runs, and steps of the victim's operation.
    pub runs: usize,
    pub steps: usize,
    /// The values of k at which others were held up, and which of them.
    pub held_up: Vec<(usize, usize)>,
    /// Most steps that the others took together while the victim was stopped.
    pub most: usize,
}

struct Starve {
    board: Arc<Board>,
    orders: usize,
    allowed: usize,
    rng: RandomDataSource,
    order: usize,
    k: usize,
    /// Of the present run: the victim's steps, the others' while it was stopped.
    taken: usize,
    others: usize,
    stopped: bool,
    released: bool,
    /// Some run with the present k stopped the victim.
    any_stopped: bool,
    found: Arc<std::sync::Mutex<Found>>,
}

impl Starve {
    fn found(&self, body: impl FnOnce(&mut Found)) {
        body(&mut self.found.lock().expect("no panic while it is held"));
    }

    fn release(&mut self, held_up: bool) {
        self.released = true;
        let (k, others, left) = (self.k, self.others, self.board.left.load(SeqCst));
        self.found(|found| {
            found.most = found.most.max(others);
            if held_up && found.held_up.last().is_none_or(|&(last, _)| last != k) {
                found.held_up.push((k, left));
            }
        });
    }
}

impl Scheduler for Starve {
    fn new_execution(&mut self) -> Option<Schedule> {
        if self.order == self.orders {
            if !self.any_stopped {
                return None;
            }
            (self.order, self.any_stopped) = (0, false);
            self.k += 1;
        }
        self.order += 1;
        (self.taken, self.others, self.stopped, self.released) = (0, 0, false, false);
        let board = &self.board;
        board.begun.store(false, SeqCst);
        board.ended.store(false, SeqCst);
        let k = self.k;
        self.found(|found| {
            found.runs += 1;
            found.steps = found.steps.max(k);
        });
        Some(Schedule::new(self.rng.reinitialize()))
    }

    fn next_task(&mut self, runnable: &[&Task], _: Option<TaskId>, _: bool) -> Option<TaskId> {
        let victim = TaskId::from(self.board.victim.load(SeqCst));
        let at_work = self.board.begun.load(SeqCst) && !self.board.ended.load(SeqCst);
        let mut able: Vec<TaskId> = runnable.iter().map(|task| task.id()).collect();
        if at_work && !self.released {
            if self.taken < self.k {
                // The first order: nobody else before the stop.
                if self.order == 1 && able.contains(&victim) {
                    able = vec![victim];
                }
            } else {
                (self.stopped, self.any_stopped) = (true, true);
                let through = self.board.left.load(SeqCst) == 0;
                let others: Vec<TaskId> = able.iter().copied().filter(|&id| id != victim).collect();
                if through || others.is_empty() || self.others > self.allowed {
                    self.release(!through);
                } else {
                    able = others;
                    self.others += 1;
                }
            }
        }
        let chosen = able[self.rng.next_u64() as usize % able.len()];
        if at_work && chosen == victim {
            self.taken += 1;
        }
        Some(chosen)
    }

    fn next_u64(&mut self) -> u64 {
        self.rng.next_u64()
    }
}

/// What a role has prepared.
pub struct Prepared<Ground> {
    /// Done when all roles have prepared.
    pub settle: Box<dyn FnOnce()>,
    /// What the role is there for.
    pub act: Box<dyn FnOnce(&Ground)>,
}

/// A role: its preparation.
pub type Role<Ground> = fn(&Ground) -> Prepared<Ground>;

/// Where the roles of a run meet.
pub trait Meeting: Send + Sync + 'static {
    fn new() -> Self;

    /// All roles are prepared, and the victim is about to begin.
    fn before(&self);

    /// All are through.
    fn after(&self);
}

/// Who is there beside the victim.
pub struct Crowd<Ground: 'static> {
    pub roles: &'static [Role<Ground>],
    /// Orders tried for each k. In the first nobody but the victim runs before its stop.
    pub orders: usize,
    /// Steps that they may take together while the victim is stopped.
    pub allowed: usize,
}

/// Stops `victim` at every step of what it does while others do theirs, at a fresh meeting each time.
pub fn starve<Ground: Meeting>(
    name: &str,
    victim: Role<Ground>,
    &Crowd { roles, orders, allowed }: &'static Crowd<Ground>,
) -> Found {
    let board = Arc::new(Board::default());
    let found = Arc::<std::sync::Mutex<Found>>::default();
    let scheduler = Starve {
        board: Arc::clone(&board),
        orders,
        allowed,
        rng: RandomDataSource::initialize(42),
        order: 0,
        k: 0,
        taken: 0,
        others: 0,
        stopped: false,
        released: false,
        any_stopped: false,
        found: Arc::clone(&found),
    };
    Runner::new(scheduler, config()).run(move || {
        let ground = Arc::new(Ground::new());
        board.left.store((1 << roles.len()) - 1, SeqCst);
        // All are prepared before the victim begins, and end after all are through.
        let [prepared, ready, go, over] =
            [1, 2, 2, 1].map(|more| Arc::new(Barrier::new(roles.len() + more)));
        let start = |place: usize, role: Role<Ground>| {
            let is_victim = place == roles.len();
            let (ground, board) = (Arc::clone(&ground), Arc::clone(&board));
            let [prepared, ready, go, over] = [&prepared, &ready, &go, &over].map(Arc::clone);
            thread::spawn(move || {
                if is_victim {
                    board.victim.store(usize::from(shuttle::current::me()), SeqCst);
                }
                let Prepared { settle, act } = role(&ground);
                prepared.wait();
                settle();
                ready.wait();
                go.wait();
                if is_victim {
                    board.begun.store(true, SeqCst);
                    act(&ground);
                    board.ended.store(true, SeqCst);
                } else {
                    act(&ground);
                    board.left.fetch_and(!(1 << place), SeqCst);
                }
                over.wait();
            })
        };
        let threads: Vec<_> =
            roles.iter().enumerate().map(|(place, &role)| start(place, role)).collect();
        let victim = start(roles.len(), victim);
        ready.wait();
        ground.before();
        go.wait();
        threads.into_iter().chain([victim]).for_each(|thread| thread.join().expect("a role"));
        ground.after();
    });
    let found = std::mem::take(&mut *found.lock().expect("no panic while it is held"));
    let Found { runs, steps, held_up, most } = &found;
    // Not `println!`, which the test harness keeps to itself.
    let _ = writeln!(
        std::io::stdout(),
        "starved {name}: {steps} steps of the victim, {runs} runs, held up at {} of them, at most {most} steps of the others meanwhile",
        held_up.len()
    );
    found
}
