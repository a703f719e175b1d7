//! The statistics of an answer, as text and as JSON.

use std::fmt::Write as _;

use refrain::drafting::{Computed, PolicyStats, PruningStats, Rejections};
use refrain::streaming::StreamingStats;
use refrain::{FinishReason, Origin, Stats};
use refrain_assistant::{Passage, Report};
use serde_json::{Value, json};

use crate::report::{left_out_json, passage_json, place_of};
use crate::setup::Setup;
use crate::terminal::{note, origin_style, visible};

/// Maximum bar width of the histogram, in characters: histogram lines stay within 60.
const BAR_WIDTH_MAX: usize = 32;

/// Prints all statistics of an answer of one generation on standard error.
pub(crate) fn print(report: &Report, passages: &[Passage]) {
    for passage in passages {
        let score = passage.source.as_ref().and_then(|source| source.score);
        let score = score.map_or_else(String::new, |score| format!(" (score {score:.2})"));
        note(&visible(&format!("from      {}{score}", place_of(passage))));
    }
    let mut text = summary(report);
    // Writing to a string cannot fail.
    let _ = write_details(&mut text, &report.stats[0]);
    text.lines().for_each(note);
}

/// Prints one line about an answer of one generation on standard error.
pub(crate) fn print_brief(report: &Report) {
    note(summary(report).trim_end());
}

/// All statistics of an answer of one generation, as JSON.
pub(crate) fn json(setup: &Setup, text: &str, passages: &[Passage], report: &Report) -> Value {
    let stats = &report.stats[0];
    let (isa, threads) = (setup.engine.device().isa(), setup.engine.device().n_threads());
    json!({
        "model": setup.checkpoint.name(),
        "isa": format!("{isa:?}").to_lowercase(),
        "threads": threads,
        "row_times": setup.engine.device().costs_origin(),
        "passages": passages.iter().map(passage_json).collect::<Vec<_>>(),
        "left_out": report.left_out.iter().map(left_out_json).collect::<Vec<_>>(),
        "text": text,
        "finish": report.finish,
        "seed": report.seed,
        "acceptance_length_mean": stats.acceptance_length(),
        "prefill_tokens_per_s": stats.prefill_tokens_per_s(),
        "decode_tokens_per_s": stats.decode_tokens_per_s(),
        "stats": stats,
    })
}

fn summary(report: &Report) -> String {
    let stats = &report.stats[0];
    let finish = match report.finish {
        FinishReason::EndToken => "end of the answer",
        FinishReason::Stop => "stop text",
        FinishReason::MaxTokens => "--max-tokens",
        FinishReason::ContextFull => "full context",
        _ => "another limit",
    };
    let seed = report.seed.map_or_else(String::new, |seed| format!(" · seed {seed}"));
    format!(
        "{} tokens in {} steps · {:.2} tokens per step · {:.1} tokens/s · ended by {finish}{seed}\n",
        stats.tokens,
        stats.steps,
        stats.acceptance_length(),
        stats.decode_tokens_per_s(),
    )
}

