//! Host functions in a stream: work that the host does when the stream comes to it.
//!
//! The simulator has no threads, so it runs none of them. A program submits the function's place in
//! the stream, asks when the stream has come there, runs the function on a thread of its own, and says
//! when it has returned. What comes after that place waits for it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::event::{Due, Record, observe};
use crate::lag::Hang;
use crate::sched::{Flag, Op};
use crate::{Call, Completion, Result, Sim, Stream, lag};

/// A host function's place in a stream.
#[derive(Clone, Debug)]
pub struct HostCall {
    /// Done when the stream has come to it.
    before: Record,
    after: After,
}

/// What holds up the work behind it.
#[derive(Clone, Debug)]
enum After {
    Hang(Arc<Hang>),
    Flag(Flag),
}

impl Sim {
    /// Submits the place of a host function.
    ///
    /// # Errors
    ///
    /// Where the handle is not valid.
    pub fn host_call(&self, stream: Stream) -> Result<HostCall> {
        const CALL: Call = Call::Launch;
        let inner = &*self.inner;
        let mut world = inner.world();
        let on = inner.given(CALL, stream)?;
        inner.enter(CALL, on.device)?;
        inner.with_stream(CALL, stream, |stream| {
            let before = inner.new_record(Some(&mut world), stream);
            let after = match inner.completion {
                Completion::Lag(_) => {
                    let hang = Hang::new();
                    stream.behind.push(Arc::clone(&hang));
                    world.hangs.push((on.device, Arc::clone(&hang)));
                    After::Hang(hang)
                }
                Completion::Scheduled => {
                    let flag: Flag = Arc::new(AtomicBool::new(false));
                    world.push(stream.serial, Op::Wait(Arc::clone(&flag)));
                    After::Flag(flag)
                }
            };
            Ok(HostCall { before, after })
        })
    }

    /// Whether the function may run: all that is before it is done, of which the host thereby learns.
    /// With `push`, the stream's work is run up to there, as a device does by itself. (With
    /// [`Completion::Lag`] work takes no time, and only host functions and hangs hold it up.)
    pub fn host_call_due(&self, call: &HostCall, push: bool) -> bool {
        // A mere question takes no step: who asks is a thread of its own, whose timing must not decide
        // what the seed does.
        let mut world = if push { self.inner.world() } else { self.inner.peek() };
        let done = match &call.before.due {
            Due::Tick { behind, .. } => !lag::stuck(behind),
            Due::Flag(flag) => {
                let done = || flag.load(Ordering::Acquire);
                if push { world.run_until(|_| done()) } else { done() }
            }
        };
        if done {
            observe(Some(&mut world), &call.before);
        }
        done
    }

    /// The function has returned: what is behind it goes on.
    pub fn host_call_end(&self, call: &HostCall) {
        let _world = self.inner.world();
        match &call.after {
            After::Hang(hang) => hang.end(self.now()),
            // Pairs with the scheduler's look at the wait.
            After::Flag(flag) => flag.store(true, Ordering::Release),
        }
    }
}
