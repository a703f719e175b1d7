//! The tables of a report, as Markdown.

use std::fmt::Write as _;

use super::{HARD_NEGATIVE, Report, written};
use crate::strategy::Strategy;
use crate::tally::{StepEnd, Tally, geometric_mean};

/// All tables.
pub fn write(report: &Report<'_>) -> String {
    written(|out| write_all(out, report))
}

fn write_all(out: &mut String, report: &Report<'_>) -> std::fmt::Result {
    for line in report.conditions {
        writeln!(out, "- {line}")?;
    }
    for ((sources, max_rows), group) in report.groups() {
        writeln!(out, "\n### {max_rows} rows, sources: {sources}\n")?;
        writeln!(out, "Acceptance length: tokens committed per step, the bonus token included.\n")?;
        write_values(out, report, &group, Tally::acceptance_length)?;
        if group.iter().any(|&setting| report.is_weighed(setting)) {
            writeln!(out, "\nSpeed over plain decoding by the cost profile, drafting included.\n")?;
            write_values(out, report, &group, |tally| tally.speed_up(true))?;
        }
        writeln!(out, "\nDrafting, all subtasks together.\n")?;
        let totals = group.iter().map(|&s| (report.settings[s].strategy.to_string(), report.total(s)));
        write_details(out, "strategy", totals)?;
        write_ends(out, report, &group)?;
        write_unknown(out, report, &group)?;
        let refrain = group.iter().find(|&&setting| report.settings[setting].strategy == Strategy::Refrain);
        if let Some(&refrain) = refrain {
            writeln!(out, "\nRefrain by subtask (`--csv` has the same of every strategy).\n")?;
            let cells = report.subtasks().into_iter().filter_map(|subtask| {
                let tally = report.tally(subtask, refrain)?;
                Some((format!("{}/{}", subtask.0, subtask.1), tally.clone()))
            });
            write_details(out, "subtask", cells)?;
        }
    }
    Ok(())
}

/// A line per subtask, a column per strategy.
fn write_values(
    out: &mut String,
    report: &Report<'_>,
    group: &[usize],
    value: impl Fn(&Tally) -> f64 + Copy,
) -> std::fmt::Result {
    write!(out, "| subtask | rows | tokens |")?;
    for &setting in group {
        write!(out, " {} |", report.settings[setting].strategy)?;
    }
    writeln!(out, " refrain ÷ best rule |")?;
    writeln!(out, "| --- |{}", " ---: |".repeat(group.len() + 3))?;
    let mut ratios = Vec::new();
    let mut means = vec![Vec::new(); group.len()];
    for subtask in report.subtasks() {
        let Some(any) = report.tally(subtask, group[0]) else { continue };
        write!(out, "| {}/{} | {} | {} |", subtask.0, subtask.1, any.n_rows, any.n_tokens)?;
        for (&setting, values) in group.iter().zip(&mut means) {
            let cell = report.tally(subtask, setting).map_or(1.0, value);
            if subtask.0 != HARD_NEGATIVE {
                values.push(cell);
            }
            write!(out, " {cell:.3} |")?;
        }
        let ratio = report.ratio(subtask, group, value);
        ratios.extend(ratio.filter(|_| subtask.0 != HARD_NEGATIVE));
        writeln!(out, " {} |", ratio.map_or(String::new(), |ratio| format!("{ratio:.3}")))?;
    }
    write!(out, "| geometric mean without {HARD_NEGATIVE} | | |")?;
    means.into_iter().try_for_each(|values| write!(out, " {:.3} |", geometric_mean(values)))?;
    writeln!(
        out,
        " {} |",
        if ratios.is_empty() { String::new() } else { format!("{:.3}", geometric_mean(ratios)) }
    )
}

