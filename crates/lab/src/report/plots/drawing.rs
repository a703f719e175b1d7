//! The surface and the colours of plots.

use plotters::coord::Shift;
use plotters::prelude::*;

use crate::report::Report;
use crate::strategy::Strategy;

pub(super) type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

pub(super) type Drawn = Result<(), Box<dyn std::error::Error>>;

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
