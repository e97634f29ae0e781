//! `millpond costs`: what driver calls take on this machine, and prices for the simulator.

mod in_order;
mod measure;
mod prices;

pub(crate) use prices::read;

use crate::args::DriverName;
use crate::exit::Outcome;
use crate::gpus::{Gpus, first_line};
use crate::output;
use crate::size::Bytes;
use clap::{Args, value_parser};
use measure::Row;
use millpond::DeviceId;
use millpond::driver::Driver;
use millpond::driver::sim::SimDriver;
use millpond_simgpu::Sim;
use prices::Prices;
use serde::Serialize;

/// Options of `millpond costs`.
#[derive(Debug, Args)]
pub(crate) struct CostsArgs {
    /// Whose calls; of simulated GPUs it is the time that the simulation itself takes
    #[arg(long, value_enum, default_value_t = DriverName::Cuda)]
    driver: DriverName,
    /// Times that each call is made
    #[arg(long, default_value_t = 32, value_name = "N",
        value_parser = value_parser!(u16).range(1..))]
    samples: u16,
    /// A JSON object on standard output, which `millpond replay --costs` reads
    #[arg(long)]
    json: bool,
}

/// What is printed as JSON.
#[derive(Debug, Serialize)]
struct Report<'a> {
    driver: &'static str,
    /// Name of the device that was measured.
    device: &'a str,
    devices: u16,
    #[serde(flatten)]
    prices: Prices,
    rows: &'a [Row],
}

/// Runs the command.
pub(crate) fn run(args: &CostsArgs) -> anyhow::Result<Outcome> {
    let mut gpus = Gpus::choose(Some(args.driver))?;
    let line = match &gpus {
        Gpus::Sim => "driver: sim (times of the simulation itself)".to_owned(),
        Gpus::Cuda(cuda) => format!("driver: cuda ({})", cuda.describe()),
    };
    first_line(&line, args.json)?;
    let samples = usize::from(args.samples);
    let driver: Box<dyn Driver> = match &mut gpus {
        Gpus::Sim => Box::new(SimDriver::new(Sim::builder().build()?)),
        Gpus::Cuda(cuda) => Box::new(cuda.driver(cuda.present(), false)?),
    };
    let mut rows = measure::all(&*driver, samples)?;
    let info = driver.device(DeviceId(0))?;
    if let Gpus::Cuda(cuda) = &mut gpus {
        in_order::measure(&cuda.contexts(1)?[0], samples, info.memory_bytes, &mut rows)?;
    }
    rows.gather();
    let report = Report {
        driver: gpus.name(),
        device: &info.name,
        devices: driver.device_count(),
        prices: Prices::of(&rows, info.granularity),
        rows: &rows.0,
    };
    if args.json {
        output::json_line(&report)?;
    } else {
        output::line(&table(&rows.0))?;
        let unit = report.prices.access_unit_ns;
        output::line(&format!("access: {unit} ns for each 2 MiB and device, on top of the call"))?;
    }
    Ok(Outcome::Done)
}

fn table(rows: &[Row]) -> String {
    let mut table = output::table(&["call", "bytes", "devices", "µs", "90 %", "least", "samples"]);
    let micros = |ns: u64| format!("{:.2}", ns as f64 / 1e3);
    let or_nothing = |text: Option<String>| text.unwrap_or_default();
    for row in rows {
        table.add_row([
            row.call.to_owned(),
            or_nothing(row.bytes.map(|bytes| Bytes(bytes).to_string())),
            or_nothing(row.devices.map(|devices| devices.to_string())),
            micros(row.median_ns),
            micros(row.p90_ns),
            micros(row.least_ns),
            row.samples.to_string(),
        ]);
    }
    table.to_string()
}
