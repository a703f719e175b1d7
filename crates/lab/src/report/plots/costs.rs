//! The cost of a batch by its number of rows, and the resulting speed of each strategy.

use plotters::prelude::*;

use super::drawing::{Area, Drawn, chart, color, draw_legend, is_control};
use crate::report::Report;
use crate::strategy::{Sources, Strategy};

/// Cost of a batch relative to a single row, for several context lengths.
pub(super) fn draw_cost(area: &Area<'_>, report: &Report<'_>) -> Drawn {
    let rows_max = report.settings.iter().map(|setting| setting.max_rows).max().unwrap_or(1).max(2);
    let Some(setting) = report.settings.first() else { return Ok(()) };
    let contexts: &[usize] = if setting.costs.knows_contexts() { &[0, 1024, 4096] } else { &[0] };
    let cost = |context: usize, rows: usize| {
        let costs = setting.costs.behind(context);
        f64::from(costs.verify_us(rows, 1) / costs.verify_us(1, 1))
    };
    let top = contexts.iter().map(|&context| cost(context, rows_max)).fold(1.0, f64::max);
    let mut chart = chart(area, (40, 52), 1.0..rows_max as f64, 0.0..top * 1.05)?;
    let mesh = &mut chart.configure_mesh();
    mesh.x_desc("rows of a batch").y_desc("cost ÷ cost of one row").light_line_style(TRANSPARENT).draw()?;
    for (i, &context) in contexts.iter().enumerate() {
        let style = color([Strategy::Refrain, Strategy::all()[2], Strategy::all()[3]][i]).stroke_width(2);
        let points = (1..=rows_max).map(|rows| (rows as f64, cost(context, rows)));
        chart
            .draw_series(LineSeries::new(points, style))?
            .label(format!("behind {context} tokens"))
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 14, y)], style));
    }
    chart
        .configure_series_labels()
        .background_style(WHITE)
        .border_style(BLACK.mix(0.3))
        .position(SeriesLabelPosition::UpperLeft)
        .draw()?;
    Ok(())
}

/// A line per strategy over the row budgets: speed over plain decoding, all subtasks together.
pub(super) fn draw_speed(area: &Area<'_>, report: &Report<'_>) -> Drawn {
    let point = |setting: usize| {
        let total = report.total(setting);
        // If rows are free, the time of drafting would dominate.
        let speed_up =
            if report.is_weighed(setting) { total.speed_up(true) } else { total.acceptance_length() };
        (report.settings[setting].max_rows as f64, speed_up)
    };
    let shown: Vec<usize> = (0..report.settings.len())
        .filter(|&setting| !is_control(report, setting) || report.is_weighed(setting))
        .filter(|&setting| report.settings[setting].strategy != Strategy::AlwaysRight)
        .collect();
    let (right, top) =
        shown.iter().map(|&s| point(s)).fold((2.0, 1.0), |a, b| (f64::max(a.0, b.0), f64::max(a.1, b.1)));
    // Space for the legend on the right.
    let mut chart = chart(area, (40, 52), 0.0..right * 1.25, 0.0..top * 1.1)?;
    let mesh = &mut chart.configure_mesh();
    mesh.x_desc("rows of a batch at most").y_desc("speed-up").light_line_style(TRANSPARENT).draw()?;
    let mut lines: Vec<(Strategy, Sources)> =
        shown.iter().map(|&s| (report.settings[s].strategy, report.settings[s].sources)).collect();
    lines.sort_unstable();
    lines.dedup();
    for (strategy, sources) in lines {
        let of_line =
            |&s: &usize| report.settings[s].strategy == strategy && report.settings[s].sources == sources;
        let mut points: Vec<_> = shown.iter().copied().filter(of_line).map(point).collect();
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        let style = color(strategy).stroke_width(if strategy == Strategy::Refrain { 3 } else { 2 });
        let dots = points.iter().map(|&at| Circle::new(at, 3, color(strategy).filled())).collect::<Vec<_>>();
        chart
            .draw_series(LineSeries::new(points, style))?
            .label(format!("{strategy}, {sources}"))
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 14, y)], style));
        chart.draw_series(dots)?;
    }
    draw_legend(&mut chart)
}
