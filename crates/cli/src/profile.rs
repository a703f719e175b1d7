//! `refrain profile`: measures the cost of a model's passes on this machine. The result is a table, a plot,
//! and a file that `run` and `chat` use.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::io::{self, ErrorKind, Read};
use std::path::{Path, PathBuf};

use plotters::prelude::*;
use refrain::device::{MachineProfile, Powercap, ProfileError, ProfileOptions, ThreadEnergy};
use refrain::internals::draft::CostProfile;
use refrain::internals::profile::PassCost;
use refrain::{EngineOptions, Session};
use refrain_files::open_regular;

use crate::args::ProfileArgs;
use crate::failure::{Exit, Failure};
use crate::progress::Progress;
use crate::terminal::{AnswerStream, note, note_once, visible};
use crate::{load, models};

pub(crate) fn profile(args: &ProfileArgs) -> Result<Exit, Failure> {
    let path = args.out.clone().or_else(|| args.model.as_deref().map(beside));
    if let Some(path) = &path {
        refuse_to_replace(path)?;
    }
    let checkpoint = load::checkpoint(args.model.as_deref())?;
    // Loading skips its own short measurement, because a longer one follows.
    let options =
        EngineOptions { cost_profile: Some(CostProfile::free_rows(1.0)), ..args.compute.engine_options() };
    let engine = load::engine(&checkpoint, options)?;
    let options = ProfileOptions {
        contexts: args.contexts.clone(),
        kv_type: args.kv.kv_type(),
        ..ProfileOptions::default()
    };
    let progress = Progress::steps("measuring");
    let profile = engine.measure_profile(&options, |done, total| progress.set(done as u64, total as u64))?;
    drop(progress);

    let mut out = AnswerStream::stdout();
    for line in table(&profile) {
        out.line(&line)?;
    }
    match engine.measure_energy()? {
        Some(measured) => {
            for line in energy_table(&measured) {
                out.line(&line)?;
            }
        }
        None => match Powercap::open() {
            Ok(_) => note("energy not measured: the counter cannot be read"),
            Err(error) => note(&visible(&format!("energy not measured: {error}"))),
        },
    }
    match &path {
        Some(path) => {
            profile.write(path)?;
            let svg = path.with_extension("svg");
            plot(&profile, &svg)?;
            note(&format!("written: {} and {}", path.display(), svg.display()));
        }
        None => note("not written; name a file with --out"),
    }
    Ok(Exit::Done)
}

/// Refuses to replace any file except a profile and its plot: replacing another file is probably a mistake,
/// such as the model's own name.
fn refuse_to_replace(path: &Path) -> Result<(), Failure> {
    if path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("svg")) {
        let problem = format!("`{}` is the name of the profile's plot", path.display());
        return Err(Failure::usage(problem, "name a file that does not end in .svg"));
    }
    let is_profile = match MachineProfile::read(path) {
        Ok(_) | Err(ProfileError::Version { .. } | ProfileError::Field { .. }) => true,
        Err(ProfileError::Io { source, .. }) if source.kind() == ErrorKind::NotFound => true,
        Err(_) => false,
    };
    let svg = path.with_extension("svg");
    let is_plot = match has_caption(&svg) {
        Ok(has_caption) => has_caption,
        Err(error) => error.kind() == ErrorKind::NotFound,
    };
    for (path, is_ours, what) in [(path, is_profile, "profile"), (svg.as_path(), is_plot, "plot of one")] {
        if !is_ours {
            let problem = format!("`{}` exists and is not a {what}", path.display());
            return Err(Failure::usage(problem, "name another file with --out, or remove this one"));
        }
    }
    Ok(())
}

/// Whether a file is a plot of a profile, by its title.
fn has_caption(svg: &Path) -> io::Result<bool> {
    let mut start = Vec::new();
    open_regular(svg)?.take(1 << 16).read_to_end(&mut start)?;
    Ok(String::from_utf8_lossy(&start).contains(CAPTION))
}

/// The path of a model's profile: `MODEL.profile.json` beside a file, `refrain.profile.json` in a folder.
pub(crate) fn beside(model: &Path) -> PathBuf {
    let model = &*models::located_or_same(model);
    if model.is_dir() {
        return model.join("refrain.profile.json");
    }
    let mut name = OsString::from(model.file_name().unwrap_or_default());
    name.push(".profile.json");
    model.with_file_name(name)
}

