//! Times driver calls, each many times, on device 0.
//!
//! Calls go through the pool's own driver, so that its share is in their times, too. Streams are
//! idle, and whatever is asked about is done: the times are the host's.

use anyhow::Context;
use millpond::DeviceId;
use millpond::driver::{Driver, DriverResult};
use millpond_simgpu::Call;
use serde::Serialize;
use std::time::{Duration, Instant};

/// Times of one call with the same arguments.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Row {
    /// By the driver's name.
    pub call: &'static str,
    /// Of the call's range or request; null for calls about none.
    pub bytes: Option<u64>,
    /// To which access is given; null for other calls.
    pub devices: Option<u16>,
    pub median_ns: u64,
    pub p90_ns: u64,
    pub least_ns: u64,
    pub samples: usize,
}

/// The times so far.
#[derive(Default)]
pub(super) struct Rows(pub Vec<Row>);

const HOME: DeviceId = DeviceId(0);
/// Ranges in pages.
const PAGES: [u64; 4] = [1, 4, 16, 64];
/// Plain allocations, and those in stream order.
pub(super) const BLOCKS: [u64; 4] = [64 << 10, 2 << 20, 32 << 20, 512 << 20];
/// What a price is taken from.
pub(super) const BLOCK: u64 = 2 << 20;
pub(super) const RESERVATION: u64 = 1 << 30;
/// Waits are for what is done.
const LONG: Duration = Duration::from_secs(10);

/// Times one call.
pub(super) fn timed<T, E>(call: impl FnOnce() -> Result<T, E>) -> Result<(T, u64), E> {
    let start = Instant::now();
    let result = call()?;
    Ok((result, u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX)))
}

impl Rows {
    pub fn add(&mut self, call: Call, of: (Option<u64>, Option<u16>), times: Vec<u64>) {
        self.add_named(call.name(), of, times);
    }

    /// Nothing where there are no times.
    pub fn add_named(
        &mut self,
        call: &'static str,
        (bytes, devices): (Option<u64>, Option<u16>),
        mut times: Vec<u64>,
    ) {
        times.sort_unstable();
        let nth = |percent: usize| times.get((times.len() * percent).div_ceil(100).max(1) - 1);
        if let (Some(&median_ns), Some(&p90_ns), Some(&least_ns)) = (nth(50), nth(90), nth(0)) {
            let samples = times.len();
            self.0.push(Row { call, bytes, devices, median_ns, p90_ns, least_ns, samples });
        }
    }

    /// Puts the rows of one call together.
    pub fn gather(&mut self) {
        let mut calls: Vec<&str> = Vec::new();
        for row in &self.0 {
            if !calls.contains(&row.call) {
                calls.push(row.call);
            }
        }
        self.0.sort_by_key(|row| calls.iter().position(|&call| call == row.call));
    }

    /// The median of a call.
    pub fn median(&self, call: Call, bytes: Option<u64>, devices: Option<u16>) -> Option<u64> {
        let wanted = (call.name(), bytes, devices);
        let row = self.0.iter().find(|row| (row.call, row.bytes, row.devices) == wanted);
        row.map(|row| row.median_ns)
    }
}

/// All that the pool asks of a driver.
pub(super) fn all(driver: &dyn Driver, samples: usize) -> anyhow::Result<Rows> {
    let mut rows = Rows::default();
    let info = driver.device(HOME)?;
    events(driver, samples, &mut rows).context("events cannot be timed")?;
    plain(driver, samples, info.memory_bytes, &mut rows)
        .context("plain allocations cannot be timed")?;
    if info.virtual_memory {
        reservations(driver, samples, info.memory_bytes, &mut rows)
            .context("reservations cannot be timed")?;
        for pages in
            PAGES.into_iter().filter(|pages| pages * info.granularity <= info.memory_bytes / 4)
        {
            let page = info.granularity;
            mappings(driver, samples, (pages, page), 1, &mut rows)
                .context("mappings cannot be timed")?;
            if driver.device_count() > 1 {
                mappings(driver, samples, (pages, page), driver.device_count(), &mut rows)
                    .context("mappings for all devices cannot be timed")?;
            }
        }
    }
    Ok(rows)
}

