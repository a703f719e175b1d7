//! A line per number of workers, over the delays of sharing.

use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, VPos};

use super::drawing::{Area, COLORS, Drawn, chart, draw_legend, label_style};
use crate::fleet::{FleetCell, delay_text};

pub(super) fn draw(
    area: &Area<'_>,
    cells: &[FleetCell],
    unit: &str,
    value: impl Fn(&FleetCell) -> f64,
) -> Drawn {
    let mut n_workers: Vec<usize> = cells.iter().map(|cell| cell.n_workers).collect();
    n_workers.dedup();
    let mut delays: Vec<u64> = cells.iter().map(|cell| cell.delay).collect();
    delays.sort_unstable();
    delays.dedup();
    let values = || cells.iter().map(&value);
    let (low, top) = (values().fold(f64::MAX, f64::min), values().fold(0.0, f64::max));
    let margin = (top - low).max(0.02 * top) * 0.1;
    // The delays have equal distances: they range from nothing to an hour. On the right there is room for the legend.
    let right = delays.len() as f64 - 0.3;
    let mut chart = chart(area, (40, 56), -0.2..right, low - margin..top + margin)?;
    let mesh = &mut chart.configure_mesh();
    mesh.x_labels(0).x_desc("delay of sharing").y_desc(unit).light_line_style(TRANSPARENT).draw()?;
    for (i, &n) in n_workers.iter().enumerate() {
        let style = COLORS[i % COLORS.len()].stroke_width(2);
        let of_delay = |cell: &FleetCell| {
            let at = delays.iter().position(|&delay| delay == cell.delay).unwrap_or(0);
            (at as f64, value(cell))
        };
        let points: Vec<(f64, f64)> = cells.iter().filter(|cell| cell.n_workers == n).map(of_delay).collect();
        chart
            .draw_series(LineSeries::new(points, style))?
            .label(if n == 1 { "1 worker".to_owned() } else { format!("{n} workers") })
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 14, y)], style));
    }
    let labels = delays.iter().enumerate().map(|(at, &delay)| {
        let style = label_style(HPos::Center, VPos::Top);
        EmptyElement::at((at as f64, low - margin)) + Text::new(delay_text(delay), (0, 6), style)
    });
    chart.draw_series(labels)?;
    draw_legend(&mut chart)
}
