//! Figures for people: all of them for one trace, a line a trace for several.

use super::record::{DeviceRecord, Hits, Ladder, Record};
use super::timing::Distribution;
use crate::output;
use crate::size::Bytes;
use std::fmt::Display;

/// Prints the figures of a whole command.
pub(super) fn print(records: &[Record], oracle: bool) -> anyhow::Result<()> {
    match records {
        [] => return Ok(()),
        [record] => one(record)?,
        several => output::line(&overview(several))?,
    }
    if oracle {
        output::line("Times of later replays include the race check: measure without --oracle.")?;
    }
    Ok(())
}

/// All figures of one trace.
fn one(record: &Record) -> anyhow::Result<()> {
    let mut table = output::table(&[record.trace.as_str(), ""]);
    for (name, value) in facts(record) {
        table.add_row([name, value.as_str()]);
    }
    output::line(&table.to_string())?;
    let header =
        ["device", "peak live", "peak reserved", "utilisation", "internal", "external", "refused"];
    let mut table = output::table(&header);
    for device in &record.devices {
        table.add_row(device_row(device));
    }
    output::line(&table.to_string())
}

fn facts(record: &Record) -> Vec<(&'static str, String)> {
    let calls = &record.driver_calls;
    let warm = record.warm.map(|warm| warm.ns_per_op);
    let mut facts = vec![
        ("mechanism, reuse, lag", {
            let lag = record.lag.map_or("real".to_owned(), |lag| lag.to_string());
            format!("{}, {}, {lag}", record.mechanism, record.reuse.unwrap_or("-"))
        }),
        ("streams", {
            if record.streams_fresh { "new ones at each step" } else { "the same at all steps" }
                .to_owned()
        }),
        ("operations", format!("{} in {} steps", record.ops, record.steps)),
        ("threads", record.threads.to_string()),
        ("peak live", Bytes(record.peak_live_bytes).to_string()),
        ("peak reserved", Bytes(record.peak_reserved_bytes).to_string()),
        ("reserved / live", number(record.overhead(), 3)),
        ("first replay: ns per allocation", times(record.cold.alloc_ns)),
        ("first replay: ns per free", times(record.cold.free_ns)),
        ("later replays: ns per operation", number(warm, 1)),
        ("hits in %: thread, stream, shard, buddy, plan, heap", shares(record.hits)),
        ("heap: fitted, after asking, new pages, moved, waited", rungs(record.ladder)),
        ("waits inserted between streams", record.cross_stream.waits.to_string()),
        ("driver calls: memory, events, host waits", {
            format!("{}, {}, {}", calls.memory(), calls.events(), calls.sync)
        }),
        ("... for the trace's own waits", record.trace_waits.to_string()),
        ("memory calls a step, second half", number(record.steady_memory_calls_per_step, 1)),
        ("event calls a step, second half", number(record.steady_event_calls_per_step, 1)),
        (driver_time(record), micros(Some(record.driver_ns as f64))),
        ("... a step, second half", micros(record.steady_driver_ns_per_step)),
        ("... in the worst of these steps", {
            micros(record.worst_driver_ns_per_step.map(|ns| ns as f64))
        }),
        ("bookkeeping", record.bookkeeping_bytes.map_or_else(nothing, |n| Bytes(n).to_string())),
    ];
    if let Some(bytes) = record.release_threshold {
        let all = if bytes == u64::MAX { "all".to_owned() } else { Bytes(bytes).to_string() };
        facts.push(("idle memory that the driver's pool keeps", all));
    }
    let hazards = record.hazards.map_or("not looked for (--oracle)".to_owned(), |n| n.to_string());
    facts.push(("hazards", hazards));
    facts
}

fn driver_time(record: &Record) -> &'static str {
    if record.lag.is_some() { "driver time (simulated)" } else { "driver time (host's clock)" }
}

fn device_row(device: &DeviceRecord) -> Vec<String> {
    vec![
        device.ordinal.to_string(),
        Bytes(device.peak_live_bytes).to_string(),
        Bytes(device.peak_reserved_bytes).to_string(),
        percent(device.utilisation),
        percent(device.internal_fragmentation),
        percent(device.external_fragmentation),
        device.oom.to_string(),
    ]
}

