//! What a simulated call answers when it does not succeed.
//!
//! The numbers are those of the CUDA driver API, so that code above a driver layer can treat both
//! backends alike. A message names the device, the addresses and the sizes it is about.

use crate::Call;

/// Why a call failed, with the number that the CUDA driver gives it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorCode {
    /// An argument is out of range, misaligned, or does not describe what is there.
    InvalidValue,
    /// No physical memory, or no address space, is left.
    OutOfMemory,
    /// The driver has shut down ([`Sim::shutdown`](crate::Sim::shutdown)).
    Deinitialized,
    /// No such device.
    InvalidDevice,
    /// No such stream, event or page; or they belong to different devices.
    InvalidHandle,
    /// The work is not done yet; only ever injected, since queries answer with a value.
    NotReady,
    /// A device touched memory that is not there.
    IllegalAddress,
    /// A host wait that could never end: a stream hangs, or operations wait for each other. A real
    /// driver would block for good, or until a watchdog ends it, which is the number used here.
    Deadlock,
    /// A device without access to the memory it was told to use.
    PeerAccessNotEnabled,
    /// The device's context is gone ([`Sim::destroy_context`](crate::Sim::destroy_context)).
    ContextDestroyed,
    /// A kernel failed.
    LaunchFailed,
    /// The call is not possible in this configuration.
    NotSupported,
    /// Anything else.
    Unknown,
}

impl ErrorCode {
    /// The number of the CUDA driver API.
    pub const fn number(self) -> i32 {
        match self {
            Self::InvalidValue => 1,
            Self::OutOfMemory => 2,
            Self::Deinitialized => 4,
            Self::InvalidDevice => 101,
            Self::InvalidHandle => 400,
            Self::NotReady => 600,
            Self::IllegalAddress => 700,
            Self::Deadlock => 702,
            Self::PeerAccessNotEnabled => 705,
            Self::ContextDestroyed => 709,
            Self::LaunchFailed => 719,
            Self::NotSupported => 801,
            Self::Unknown => 999,
        }
    }

    /// A short text.
    pub const fn text(self) -> &'static str {
        match self {
            Self::InvalidValue => "invalid value",
            Self::OutOfMemory => "out of memory",
            Self::Deinitialized => "driver shut down",
            Self::InvalidDevice => "invalid device",
            Self::InvalidHandle => "invalid handle",
            Self::NotReady => "not ready",
            Self::IllegalAddress => "illegal address",
            Self::Deadlock => "would wait for ever",
            Self::PeerAccessNotEnabled => "no peer access",
            Self::ContextDestroyed => "context destroyed",
            Self::LaunchFailed => "launch failed",
            Self::NotSupported => "not supported",
            Self::Unknown => "unknown error",
        }
    }
}

impl std::fmt::Display for ErrorCode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.text())
    }
}

/// A call that failed, and had no effect.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}: {code}: {message}", call.name())]
pub struct SimError {
    /// The call.
    pub call: Call,
    /// Why it failed.
    pub code: ErrorCode,
    /// What exactly was wrong: device, addresses, sizes.
    pub message: String,
}

impl SimError {
    pub(crate) fn new(call: Call, code: ErrorCode, message: impl Into<String>) -> Self {
        Self { call, code, message: message.into() }
    }
}

/// Result of a simulated call.
pub type Result<T> = std::result::Result<T, SimError>;

/// A failure seen below the level that knows which call it serves.
#[derive(Debug)]
pub(crate) struct Refusal {
    pub code: ErrorCode,
    pub message: String,
}

impl Refusal {
    pub(crate) fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }

    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Self::new(ErrorCode::InvalidValue, message)
    }

    pub(crate) fn during(self, call: Call) -> SimError {
        SimError::new(call, self.code, self.message)
    }
}

/// A configuration that [`Builder::build`](crate::Builder::build) refuses.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BuildError {
    /// There must be at least one device.
    #[error("a simulation needs at least one device")]
    NoDevices,
    /// More devices than an ordinal can count.
    #[error("{0} devices are more than the {max} that can be told apart", max = u16::MAX)]
    TooManyDevices(usize),
    /// The granularity must be a power of two of at least 512 bytes.
    #[error("granularity {0} is not a power of two of at least 512")]
    Granularity(u64),
    /// The address space of a device must hold its memory and be a multiple of the granularity,
    /// and those of all devices together must fit into 63 bits.
    #[error("an address space of {bytes} bytes per device does not suit {devices} devices: {why}")]
    AddressSpace {
        /// Address space asked for, per device.
        bytes: u64,
        /// Number of devices.
        devices: usize,
        /// What is wrong with it.
        why: &'static str,
    },
}
