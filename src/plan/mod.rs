//! What a program asks for, step after step, and memory laid out for it in advance.
//!
//! A [`Recording`] is what one device's program asked for, in order. A [`Profile`] sums it up and says
//! which way of managing memory suits it. A [`Plan`] gives the requests that recur in every step a
//! place each in one range of bytes, so that blocks whose lifetimes overlap share none.
//!
//! All of it is policy: pure functions over plain data, with no atomics and no `unsafe`.
//!
//! ```text
//! Pool, or a trace ──► Recording ──► Profile ──► Recommendation
//!                          └───────► Plan ──► file
//! ```

mod advice;
#[cfg(feature = "serde")]
mod file;
mod pack;
mod planner;
mod profile;
mod recording;
mod reuse;

pub use advice::{Advice, Recommendation};
#[cfg(feature = "serde")]
pub use file::PlanFileError;
pub use planner::{DevicePlan, Plan, Planned};
pub(crate) use planner::{Terms, counts};
pub use profile::{Band, Count, Lifetimes, LiveSample, Octave, Profile, Share, StreamProfile};
pub use recording::{Event, Recording};
pub use reuse::{BucketReuse, ReuseEstimate};
