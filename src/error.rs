//! What can go wrong, said so that a person can act on it.

use crate::block::StreamId;
use crate::driver::{DeviceId, DriverError};
use std::fmt;

/// Why the pool refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A block of zero bytes was asked for.
    #[error("an allocation of 0 bytes has no address: ask for at least 1")]
    ZeroSize,
    /// More bytes than any device has addresses for.
    #[error("an allocation of {bytes} bytes is beyond the limit of {max}")]
    TooLarge {
        /// Bytes asked for.
        bytes: u64,
        /// The largest request the pool takes.
        max: u64,
    },
    /// The device has no memory for the request.
    #[error(transparent)]
    OutOfMemory(Box<OutOfMemory>),
    /// No device with this ordinal.
    #[error("{device} does not exist: the driver has {count}")]
    NoSuchDevice {
        /// The device asked for.
        device: DeviceId,
        /// Devices the driver has, numbered from 0.
        count: u16,
    },
    /// All 65,535 stream ids are taken, or wait for their last work to complete.
    #[error("{device}: no stream id left; 65535 streams are registered or not yet completed")]
    TooManyStreams {
        /// The device of the stream that was to be registered.
        device: DeviceId,
    },
    /// The device's 2^24 descriptors all describe blocks.
    #[error("{device}: no block descriptor left")]
    TooManyBlocks {
        /// The device.
        device: DeviceId,
    },
    /// No block of this pool starts at the address.
    #[error("no block of this pool starts at {address:#x}")]
    UnknownAddress {
        /// The address given.
        address: u64,
    },
    /// The block that starts at the address is not allocated: it was freed before.
    #[error("the block at {address:#x} is not allocated: freed twice?")]
    NotAllocated {
        /// The address given.
        address: u64,
    },
    /// The pool was built before this process was forked from another, which has it.
    #[error(
        "this pool was built before the process forked, and belongs to the parent: \
         build a driver and a pool in the child, or call exec"
    )]
    Forked,
    /// The stream belongs to another pool.
    #[error("{stream} belongs to another pool")]
    ForeignStream {
        /// The stream's number in its own pool.
        stream: StreamId,
    },
    /// The stream captures: what it is given becomes part of a graph, and the pool leaves it alone.
    #[error("{stream} captures a graph: order it by events of your own until the capture is over")]
    Capturing {
        /// The stream's number.
        stream: StreamId,
    },
    /// The stream could not be made to run after another's work, which no event could be had for now, or
    /// about which the driver has failed to answer.
    #[error("{stream} cannot be made to wait for {other} now: wait on the host, or try again")]
    CannotWait {
        /// The stream that was to wait.
        stream: StreamId,
        /// The stream whose work it was to wait for.
        other: StreamId,
    },
    /// `try_alloc` found nothing cached, and another thread is in the device's arena.
    #[error("{device}: nothing cached fits, and the arena is busy")]
    Busy {
        /// The device.
        device: DeviceId,
    },
    /// A driver call failed.
    #[error(transparent)]
    Driver(Box<DriverError>),
}

impl From<DriverError> for Error {
    fn from(error: DriverError) -> Self {
        Self::Driver(Box::new(error))
    }
}

/// Why there is no memory, and where it is.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct OutOfMemory {
    /// The device.
    pub device: DeviceId,
    /// The stream that asked.
    pub stream: StreamId,
    /// Bytes asked for.
    pub requested: u64,
    /// Bytes that users hold (as asked for).
    pub live: u64,
    /// Physical bytes taken from the driver.
    pub reserved: u64,
    /// Most physical bytes the pool may take.
    pub limit: u64,
    /// Why it may take no more.
    pub limited_by: LimitedBy,
    /// Bytes of extents that nobody holds.
    pub free: u64,
    /// Those of the free bytes that lay in caches before everything was claimed for the request.
    pub cached: u64,
    /// The largest free extent.
    pub largest_free: u64,
    /// Those of the free bytes that wait for work not known to have completed.
    pub in_flight: u64,
    /// Live bytes by the stream they were allocated on, the most first.
    pub held: Vec<StreamBytes>,
    /// Free bytes that wait for work, by stream, the most first. Memory that waits for several
    /// streams counts for each.
    pub pending: Vec<StreamBytes>,
}

/// Why a pool takes no more of a device's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LimitedBy {
    /// The device has no more.
    Device,
    /// It was given a capacity.
    Capacity,
    /// It was given a fixed size.
    FixedSize,
    /// The driver had nothing left when it was last asked.
    Driver,
}

impl fmt::Display for LimitedBy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Device => "all that the device has",
            Self::Capacity => "the capacity set",
            Self::FixedSize => "the pool's fixed size",
            Self::Driver => "the driver has nothing left",
        })
    }
}

/// Bytes that have to do with a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamBytes {
    /// The stream.
    pub stream: StreamId,
    /// How many bytes.
    pub bytes: u64,
}

/// The streams with the most bytes, for a message.
struct Most<'a>(&'a [StreamBytes]);

impl fmt::Display for Most<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SHOWN: usize = 3;
        for (at, StreamBytes { stream, bytes }) in self.0.iter().take(SHOWN).enumerate() {
            write!(f, "{}{stream}: {bytes}", if at > 0 { ", " } else { "" })?;
        }
        if self.0.len() > SHOWN {
            write!(f, ", and {} more", self.0.len() - SHOWN)?;
        }
        Ok(())
    }
}

impl fmt::Display for OutOfMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { device, stream, requested, live, reserved, limit, free, .. } = self;
        write!(f, "{device} is out of memory: {stream} asked for {requested} bytes; ")?;
        write!(f, "of {limit} bytes ({}) {reserved} are reserved, ", self.limited_by)?;
        write!(f, "{live} live, {free} free")?;
        write!(f, " ({} of them in caches, the largest extent {}", self.cached, self.largest_free)?;
        write!(f, "; {} wait for work in flight)", self.in_flight)?;
        if !self.held.is_empty() {
            write!(f, "; held by {}", Most(&self.held))?;
        }
        if !self.pending.is_empty() {
            write!(f, "; waited for: {}", Most(&self.pending))?;
        }
        Ok(())
    }
}

impl std::error::Error for OutOfMemory {}

/// Result of a pool call.
pub type Result<T> = std::result::Result<T, Error>;
