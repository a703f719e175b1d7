//! The tables of a replay through a model.

use std::fmt::Write as _;

use super::csv::quoted;
use super::written;
use crate::model::Timings;

/// The table as Markdown: a line per subtask and strategy, then a line per strategy for all subtasks.
pub fn write(conditions: &[String], timings: &Timings) -> String {
    written(|out| write_all(out, conditions, timings))
}

fn write_all(out: &mut String, conditions: &[String], timings: &Timings) -> std::fmt::Result {
    conditions.iter().try_for_each(|line| writeln!(out, "- {line}"))?;
    if timings.n_too_long > 0 {
        writeln!(out, "- {} rows left out: empty, or longer than the model's context", timings.n_too_long)?;
    }
    writeln!(
        out,
        "\n| subtask | strategy | rows | tokens | tokens per step | tokens/s | ms per step | draft + observe µs per step | speed over plain |"
    )?;
    writeln!(out, "| --- | --- |{}", " ---: |".repeat(7))?;
    let totals = timings.by_strategy();
    for t in timings.timings.iter().chain(&totals) {
        writeln!(
            out,
            "| {} | {} | {} | {} | {:.2} | {:.1} | {:.3} | {:.1} | {:.2} |",
            if t.subtask.is_empty() { t.task.clone() } else { format!("{}/{}", t.task, t.subtask) },
            t.strategy,
            t.n_rows,
            t.n_tokens,
            t.acceptance_length(),
            t.tokens_per_s(),
            t.ms_per_step(),
            (t.stages.draft + t.stages.observe) / t.n_steps.max(1) as f64,
            t.speed_up(),
        )?;
    }
    Ok(())
}

/// All cells, as CSV: a line per subtask and strategy.
pub fn write_csv(timings: &Timings) -> String {
    let mut out = String::from(
        "task,subtask,strategy,rows,tokens,steps,tokens_per_s,ms_per_step,speed_up,draft_us,forward_us,walk_us,commit_us,observe_us\n",
    );
    for t in &timings.timings {
        let stages = &t.stages;
        // Writing to a string cannot fail.
        let _ = writeln!(
            out,
            "{},{},{},{},{},{},{:.2},{:.4},{:.4},{:.1},{:.1},{:.1},{:.1},{:.1}",
            quoted(&t.task),
            quoted(&t.subtask),
            t.strategy,
            t.n_rows,
            t.n_tokens,
            t.n_steps,
            t.tokens_per_s(),
            t.ms_per_step(),
            t.speed_up(),
            stages.draft,
            stages.forward,
            stages.walk,
            stages.commit,
            stages.observe,
        );
    }
    out
}
