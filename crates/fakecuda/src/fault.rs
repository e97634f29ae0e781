//! Failures on request: the n-th call, or every call from the n-th on, of one function or of any.

use cudarc::driver::sys::CUresult;

use crate::table::Function;

/// A failure to come.
#[derive(Debug)]
struct Armed {
    /// `None`: any function.
    function: Option<Function>,
    /// Calls that it still lets through.
    left: u64,
    code: CUresult,
    sticky: bool,
}

/// The failures to come, and the calls that failed so.
#[derive(Debug, Default)]
pub(crate) struct Faults {
    armed: Vec<Armed>,
    pub struck: Vec<Function>,
}

impl Faults {
    pub(crate) fn add(
        &mut self,
        function: Option<Function>,
        nth: u64,
        code: CUresult,
        sticky: bool,
    ) {
        self.armed.push(Armed { function, left: nth.saturating_sub(1), code, sticky });
    }

    /// Forgets them; says whether there were any.
    pub(crate) fn clear(&mut self) -> bool {
        let any = !self.armed.is_empty();
        self.armed.clear();
        any
    }

    /// Counts one call against each; says how it fails, if it does.
    pub(crate) fn strike(&mut self, call: Function) -> Option<CUresult> {
        let mut struck = None;
        self.armed.retain_mut(|fault| {
            if fault.function.is_some_and(|only| only != call) {
                return true;
            }
            if fault.left > 0 {
                fault.left -= 1;
                return true;
            }
            struck.get_or_insert(fault.code);
            fault.sticky
        });
        self.struck.extend(struck.map(|_| call));
        struck
    }
}
