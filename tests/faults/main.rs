//! Drivers that break: every call of a reference workload fails, once and from then on, in every
//! plausible way, with completion at once, lagging, and stuck; streams hang; contexts go. The pool
//! answers with errors, gives nothing away too early, gives back what it can, and works when the
//! trouble is over.
//!
//! The workload is run once to count its calls, then once for each number. `MILLPOND_SLOW=1` tries
//! every code, policy and kind of completion with each; without it there is a choice.
#![cfg(feature = "sim")]

#[path = "../support/mod.rs"]
mod support;

mod calls;
mod context;
#[cfg(all(feature = "cuda", unix))]
mod cuda;
mod end;
mod ground;
mod movable;
mod rig;
mod stuck;
mod workload;
