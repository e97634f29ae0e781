//! Prices of driver calls as a file: what `millpond costs --json` prints and `--costs` reads.

use super::measure::{BLOCK, RESERVATION, Rows};
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
    /// Of medians. Where a call depends on its range, the simulator's price is that of a page of the
    /// driver's granularity, of a plain allocation of 2 MiB, and of a reservation of 1 GiB; access
    /// is priced by the line through one page and the most that were opened in one call.
    pub fn of(rows: &Rows, granularity: u64) -> Self {
        let mut ns = BTreeMap::new();
        let mut price = |call: Call, bytes| {
            if let Some(median) = rows.median(call, bytes, None) {
                ns.insert(call.name().to_owned(), median);
            }
        };
        for call in [
            Call::EventCreate,
            Call::EventDestroy,
            Call::EventRecord,
            Call::EventQuery,
            Call::StreamWait,
            Call::Sync,
        ] {
            price(call, None);
        }
        for call in [Call::Create, Call::Map, Call::Unmap, Call::Release] {
            price(call, Some(granularity));
        }
        for call in [Call::Alloc, Call::Free] {
            price(call, Some(BLOCK));
        }
        for call in [Call::Reserve, Call::Unreserve] {
            price(call, Some(RESERVATION));
        }
        let mut access_unit_ns = 0;
        if let Some(one) = rows.median(Call::SetAccess, Some(granularity), Some(1)) {
            let opened = rows
                .0
                .iter()
                .filter(|row| (row.call, row.devices) == (Call::SetAccess.name(), Some(1)));
            let most = opened.max_by_key(|row| row.bytes);
            let units = |bytes: u64| bytes.div_ceil(ACCESS_UNIT);
            if let Some((bytes, all)) = most.and_then(|row| Some((row.bytes?, row.median_ns))) {
                let more = units(bytes) - units(granularity);
                access_unit_ns = all.saturating_sub(one).checked_div(more).unwrap_or(0);
            }
            let own = one.saturating_sub(access_unit_ns * units(granularity));
            ns.insert(Call::SetAccess.name().to_owned(), own);
        }
        Self { ns, access_unit_ns }
    }

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

/// The unit in which the simulator prices access.
const ACCESS_UNIT: u64 = 2 << 20;

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
    fn access_costs_so_much_a_call_and_so_much_a_unit() {
        let mut rows = Rows::default();
        // 10 µs and 2 for each 2 MiB; pages of 4 MiB.
        for pages in [1, 4, 16] {
            let of = (Some(pages * (4 << 20)), Some(1));
            rows.add(Call::SetAccess, of, vec![10_000 + pages * 4_000]);
        }
        rows.add(Call::SetAccess, (Some(64 << 20), Some(8)), vec![1_000_000]);
        let prices = Prices::of(&rows, 4 << 20);
        assert_eq!((prices.ns["cuMemSetAccess"], prices.access_unit_ns), (10_000, 2_000));
    }

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
