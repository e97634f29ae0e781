//! What work does to contents when it runs.
//!
//! Addresses are translated when the work runs, as hardware does it: work that runs after an unmap
//! finds nothing there, or what was mapped there since.

use std::fmt;
use std::sync::Arc;

use super::contents::{differs, fill, phase};
use super::{Memory, Touched};

/// The effect of one piece of work.
#[derive(Clone, Debug)]
pub(crate) enum Work {
    /// Touches ranges, and leaves contents alone.
    Touch(Vec<(u64, u64)>),
    /// Repeats a pattern over a range.
    Fill { address: u64, bytes: u64, pattern: u64 },
    /// Compares a range with what a fill left.
    Check { address: u64, bytes: u64, pattern: u64 },
    /// Copies one range to another.
    Copy { to: u64, from: u64, bytes: u64 },
    /// Writes bytes of the host's.
    Write { address: u64, data: Vec<u8> },
    /// Reads and writes as a program says.
    Compute(Computation),
    /// Ends an allocation that was freed in the stream's order.
    Bury { address: u64 },
}

/// What a program's own work does to contents.
#[derive(Clone)]
pub(crate) struct Computation(pub Arc<dyn Fn(&mut DeviceBytes<'_>) + Send + Sync>);

impl fmt::Debug for Computation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Computation")
    }
}

/// The bytes of device memory, as work that runs sees them.
pub struct DeviceBytes<'a> {
    memory: &'a mut Memory,
    faulted: bool,
}

impl DeviceBytes<'_> {
    /// The bytes of a range; zeros where there is no memory.
    pub fn read(&mut self, address: u64, len: u64) -> Vec<u8> {
        let (data, whole) = self.memory.read(address, len);
        self.faulted |= !whole;
        data
    }

    /// Writes bytes; those for which there is no memory are lost.
    pub fn write(&mut self, address: u64, data: &[u8]) {
        self.faulted |= self.memory.write(address, data.len() as u64, data);
    }
}

impl fmt::Debug for DeviceBytes<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeviceBytes").finish_non_exhaustive()
    }
}

/// A content check that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mismatch {
    /// Address of the first byte that differs.
    pub address: u64,
    /// The byte that should be there.
    pub expected: u8,
    /// The byte that is there; none where there is no memory.
    pub found: Option<u8>,
    /// The pattern of the check.
    pub pattern: u64,
}

/// How a piece of work went.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    /// It touched addresses where there is no memory.
    pub faulted: bool,
    pub mismatch: Option<Mismatch>,
}

impl Memory {
    /// Runs a piece of work.
    pub(crate) fn run(&mut self, work: &Work) -> Outcome {
        let mut outcome = Outcome::default();
        match *work {
            Work::Touch(ref ranges) => {
                outcome.faulted = ranges.iter().any(|(address, bytes)| {
                    let pieces = self.translate(None, *address, *bytes);
                    pieces.iter().any(|p| matches!(p, Touched::Nothing { .. }))
                });
            }
            Work::Fill { address, bytes, pattern } => {
                outcome.faulted = self.for_bytes(address, bytes, |at, bytes| {
                    fill(bytes, phase(pattern, at));
                });
            }
            Work::Check { address, bytes, pattern } => {
                self.check(address, bytes, pattern, &mut outcome)
            }
            Work::Copy { to, from, bytes } => {
                let (data, whole) = self.read(from, bytes);
                outcome.faulted = self.write(to, bytes, &data) | !whole;
            }
            Work::Write { address, ref data } => {
                outcome.faulted = self.write(address, data.len() as u64, data);
            }
            Work::Compute(ref computation) => {
                let mut bytes = DeviceBytes { memory: self, faulted: false };
                computation.0(&mut bytes);
                outcome.faulted = bytes.faulted;
            }
            Work::Bury { address } => self.bury_plain(address),
        }
        outcome
    }

    /// The bytes of a range, with zeros where there is no memory; and whether there is all of it.
    pub(crate) fn read(&self, address: u64, bytes: u64) -> (Vec<u8>, bool) {
        let Some(contents) = &self.contents else {
            let pieces = self.translate(None, address, bytes);
            let whole = |piece: &Touched| matches!(piece, Touched::Bytes { .. });
            return (Vec::new(), pieces.iter().all(whole));
        };
        let mut data = vec![0; bytes as usize];
        let mut whole = true;
        for piece in self.translate(None, address, bytes) {
            let found = match &piece {
                Touched::Bytes { address: at, phys } => {
                    contents.bytes(phys).map(|bytes| (at - address, bytes))
                }
                Touched::Nothing { .. } => None,
            };
            match found {
                Some((at, bytes)) => {
                    data[at as usize..at as usize + bytes.len()].copy_from_slice(&bytes);
                }
                None => whole = false,
            }
        }
        (data, whole)
    }

    /// Writes `data`, which is empty where there are no contents; says whether memory was missing.
    fn write(&mut self, address: u64, bytes: u64, data: &[u8]) -> bool {
        self.for_bytes(address, bytes, |at, bytes| {
            bytes.copy_from_slice(&data[at as usize..at as usize + bytes.len()]);
        })
    }

    /// Calls `f` with each piece of a range and its offset, where there are contents; says whether
    /// memory was missing.
    fn for_bytes(&mut self, address: u64, bytes: u64, mut f: impl FnMut(u64, &mut [u8])) -> bool {
        let mut missing = false;
        for piece in self.translate(None, address, bytes) {
            match (piece, &mut self.contents) {
                (Touched::Nothing { .. }, _) => missing = true,
                (Touched::Bytes { .. }, None) => {}
                (Touched::Bytes { address: at, phys }, Some(contents)) => {
                    match contents.bytes_mut(&phys) {
                        Some(bytes) => f(at - address, bytes),
                        None => missing = true,
                    }
                }
            }
        }
        missing
    }

    fn check(&self, address: u64, bytes: u64, pattern: u64, outcome: &mut Outcome) {
        for piece in self.translate(None, address, bytes) {
            let (at, found) = match (piece, &self.contents) {
                (Touched::Nothing { address: at, .. }, _) => {
                    outcome.faulted = true;
                    (at, None)
                }
                (Touched::Bytes { .. }, None) => continue,
                (Touched::Bytes { address: at, phys }, Some(contents)) => {
                    let there = contents.bytes(&phys).unwrap_or_default();
                    match differs(&there, phase(pattern, at - address)) {
                        Some((offset, byte)) => (at + offset, Some(byte)),
                        None => continue,
                    }
                }
            };
            outcome.mismatch.get_or_insert(Mismatch {
                address: at,
                expected: phase(pattern, at - address)[0],
                found,
                pattern,
            });
        }
    }
}
