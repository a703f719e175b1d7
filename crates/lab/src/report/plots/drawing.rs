//! The surface and the colours of plots.

use std::ops::Range;

use plotters::coord::Shift;
use plotters::coord::types::RangedCoordf64;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use crate::report::Report;
use crate::strategy::Strategy;

pub(super) type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

pub(super) type Drawn<T = ()> = Result<T, Box<dyn std::error::Error>>;

type Chart<'a, 'b> = ChartContext<'a, SVGBackend<'b>, Cartesian2d<RangedCoordf64, RangedCoordf64>>;

/// The axes over the whole area; `labels` are the sizes of the labels below and on the left.
pub(super) fn chart<'a, 'b>(
    area: &'a Area<'b>,
    labels: (u32, u32),
    x: Range<f64>,
    y: Range<f64>,
) -> Drawn<Chart<'a, 'b>> {
    let mut builder = ChartBuilder::on(area);
    builder.margin(12).x_label_area_size(labels.0).y_label_area_size(labels.1);
    Ok(builder.build_cartesian_2d(x, y)?)
}

/// A label beside an axis.
pub(super) fn label_style(horizontal: HPos, vertical: VPos) -> TextStyle<'static> {
    ("sans-serif", 14).into_font().color(&BLACK).pos(Pos::new(horizontal, vertical))
}

/// The names of the series, in the upper right corner.
pub(super) fn draw_legend<'a, 'b: 'a>(chart: &mut Chart<'a, 'b>) -> Drawn {
    let mut labels = chart.configure_series_labels();
    labels.background_style(WHITE).border_style(TRANSPARENT).position(SeriesLabelPosition::UpperRight);
    Ok(labels.draw()?)
}

/// Okabe and Ito's colours, suitable for all kinds of colour vision. Refrain's colour is the first.
pub(super) const COLORS: [RGBColor; 10] = [
    RGBColor(213, 94, 0),
    RGBColor(120, 120, 120),
    RGBColor(86, 180, 233),
    RGBColor(0, 158, 115),
    RGBColor(150, 110, 60),
    RGBColor(0, 114, 178),
    RGBColor(230, 159, 0),
    RGBColor(204, 121, 167),
    RGBColor(0, 0, 0),
    RGBColor(190, 190, 190),
];

pub(super) fn color(strategy: Strategy) -> RGBColor {
    let all = Strategy::traced();
    COLORS[all.iter().position(|&other| other == strategy).unwrap_or(0) % COLORS.len()]
}

pub(super) fn is_control(report: &Report<'_>, setting: usize) -> bool {
    report.settings[setting].strategy.is_control()
}
