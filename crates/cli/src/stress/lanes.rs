//! The streams of one pipeline on one device, by what they are for.

use super::machine::Machine;
use millpond::{DeviceId, Pool, Result, Stream};

/// Compute, send and receive are streams 0, 1 and 2; further streams compute as well. With fewer
/// than three, send and receive share stream 1, or all is done on stream 0.
#[derive(Clone, Debug)]
pub(super) struct Lanes {
    streams: Vec<Stream>,
}

impl Lanes {
    pub fn new(pool: &Pool, device: usize, streams: usize) -> Result<Self> {
        let device = DeviceId(device as u16);
        let streams = (0..streams).map(|_| pool.stream(device)).collect::<Result<_>>()?;
        Ok(Self { streams })
    }

    /// New streams, each of which runs after the one whose place it takes.
    pub fn renewed(&self, machine: &Machine) -> Result<Self> {
        let renew = |old: &Stream| {
            let fresh = machine.pool.stream(old.device())?;
            machine.wait(&fresh, old)?;
            Ok(fresh)
        };
        Ok(Self { streams: self.streams.iter().map(renew).collect::<Result<_>>()? })
    }

    /// Streams that compute.
    pub fn computing(&self) -> usize {
        1 + self.streams.len().saturating_sub(3)
    }

    /// The stream that computes `turn`: those that compute take it in turns.
    pub fn compute(&self, turn: usize) -> &Stream {
        match turn % self.computing() {
            0 => &self.streams[0],
            nth => &self.streams[2 + nth],
        }
    }

    pub fn send(&self) -> &Stream {
        &self.streams[1.min(self.streams.len() - 1)]
    }

    pub fn receive(&self) -> &Stream {
        &self.streams[2.min(self.streams.len() - 1)]
    }
}
