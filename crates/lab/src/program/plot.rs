//! `refrain-bench plot`: draws a stored profile.

use std::fs;
use std::io::{self, ErrorKind, Read};
use std::path::Path;

use plotters::prelude::*;
use refrain::device::MachineProfile;
use refrain::internals::profile::PassCost;
use refrain_files::open_regular;
use refrain_program::failure::{Exit, Failure};

use super::args::PlotArgs;

pub(super) fn plot(args: &PlotArgs) -> Result<Exit, Failure> {
    let profile = MachineProfile::read(&args.profile)
        .map_err(|error| Failure::input(error, "name a file that `refrain model profile` has written"))?;
    refuse_to_replace(&args.out)?;
    write(&profile, &args.out)?;
    Ok(Exit::Done)
}

/// Refuses to replace any file except a plot of a profile: replacing another file is probably a mistake.
fn refuse_to_replace(path: &Path) -> Result<(), Failure> {
    let is_plot = match has_caption(path) {
        Ok(has_caption) => has_caption,
        Err(error) => error.kind() == ErrorKind::NotFound,
    };
    match is_plot {
        true => Ok(()),
        false => {
            let problem = format!("`{}` exists and is not a plot of a profile", path.display());
            Err(Failure::usage(problem, "name another file, or remove this one"))
        }
    }
}

/// Whether a file is a plot of a profile, by its title.
fn has_caption(svg: &Path) -> io::Result<bool> {
    let mut start = Vec::new();
    open_regular(svg)?.take(1 << 16).read_to_end(&mut start)?;
    Ok(String::from_utf8_lossy(&start).contains(CAPTION))
}

/// Plots ms by rows, with a line for each context.
fn write(profile: &MachineProfile, path: &Path) -> Result<(), Failure> {
    let mut svg = String::new();
    let drawn = draw(profile, &mut svg).map_err(|error| error.to_string());
    let written = drawn.and_then(|()| fs::write(path, svg).map_err(|error| error.to_string()));
    written.map_err(|error| Failure::new(Exit::Failed, format!("{}: {error}", path.display())))
}

/// The plot's title, which identifies plots of profiles.
const CAPTION: &str = "Cost of a verification batch";

fn draw(profile: &MachineProfile, svg: &mut String) -> Result<(), Box<dyn std::error::Error>> {
    const COLORS: [RGBColor; 4] =
        [RGBColor(0, 95, 135), RGBColor(200, 85, 0), RGBColor(70, 130, 60), RGBColor(130, 60, 140)];
    let most = |costs: &[PassCost], of: fn(&PassCost) -> f32| costs.iter().map(of).fold(0.0, f32::max);
    let rows_max = most(profile.verify(), |cost| cost.rows as f32);
    let ms_max = most(profile.verify(), |cost| cost.us / 1e3) * 1.05;
    let root = SVGBackend::with_string(svg, (720, 440)).into_drawing_area();
    root.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(&root)
        .caption(CAPTION, ("sans-serif", 18))
        .margin(12)
        .x_label_area_size(40)
        .y_label_area_size(60)
        .build_cartesian_2d(0.0..rows_max, 0.0..ms_max)?;
    chart.configure_mesh().x_desc("rows").y_desc("ms").light_line_style(WHITE).draw()?;
    let mut contexts: Vec<usize> = profile.verify().iter().map(|cost| cost.context).collect();
    contexts.dedup();
    for (i, context) in contexts.into_iter().enumerate() {
        let color = COLORS[i % COLORS.len()];
        let points = profile.verify().iter().filter(|cost| cost.context == context);
        chart
            .draw_series(LineSeries::new(
                points.map(|cost| (cost.rows as f32, cost.us / 1e3)),
                color.stroke_width(2),
            ))?
            .label(format!("context {context}"))
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], color.stroke_width(2)));
    }
    chart.configure_series_labels().background_style(WHITE).border_style(BLACK.mix(0.3)).draw()?;
    root.present()?;
    Ok(())
}
