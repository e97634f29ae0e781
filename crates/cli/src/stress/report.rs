//! What a run found: JSON for programs, tables for people.

use super::StressArgs;
use super::devices::Findings;
use super::schedule::Schedule;
use super::worker::Crew;
use crate::driver_calls::DriverCalls;
use crate::gpus::Leaks;
use crate::output;
use crate::size::Bytes;
use serde::Serialize;
use std::fmt;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

/// The report of one run.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    pub driver: &'static str,
    pub seed: u64,
    pub schedule: Schedule,
    pub threads: usize,
    pub streams: usize,
    /// Each step ran on streams of its own.
    pub streams_fresh: bool,
    pub pipelines: usize,
    pub microbatches: usize,
    /// `null`: in an order that the seed decides, or that real GPUs do.
    pub lag: Option<u64>,
    pub capacity_bytes: u64,
    pub steps: u64,
    /// Calls that the pool has answered: allocations, frees, uses, and waits of the schedule.
    pub operations: u64,
    /// Passes of microbatches through stages.
    pub passes: u64,
    pub allocations: u64,
    pub frees: u64,
    pub foreign_frees: u64,
    pub foreign_share: f64,
    /// Uses and last uses on other streams.
    pub uses: u64,
    pub hits: Hits,
    pub devices: Vec<Device>,
    pub peak_live_bytes: u64,
    pub peak_reserved_bytes: u64,
    /// Of the pool; stream waits that the schedule asks for itself are left out.
    pub driver_calls: DriverCalls,
    /// Stream waits that the pool inserted.
    pub waits: u64,
    /// Stream waits of the schedule's own.
    pub schedule_waits: u64,
    /// `try_alloc` calls that found the arena busy.
    pub busy: u64,
    pub oom: u64,
    pub alloc_ns: Time,
    pub free_ns: Time,
    pub ops_per_s: f64,
    pub elapsed_s: f64,
    pub bookkeeping_bytes: u64,
    pub poisoned_streams: u64,
    /// Whether only parts of each block were filled and compared.
    pub sampled: bool,
    /// `null` without the race oracle.
    pub hazards: Option<u64>,
    /// Blocks that did not hold what they were filled with.
    pub mismatches: u64,
    /// Blocks that shared addresses with another live one.
    pub overlaps: u64,
    /// Times that every extent was checked.
    pub invariant_checks: u64,
    /// Work that found no memory where it touched.
    pub device_faults: u64,
    /// What the pool has not given back, once it is gone.
    pub leaks: Leaks,
    /// Errors that ended the run, broken invariants.
    pub failures: Vec<String>,
    pub ok: bool,
    /// The first hazards and mismatches, for people.
    #[serde(skip)]
    details: Vec<String>,
}

/// Allocations by the layer that served them.
#[derive(Debug, Serialize)]
pub(super) struct Hits {
    pub thread: u64,
    pub stream: u64,
    pub shard: u64,
    pub heap: u64,
}

#[derive(Debug, Serialize)]
pub(super) struct Device {
    pub ordinal: usize,
    pub peak_live_bytes: u64,
    pub peak_reserved_bytes: u64,
    /// `null` where nothing was reserved.
    pub utilisation: Option<f64>,
}

/// Wall time of calls, waiting for the simulation included.
#[derive(Debug, Serialize)]
pub(super) struct Time {
    pub mean: f64,
    pub max: u64,
}

impl Report {
    /// What the threads have counted; call when they have ended, while the pool is still there.
    pub fn new(
        args: &StressArgs,
        driver: &'static str,
        crew: &Crew,
        seed: u64,
        steps: u64,
        elapsed: Duration,
    ) -> Self {
        let (ledger, stats) = (&crew.machine.ledger, crew.machine.pool.stats());
        let (allocations, frees) = (ledger.allocations.load(Relaxed), ledger.frees.load(Relaxed));
        let foreign = ledger.foreign_frees.load(Relaxed);
        let devices: Vec<Device> = stats
            .devices
            .iter()
            .zip(&ledger.devices)
            .map(|(device, level)| {
                let (live, reserved) = (level.peak(), device.peak_reserved_bytes);
                Device {
                    ordinal: usize::from(device.device.0),
                    peak_live_bytes: live,
                    peak_reserved_bytes: reserved,
                    utilisation: (reserved > 0).then(|| live as f64 / reserved as f64),
                }
            })
            .collect();
        let mut driver_calls = crew.machine.driver.reading().calls();
        let own_waits = ledger.waits.load(Relaxed);
        let waits = driver_calls.stream_wait.saturating_sub(own_waits);
        driver_calls.stream_wait = waits;
        Self {
            driver,
            seed,
            schedule: crew.shape.schedule,
            threads: args.threads(),
            streams: args.streams,
            streams_fresh: args.streams_fresh,
            pipelines: crew.shape.pipelines,
            microbatches: crew.shape.microbatches,
            lag: args.lag,
            capacity_bytes: crew.machine.capacity,
            steps,
            operations: ledger.operations(),
            passes: ledger.passes.load(Relaxed),
            allocations,
            frees,
            foreign_frees: foreign,
            foreign_share: foreign as f64 / frees.max(1) as f64,
            uses: ledger.uses.load(Relaxed),
            hits: Hits {
                thread: stats.hits.thread,
                stream: stats.hits.stream,
                shard: stats.hits.shard,
                heap: stats.hits.heap,
            },
            peak_live_bytes: devices.iter().map(|device| device.peak_live_bytes).sum(),
            peak_reserved_bytes: devices.iter().map(|device| device.peak_reserved_bytes).sum(),
            devices,
            driver_calls,
            waits,
            schedule_waits: own_waits,
            busy: ledger.busy.load(Relaxed),
            oom: ledger.out_of_memory.load(Relaxed),
            alloc_ns: Time { mean: ledger.alloc.mean(allocations), max: ledger.alloc.longest() },
            free_ns: Time { mean: ledger.free.mean(frees), max: ledger.free.longest() },
            ops_per_s: (allocations + frees) as f64 / elapsed.as_secs_f64(),
            elapsed_s: elapsed.as_secs_f64(),
            bookkeeping_bytes: stats.bookkeeping_bytes,
            poisoned_streams: stats.poisoned_streams,
            sampled: args.sample,
            hazards: None,
            mismatches: 0,
            overlaps: ledger.overlaps.load(Relaxed),
            invariant_checks: 0,
            device_faults: 0,
            leaks: Leaks::default(),
            failures: Vec::new(),
            ok: false,
            details: Vec::new(),
        }
    }

