//! A profile for people.

use super::record::{DeviceRecord, Record};
use crate::output;
use crate::size::Bytes;
use millpond::plan::{Count, Profile, ReuseEstimate};

/// Prints a trace's profile.
pub(super) fn print(record: &Record) -> anyhow::Result<()> {
    for device in &record.devices {
        let title = format!("{}, device {}", record.trace, device.ordinal);
        let mut table = output::table(&[title.as_str(), ""]);
        for (name, value) in facts(device) {
            table.add_row([name, value]);
        }
        output::line(&table.to_string())?;
        output::line(&sizes(&device.profile))?;
        output::line(&lifetimes(&device.profile))?;
        output::line(&streams(&device.profile))?;
        let advice = &device.profile.advice;
        output::line(&format!(
            "device {}: {}: {}\n",
            device.ordinal,
            advice.recommendation.name(),
            advice.reason
        ))?;
    }
    Ok(())
}

fn facts(device: &DeviceRecord) -> Vec<(String, String)> {
    let profile = &device.profile;
    let reuse = |estimate: ReuseEstimate| {
        let held = estimate.held_bytes as f64 / profile.peak_live_bytes.max(1) as f64;
        format!("{}, {held:.2}", percent(estimate.hit_rate))
    };
    let band = |band: millpond::plan::Band| {
        format!("{}, from {}", percent(band.share), Bytes(band.from_bytes))
    };
    let buckets = &profile.bucketed_reuse;
    let by_bucket = [buckets.small, buckets.medium, buckets.large];
    let by_bucket = by_bucket.map(|bucket| percent(bucket.hit_rate)).join(", ");
    let recurrence = profile.recurrence.map_or_else(
        || "no two steps".to_owned(),
        |share| {
            format!("{} of requests, {} of bytes", percent(share.requests), percent(share.bytes))
        },
    );
    let plan = device.plan.map_or_else(
        || "nothing recurs".to_owned(),
        |plan| {
            format!(
                "{} of a step's {} requests in {}, {:.4} of their peak",
                plan.planned,
                plan.step_requests,
                Bytes(plan.bytes),
                plan.ratio
            )
        },
    );
    let facts = [
        ("requests, steps", format!("{}, {}", profile.requests, profile.steps)),
        ("requested", Bytes(profile.requested_bytes).to_string()),
        ("peak live", Bytes(profile.peak_live_bytes).to_string()),
        ("most requests in one octave", band(profile.most_requests)),
        ("most bytes in one octave", band(profile.most_bytes)),
        ("reuse by exact size: hits, held / peak", reuse(profile.exact_reuse)),
        ("reuse of sizes rounded up: hits, held / peak", reuse(buckets.all)),
        ("... below 1 MiB, to 100 MiB, above", by_bucket),
        ("recurs from step to step, second half", recurrence),
        ("plan", plan),
    ];
    facts.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

fn sizes(profile: &Profile) -> String {
    let mut table = output::table(&["sizes from", "requests", "%", "bytes", "%"]);
    for octave in &profile.sizes {
        table.add_row([
            Bytes(octave.from_bytes).to_string(),
            octave.requests.to_string(),
            share(octave.requests, profile.requests),
            Bytes(octave.bytes).to_string(),
            share(octave.bytes, profile.requested_bytes),
        ]);
    }
    table.to_string()
}

fn lifetimes(profile: &Profile) -> String {
    let lifetimes = &profile.lifetimes;
    let mut table = output::table(&["blocks live", "requests", "%", "bytes", "%"]);
    for (name, Count { blocks, bytes, .. }) in classes(profile) {
        table.add_row([
            name.to_owned(),
            blocks.to_string(),
            share(blocks, profile.requests),
            Bytes(bytes).to_string(),
            share(bytes, profile.requested_bytes),
        ]);
    }
    let (half, most) = (lifetimes.operations_p50, lifetimes.operations_p99);
    format!("{table}\nfreed blocks lived for {half} operations (half of them), {most} (99 %)")
}

/// How long blocks live, in words.
pub(super) fn classes(profile: &Profile) -> [(&'static str, Count); 4] {
    let lifetimes = &profile.lifetimes;
    [
        ("within a step", lifetimes.within_step),
        ("to the next step", lifetimes.next_step),
        ("longer", lifetimes.longer),
        ("to the end", lifetimes.never),
    ]
}

fn streams(profile: &Profile) -> String {
    let mut table = output::table(&["stream", "requests", "requested", "peak live"]);
    for stream in &profile.streams {
        table.add_row([
            stream.stream.to_string(),
            stream.requests.to_string(),
            Bytes(stream.requested_bytes).to_string(),
            Bytes(stream.peak_live_bytes).to_string(),
        ]);
    }
    table.to_string()
}

fn percent(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}

fn share(part: u64, all: u64) -> String {
    format!("{:.1}", part as f64 * 100.0 / all.max(1) as f64)
}
