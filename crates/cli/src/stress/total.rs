//! What all runs of a command come to: the closing figure.

use super::StressArgs;
use super::report::Report;
use serde::Serialize;
use std::fmt;

/// The sums over the schedules that were run.
#[derive(Debug, Serialize)]
pub(super) struct Total {
    driver: &'static str,
    schedule: &'static str,
    schedules: Vec<&'static str>,
    seed: u64,
    threads: usize,
    sampled: bool,
    steps: u64,
    /// Calls that the pool has answered: the sum of the next four.
    operations: u64,
    allocations: u64,
    frees: u64,
    uses: u64,
    schedule_waits: u64,
    oom: u64,
    /// `null` without the race oracle.
    hazards: Option<u64>,
    mismatches: u64,
    overlaps: u64,
    device_faults: u64,
    invariant_checks: u64,
    /// Errors that ended a run, broken invariants.
    failures: u64,
    elapsed_s: f64,
    pub ok: bool,
}

impl Total {
    pub fn new(args: &StressArgs, driver: &'static str, seed: u64) -> Self {
        Self {
            driver,
            schedule: "all",
            schedules: Vec::new(),
            seed,
            threads: args.threads(),
            sampled: args.sample,
            steps: 0,
            operations: 0,
            allocations: 0,
            frees: 0,
            uses: 0,
            schedule_waits: 0,
            oom: 0,
            hazards: args.oracle.then_some(0),
            mismatches: 0,
            overlaps: 0,
            device_faults: 0,
            invariant_checks: 0,
            failures: 0,
            elapsed_s: 0.0,
            ok: true,
        }
    }

    pub fn add(&mut self, report: &Report) {
        self.schedules.push(report.schedule.name());
        for (sum, part) in [
            (&mut self.steps, report.steps),
            (&mut self.operations, report.operations),
            (&mut self.allocations, report.allocations),
            (&mut self.frees, report.frees),
            (&mut self.uses, report.uses),
            (&mut self.schedule_waits, report.schedule_waits),
            (&mut self.oom, report.oom),
            (&mut self.mismatches, report.mismatches),
            (&mut self.overlaps, report.overlaps),
            (&mut self.device_faults, report.device_faults),
            (&mut self.invariant_checks, report.invariant_checks),
            (&mut self.failures, report.failures.len() as u64),
        ] {
            *sum += part;
        }
        if let (Some(sum), Some(part)) = (&mut self.hazards, report.hazards) {
            *sum += part;
        }
        self.elapsed_s += report.elapsed_s;
        self.ok &= report.ok;
    }
}

impl fmt::Display for Total {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} operations ({} allocations, {} frees, {} uses, {} waits) in {} steps and {:.0} s: ",
            self.operations,
            self.allocations,
            self.frees,
            self.uses,
            self.schedule_waits,
            self.steps,
            self.elapsed_s
        )?;
        match self.hazards {
            Some(hazards) => write!(f, "{hazards} hazards, ")?,
            None => f.write_str("hazards not watched for, ")?,
        }
        write!(
            f,
            "{} wrong contents{}, {} overlaps, {} device faults, {} failures, {} out of memory; ",
            self.mismatches,
            if self.sampled { " (sampled)" } else { "" },
            self.overlaps,
            self.device_faults,
            self.failures,
            self.oom
        )?;
        write!(f, "invariants checked {} times", self.invariant_checks)
    }
}
