//! Failures on request: the n-th call of a kind fails, once or from then on.

use crate::{Call, ErrorCode};

/// A failure to inject.
///
/// ```
/// use millpond_simgpu::{Call, ErrorCode, Fault, Sim};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let sim = Sim::builder().build()?;
/// sim.inject(Fault { call: Call::Create, nth: 2, code: ErrorCode::OutOfMemory, sticky: false });
/// assert!(sim.page_create(0, 2 << 20).is_ok());
/// assert!(sim.page_create(0, 2 << 20).is_err());
/// assert!(sim.page_create(0, 2 << 20).is_ok());
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The kind of call that fails.
    pub call: Call,
    /// Which one, counted from the injection; the next is 1, and 0 means the same.
    pub nth: u64,
    /// How it fails.
    pub code: ErrorCode,
    /// Whether all later calls of the kind fail as well.
    pub sticky: bool,
}

/// A fault with the number of calls that it still lets through.
#[derive(Debug)]
struct Armed {
    /// `None`: any call.
    call: Option<Call>,
    left: u64,
    code: ErrorCode,
    sticky: bool,
}

/// The faults still to come.
#[derive(Debug, Default)]
pub(crate) struct Faults {
    armed: Vec<Armed>,
}

impl Faults {
    pub(crate) fn add(&mut self, call: Option<Call>, nth: u64, code: ErrorCode, sticky: bool) {
        self.armed.push(Armed { call, left: nth.saturating_sub(1), code, sticky });
    }

    pub(crate) fn clear(&mut self) {
        self.armed.clear();
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.armed.is_empty()
    }

    /// Counts one call against every fault; says how it fails, if it does.
    pub(crate) fn strike(&mut self, call: Call) -> Option<ErrorCode> {
        let mut struck = None;
        self.armed.retain_mut(|fault| {
            if fault.call.is_some_and(|only| only != call) {
                return true;
            }
            if fault.left > 0 {
                fault.left -= 1;
                return true;
            }
            struck.get_or_insert(fault.code);
            fault.sticky
        });
        struck
    }
}
