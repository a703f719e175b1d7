//! The table of a replay through a model.

use std::fmt::Write as _;

use crate::model::Timings;

/// The table, as Markdown: a line per subtask and strategy.
pub fn write(conditions: &[String], timings: &Timings) -> String {
    let mut out = String::new();
    // Writing to a string cannot fail.
    let _ = write_all(&mut out, conditions, timings);
    out
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
    for t in &timings.timings {
        writeln!(
            out,
            "| {}/{} | {} | {} | {} | {:.2} | {:.1} | {:.3} | {:.1} | {:.2} |",
            t.task,
            t.subtask,
            t.strategy,
            t.n_rows,
            t.n_tokens,
            t.n_tokens as f64 / t.n_steps.max(1) as f64,
            t.tokens_per_s(),
            t.ms_per_step(),
            t.draft_us / t.n_steps.max(1) as f64,
            t.speed_up(),
        )?;
    }
    Ok(())
}
