//! The tables of an ablation.

use std::fmt::Write as _;

use super::written;
use crate::ablate::{Ablation, Arm, Cell, Pruning};
use crate::tally::geometric_mean;

/// The tables as Markdown: acceptance length and speed by task and arm, drafts of each source, rejections by reason,
/// and costs.
pub fn write(conditions: &[String], ablation: &Ablation) -> String {
    written(|out| write_all(out, conditions, ablation))
}

fn write_all(out: &mut String, conditions: &[String], ablation: &Ablation) -> std::fmt::Result {
    conditions.iter().try_for_each(|line| writeln!(out, "- {line}"))?;
    if ablation.n_too_long > 0 {
        writeln!(out, "- {} rows left out: longer than the context", ablation.n_too_long)?;
    }
    let totals: Vec<Cell> = ablation.arms.iter().map(|&arm| ablation.total(arm)).collect();
    writeln!(out, "\nTokens per step (ratio to `sam`)\n")?;
    write_by_task(out, ablation, &totals, |cell, sam| {
        let n = cell.acceptance_length();
        sam.map_or_else(|| format!("{n:.3}"), |sam| format!("{n:.3} ({:.3})", n / sam.acceptance_length()))
    })?;
    if Arm::TEXT.iter().all(|arm| ablation.arms.contains(arm)) {
        write_means(out, ablation)?;
    }
    if ablation.arms.contains(&Arm::WithDraftModel) {
        write_draft_model_means(out, ablation)?;
    }
    if let Some(whole) = totals.iter().find(|cell| cell.arm == Arm::Pruning(Pruning::Off)) {
        write_pruning(out, &totals, whole)?;
    }
    writeln!(out, "\nTokens per second of decoding\n")?;
    write_by_task(out, ablation, &totals, |cell, _| format!("{:.1}", cell.tokens_per_s()))?;
    writeln!(out, "\nDraft tokens accepted / verified, by source\n")?;
    write_sources(out, &totals)?;
    writeln!(
        out,
        "\nWhy drafts were left, in % of the drafts that were; rows of the verification batches, in %\n"
    )?;
    write_reasons(out, &totals)?;
    writeln!(out, "\nCost\n")?;
    write_costs(out, &totals)
}

/// A line per task and one for all tasks, a column per arm.
fn write_by_task(
    out: &mut String,
    ablation: &Ablation,
    totals: &[Cell],
    show: impl Fn(&Cell, Option<&Cell>) -> String,
) -> std::fmt::Result {
    let names: Vec<_> = ablation.arms.iter().map(|arm| arm.name()).collect();
    writeln!(out, "| task | rows | tokens | {} |", names.join(" | "))?;
    writeln!(out, "| --- |{}", " ---: |".repeat(names.len() + 2))?;
    let sam_total = totals.iter().find(|cell| cell.arm == Arm::Sam);
    for task in ablation.tasks() {
        let cells: Vec<&Cell> = ablation.arms.iter().filter_map(|&arm| ablation.cell(task, arm)).collect();
        let sam = ablation.cell(task, Arm::Sam);
        write_line(out, task, &cells, |cell| show(cell, sam))?;
    }
    let totals: Vec<&Cell> = totals.iter().collect();
    write_line(out, "all", &totals, |cell| show(cell, sam_total))
}

fn write_line(
    out: &mut String,
    name: &str,
    cells: &[&Cell],
    show: impl Fn(&Cell) -> String,
) -> std::fmt::Result {
    let Some(first) = cells.first() else { return Ok(()) };
    let values: Vec<String> = cells.iter().map(|cell| show(cell)).collect();
    writeln!(out, "| {name} | {} | {} | {} |", first.n_rows, first.n_tokens, values.join(" | "))
}

/// Geometric mean over the tasks of one arm's `value`, relative to another arm's.
fn mean(ablation: &Ablation, arm: Arm, over: Arm, value: impl Fn(&Cell) -> f64) -> f64 {
    geometric_mean(ablation.tasks().into_iter().filter_map(|task| {
        let (cell, base) = (ablation.cell(task, arm)?, ablation.cell(task, over)?);
        Some(value(cell) / value(base))
    }))
}

/// The gain of both together over each alone, in tokens per step and in speed.
fn write_draft_model_means(out: &mut String, ablation: &Ablation) -> std::fmt::Result {
    writeln!(out, "\nRetrieval and draft model together, geometric mean over the tasks\n")?;
    writeln!(out, "| over | tokens per step | tokens per second |\n| --- | ---: | ---: |")?;
    for &over in ablation.arms.iter().filter(|&&arm| arm != Arm::WithDraftModel) {
        let [steps, speed] = [Cell::acceptance_length, Cell::tokens_per_s]
            .map(|value| mean(ablation, Arm::WithDraftModel, over, value));
        writeln!(out, "| {} | {steps:.3} | {speed:.3} |", over.name())?;
    }
    Ok(())
}

