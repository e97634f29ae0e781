//! Memory that is taken before anybody asks for it.

/// When physical memory is taken from the driver.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Preallocation {
    /// When a request needs it.
    #[default]
    OnDemand,
    /// So many bytes of each device when the pool is built, rounded up to pages, and none after that; all
    /// that the capacity allows where that is less.
    Fixed {
        /// Bytes of each device.
        bytes: u64,
    },
    /// Some when the pool is built, and more than is needed each time that more is needed. What is
    /// live stays where it is.
    Growing(Growth),
}

/// How a growing pool grows, as far as its capacity allows. By default 256 MiB at first, an eighth more each time,
/// and 10 % beyond what was ever live.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Growth {
    /// Bytes of each device taken when the pool is built, rounded up to pages.
    pub initial: u64,
    /// What is reserved is multiplied at least by this each time. Below 1, or not a number, it counts as 1.
    pub factor: f64,
    /// What is reserved exceeds what was ever live at least by this share each time. Below 0, or not a number,
    /// it counts as 0.
    pub headroom: f64,
}

impl Default for Growth {
    fn default() -> Self {
        Self { initial: 256 << 20, factor: 1.125, headroom: 0.10 }
    }
}