    pub fn add_invariants(&mut self, outcome: Result<(), String>) {
        self.invariant_checks += 1;
        self.failures.extend(outcome.err().map(|why| format!("a broken invariant: {why}")));
    }

    /// What the devices have found by the end; call when the pool is gone.
    pub fn add_findings(&mut self, findings: Findings) {
        let Findings { hazards, mismatches, device_faults, leaks, details } = findings;
        (self.hazards, self.mismatches) = (hazards, mismatches);
        (self.device_faults, self.leaks) = (device_faults, leaks);
        self.details.extend(details);
        if !leaks.is_empty() {
            self.details.push(format!("not given back: {leaks}"));
        }
        let wrong = self.mismatches + self.overlaps + self.device_faults;
        let clean = wrong + self.oom + self.poisoned_streams == 0;
        let whole = leaks.is_empty() && self.failures.is_empty();
        self.ok = clean && whole && self.hazards.unwrap_or(0) == 0;
    }

    /// Says on standard error what is wrong.
    pub fn explain(&self) {
        for text in self.failures.iter().chain(&self.details) {
            eprintln!("millpond: {text}");
        }
        if self.overlaps > 0 {
            eprintln!("millpond: {} times a live block shared addresses", self.overlaps);
        }
        if self.oom > 0 {
            eprintln!("millpond: {} allocations found no memory", self.oom);
        }
        if !self.ok {
            eprintln!("millpond: --seed {} repeats this run's schedule", self.seed);
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut devices = output::table(&["device", "peak live", "peak reserved", "utilisation"]);
        for device in &self.devices {
            devices.add_row([
                device.ordinal.to_string(),
                Bytes(device.peak_live_bytes).to_string(),
                Bytes(device.peak_reserved_bytes).to_string(),
                device.utilisation.map_or("-".into(), |share| format!("{share:.3}")),
            ]);
        }
        writeln!(f, "{devices}")?;

        let Hits { thread, stream, shard, heap } = self.hits;
        let calls = &self.driver_calls;
        let share = |hits: u64| {
            let percent = 100.0 * hits as f64 / self.allocations.max(1) as f64;
            format!("{hits} ({percent:.1} %)")
        };
        let rows = [
            ("schedule", self.schedule.name().to_owned()),
            ("steps", self.steps.to_string()),
            ("operations", self.operations.to_string()),
            ("allocations", self.allocations.to_string()),
            ("frees", self.frees.to_string()),
            ("freed by other threads", share(self.foreign_frees)),
            ("hits: thread cache", share(thread)),
            ("hits: stream cache", share(stream)),
            ("hits: shards", share(shard)),
            ("hits: heap", share(heap)),
            ("uses declared", self.uses.to_string()),
            ("waits of the schedule", self.schedule_waits.to_string()),
            ("waits inserted", self.waits.to_string()),
            ("events recorded, queried", format!("{}, {}", calls.event_record, calls.event_query)),
            ("pages created, released", format!("{}, {}", calls.create, calls.release)),
            ("pages mapped", calls.map.to_string()),
            ("time per allocation", format!("{:.0} ns", self.alloc_ns.mean)),
            ("time per free", format!("{:.0} ns", self.free_ns.mean)),
            ("allocations and frees", format!("{:.0} per second", self.ops_per_s)),
            ("out of memory", self.oom.to_string()),
            ("hazards", self.hazards.map_or("not watched for".into(), |n| n.to_string())),
            (
                if self.sampled { "wrong contents (sampled)" } else { "wrong contents" },
                self.mismatches.to_string(),
            ),
            ("overlaps", self.overlaps.to_string()),
            ("invariants checked", self.invariant_checks.to_string()),
        ];
        let mut summary = output::table(&["stress", ""]);
        for (what, value) in rows {
            summary.add_row([what.to_owned(), value]);
        }
        writeln!(f, "{summary}")
    }
}
