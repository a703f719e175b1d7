//! The plots of a report, as SVG.
//!
//! Three of them: acceptance length by task and strategy, speed by row budget, and how many tokens steps commit. Each is one
//! SVG without scripts or fonts of its own.

use plotters::coord::Shift;
use plotters::prelude::*;

use super::Report;
use crate::strategy::Strategy;

/// A plot: what it is called in file names, what it shows, and the picture.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plot {
    /// The name, without extension.
    pub name: String,
    /// What is to be seen.
    pub title: String,
    /// The picture.
    pub svg: String,
}

const SIZE: (u32, u32) = (960, 420);

/// Okabe and Ito's colours, told apart by all kinds of colour vision; Refrain's is the first.
const COLORS: [RGBColor; 9] = [
    RGBColor(213, 94, 0),
    RGBColor(120, 120, 120),
    RGBColor(86, 180, 233),
    RGBColor(0, 158, 115),
    RGBColor(0, 114, 178),
    RGBColor(230, 159, 0),
    RGBColor(204, 121, 167),
    RGBColor(0, 0, 0),
    RGBColor(190, 190, 190),
];

fn color(strategy: Strategy) -> RGBColor {
    let all = Strategy::all();
    COLORS[all.iter().position(|&other| other == strategy).unwrap_or(0) % COLORS.len()]
}

type Drawn = Result<(), Box<dyn std::error::Error>>;

/// All plots. Controls that would flatten the rest are left out of the scales.
pub fn draw(report: &Report<'_>) -> Vec<Plot> {
    let mut plots = Vec::new();
    for ((sources, max_rows), group) in report.groups() {
        let group: Vec<usize> = group.into_iter().filter(|&setting| is_shown(report, setting)).collect();
        let title = format!("Tokens per step by task, {max_rows} rows, sources: {sources}");
        let name = format!("acceptance-{sources}-{max_rows}");
        plots.extend(plot(name, title, |area| draw_bars(area, report, &group)));
        let title = format!("Share of steps by tokens committed, {max_rows} rows, sources: {sources}");
        let name = format!("histogram-{sources}-{max_rows}");
        plots.extend(plot(name, title, |area| draw_histogram(area, report, &group)));
    }
    if report.groups().len() > 1 {
        let title =
            "Speed over plain decoding by row budget (by the cost profile, drafting left out)".to_owned();
        plots.extend(plot("speed-by-rows".to_owned(), title, |area| draw_lines(area, report)));
    }
    plots
}

fn is_shown(report: &Report<'_>, setting: usize) -> bool {
    !matches!(report.settings[setting].strategy, Strategy::AlwaysRight | Strategy::AlwaysWrong)
}