/// Why steps ended, for the strategies with reasons.
fn write_ends(out: &mut String, report: &Report<'_>, group: &[usize]) -> std::fmt::Result {
    let totals = group.iter().map(|&setting| (report.settings[setting].strategy, report.total(setting)));
    let explained: Vec<_> = totals.filter(|(_, total)| !total.ends.is_empty()).collect();
    if explained.is_empty() {
        return Ok(());
    }
    writeln!(out, "\nWhy steps ended: the next token, and what a batch of 64 rows would have held.\n")?;
    write!(out, "| strategy |")?;
    StepEnd::ALL.iter().try_for_each(|end| write!(out, " {} |", end.name()))?;
    writeln!(out, "\n| --- |{}", " ---: |".repeat(StepEnd::ALL.len()))?;
    for (strategy, total) in explained {
        write!(out, "| {strategy} |")?;
        let n = |end| *total.ends.get(end).unwrap_or(&0);
        StepEnd::ALL.iter().try_for_each(|end| write!(out, " {:.1} % |", percent(n(end), total.n_steps)))?;
        writeln!(out)?;
    }
    Ok(())
}

/// How often trees left a trace. Nobody needs the logits of a control's rows.
fn write_unknown(out: &mut String, report: &Report<'_>, group: &[usize]) -> std::fmt::Result {
    let totals = group.iter().map(|&setting| (report.settings[setting].strategy, report.total(setting)));
    let traced: Vec<_> =
        totals.filter(|(strategy, total)| !strategy.is_control() && total.n_looked_up > 0).collect();
    if traced.is_empty() {
        return Ok(());
    }
    let share = |total: &Tally| format!("{:.2} %", percent(total.n_unknown, total.n_looked_up));
    let left = traced.iter().filter(|(_, total)| total.n_unknown > 0);
    let left: Vec<String> = left.map(|(strategy, total)| format!("{strategy} {}", share(total))).collect();
    match left.is_empty() {
        true => writeln!(out, "\nEvery row of every tree is in the trace."),
        false => writeln!(out, "\nRows of trees that are not in the trace: {}.", left.join(", ")),
    }
}

/// A line per tally.
fn write_details(
    out: &mut String,
    head: &str,
    tallies: impl Iterator<Item = (String, Tally)>,
) -> std::fmt::Result {
    writeln!(
        out,
        "| {head} | steps | empty drafts | rows per step | draft µs: median | p99 | memory, MB | source: drafted, accepted | steps by tokens committed: 1, 2, 3–4, 5–8, 9–16, more |"
    )?;
    writeln!(out, "| --- | ---: | ---: | ---: | ---: | ---: | ---: | --- | --- |")?;
    for (name, total) in tallies {
        let sources: Vec<String> = total
            .sources
            .iter()
            .map(|(name, d)| {
                format!("{name}: {}, {} ({:.1} %)", d.drafted, d.accepted, percent(d.accepted, d.drafted))
            })
            .collect();
        let histogram: Vec<String> =
            by_bucket(&total).iter().map(|&n| format!("{:.1} %", percent(n, total.n_steps))).collect();
        writeln!(
            out,
            "| {} | {} | {:.1} % | {:.1} | {:.1} | {:.1} | {:.1} | {} | {} |",
            name,
            total.n_steps,
            100.0 * total.empty_share(),
            total.rows_per_step(),
            total.draft_us_quantile(0.5),
            total.draft_us_quantile(0.99),
            total.memory_bytes_max as f64 / 1e6,
            sources.join("; "),
            histogram.join(", "),
        )?;
    }
    Ok(())
}

fn percent(part: usize, whole: usize) -> f64 {
    100.0 * part as f64 / whole.max(1) as f64
}

/// Numbers of steps that committed 1, 2, 3–4, 5–8, 9–16 and more tokens.
pub(super) fn by_bucket(tally: &Tally) -> [usize; 6] {
    let mut buckets = [0; 6];
    for (len, &n_steps) in tally.steps_by_len.iter().enumerate().skip(1) {
        buckets[(len - 1).checked_ilog2().map_or(0, |log| log as usize + 1).min(5)] += n_steps;
    }
    buckets
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_hold_powers_of_two() {
        let mut tally = Tally::default();
        [1, 2, 3, 4, 5, 8, 9, 16, 17, 64].into_iter().for_each(|len| tally.count_step(len));
        assert_eq!(by_bucket(&tally), [1, 1, 2, 2, 2, 2]);
    }
}
