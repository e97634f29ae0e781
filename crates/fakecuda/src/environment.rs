//! The machine of a shared library that nobody installed a table in: configured by the environment.
//!
//! | variable | meaning | otherwise |
//! |---|---|---|
//! | `FAKECUDA_DEVICES` | number of devices | 1 |
//! | `FAKECUDA_CAPACITY` | bytes of each (`K`, `M`, `G` after the number are powers of 1024) | 80G |
//! | `FAKECUDA_GRANULARITY` | smallest size of physical memory | 2M |
//! | `FAKECUDA_CONTENTS` | `0`: bytes do not exist | 1 |
//! | `FAKECUDA_ORACLE` | `0`: no race oracle | 1 |
//! | `FAKECUDA_SEED` | streams run in an order that this decides | in the order of submission |
//! | `FAKECUDA_LAG` | records are done so many ticks late; ignored with a seed | 0 |
//! | `FAKECUDA_POOLS` | `0`: no memory pools | 1 |
//! | `FAKECUDA_PEERS` | `0`: no peers | 1 |
//! | `FAKECUDA_REPORT` | `1`: a line at the end of the process also where nothing was found | 0 |
//!
//! What cannot be understood is said on stderr, and the default taken.

use std::ffi::c_int;

use millpond_simgpu::{Completion, Sim};

use crate::entry;
use crate::fake::next_generation;
use crate::machine::Machine;

/// A number, with or without a unit.
fn number(text: &str) -> Option<u64> {
    let text = text.trim();
    let unit = match text.chars().last()?.to_ascii_uppercase() {
        'K' => 1 << 10,
        'M' => 1 << 20,
        'G' => 1 << 30,
        _ => 1,
    };
    let digits = if unit == 1 { text } else { &text[..text.len() - 1] };
    digits.parse::<u64>().ok()?.checked_mul(unit)
}

fn read(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    let value = number(&text);
    if value.is_none() {
        eprintln!("fakecuda: {name}={text} is not a number; ignored");
    }
    value
}

/// The machine that the environment describes.
pub(crate) fn machine() -> Box<Machine> {
    let on = |name: &str| read(name).is_none_or(|value| value != 0);
    let default = Sim::builder()
        .contents(on("FAKECUDA_CONTENTS"))
        .oracle(on("FAKECUDA_ORACLE"))
        .shared_addresses(true);
    let mut builder = default.clone();
    if let Some(devices) = read("FAKECUDA_DEVICES") {
        builder = builder.devices(u16::try_from(devices).unwrap_or(u16::MAX));
    }
    if let Some(bytes) = read("FAKECUDA_CAPACITY") {
        builder = builder.capacity(bytes);
    }
    if let Some(bytes) = read("FAKECUDA_GRANULARITY") {
        builder = builder.granularity(bytes);
    }
    if let Some(lag) = read("FAKECUDA_LAG") {
        builder = builder.completion(Completion::Lag(lag));
    }
    if let Some(seed) = read("FAKECUDA_SEED") {
        builder = builder.completion(Completion::Scheduled).seed(seed);
    }
    let sim = builder.build().unwrap_or_else(|error| {
        eprintln!("fakecuda: {error}; the default machine instead");
        // The default contradicts nothing; were it to, the caller would catch the panic.
        default.build().expect("the default machine")
    });
    unsafe extern "C" {
        fn atexit(function: extern "C" fn()) -> c_int;
    }
    // SAFETY: the library is linked so that it is never unloaded, so the function stays.
    unsafe { atexit(at_exit) };
    let (pools, peers) = (on("FAKECUDA_POOLS"), on("FAKECUDA_PEERS"));
    Box::new(Machine::new(sim, next_generation(), pools, peers))
}

extern "C" fn at_exit() {
    // A panic must not leave it.
    let _ = std::panic::catch_unwind(|| {
        let always = std::env::var("FAKECUDA_REPORT").is_ok_and(|value| value != "0");
        let found = entry::machine().as_ref().map_or(0, |machine| found(machine));
        if always || found > 0 {
            report();
        }
    });
}

fn found(machine: &Machine) -> u64 {
    let sim = &machine.sim;
    sim.hazard_count() + sim.device_faults() + machine.violations.len() as u64
}

/// Says on stderr what was found, the first of each kind in words; answers how much that is.
pub(crate) fn report() -> u64 {
    const WORDS: usize = 10;
    let guard = entry::machine();
    let Some(machine) = guard.as_ref() else {
        return 0;
    };
    let sim = &machine.sim;
    eprintln!(
        "fakecuda: {} hazards, {} faults, {} violations; left: {}",
        sim.hazard_count(),
        sim.device_faults(),
        machine.violations.len(),
        sim.leaks()
    );
    for hazard in sim.hazards().iter().take(WORDS) {
        eprintln!("fakecuda: hazard: {hazard}");
    }
    for violation in machine.violations.iter().take(WORDS) {
        eprintln!("fakecuda: violation: {violation}");
    }
    for abandoned in machine.abandoned.iter().take(WORDS) {
        eprintln!("fakecuda: {abandoned}");
    }
    found(machine)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_units() {
        assert_eq!(number("12"), Some(12));
        assert_eq!(number("2M"), Some(2 << 20));
        assert_eq!(number("80g"), Some(80 << 30));
        for nonsense in ["", "G", "1T", "-1", "99999999999999G", "é"] {
            assert_eq!(number(nonsense), None, "{nonsense:?}");
        }
    }
}