/// Draws one picture; `None` where there is nothing to draw.
fn plot(
    name: String,
    title: String,
    draw: impl FnOnce(&DrawingArea<SVGBackend<'_>, Shift>) -> Drawn,
) -> Option<Plot> {
    let mut svg = String::new();
    {
        let area = SVGBackend::with_string(&mut svg, SIZE).into_drawing_area();
        area.fill(&WHITE).ok()?;
        draw(&area).ok()?;
        area.present().ok()?;
    }
    Some(Plot { name, title, svg })
}

/// A group of bars per task, a bar per strategy.
fn draw_bars(area: &DrawingArea<SVGBackend<'_>, Shift>, report: &Report<'_>, group: &[usize]) -> Drawn {
    let tasks = report.tasks();
    let value = |task: &str, setting: usize| report.task_total(task, setting).acceptance_length();
    let cells = tasks.iter().flat_map(|task| group.iter().map(move |&setting| value(task, setting)));
    let top = cells.fold(1.0, f64::max) * 1.08;
    let mut chart = ChartBuilder::on(area)
        .margin(12)
        .x_label_area_size(28)
        .y_label_area_size(44)
        .build_cartesian_2d(0.0..tasks.len() as f64, 0.0..top)?;
    let label = |x: &f64| {
        tasks.get(*x as usize).filter(|_| x.fract() > 0.4).map_or(String::new(), |t| (*t).to_owned())
    };
    chart
        .configure_mesh()
        .disable_x_mesh()
        .x_labels(2 * tasks.len() + 1)
        .x_label_formatter(&label)
        .y_desc("tokens per step")
        .light_line_style(TRANSPARENT)
        .draw()?;
    let width = 0.8 / group.len().max(1) as f64;
    for (i, &setting) in group.iter().enumerate() {
        let strategy = report.settings[setting].strategy;
        let bars = tasks.iter().enumerate().map(|(task_idx, task)| {
            let left = task_idx as f64 + 0.1 + i as f64 * width;
            Rectangle::new(
                [(left, 0.0), (left + 0.92 * width, value(task, setting))],
                color(strategy).filled(),
            )
        });
        chart
            .draw_series(bars)?
            .label(strategy.name())
            .legend(move |(x, y)| Rectangle::new([(x, y - 5), (x + 10, y + 5)], color(strategy).filled()));
    }
    chart.configure_series_labels().background_style(WHITE.mix(0.85)).border_style(BLACK.mix(0.3)).draw()?;
    Ok(())
}

/// A line per strategy: the share of steps that commit at least so many tokens.
fn draw_histogram(area: &DrawingArea<SVGBackend<'_>, Shift>, report: &Report<'_>, group: &[usize]) -> Drawn {
    const LEN_MAX: usize = 16;
    let mut chart = ChartBuilder::on(area)
        .margin(12)
        .x_label_area_size(40)
        .y_label_area_size(52)
        .build_cartesian_2d(1.0..LEN_MAX as f64, 0.0..1.0)?;
    let mesh = &mut chart.configure_mesh();
    mesh.x_desc("tokens committed, at least")
        .y_desc("share of steps")
        .x_labels(LEN_MAX)
        .light_line_style(TRANSPARENT);
    mesh.x_label_formatter(&|x| format!("{x:.0}")).draw()?;
    for &setting in group {
        let (strategy, total) = (report.settings[setting].strategy, report.total(setting));
        let at_least = |len: usize| total.steps_by_len.iter().skip(len).sum::<usize>() as f64;
        let points = (1..=LEN_MAX).map(|len| (len as f64, at_least(len) / total.n_steps.max(1) as f64));
        let style = color(strategy).stroke_width(if strategy == Strategy::Refrain { 3 } else { 2 });
        chart
            .draw_series(LineSeries::new(points, style))?
            .label(strategy.name())
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 14, y)], color(strategy).stroke_width(3)));
    }
    chart.configure_series_labels().background_style(WHITE.mix(0.85)).border_style(BLACK.mix(0.3)).draw()?;
    Ok(())
}

/// A line per strategy over the row budgets.
fn draw_lines(area: &DrawingArea<SVGBackend<'_>, Shift>, report: &Report<'_>) -> Drawn {
    let point =
        |setting: usize| (report.settings[setting].max_rows as f64, report.total(setting).speed_up(false));
    let shown: Vec<usize> = (0..report.settings.len()).filter(|&setting| is_shown(report, setting)).collect();
    let (right, top) =
        shown.iter().map(|&s| point(s)).fold((2.0, 1.0), |a, b| (f64::max(a.0, b.0), f64::max(a.1, b.1)));
    let mut chart = ChartBuilder::on(area)
        .margin(12)
        .x_label_area_size(40)
        .y_label_area_size(52)
        .build_cartesian_2d(0.0..right, 0.0..top * 1.1)?;
    chart
        .configure_mesh()
        .x_desc("rows of a batch at most")
        .y_desc("speed-up")
        .light_line_style(TRANSPARENT)
        .draw()?;
    let mut lines: Vec<(Strategy, crate::Sources)> =
        shown.iter().map(|&s| (report.settings[s].strategy, report.settings[s].sources)).collect();
    lines.sort_unstable();
    lines.dedup();
    for (strategy, sources) in lines {
        let of_line =
            |&s: &usize| report.settings[s].strategy == strategy && report.settings[s].sources == sources;
        let mut points: Vec<_> = shown.iter().copied().filter(of_line).map(point).collect();
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        let style = color(strategy).stroke_width(if strategy == Strategy::Refrain { 3 } else { 2 });
        let line = chart.draw_series(LineSeries::new(points, style))?;
        line.label(format!("{strategy}, {sources}"))
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 14, y)], color(strategy).stroke_width(3)));
    }
    let labels = &mut chart.configure_series_labels();
    labels
        .background_style(WHITE.mix(0.85))
        .border_style(BLACK.mix(0.3))
        .position(SeriesLabelPosition::LowerRight)
        .draw()?;
    Ok(())
}