/// A line a trace, and their geometric means.
fn overview(records: &[Record]) -> String {
    let header = [
        "trace",
        "peak live",
        "reserved",
        "reserved\n/ live",
        "cold alloc\nns p50",
        "p99",
        "cold free\nns p50",
        "warm\nns / op",
        "hits %: thread\nstream shard buddy plan heap",
        "memory\ncalls / step",
        "event\ncalls / step",
        "refused",
        "hazards",
    ];
    let mut table = output::table(&header);
    for record in records {
        let alloc = record.cold.alloc_ns;
        table.add_row([
            record.trace.clone(),
            Bytes(record.peak_live_bytes).to_string(),
            Bytes(record.peak_reserved_bytes).to_string(),
            number(record.overhead(), 3),
            whole(alloc.map(|times| times.p50)),
            whole(alloc.map(|times| times.p99)),
            whole(record.cold.free_ns.map(|times| times.p50)),
            number(record.warm.map(|warm| warm.ns_per_op), 1),
            shares(record.hits),
            number(record.steady_memory_calls_per_step, 1),
            number(record.steady_event_calls_per_step, 1),
            record.oom().to_string(),
            whole(record.hazards),
        ]);
    }
    let overheads = records.iter().filter_map(Record::overhead);
    let warm = records.iter().filter_map(|record| record.warm.map(|warm| warm.ns_per_op));
    let mut means = vec![String::new(); header.len()];
    means[0] = "geometric mean".to_owned();
    means[3] = number(geometric_mean(overheads), 3);
    means[7] = number(geometric_mean(warm), 1);
    table.add_row(means);
    table.to_string()
}

fn geometric_mean(values: impl Iterator<Item = f64>) -> Option<f64> {
    let (sum, count) = values.fold((0.0, 0_u32), |(sum, count), x| (sum + x.ln(), count + 1));
    (count > 0).then(|| (sum / f64::from(count)).exp())
}

fn number(value: Option<f64>, digits: usize) -> String {
    value.map_or_else(nothing, |value| format!("{value:.digits$}"))
}

fn whole(value: Option<impl Display>) -> String {
    value.map_or_else(nothing, |value| value.to_string())
}

fn percent(share: Option<f64>) -> String {
    share.map_or_else(nothing, |share| format!("{:.2} %", share * 100.0))
}

fn micros(ns: Option<f64>) -> String {
    ns.map_or_else(nothing, |ns| format!("{:.1} µs", ns / 1e3))
}

fn times(times: Option<Distribution>) -> String {
    times.map_or_else(nothing, |Distribution { mean, p50, p99, max }| {
        format!("mean {mean:.0}, half {p50}, 99 % {p99}, most {max}")
    })
}

/// Requests by the way the heap served them.
fn rungs(ladder: Option<Ladder>) -> String {
    let Some(ladder) = ladder else { return nothing() };
    let Ladder { fitted, completed, created, moved, waited, .. } = ladder;
    format!("{fitted} / {completed} / {created} / {moved} / {waited}")
}

fn shares(hits: Option<Hits>) -> String {
    let Some(Hits { thread, stream, shard, buddy, planned, heap }) = hits else { return nothing() };
    let all = (thread + stream + shard + buddy + planned + heap).max(1) as f64;
    let share = |hits: u64| format!("{:.0}", hits as f64 * 100.0 / all);
    [thread, stream, shard, buddy, planned, heap].map(share).join(" ")
}

fn nothing() -> String {
    "-".to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn means_are_geometric() {
        assert_eq!(geometric_mean(std::iter::empty()), None);
        assert!((geometric_mean([1.0, 4.0, 16.0].into_iter()).unwrap() - 4.0).abs() < 1e-12);
    }

    #[test]
    fn what_is_not_known_is_a_dash() {
        assert_eq!(number(None, 2), "-");
        assert_eq!(number(Some(1.005), 1), "1.0");
        assert_eq!(percent(Some(0.5)), "50.00 %");
        assert_eq!(
            shares(Some(Hits { thread: 1, stream: 1, shard: 0, buddy: 0, planned: 0, heap: 2 })),
            "25 25 0 0 0 50"
        );
    }
}