fn write_details(out: &mut String, stats: &Stats) -> std::fmt::Result {
    write_histogram(out, &stats.acceptance_lengths)?;
    if let Some(energy) = &stats.energy {
        writeln!(out, "energy    {:.3} J per token, {:.1} J", energy.joules_per_token, energy.decode_joules)?;
    }
    for source in &stats.sources {
        let style = origin_style(&Origin::Draft(source.name.clone()));
        let share = percent(source.accepted, source.drafted);
        writeln!(
            out,
            "drafts    {style}{}{style:#}: {} drafted, {} accepted{share}",
            source.name, source.drafted, source.accepted
        )?;
        if let Some(computed) = &source.computed {
            write_computed(out, computed)?;
        }
    }
    let (rows, off, time) = (&stats.rows, &stats.drafting_off, &stats.time_us);
    writeln!(
        out,
        "rows      {} valid{}, {} wasted, {} padded; {} projected{}",
        rows.valid,
        percent(rows.valid, rows.total()),
        rows.wasted,
        rows.padded,
        rows.projected,
        if rows.kept > 0 { format!("; {} kept from drafts", rows.kept) } else { String::new() }
    )?;
    stats.pruning.as_ref().map_or(Ok(()), |pruning| write_pruning(out, pruning, stats.steps))?;
    write_rejections(out, &stats.rejections)?;
    let reasons = [
        (off.disabled, "drafting is off"),
        (off.output_end, "one token from the end of the output"),
        (off.no_candidate, "no candidate"),
        (off.not_worth, "cost above the expected gain"),
        (off.short_output, "answer too short"),
        (off.high_temperature, "temperature too high"),
        (off.low_memory, "too little memory available"),
        (off.measured, "to compare its time"),
        (off.not_paid, "not paid for by earlier drafts"),
        (off.below_floor, "acceptance below the floor"),
        (off.memory_pressure, "memory pressure"),
        (off.heat, "heat"),
    ];
    let reasons = reasons.iter().filter(|(n_steps, _)| *n_steps > 0);
    let reasons: Vec<_> = reasons.map(|(n_steps, reason)| format!("{n_steps} {reason}")).collect();
    if !reasons.is_empty() {
        writeln!(out, "no draft  steps: {}", reasons.join(", "))?;
    }
    write_policy(out, &stats.policy)?;
    writeln!(
        out,
        "prefill   {:.1} ms for {} tokens ({} more cached), {:.1} tokens/s; calibration {:.1} ms, draft sources {:.1} ms",
        time.prefill / 1e3,
        stats.prefilled_tokens,
        stats.cached_tokens,
        stats.prefill_tokens_per_s(),
        time.calibrate / 1e3,
        time.prime / 1e3,
    )?;
    let stages = [
        ("draft", time.draft),
        ("forward", time.forward),
        ("walk", time.walk),
        ("commit", time.commit),
        ("observe", time.observe),
    ];
    let stages = stages.map(|(stage, us)| format!("{stage} {:.0}", us / stats.steps.max(1) as f64));
    writeln!(out, "decode    {:.1} ms; µs per step: {}", time.decode() / 1e3, stages.join(", "))?;
    stats.streaming.as_ref().map_or(Ok(()), |streaming| write_streaming(out, streaming))
}

/// The rows that pruning kept.
fn write_pruning(out: &mut String, pruning: &PruningStats, n_steps: usize) -> std::fmt::Result {
    writeln!(
        out,
        "pruning   {} of {} rows kept{}: {} steps pruned, {} not pruned, {} accepted less than without; predictor {:.0} µs per step",
        pruning.rows_kept,
        pruning.rows_before,
        percent(pruning.rows_kept, pruning.rows_before),
        pruning.pruned_steps,
        pruning.whole_steps,
        pruning.cut_short,
        pruning.time_us / n_steps.max(1) as f64,
    )
}

/// The limits on drafts.
fn write_policy(out: &mut String, policy: &PolicyStats) -> std::fmt::Result {
    let PolicyStats { heat_limited, memory_limited, memory_reports, floor_falls, rows_allowed } = policy;
    let counts = [
        (*heat_limited, "steps bounded by heat"),
        (*memory_limited, "steps bounded by memory pressure"),
        (*memory_reports, "changes of memory pressure"),
        (*floor_falls, "pauses by the acceptance floor"),
    ];
    let counts = counts.iter().filter(|(n, _)| *n > 0).map(|(n, what)| format!("{n} {what}"));
    let steps: usize = rows_allowed.iter().sum();
    let rows: usize = rows_allowed.iter().enumerate().map(|(rows, n_steps)| rows * n_steps).sum();
    let mean =
        (steps > 0).then(|| format!("a limit of {:.1} rows per step on average", rows as f64 / steps as f64));
    let parts: Vec<String> = counts.chain(mean).collect();
    if parts.is_empty() { Ok(()) } else { writeln!(out, "policy    {}", parts.join(", ")) }
}

