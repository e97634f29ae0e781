//! From addresses to physical bytes.

use std::ops::Range;

use super::Memory;
use crate::oracle::Invalid;

/// A stretch of addresses, and what is there.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Touched {
    /// Bytes of one page or plain allocation.
    Bytes { address: u64, phys: Range<u64> },
    /// No memory that may be touched.
    Nothing { address: u64, bytes: u64, why: Invalid },
}

impl Memory {
    /// Splits the addresses from `address` on by what is there, for the device `by`; `None` asks
    /// for what is there whoever touches it.
    pub(crate) fn translate(&self, by: Option<u16>, address: u64, bytes: u64) -> Vec<Touched> {
        let end = address.saturating_add(bytes);
        let mut found = Vec::with_capacity(1);
        let mut at = address;
        while at < end {
            let (piece, next) = self.translate_one(by, at, end);
            found.push(piece);
            at = next;
        }
        found
    }

    /// The stretch that starts at `at`, and where it ends, which is after `at`.
    fn translate_one(&self, by: Option<u16>, at: u64, end: u64) -> (Touched, u64) {
        let nothing = |end: u64, why| {
            let bytes = end - at;
            let address = at;
            (Touched::Nothing { address, bytes, why }, end)
        };
        let Some(home) = self.device_of(at) else {
            return nothing(end, Invalid::Unmapped);
        };
        let device = &self.devices[usize::from(home)];
        let mapping = device.mappings.range(..=at).next_back();
        if let Some((start, mapping)) = mapping.filter(|(start, m)| *start + m.bytes() > at) {
            let until = end.min(start + mapping.bytes());
            if by.is_some_and(|by| mapping.access.binary_search(&by).is_err()) {
                return nothing(until, Invalid::NoAccess);
            }
            return bytes(at, until, *start, &mapping.phys);
        }
        let plain = device.plain.range(..=at).next_back();
        if let Some((start, phys)) = plain.filter(|(start, p)| *start + (p.end - p.start) > at) {
            let until = end.min(start + (phys.end - phys.start));
            if by.is_some_and(|by| by != home && !self.peers.contains(&(by, home))) {
                return nothing(until, Invalid::NoAccess);
            }
            return bytes(at, until, *start, phys);
        }
        // Work that was submitted before the free still finds it.
        if by.is_none()
            && let Some((start, phys)) = device.dying.range(..=at).next_back()
            && *start + (phys.end - phys.start) > at
        {
            let until = end.min(start + (phys.end - phys.start));
            return bytes(at, until, *start, phys);
        }
        // The hole goes up to whatever comes next, and is of one kind.
        let next = |start: Option<&u64>| start.copied().unwrap_or(u64::MAX);
        let until = end
            .min(next(device.mappings.range(at..).next().map(|(s, _)| s)))
            .min(next(device.plain.range(at..).next().map(|(s, _)| s)))
            .min(next(device.dying.range(at + 1..).next().map(|(s, _)| s)))
            .min((u64::from(home) + 2) * self.span);
        match device.reservations.range(..=at).next_back() {
            Some((start, length)) if start + length > at => {
                nothing(until.min(start + length), Invalid::Unmapped)
            }
            _ => {
                let reserved = next(device.reservations.range(at..).next().map(|(s, _)| s));
                nothing(until.min(reserved), Invalid::Freed)
            }
        }
    }
}

/// The stretch from `at` to `until` of memory that starts at `start`.
fn bytes(at: u64, until: u64, start: u64, phys: &Range<u64>) -> (Touched, u64) {
    let phys = phys.start + (at - start)..phys.start + (until - start);
    (Touched::Bytes { address: at, phys }, until)
}
