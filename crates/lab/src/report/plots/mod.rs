//! The plots of a report, as self-contained SVG without scripts or fonts.

mod acceptance;
mod costs;
mod drawing;
mod fleet;
mod stages;

use plotters::prelude::*;

use super::Report;
use crate::fleet::FleetCell;
use crate::model::Timings;
use drawing::{Area, Drawn, is_control};

/// A plot: file name, caption and picture.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plot {
    /// The name, without extension.
    pub name: String,
    /// The caption.
    pub title: String,
    /// The picture.
    pub svg: String,
}

/// All plots of a replay without a model: acceptance lengths, their distribution, costs, and the time of a step by
/// stage. The first plot leaves out controls, because they would compress its scale.
pub fn draw(report: &Report<'_>) -> Vec<Plot> {
    let mut plots = Vec::new();
    for ((sources, max_rows), group) in report.groups() {
        let rules: Vec<usize> = group.iter().copied().filter(|&s| !is_control(report, s)).collect();
        plots.extend(plot(
            format!("acceptance-{sources}-{max_rows}"),
            format!("Tokens per step by task, {max_rows} rows, sources: {sources}"),
            |area| acceptance::draw_bars(area, report, &rules),
        ));
        plots.extend(plot(
            format!("histogram-{sources}-{max_rows}"),
            format!("Steps by tokens committed, {max_rows} rows, sources: {sources}"),
            |area| acceptance::draw_histogram(area, report, &rules),
        ));
        if report.is_weighed(group[0]) {
            plots.extend(plot(
                format!("step-time-{sources}-{max_rows}"),
                format!("Where a step's time goes, {max_rows} rows, sources: {sources}"),
                |area| stages::draw(area, &stages::of_report(report, &group), US_PER_STEP),
            ));
        }
        let ends = stages::ends_of_report(report, &group);
        if !ends.is_empty() {
            plots.extend(plot(
                format!("step-ends-{sources}-{max_rows}"),
                format!("Why steps end, {max_rows} rows, sources: {sources}"),
                |area| stages::draw(area, &ends, "share of steps"),
            ));
        }
    }
    if !report.settings.is_empty() && report.is_weighed(0) {
        let title = "Cost of a verification batch, by its rows".to_owned();
        plots.extend(plot("cost".to_owned(), title, |area| costs::draw_cost(area, report)));
    }
    if report.groups().len() > 1 {
        let title = match report.is_weighed(0) {
            true => "Speed over plain decoding by row budget, drafting included",
            false => "Tokens per step by row budget: speed over plain decoding if rows were free",
        };
        let draw = |area: &Area<'_>| costs::draw_speed(area, report);
        plots.extend(plot("speed-by-rows".to_owned(), title.to_owned(), draw));
    }
    plots
}

/// All plots of a replay through a model: speed by subtask, and the time of a step by stage.
pub fn draw_timings(timings: &Timings) -> Vec<Plot> {
    let speed = |area: &Area<'_>| acceptance::draw_speed_bars(area, timings);
    let stages = |area: &Area<'_>| stages::draw(area, &stages::of_timings(timings), US_PER_STEP);
    let speed = plot("speed".to_owned(), "Speed over plain decoding by task".to_owned(), speed);
    let stages = plot("step-time".to_owned(), "Where a step's time goes".to_owned(), stages);
    speed.into_iter().chain(stages).collect()
}

/// All plots of a simulated fleet: tokens per step, and rows with a hit, by the delay of sharing.
pub fn draw_fleet(cells: &[FleetCell]) -> Vec<Plot> {
    let tokens =
        |area: &Area<'_>| fleet::draw(area, cells, "tokens per step", |cell| cell.tally.acceptance_length());
    let hits = |area: &Area<'_>| {
        fleet::draw(area, cells, "rows with a token from history, %", |cell| 100.0 * cell.hit_rate())
    };
    let tokens =
        plot("fleet-tokens".to_owned(), "Tokens per step by the delay of sharing".to_owned(), tokens);
    let hits = plot("fleet-hits".to_owned(), "Rows with a hit by the delay of sharing".to_owned(), hits);
    tokens.into_iter().chain(hits).collect()
}

const US_PER_STEP: &str = "µs per step";

const SIZE: (u32, u32) = (960, 420);

/// Draws one picture. `None` if there is no data.
fn plot(name: String, title: String, draw: impl FnOnce(&Area<'_>) -> Drawn) -> Option<Plot> {
    let mut svg = String::new();
    {
        let area = SVGBackend::with_string(&mut svg, SIZE).into_drawing_area();
        area.fill(&WHITE).ok()?;
        draw(&area).ok()?;
        area.present().ok()?;
    }
    Some(Plot { name, title, svg })
}
