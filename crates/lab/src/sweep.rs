//! The gain of drafting with a target on flash. Recorded responses are replayed through a streamed model, with
//! several shares of pinned layers and several output lengths (Lever, Tables 6 and 7).
//!
//! The baseline is plain decoding of the same rows in the same run; with nothing pinned, it is Lever's Flash-AR. A
//! length uses only rows whose response is long enough, so different lengths use different rows; each line contains
//! their number. Earlier answers of the session are available for drafting, or those of the task if a row has no
//! session.

use std::fmt::Write as _;
use std::path::Path;

use refrain::checkpoint::Checkpoint;
use refrain::drafting::DraftModelOptions;
use refrain::drafting::Predictor;
use refrain::streaming::{Pinned, StreamOptions};
use refrain::{Engine, EngineOptions, SessionOptions};
use serde::Serialize;

use crate::BenchError;
use crate::model::{Timings, replay};
use crate::rows::TokenRow;
use crate::strategy::{Sources, Strategy};
use crate::tally::geometric_mean;

/// The parameters.
#[derive(Debug, Clone)]
pub struct Sweep {
    /// Shares of the pinned layers, in percent.
    pub pinned: Vec<u32>,
    /// Output tokens; `None`: whole responses.
    pub lengths: Vec<Option<usize>>,
    /// The strategies.
    pub strategies: Vec<Strategy>,
    /// Maximum number of rows of each task at each length.
    pub n_rows: usize,
    /// Maximum number of rows of a verification batch.
    pub verify_rows_max: usize,
    /// If set, simulates a slower disk with this bandwidth in bytes per second.
    pub bandwidth_max: Option<u64>,
    /// Number of threads of the forward pass.
    pub n_threads: Option<usize>,
}

/// The result of a strategy at one share and one length.
#[derive(Debug, Clone, Serialize)]
pub struct SweepCell {
    /// The share of pinned layers, in percent.
    pub pinned_percent: u32,
    /// Output tokens; `None`: whole responses.
    pub n_tokens: Option<usize>,
    /// The strategy's name.
    pub strategy: String,
    /// Number of replayed rows.
    pub n_rows: usize,
    /// Tokens per step, including the bonus token.
    pub acceptance_length: f64,
    /// Passes of the draft model per step, including those over the prompt.
    pub passes_per_step: f64,
    /// Milliseconds per step.
    pub step_ms: f64,
    /// Tokens per second of decoding.
    pub tokens_per_s: f64,
    /// Speed over plain decoding: geometric mean over the tasks.
    pub speed_up: f64,
}

/// What drafts beside texts.
pub enum SweepDraft<'a> {
    /// A draft model.
    Model(&'a Checkpoint),
    /// The first layers of the model itself, with this exit behind them. They are pinned before others.
    OwnLayers(&'a Predictor),
}

impl SweepDraft<'_> {
    /// Whether it reads hidden states of a prompt, which the target has only while it computes the prompt.
    pub fn reads_states(&self) -> bool {
        matches!(self, Self::Model(checkpoint) if checkpoint.config().draft_head.is_some())
    }
}

/// Replays `rows` through the packed file at `path`. Calls `progress` with (cells done, cells to do).
///
/// # Errors
/// [`BenchError`].
pub fn measure(
    path: &Path,
    draft: Option<&SweepDraft<'_>>,
    rows: &[TokenRow],
    sweep: &Sweep,
    mut progress: impl FnMut(usize, usize),
) -> Result<Vec<SweepCell>, BenchError> {
    let needs = sweep.strategies.iter().find(|strategy| strategy.needs_draft_model() && draft.is_none());
    if let Some(&strategy) = needs {
        return Err(BenchError::NoDraftModel(strategy));
    }
    let checkpoint = Checkpoint::open(path)?;
    let n_cells = sweep.pinned.len() * sweep.lengths.len();
    let session = SessionOptions { verify_rows_max: sweep.verify_rows_max, ..SessionOptions::default() };
    let mut cells = Vec::new();
    for (n_shares, &percent) in sweep.pinned.iter().enumerate() {
        for (n_lengths, &n_tokens) in sweep.lengths.iter().enumerate() {
            progress(n_shares * sweep.lengths.len() + n_lengths, n_cells);
            // A new engine without learnt state.
            let engine = load(&checkpoint, draft, sweep, percent)?;
            let rows = cut(rows, n_tokens, sweep.n_rows);
            let keeps_prompts = !draft.is_some_and(SweepDraft::reads_states);
            let timings = replay(
                &engine,
                rows.iter(),
                &sweep.strategies,
                Sources::Passages,
                &session,
                keeps_prompts,
                |_, _| {},
            )?;
            cells.extend(cells_of(&timings, percent, n_tokens));
        }
    }
    Ok(cells)
}