fn events(driver: &dyn Driver, samples: usize, rows: &mut Rows) -> DriverResult<()> {
    let (stream, other) = (driver.create_stream(HOME)?, driver.create_stream(HOME)?);
    let mut times: [Vec<u64>; 6] = std::array::from_fn(|_| Vec::with_capacity(samples));
    let mut events = Vec::with_capacity(samples);
    for _ in 0..samples {
        let (event, create) = timed(|| driver.create_event(HOME))?;
        let ((), record) = timed(|| driver.record(HOME, event, stream))?;
        let ((), wait) = timed(|| driver.wait(HOME, other, event))?;
        // The first may still have to wait.
        driver.synchronize(HOME, event, LONG)?;
        let (_, query) = timed(|| driver.query(HOME, event))?;
        let (_, sync) = timed(|| driver.synchronize(HOME, event, LONG))?;
        events.push(event);
        for (times, ns) in times.iter_mut().zip([create, record, wait, query, sync]) {
            times.push(ns);
        }
    }
    for event in events {
        times[5].push(timed(|| driver.destroy_event(HOME, event))?.1);
    }
    driver.destroy_stream(HOME, stream)?;
    driver.destroy_stream(HOME, other)?;
    let calls = [
        Call::EventCreate,
        Call::EventRecord,
        Call::StreamWait,
        Call::EventQuery,
        Call::Sync,
        Call::EventDestroy,
    ];
    for (call, times) in calls.into_iter().zip(times) {
        rows.add(call, (None, None), times);
    }
    Ok(())
}

fn plain(driver: &dyn Driver, samples: usize, memory: u64, rows: &mut Rows) -> DriverResult<()> {
    for bytes in BLOCKS.into_iter().filter(|&bytes| bytes <= memory / 8) {
        let (mut allocs, mut frees) = (Vec::new(), Vec::new());
        for _ in 0..samples {
            let (address, ns) = timed(|| driver.allocate(HOME, bytes))?;
            allocs.push(ns);
            frees.push(timed(|| driver.free(HOME, address))?.1);
        }
        rows.add(Call::Alloc, (Some(bytes), None), allocs);
        rows.add(Call::Free, (Some(bytes), None), frees);
    }
    Ok(())
}

fn reservations(
    driver: &dyn Driver,
    samples: usize,
    memory: u64,
    rows: &mut Rows,
) -> DriverResult<()> {
    // What a pool reserves, and less.
    for bytes in [RESERVATION, (memory * 7).next_multiple_of(RESERVATION)] {
        let (mut reserves, mut returns) = (Vec::new(), Vec::new());
        for _ in 0..samples {
            let (address, ns) = timed(|| driver.reserve(HOME, bytes))?;
            reserves.push(ns);
            returns.push(timed(|| driver.unreserve(HOME, address, bytes))?.1);
        }
        rows.add(Call::Reserve, (Some(bytes), None), reserves);
        rows.add(Call::Unreserve, (Some(bytes), None), returns);
    }
    Ok(())
}

