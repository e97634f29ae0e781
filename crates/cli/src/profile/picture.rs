//! A profile as a picture: for each device sizes, memory over time, and lifetimes.

use super::human::classes;
use super::record::{DeviceRecord, Record};
use crate::replay::Course;
use crate::size::Bytes;
use plotters::coord::Shift;
use plotters::prelude::*;

/// Pixels of a device's row, and of its parts.
const HEIGHT: u32 = 360;
const SIZES: u32 = 480;
const MEMORY: u32 = 720;
const LIFETIMES: u32 = 400;

const REQUESTS: RGBColor = RGBColor(53, 110, 168);
const BYTES: RGBColor = RGBColor(222, 132, 40);
const RESERVED: RGBColor = RGBColor(60, 60, 60);
const MARKS: RGBColor = RGBColor(205, 205, 205);

type Panel<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// Draws a trace's profile as SVG. `reserved`: what the pool held, by device.
pub(super) fn draw(record: &Record, reserved: &[Course]) -> anyhow::Result<String> {
    let mut picture = String::new();
    let rows = record.devices.len().max(1) as u32;
    {
        let size = (SIZES + MEMORY + LIFETIMES, HEIGHT * rows);
        let root = SVGBackend::with_string(&mut picture, size).into_drawing_area();
        root.fill(&WHITE)?;
        let areas = root.split_evenly((rows as usize, 1));
        for ((device, area), course) in record.devices.iter().zip(areas).zip(reserved) {
            let (left, rest) = area.split_horizontally(SIZES);
            let (middle, right) = rest.split_horizontally(MEMORY);
            sizes(&left, device)?;
            let title = format!("{}, device {}: memory, GiB", record.trace, device.ordinal);
            memory(&middle, &title, device, course)?;
            lifetimes(&right, device)?;
        }
        root.present()?;
    }
    Ok(picture)
}

/// Shares of requests and bytes, octave by octave.
fn sizes(panel: &Panel<'_>, device: &DeviceRecord) -> anyhow::Result<()> {
    let profile = &device.profile;
    let octave = |from_bytes: u64| f64::from(from_bytes.max(1).ilog2());
    let first = profile.sizes.first().map_or(0.0, |size| octave(size.from_bytes));
    let last = profile.sizes.last().map_or(0.0, |size| octave(size.from_bytes));
    let percent = |part: u64, all: u64| part as f64 * 100.0 / all.max(1) as f64;
    let bars: Vec<(f64, f64, f64)> = profile
        .sizes
        .iter()
        .map(|size| {
            (
                octave(size.from_bytes),
                percent(size.requests, profile.requests),
                percent(size.bytes, profile.requested_bytes),
            )
        })
        .collect();
    let most = bars.iter().fold(1.0_f64, |most, &(_, a, b)| most.max(a).max(b));
    let mut chart = ChartBuilder::on(panel)
        .caption("sizes, % of requests and of bytes", ("sans-serif", 16))
        .margin(10)
        .x_label_area_size(30)
        .y_label_area_size(40)
        .build_cartesian_2d(first..last + 1.0, 0.0..most * 1.05)?;
    chart.configure_mesh().disable_x_mesh().x_labels(8).x_label_formatter(&|x| power(*x)).draw()?;
    for (shift, color, part, name) in [(0.1, REQUESTS, 0, "requests"), (0.5, BYTES, 1, "bytes")] {
        let bar = |&(at, requests, bytes): &(f64, f64, f64)| {
            let height = if part == 0 { requests } else { bytes };
            let at = at + shift;
            Rectangle::new([(at, 0.0), (at + 0.4, height)], color.filled())
        };
        chart
            .draw_series(bars.iter().map(bar))?
            .label(name)
            .legend(move |(x, y)| Rectangle::new([(x, y - 5), (x + 10, y + 5)], color.filled()));
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperLeft)
        .border_style(BLACK)
        .background_style(WHITE)
        .draw()?;
    Ok(())
}

fn power(octave: f64) -> String {
    if (0.0..63.0).contains(&octave) { whole(1 << octave as u32) } else { String::new() }
}

/// A size without a fraction.
fn whole(bytes: u64) -> String {
    Bytes(bytes).to_string().replace(".0 ", " ")
}

/// Live and reserved bytes over time, with a line where each step begins.
fn memory(
    panel: &Panel<'_>,
    title: &str,
    device: &DeviceRecord,
    reserved: &Course,
) -> anyhow::Result<()> {
    const GIB: f64 = (1_u64 << 30) as f64;
    let profile = &device.profile;
    let held = reserved.iter().map(|&(_, bytes)| bytes).max().unwrap_or(0);
    let most = profile.peak_live_bytes.max(held).max(1) as f64 / GIB;
    let mut chart = ChartBuilder::on(panel)
        .caption(title, ("sans-serif", 16))
        .margin(10)
        .x_label_area_size(30)
        .y_label_area_size(50)
        .build_cartesian_2d(0..profile.operations.max(1), 0.0..most * 1.05)?;
    chart.configure_mesh().disable_x_mesh().x_desc("allocations and frees").draw()?;
    for &at in &profile.step_operations {
        let ends = [(at, 0.0), (at, most * 1.05)];
        chart.draw_series(LineSeries::new(ends, MARKS.stroke_width(1)))?;
    }
    let points = profile.live.iter().map(|sample| (sample.operation, sample.bytes as f64 / GIB));
    let line = |color: RGBColor| move |(x, y)| PathElement::new([(x, y), (x + 12, y)], color);
    chart
        .draw_series(LineSeries::new(points, BYTES.stroke_width(2)))?
        .label("live, the most of each part")
        .legend(line(BYTES));
    let points = reserved.iter().map(|&(at, bytes)| (at, bytes as f64 / GIB));
    chart
        .draw_series(LineSeries::new(points, RESERVED.stroke_width(1)))?
        .label("reserved by the pool")
        .legend(line(RESERVED));
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::LowerRight)
        .border_style(BLACK)
        .background_style(WHITE)
        .draw()?;
    Ok(())
}

/// Shares of blocks and bytes by how long they live.
fn lifetimes(panel: &Panel<'_>, device: &DeviceRecord) -> anyhow::Result<()> {
    let profile = &device.profile;
    let classes = classes(profile);
    let mut chart = ChartBuilder::on(panel)
        .caption("blocks live, % of requests and of bytes", ("sans-serif", 16))
        .margin(10)
        .x_label_area_size(30)
        .y_label_area_size(40)
        .build_cartesian_2d(0.0..classes.len() as f64, 0.0..105.0)?;
    let name = |x: &f64| {
        // Between the marks of whole numbers, under the bars.
        let class = classes.get(x.floor() as usize).filter(|_| x.fract() > 0.4);
        class.map_or_else(String::new, |(name, _)| (*name).to_owned())
    };
    chart.configure_mesh().disable_x_mesh().x_labels(9).x_label_formatter(&name).draw()?;
    let percent = |part: u64, all: u64| part as f64 * 100.0 / all.max(1) as f64;
    for (at, (_, count)) in classes.iter().enumerate() {
        let at = at as f64;
        let (blocks, bytes) = (
            percent(count.blocks, profile.requests),
            percent(count.bytes, profile.requested_bytes),
        );
        chart.draw_series([
            Rectangle::new([(at + 0.1, 0.0), (at + 0.5, blocks)], REQUESTS.filled()),
            Rectangle::new([(at + 0.5, 0.0), (at + 0.9, bytes)], BYTES.filled()),
        ])?;
    }
    Ok(())
}
