//! The figures as a table for each trace.

use super::row::Row;
use crate::output;

fn percent(share: Option<f64>) -> String {
    share.map_or_else(|| "-".to_owned(), |share| format!("{:.2}", share * 100.0))
}

/// Prints a table for each trace, in the order of the rows.
pub(super) fn print(rows: &[Row]) -> anyhow::Result<()> {
    for trace in rows.chunk_by(|a, b| a.trace == b.trace) {
        let [first, ..] = trace else { continue };
        output::line(&format!(
            "{}: {:.2} GiB live at most; \"oom limited\": refused within {:.2} GiB",
            first.trace,
            gib(first.peak_live_bytes),
            gib(first.limited_to_bytes)
        ))?;
        let mut table = output::table(&[
            "mechanism",
            "fragmentation %\nstep 1",
            match first.step_fragmentation.len() {
                0..10 => "\nlast step",
                _ => "\nstep 10",
            },
            "\noverall",
            "reserved\nGiB",
            "reuse\n%",
            "host\nns/op",
            "memory\ncalls",
            "driver\n% of step",
            "copies\n% of step",
            "oom\nlimited",
            "hazards",
        ]);
        for row in trace {
            table.add_row([
                row.mechanism.clone(),
                percent(row.fragmentation_first),
                percent(row.fragmentation_tenth),
                percent(row.fragmentation),
                format!("{:.2}", gib(row.peak_reserved_bytes)),
                format!("{:.0}", row.hit_rate * 100.0),
                row.ns_per_op.map_or_else(|| "-".to_owned(), |ns| format!("{ns:.0}")),
                row.memory_calls.to_string(),
                percent(row.driver_share),
                percent(Some(row.copy_share)),
                row.oom_limited.to_string(),
                row.hazards.map_or_else(|| "-".to_owned(), |hazards| hazards.to_string()),
            ]);
        }
        output::line(&table.to_string())?;
    }
    Ok(())
}

fn gib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 30)
}
