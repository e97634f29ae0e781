//! The fragmentation of every mechanism as a chart: a panel for each trace, a bar for each mechanism.

use super::row::Row;
use plotters::prelude::*;

/// Pixels of a panel, and of a bar in it.
const WIDTH: u32 = 900;
const BAR: u32 = 26;
const MARGIN: u32 = 90;

const LATE: RGBColor = RGBColor(53, 110, 168);
const OVERALL: RGBColor = RGBColor(222, 132, 40);

/// Half a bar: what it says, its colour, its value, and where it begins.
type Part = (&'static str, RGBColor, fn(&Row) -> Option<f64>, f64);

/// Draws the rows as SVG.
pub(super) fn draw(rows: &[Row]) -> anyhow::Result<String> {
    let mut picture = String::new();
    {
        let panels: Vec<&[Row]> = rows.chunk_by(|a, b| a.trace == b.trace).collect();
        let heights = panels.iter().map(|panel| panel.len() as u32 * BAR + MARGIN);
        let heights: Vec<u32> = heights.collect();
        let size = (WIDTH, heights.iter().sum::<u32>().max(1));
        let root = SVGBackend::with_string(&mut picture, size).into_drawing_area();
        root.fill(&WHITE)?;
        let mut top = 0;
        for (panel, height) in panels.into_iter().zip(heights) {
            let area = root.clone().shrink((0, top), (WIDTH, height));
            top += height;
            draw_panel(&area, panel)?;
        }
        root.present()?;
    }
    Ok(picture)
}

fn draw_panel(
    area: &DrawingArea<SVGBackend<'_>, plotters::coord::Shift>,
    rows: &[Row],
) -> anyhow::Result<()> {
    let percent = |share: Option<f64>| share.unwrap_or(0.0) * 100.0;
    let most = rows
        .iter()
        .flat_map(|row| [percent(row.fragmentation), percent(row.fragmentation_tenth)])
        .fold(1.0, f64::max);
    let count = rows.len() as f64;
    let title = format!("{}: fragmentation, %", rows[0].trace);
    let mut chart = ChartBuilder::on(area)
        .caption(title, ("sans-serif", 16))
        .margin(10)
        .x_label_area_size(28)
        .y_label_area_size(130)
        .build_cartesian_2d(0.0..most * 1.05, 0.0..count)?;
    // The first mechanism on top; each is named in the middle of its bar.
    let name = |at: &f64| {
        let middle = (at.fract() - 0.5).abs() < 0.01;
        let row = rows.len().checked_sub(1 + *at as usize).and_then(|row| rows.get(row));
        row.filter(|_| middle).map_or_else(String::new, |row| row.mechanism.clone())
    };
    chart
        .configure_mesh()
        .disable_y_mesh()
        .y_labels(rows.len() * 2 + 1)
        .y_label_formatter(&name)
        .draw()?;
    let parts: [Part; 2] = [
        ("within step 10", LATE, |row| row.fragmentation_tenth, 0.5),
        ("over the whole run", OVERALL, |row| row.fragmentation, 0.1),
    ];
    for (label, colour, value, from) in parts {
        let bars = rows.iter().rev().enumerate().map(|(at, row)| {
            let low = at as f64 + from;
            Rectangle::new([(0.0, low), (percent(value(row)), low + 0.4)], colour.filled())
        });
        chart
            .draw_series(bars)?
            .label(label)
            .legend(move |(x, y)| Rectangle::new([(x, y - 4), (x + 12, y + 4)], colour.filled()));
    }
    chart.configure_series_labels().background_style(WHITE.mix(0.8)).draw()?;
    Ok(())
}