/// The reads from flash.
fn write_streaming(out: &mut String, streaming: &StreamingStats) -> std::fmt::Result {
    let StreamingStats { read_mode, memory, prefill, decode, bytes_per_token } = streaming;
    let buffers = memory.rows_bytes + memory.ring_bytes + memory.experts_bytes;
    let [pinned, ring, per_token, bandwidth] =
        [memory.pinned_bytes as f64, buffers as f64, *bytes_per_token, decode.bandwidth()].map(|b| b / 1e6);
    writeln!(
        out,
        "memory    {pinned:.1} MB of pinned weights ({} layers{}{}), {ring:.1} MB of buffers for the others",
        memory.n_pinned_layers,
        if memory.head_pinned { ", output matrix" } else { "" },
        if memory.embedding_pinned { ", embedding" } else { "" },
    )?;
    writeln!(
        out,
        "flash     {per_token:.1} MB per token at {bandwidth:.0} MB/s by {read_mode}; waited {:.1} ms, {:.0} % of the reads overlapped",
        decode.stall_us / 1e3,
        100.0 * decode.overlap(),
    )?;
    let [in_prefill, dropped] =
        [prefill.read_bytes, prefill.dropped_bytes + decode.dropped_bytes].map(|bytes| bytes as f64 / 1e6);
    writeln!(out, "          {in_prefill:.1} MB in the prefill; {dropped:.1} MB read ahead and dropped")
}

/// The cost of a draft source that computes, and the reason if it stopped drafting.
fn write_computed(out: &mut String, computed: &Computed) -> std::fmt::Result {
    let Computed { passes, rows, time_us, ahead, off } = computed;
    // A source may follow the text without a model.
    if *passes > 0 {
        write!(out, "          {passes} passes over {rows} rows in {:.1} ms", time_us / 1e3)?;
        match ahead {
            0 => writeln!(out)?,
            _ => writeln!(out, ", {ahead} of them while weights were read")?,
        }
    }
    match off {
        Some(reason) => writeln!(out, "          stopped drafting: {reason}"),
        None => Ok(()),
    }
}

/// Rejected drafts by the difference between draft and answer.
fn write_rejections(out: &mut String, why: &Rejections) -> std::fmt::Result {
    let reasons = [
        (why.missing, "lacked a token"),
        (why.synonym, "differed in one word"),
        (why.redundant, "had extra tokens"),
        (why.other, "differed otherwise"),
    ];
    let reasons = reasons.iter().filter(|(n_drafts, _)| *n_drafts > 0);
    let reasons: Vec<_> = reasons.map(|(n_drafts, reason)| format!("{n_drafts} {reason}")).collect();
    if reasons.is_empty() { Ok(()) } else { writeln!(out, "rejected  drafts: {}", reasons.join(", ")) }
}

/// Steps by acceptance length, one line for each length that occurred.
fn write_histogram(out: &mut String, n_steps_by_len: &[usize]) -> std::fmt::Result {
    let most = n_steps_by_len.iter().copied().max().unwrap_or(0);
    for (len, &n_steps) in n_steps_by_len.iter().enumerate().filter(|(_, n_steps)| **n_steps > 0) {
        // Rounded up, so that no bar is empty.
        let bar = "█".repeat((n_steps * BAR_WIDTH_MAX).div_ceil(most));
        writeln!(out, "steps of {len:>2} {bar} {n_steps}")?;
    }
    Ok(())
}

fn percent(part: usize, whole: usize) -> String {
    match whole {
        0 => String::new(),
        _ => format!(" ({:.0} %)", 100.0 * part as f64 / whole as f64),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_are_in_proportion_and_never_empty() {
        let mut text = String::new();
        write_histogram(&mut text, &[0, 64, 0, 32, 1]).unwrap();
        let widths: Vec<_> = text.lines().map(|line| line.matches('█').count()).collect();
        assert_eq!(widths, [32, 16, 1]);
        assert!(text.starts_with("steps of  1 ██"));
    }

    #[test]
    fn statistics_of_nothing_divide_by_nothing() {
        let mut text = String::new();
        write_details(&mut text, &Stats::default()).unwrap();
        assert!(!text.contains("NaN") && !text.contains("inf"), "{text}");
    }
}
