//! The GPUs that the commands run on, and what their driver is asked.

mod meter;
mod metered;

pub(crate) use meter::{Reading, own_wait};
pub(crate) use metered::Metered;