/// The stored profile of a model, if there is one. An unusable one is ignored with a notice.
pub(crate) fn stored(model: Option<&Path>) -> Option<MachineProfile> {
    let path = beside(model?);
    if !path.exists() {
        return None;
    }
    match MachineProfile::read(&path) {
        Ok(profile) => Some(profile),
        Err(error) => {
            note_once(&format!("the stored profile is not used: {error}"));
            None
        }
    }
}

/// Prints the reason if a session does not use the profile beside its model.
pub(crate) fn note_mismatch(session: &Session) {
    if let Some(mismatch) = session.profile_mismatch() {
        note_once(&visible(&format!(
            "the stored profile is not used: {mismatch}; `refrain profile` measures again"
        )));
    }
}

fn table(profile: &MachineProfile) -> Vec<String> {
    let mut lines = vec![format!(
        "{} threads, {}; ms per pass (least of several), beside it the cost in single rows",
        profile.key().n_threads,
        profile.key().isa
    )];
    let mut by_rows: BTreeMap<usize, Vec<&PassCost>> = BTreeMap::new();
    for cost in profile.verify() {
        by_rows.entry(cost.rows).or_default().push(cost);
    }
    let contexts: Vec<usize> =
        by_rows.values().next().into_iter().flatten().map(|cost| cost.context).collect();
    let mut head = format!("{:>6}", "rows");
    for context in &contexts {
        head += &format!("  {:>18}", format!("context {context}"));
    }
    lines.push(format!("{head}  {:>18}", "projection"));
    let single: Vec<f32> = by_rows.values().next().into_iter().flatten().map(|cost| cost.us).collect();
    for (rows, costs) in &by_rows {
        let mut line = format!("{rows:>6}");
        for (cost, single) in costs.iter().zip(&single) {
            line += &format!("  {:>10.3} {:>6.2}×", cost.us / 1e3, cost.us / single);
        }
        if let Some(cost) = profile.projection().iter().find(|cost| cost.rows == *rows) {
            let single = profile.projection()[0].us;
            line += &format!("  {:>10.3} {:>6.2}×", cost.us / 1e3, cost.us / single);
        }
        lines.push(line);
    }
    for cost in profile.prefill() {
        let per_s = cost.rows as f32 / cost.us * 1e6;
        lines.push(format!("prefill {:>4}  {:>10.3}  {per_s:.0} tokens/s", cost.rows, cost.us / 1e3));
    }
    lines
}

/// Energy by the number of threads, and the cheapest one.
fn energy_table(measured: &[ThreadEnergy]) -> Vec<String> {
    let mut lines = vec![format!("{:>7}  {:>14}  {:>8}", "threads", "J per token", "tokens/s")];
    for row in measured {
        let ThreadEnergy { n_threads, joules_per_token, tokens_per_s, .. } = row;
        lines.push(format!("{n_threads:>7}  {joules_per_token:>14.4}  {tokens_per_s:>8.1}"));
    }
    let cheapest = measured.iter().min_by(|a, b| a.joules_per_token.total_cmp(&b.joules_per_token));
    if let Some(cheapest) = cheapest {
        let joules = cheapest.joules_per_token;
        lines.push(format!("cheapest per token: --threads {} ({joules:.4} J)", cheapest.n_threads));
    }
    lines
}

/// Plots ms by rows, with a line for each context.
fn plot(profile: &MachineProfile, path: &Path) -> Result<(), Failure> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cheapest_number_of_threads_is_named() {
        let row = |n_threads, joules_per_token, tokens_per_s| ThreadEnergy {
            n_threads,
            joules_per_token,
            tokens_per_s,
        };
        let lines = energy_table(&[row(1, 0.5, 10.0), row(2, 0.25, 18.0), row(4, 0.375, 20.0)]);
        assert_eq!(lines.len(), 5);
        assert_eq!(lines[4], "cheapest per token: --threads 2 (0.2500 J)");
        assert!(energy_table(&[]).len() == 1);
    }
}
