//! A bar per strategy, divided into segments: the time of a step by stage, or the ends of steps by reason.

use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, VPos};

use super::drawing::{Area, COLORS, Drawn, chart, draw_legend, label_style};
use crate::model::Timings;
use crate::report::Report;
use crate::tally::{StepEnd, Tally};

/// The mean step of a strategy: stages with their times in µs, or reasons with their shares, in order.
pub(super) struct Step {
    name: String,
    stages: Vec<(&'static str, f64)>,
}

/// The shares of the reasons why steps ended, for the strategies with reasons.
pub(super) fn ends_of_report(report: &Report<'_>, group: &[usize]) -> Vec<Step> {
    let totals = group.iter().map(|&setting| (setting, report.total(setting)));
    let step = |(setting, total): (usize, Tally)| {
        let share = |end| *total.ends.get(&end).unwrap_or(&0) as f64 / total.n_steps.max(1) as f64;
        Step {
            name: report.settings[setting].strategy.to_string(),
            stages: StepEnd::ALL.iter().map(|&end| (end.name(), share(end))).collect(),
        }
    };
    totals.filter(|(_, total)| !total.ends.is_empty()).map(step).collect()
}

/// Drafting as measured; verification by the cost profile.
pub(super) fn of_report(report: &Report<'_>, group: &[usize]) -> Vec<Step> {
    let step = |&setting: &usize| {
        let total = report.total(setting);
        let n_steps = total.n_steps.max(1) as f64;
        let draft_us: f64 = total.draft_us.iter().map(|&us| f64::from(us)).sum();
        Step {
            name: report.settings[setting].strategy.to_string(),
            stages: vec![
                ("verify (cost profile)", total.verify_us / n_steps),
                ("draft and observe", draft_us / n_steps),
            ],
        }
    };
    group.iter().map(step).collect()
}

/// All stages as measured.
pub(super) fn of_timings(timings: &Timings) -> Vec<Step> {
    let step = |total: crate::model::Timing| {
        let per_step = |us: f64| us / total.n_steps.max(1) as f64;
        Step {
            name: total.strategy.to_string(),
            stages: vec![
                ("forward", per_step(total.stages.forward)),
                ("project, choose", per_step(total.stages.walk)),
                ("commit", per_step(total.stages.commit)),
                ("draft", per_step(total.stages.draft)),
                ("observe", per_step(total.stages.observe)),
            ],
        }
    };
    timings.by_strategy().into_iter().map(step).collect()
}

pub(super) fn draw(area: &Area<'_>, steps: &[Step], unit: &str) -> Drawn {
    let longest = steps.iter().map(|step| step.stages.iter().map(|stage| stage.1).sum()).fold(1e-3, f64::max);
    let n = steps.len().max(1);
    let mut chart = chart(area, (40, 132), 0.0..longest * 1.3, n as f64..0.0)?;
    let mesh = &mut chart.configure_mesh();
    mesh.disable_y_mesh().y_labels(0).x_desc(unit).light_line_style(TRANSPARENT).draw()?;
    let n_stages = steps.iter().map(|step| step.stages.len()).max().unwrap_or(0);
    for stage in 0..n_stages {
        let color = COLORS[[4, 2, 5, 0, 6][stage % 5]];
        let name = steps.iter().find_map(|step| step.stages.get(stage)).map_or("", |stage| stage.0);
        let pieces = steps.iter().enumerate().filter_map(|(i, step)| {
            let len = step.stages.get(stage)?.1;
            let left: f64 = step.stages[..stage].iter().map(|stage| stage.1).sum();
            Some(Rectangle::new([(left, i as f64 + 0.15), (left + len, i as f64 + 0.85)], color.filled()))
        });
        chart
            .draw_series(pieces)?
            .label(name)
            .legend(move |(x, y)| Rectangle::new([(x, y - 5), (x + 10, y + 5)], color.filled()));
    }
    let names = steps.iter().enumerate().map(|(i, step)| {
        let style = label_style(HPos::Right, VPos::Center);
        EmptyElement::at((0.0, i as f64 + 0.5)) + Text::new(step.name.clone(), (-8, 0), style)
    });
    chart.draw_series(names)?;
    draw_legend(&mut chart)
}