fn load(
    checkpoint: &Checkpoint,
    draft: Option<&SweepDraft<'_>>,
    sweep: &Sweep,
    percent: u32,
) -> Result<Engine, BenchError> {
    let n_pinned = (checkpoint.config().n_layers() * percent as usize).div_ceil(100);
    let pinned_first = match draft {
        Some(SweepDraft::OwnLayers(predictor)) => predictor.layer_idx(),
        _ => 0,
    };
    let mut streaming = StreamOptions::new(Pinned::Layers(n_pinned));
    streaming.pinned_first = pinned_first;
    streaming.bandwidth_max = sweep.bandwidth_max;
    let options =
        EngineOptions { n_threads: sweep.n_threads, streaming: Some(streaming), ..EngineOptions::default() };
    let engine = Engine::load(checkpoint, options, |_, _| {})?;
    match draft {
        None => {}
        Some(SweepDraft::Model(draft)) => {
            engine.set_draft_model(draft, DraftModelOptions::default(), |_, _| {})?
        }
        Some(SweepDraft::OwnLayers(predictor)) => {
            let copy = Predictor::new(predictor.parts().clone())?;
            engine.set_self_draft(copy)?;
        }
    }
    Ok(engine)
}

/// The first `n_max` rows of each task with at least this number of tokens, cut to that length. Each row belongs to
/// its own session or to that of its task. The rows of a session are adjacent.
fn cut(rows: &[TokenRow], n_tokens: Option<usize>, n_max: usize) -> Vec<TokenRow> {
    let mut taken: std::collections::BTreeMap<&str, usize> = std::collections::BTreeMap::new();
    let long_enough = rows.iter().filter(|row| row.response.len() >= n_tokens.unwrap_or(1));
    let first = long_enough.filter(|row| {
        let n = taken.entry(row.task.as_str()).or_default();
        *n += 1;
        *n <= n_max
    });
    let cut = |row: &TokenRow| TokenRow {
        response: row.response[..n_tokens.unwrap_or(row.response.len())].to_vec(),
        session: Some(match &row.session {
            Some(session) => format!("session {session}"),
            None => format!("task {}", row.task),
        }),
        ..row.clone()
    };
    let mut cut: Vec<TokenRow> = first.map(cut).collect();
    cut.sort_by(|a, b| (&a.task, &a.session).cmp(&(&b.task, &b.session)));
    cut
}

fn cells_of(timings: &Timings, pinned_percent: u32, n_tokens: Option<usize>) -> Vec<SweepCell> {
    let mut tasks: Vec<&str> = timings.timings.iter().map(|timing| timing.task.as_str()).collect();
    tasks.sort_unstable();
    tasks.dedup();
    let cell = |total: &crate::model::Timing| SweepCell {
        pinned_percent,
        n_tokens,
        strategy: total.strategy.to_string(),
        n_rows: total.n_rows,
        acceptance_length: total.acceptance_length(),
        passes_per_step: total.passes_per_step(),
        step_ms: total.ms_per_step(),
        tokens_per_s: total.tokens_per_s(),
        speed_up: geometric_mean(tasks.iter().map(|task| timings.task_speed_up(task, total.strategy))),
    };
    timings.by_strategy().iter().map(cell).collect()
}

/// The cells as a table.
pub fn write(conditions: &[String], cells: &[SweepCell]) -> String {
    let mut out = String::new();
    // Writing to a string cannot fail.
    conditions.iter().for_each(|line| _ = writeln!(out, "- {line}"));
    let _ = writeln!(
        out,
        "\n| pinned layers | output tokens | strategy | rows | tokens per step | draft-model passes per step | ms per step | tokens/s | speed over plain |"
    );
    let _ = writeln!(out, "| ---: | ---: | --- |{}", " ---: |".repeat(6));
    for cell in cells {
        let _ = writeln!(
            out,
            "| {} % | {} | {} | {} | {:.2} | {:.2} | {:.1} | {:.2} | {:.2} |",
            cell.pinned_percent,
            cell.n_tokens.map_or_else(|| "whole".to_owned(), |n| n.to_string()),
            cell.strategy,
            cell.n_rows,
            cell.acceptance_length,
            cell.passes_per_step,
            cell.step_ms,
            cell.tokens_per_s,
            cell.speed_up,
        );
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use refrain::TokenId;

    fn row(task: &str, n_tokens: usize) -> TokenRow {
        TokenRow {
            index: 0,
            id: String::new(),
            task: task.to_owned(),
            subtask: String::new(),
            session: None,
            prompt: vec![TokenId(1)],
            passages: Vec::new(),
            response: (0..n_tokens as u32).map(TokenId).collect(),
            target: None,
            accepted: crate::rows::Accepted::default(),
        }
    }

    #[test]
    fn rows_that_are_long_enough_are_cut() {
        let rows = [row("a", 10), row("a", 3), row("a", 11), row("a", 12), row("b", 5), row("b", 4)];
        let lengths = |cut: &[TokenRow]| -> Vec<(String, usize)> {
            cut.iter().map(|row| (row.session.clone().unwrap(), row.response.len())).collect()
        };
        let of = |all: &[(&str, usize)]| -> Vec<(String, usize)> {
            all.iter().map(|&(session, len)| (session.to_owned(), len)).collect()
        };
        let five = cut(&rows, Some(5), 2);
        assert_eq!(lengths(&five), of(&[("task a", 5), ("task a", 5), ("task b", 5)]));
        assert_eq!(five[1].response, rows[2].response[..5]);
        let in_session = TokenRow { session: Some("task b".to_owned()), ..row("b", 7) };
        let whole = cut(&[&[in_session][..], &rows].concat(), None, 3);
        let expected = [
            ("task a", 10),
            ("task a", 3),
            ("task a", 11),
            ("session task b", 7),
            ("task b", 5),
            ("task b", 4),
        ];
        assert_eq!(lengths(&whole), of(&expected));
    }
}