/// The geometric mean over the tasks, and the share of the whole vocabulary's gain reached with the context's tokens.
fn write_means(out: &mut String, ablation: &Ablation) -> std::fmt::Result {
    let mean = |arm: Arm, over: Arm| mean(ablation, arm, over, Cell::acceptance_length);
    let [in_context, full] = [Arm::InContext, Arm::Full].map(|arm| mean(arm, Arm::History) - 1.0);
    writeln!(
        out,
        "\nGeometric mean over the tasks: calibration and reuse {:.3} × `sam`, {:.3} × history alone. Calibration over history: \
         in context {:+.1} %, in full {:+.1} %{}.",
        mean(Arm::Reuse, Arm::Sam),
        mean(Arm::Reuse, Arm::History),
        100.0 * in_context,
        100.0 * full,
        if full > 0.0 {
            format!(", so {:.0} % of it is kept", 100.0 * in_context / full)
        } else {
            String::new()
        },
    )
}

/// The rows and accepted tokens left after pruning, compared with whole drafts.
fn write_pruning(out: &mut String, totals: &[Cell], whole: &Cell) -> std::fmt::Result {
    writeln!(out, "\nPruning\n")?;
    writeln!(
        out,
        "| arm | rows per step | of them behind the predictor's layer | steps pruned / left whole | accepted per step | retained | \
         steps cut short | forward µs per step | of whole drafts | predictor µs per step |"
    )?;
    writeln!(out, "| --- |{}", " ---: |".repeat(9))?;
    for cell in totals.iter().filter(|cell| matches!(cell.arm, Arm::Pruning(_))) {
        let (pruning, steps) = (&cell.pruning, cell.n_steps.max(1) as f64);
        let forward_us = cell.forward_us / steps;
        writeln!(
            out,
            "| {} | {:.1} | {:.1} % | {} / {} | {:.3} | {:.1} % | {} | {forward_us:.1} | {:.1} % | {:.1} |",
            cell.arm.name(),
            cell.rows.total() as f64 / steps,
            100.0 * pruning.kept_share(),
            pruning.pruned_steps,
            pruning.whole_steps,
            cell.accepted_per_step(),
            100.0 * cell.accepted_per_step() / whole.accepted_per_step().max(f64::MIN_POSITIVE),
            pruning.cut_short,
            100.0 * forward_us * whole.n_steps.max(1) as f64 / whole.forward_us.max(f64::MIN_POSITIVE),
            pruning.time_us / steps,
        )?;
    }
    Ok(())
}

fn write_sources(out: &mut String, totals: &[Cell]) -> std::fmt::Result {
    let mut names: Vec<&str> = Vec::new();
    for (name, ..) in totals.iter().flat_map(|cell| &cell.sources) {
        if !names.contains(&name.as_str()) {
            names.push(name);
        }
    }
    writeln!(out, "| arm | {} |", names.join(" | "))?;
    writeln!(out, "| --- |{}", " ---: |".repeat(names.len()))?;
    for cell in totals.iter().filter(|cell| !cell.sources.is_empty()) {
        let of = |name: &&str| {
            let source = cell.sources.iter().find(|source| source.0 == *name);
            source.map_or_else(|| "–".to_owned(), |(_, drafted, accepted)| format!("{accepted} / {drafted}"))
        };
        let values: Vec<String> = names.iter().map(of).collect();
        writeln!(out, "| {} | {} |", cell.arm.name(), values.join(" | "))?;
    }
    Ok(())
}

fn write_reasons(out: &mut String, totals: &[Cell]) -> std::fmt::Result {
    writeln!(out, "| arm | left | missing | synonym | redundant | other | valid | wasted | padded |")?;
    writeln!(out, "| --- |{}", " ---: |".repeat(8))?;
    for cell in totals.iter().filter(|cell| cell.arm != Arm::Plain) {
        let (why, rows) = (&cell.rejections, &cell.rows);
        let percent = |part: usize, whole: usize| 100.0 * part as f64 / whole.max(1) as f64;
        let reasons = [why.missing, why.synonym, why.redundant, why.other];
        let shares = [rows.valid, rows.wasted, rows.padded];
        let values = reasons.map(|n| percent(n, why.total())).into_iter();
        let values = values.chain(shares.map(|n| percent(n, rows.total())));
        let values: Vec<String> = values.map(|value| format!("{value:.1}")).collect();
        writeln!(out, "| {} | {} | {} |", cell.arm.name(), why.total(), values.join(" | "))?;
    }
    Ok(())
}

fn write_costs(out: &mut String, totals: &[Cell]) -> std::fmt::Result {
    writeln!(
        out,
        "| arm | draft + observe µs per step | rows per step | draft-model passes per step | µs per pass | prefill µs per token | calibration µs per token | MiB |"
    )?;
    writeln!(out, "| --- |{}", " ---: |".repeat(7))?;
    for cell in totals {
        let (steps, prefilled) = (cell.n_steps.max(1) as f64, cell.n_prefilled.max(1) as f64);
        writeln!(
            out,
            "| {} | {:.1} | {:.1} | {:.2} | {:.1} | {:.1} | {:.1} | {:.1} |",
            cell.arm.name(),
            cell.draft_us / steps,
            cell.rows.total() as f64 / steps,
            cell.n_passes as f64 / steps,
            cell.passes_us / cell.n_passes.max(1) as f64,
            cell.prefill_us / prefilled,
            cell.calibrate_us / prefilled,
            cell.memory_bytes_max as f64 / f64::from(1 << 20),
        )?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_divides_by_nothing() {
        let shown = write(&["a condition".to_owned()], &Ablation::default());
        assert!(
            shown.contains("- a condition") && !shown.contains("NaN") && !shown.contains("inf"),
            "{shown}"
        );
    }
}