/// Pages made, mapped, opened in one call to so many devices, unmapped in one call, given back.
fn mappings(
    driver: &dyn Driver,
    samples: usize,
    (count, page): (u64, u64),
    devices: u16,
    rows: &mut Rows,
) -> DriverResult<()> {
    let bytes = count * page;
    let to: Vec<DeviceId> = (0..devices).map(DeviceId).collect();
    let at = driver.reserve(HOME, bytes)?;
    let mut times: [Vec<u64>; 5] = std::array::from_fn(|_| Vec::new());
    let mut refused = None;
    for _ in 0..samples {
        let mut pages = Vec::new();
        for nth in 0..count {
            let (handle, ns) = timed(|| driver.create_page(HOME, page))?;
            times[0].push(ns);
            times[1].push(timed(|| driver.map(HOME, at + nth * page, page, handle))?.1);
            pages.push(handle);
        }
        match timed(|| driver.set_access(HOME, at, bytes, &to)) {
            Ok(((), ns)) => times[2].push(ns),
            Err(error) => refused = Some(error),
        }
        times[3].push(timed(|| driver.unmap(HOME, at, bytes))?.1);
        for handle in pages {
            times[4].push(timed(|| driver.release_page(HOME, handle))?.1);
        }
        if refused.is_some() {
            break;
        }
    }
    driver.unreserve(HOME, at, bytes)?;
    if let Some(error) = refused {
        if devices == 1 {
            return Err(error);
        }
        eprintln!("millpond: no access for {devices} devices: {error}");
        return Ok(());
    }
    let [create, map, access, unmap, release] = times;
    rows.add(Call::SetAccess, (Some(bytes), Some(devices)), access);
    if devices > 1 {
        return Ok(());
    }
    rows.add(Call::Unmap, (Some(bytes), None), unmap);
    if count == 1 {
        rows.add(Call::Create, (Some(page), None), create);
        rows.add(Call::Map, (Some(page), None), map);
        rows.add(Call::Release, (Some(page), None), release);
        larger(driver, samples, page, rows)?;
    }
    Ok(())
}

/// Pages larger than the granularity, made, mapped and given back.
fn larger(driver: &dyn Driver, samples: usize, page: u64, rows: &mut Rows) -> DriverResult<()> {
    for bytes in [4 * page, 16 * page] {
        let at = driver.reserve(HOME, bytes)?;
        let mut times: [Vec<u64>; 3] = std::array::from_fn(|_| Vec::new());
        for _ in 0..samples {
            let (handle, ns) = timed(|| driver.create_page(HOME, bytes))?;
            times[0].push(ns);
            times[1].push(timed(|| driver.map(HOME, at, bytes, handle))?.1);
            driver.unmap(HOME, at, bytes)?;
            times[2].push(timed(|| driver.release_page(HOME, handle))?.1);
        }
        driver.unreserve(HOME, at, bytes)?;
        for (call, times) in [Call::Create, Call::Map, Call::Release].into_iter().zip(times) {
            rows.add(call, (Some(bytes), None), times);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use millpond::driver::sim::SimDriver;
    use millpond_simgpu::Sim;

    #[test]
    fn each_call_is_timed_and_everything_given_back() {
        let sim = Sim::builder().devices(3).build().unwrap();
        let rows = all(&SimDriver::new(sim.clone()), 5).unwrap();
        assert!(sim.leaks().is_empty(), "{}", sim.leaks());
        for call in [Call::EventCreate, Call::EventRecord, Call::EventQuery, Call::StreamWait] {
            assert!(rows.median(call, None, None).is_some(), "{call:?}");
        }
        let page = 2 << 20;
        for call in [Call::Create, Call::Map, Call::Unmap, Call::Release, Call::Alloc, Call::Free] {
            assert!(rows.median(call, Some(page), None).is_some(), "{call:?}");
        }
        for pages in PAGES {
            assert!(rows.median(Call::SetAccess, Some(pages * page), Some(1)).is_some());
        }
        assert!(rows.median(Call::SetAccess, Some(page), Some(3)).is_some());
        assert!(rows.0.iter().all(|row| row.samples >= 5 && row.least_ns <= row.median_ns));
    }

    #[test]
    fn a_device_without_virtual_memory_is_asked_for_none() {
        let sim = Sim::builder().build().unwrap();
        let rows = all(&SimDriver::without_virtual_memory(sim.clone()), 3).unwrap();
        assert!(rows.median(Call::Alloc, Some(BLOCK), None).is_some());
        assert_eq!(sim.counters().get(Call::Create), 0);
    }

    #[test]
    fn medians_are_of_the_samples() {
        let mut rows = Rows::default();
        rows.add(Call::Map, (Some(1), None), vec![9, 1, 5, 3, 100]);
        rows.add(Call::Map, (Some(2), None), Vec::new());
        assert_eq!(rows.0.len(), 1);
        let row = &rows.0[0];
        assert_eq!((row.median_ns, row.p90_ns, row.least_ns, row.samples), (5, 100, 1, 5));
    }
}
