//! Acceptance lengths and speeds as bars, and the distribution of tokens per step.

use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, VPos};

use super::drawing::{Area, Drawn, chart, color, draw_legend, label_style};
use crate::model::Timings;
use crate::report::Report;
use crate::strategy::Strategy;

/// A group of bars per task, a bar per strategy: tokens per step.
pub(super) fn draw_bars(area: &Area<'_>, report: &Report<'_>, group: &[usize]) -> Drawn {
    let tasks = report.tasks();
    let strategies: Vec<Strategy> = group.iter().map(|&setting| report.settings[setting].strategy).collect();
    let value =
        |task: usize, strategy: usize| report.task_total(tasks[task], group[strategy]).acceptance_length();
    draw_groups(area, &tasks, &strategies, "tokens per step", value)
}

/// A group of bars per task, a bar per strategy: speed over plain decoding.
pub(super) fn draw_speed_bars(area: &Area<'_>, timings: &Timings) -> Drawn {
    let (mut tasks, mut strategies) = (Vec::new(), Vec::new());
    for timing in &timings.timings {
        if !tasks.contains(&timing.task.as_str()) {
            tasks.push(&timing.task);
        }
        if !strategies.contains(&timing.strategy) && timing.strategy != Strategy::AlwaysRight {
            strategies.push(timing.strategy);
        }
    }
    let value = |task: usize, strategy: usize| timings.task_speed_up(tasks[task], strategies[strategy]);
    draw_groups(area, &tasks, &strategies, "speed over plain decoding", value)
}

fn draw_groups(
    area: &Area<'_>,
    tasks: &[&str],
    strategies: &[Strategy],
    unit: &str,
    value: impl Fn(usize, usize) -> f64,
) -> Drawn {
    let cells = (0..tasks.len()).flat_map(|task| (0..strategies.len()).map(move |s| (task, s)));
    let top = cells.map(|(task, strategy)| value(task, strategy)).fold(1.0, f64::max) * 1.05;
    // Space for the legend beside the bars, because the bars fill the whole width.
    let right = tasks.len() as f64 + 0.16 * tasks.len() as f64 + 0.1;
    let mut chart = chart(area, (28, 48), 0.0..right, 0.0..top)?;
    let mesh = &mut chart.configure_mesh();
    mesh.disable_x_mesh().x_labels(0).y_desc(unit).light_line_style(TRANSPARENT).draw()?;
    let width = 0.8 / strategies.len().max(1) as f64;
    for (i, &strategy) in strategies.iter().enumerate() {
        let bars = (0..tasks.len()).map(|task| {
            let left = task as f64 + 0.1 + i as f64 * width;
            Rectangle::new([(left, 0.0), (left + 0.92 * width, value(task, i))], color(strategy).filled())
        });
        chart
            .draw_series(bars)?
            .label(strategy.to_string())
            .legend(move |(x, y)| Rectangle::new([(x, y - 5), (x + 10, y + 5)], color(strategy).filled()));
    }
    let labels = (0..tasks.len()).map(|task| {
        let style = label_style(HPos::Center, VPos::Top);
        EmptyElement::at((task as f64 + 0.5, 0.0)) + Text::new(tasks[task].to_owned(), (0, 6), style)
    });
    chart.draw_series(labels)?;
    draw_legend(&mut chart)
}

/// Numbers of committed tokens with a bar of their own. The last bar contains all larger numbers.
const LEN_MAX: usize = 9;

/// A group of bars per number of committed tokens, a bar per strategy: the share of steps.
pub(super) fn draw_histogram(area: &Area<'_>, report: &Report<'_>, group: &[usize]) -> Drawn {
    let strategies: Vec<Strategy> = group.iter().map(|&setting| report.settings[setting].strategy).collect();
    let totals: Vec<_> = group.iter().map(|&setting| report.total(setting)).collect();
    let names: Vec<String> = (1..LEN_MAX).map(|len| len.to_string()).chain([format!("{LEN_MAX}+")]).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let share = |len: usize, strategy: usize| {
        let total = &totals[strategy];
        let of_len = total.steps_by_len.iter().skip(len + 1);
        let n: usize = of_len.take(if len + 1 == LEN_MAX { usize::MAX } else { 1 }).sum();
        n as f64 / total.n_steps.max(1) as f64
    };
    draw_groups(area, &names, &strategies, "share of steps", share)
}
