//! Figures for people.

use super::record::Record;
use crate::output;
pub(super) fn print(records: &[Record]) -> anyhow::Result<()> {
    for r in records {
        output::line(&format!("{} {:?}", r.trace, r.overhead()))?;
    }
    Ok(())
}
