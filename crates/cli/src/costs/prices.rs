//! Prices of driver calls as a file: what `millpond costs --json` prints and `--costs` reads.

use anyhow::{Context, bail, ensure};
use millpond_simgpu::{Call, Costs};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::Path;

/// The prices. Other fields of a file are for people.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Prices {
    /// Nanoseconds by the driver's name of the call.
    pub ns: BTreeMap<String, u64>,
    /// Nanoseconds for each 2 MiB that a device is given access to, on top of the call's own.
    pub access_unit_ns: u64,
}

impl Prices {
    /// The simulator's: what is not named keeps its default.
    fn costs(&self) -> anyhow::Result<Costs> {
        let mut costs = Costs::default().with_access_unit(self.access_unit_ns);
        for (name, &ns) in &self.ns {
            let call = Call::ALL.iter().find(|call| call.name() == name);
            let Some(&call) = call else {
                let known: Vec<_> = Call::ALL.iter().map(|call| call.name()).collect();
                bail!("no call is named `{name}` (there are {})", known.join(", "));
            };
            ensure!(ns <= MOST_NS, "{ns} ns for {name} is too much (at most {MOST_NS})");
            costs = costs.with(call, ns);
        }
        ensure!(
            self.access_unit_ns <= MOST_NS,
            "access_unit_ns: {} is too much (at most {MOST_NS})",
            self.access_unit_ns
        );
        Ok(costs)
    }
}

/// A minute: sums of prices stay within 64 bits.
const MOST_NS: u64 = 60_000_000_000;

/// The prices of a file.
pub(crate) fn read(path: &Path) -> anyhow::Result<Costs> {
    let text = std::fs::read_to_string(path)
        .with_context(|| format!("{}: cannot be read", path.display()))?;
    let prices: Prices =
        serde_json::from_str(&text).with_context(|| format!("{}: no prices", path.display()))?;
    prices.costs().with_context(|| path.display().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_named_keeps_its_price() {
        let text = r#"{"driver": "cuda", "ns": {"cuMemMap": 7}, "access_unit_ns": 9}"#;
        let prices: Prices = serde_json::from_str(text).unwrap();
        let expected = Costs::default().with(Call::Map, 7).with_access_unit(9);
        assert_eq!(prices.costs().unwrap(), expected);
    }

    #[test]
    fn a_call_that_nobody_knows_or_can_pay_is_refused() {
        for text in [
            r#"{"ns": {"cuFly": 7}, "access_unit_ns": 9}"#,
            r#"{"ns": {"cuMemMap": 60000000001}, "access_unit_ns": 9}"#,
            r#"{"ns": {}, "access_unit_ns": 60000000001}"#,
        ] {
            let prices: Prices = serde_json::from_str(text).unwrap();
            assert!(prices.costs().is_err(), "{text}");
        }
    }
}
