//! `refrain model profile`: measures the cost of a model's passes on this machine. The result is a table and a
//! file that `run` and `chat` use.

use std::collections::BTreeMap;
use std::path::Path;

use refrain::device::{MachineProfile, ProfileOptions, ThreadEnergy};
use refrain::internals::draft::CostProfile;
use refrain::internals::energy::Powercap;
use refrain::internals::error::ProfileError;
use refrain::internals::profile::PassCost;
use refrain::{EngineOptions, ErrorKind};
use refrain_program::profile::beside;

use crate::args::ProfileArgs;
use crate::failure::{Exit, Failure};
use crate::load;
use crate::progress::Progress;
use crate::terminal::{AnswerStream, note, visible};

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
    let profile = engine.device().measure_profile(&options, |done, total| progress.set(done, total))?;
    drop(progress);

    let mut out = AnswerStream::stdout();
    for line in table(&profile) {
        out.line(&line)?;
    }
    match engine.device().measure_energy()? {
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
            note(&format!("written: {}", path.display()));
        }
        None => note("not written; name a file with --out"),
    }
    Ok(Exit::Done)
}

/// Refuses to replace any file except a profile: replacing another file is probably a mistake, such as the model's own name.
fn refuse_to_replace(path: &Path) -> Result<(), Failure> {
    let read = MachineProfile::read(path);
    match read.as_ref().map_err(|error| (error.kind(), error.detail())) {
        Ok(_) | Err((ErrorKind::NotFound, _)) => Ok(()),
        Err((_, Some(ProfileError::Version { .. } | ProfileError::Field { .. }))) => Ok(()),
        Err(_) => {
            let problem = format!("`{}` exists and is not a profile", path.display());
            Err(Failure::usage(problem, "name another file with --out, or remove this one"))
        }
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
