//! What a generation did: counts, times, and why it did not draft.

use std::time::Duration;

use serde::Serialize;

use crate::draft::{Computed, EvidenceClass, Rejections, SourceName};
use crate::model::streamed::{StreamMemory, Streamed};
use crate::pruning::Pruned;
use crate::stream::{Flow, ReadMode};

/// Statistics of one generation.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[cfg_attr(not(feature = "internals"), non_exhaustive)]
pub struct Stats {
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Prompt tokens that were in the KV cache already.
    pub cached_tokens: usize,
    /// Prompt tokens that were run through the model before the first step: all but the cached ones and the newest.
    pub prefilled_tokens: usize,
    /// Output tokens, end token included.
    pub tokens: usize,
    /// Verification steps.
    pub steps: usize,
    /// Steps by acceptance length: entry `i` counts the steps that committed `i` tokens.
    pub acceptance_lengths: Vec<usize>,
    /// Per draft source.
    pub sources: Vec<SourceStats>,
    /// Rows of the verification batches.
    pub rows: RowStats,
    /// How the drafts that the target left lined up with what it said instead.
    pub rejections: Rejections,
    /// What went on half-way through the target, where drafts are pruned.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pruning: Option<PruningStats>,
    /// Steps that drafted nothing, with the reason.
    pub drafting_off: DraftingOffStats,
    /// What else the policy has done.
    pub policy: PolicyStats,
    /// Present in every generation whose acceptance is lossy ([`Acceptance`](crate::engine::Acceptance)), and in no other.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lossy: Option<LossyStats>,
    /// Where the time went, in microseconds.
    pub time_us: StageTimes,
    /// What came from flash, where the model is streamed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub streaming: Option<StreamingStats>,
}

/// What a generation read from flash.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[cfg_attr(not(feature = "internals"), non_exhaustive)]
pub struct StreamingStats {
    /// How the file was read.
    pub read_mode: ReadMode,
    /// The memory for weights.
    pub memory: StreamMemory,
    /// While the prompt was prefilled.
    pub prefill: Flow,
    /// From then on.
    pub decode: Flow,
    /// Bytes read for an output token.
    pub bytes_per_token: f64,
    /// Bytes per second while something was read, decoding.
    pub bandwidth: f64,
    /// The share of the reading that computation went on beside, decoding; 0 to 1.
    pub overlap: f64,
}

impl StreamingStats {
    /// Of a generation that began at `start`, ended its prefill at `prefilled`, and has now given `n_tokens`.
    pub(crate) fn new(streamed: &Streamed, start: Flow, prefilled: Flow, n_tokens: usize) -> Self {
        let decode = streamed.flow().since(&prefilled);
        Self {
            read_mode: streamed.read_mode(),
            memory: streamed.memory(),
            prefill: prefilled.since(&start),
            decode,
            bytes_per_token: decode.read_bytes as f64 / n_tokens.max(1) as f64,
            bandwidth: decode.bandwidth(),
            overlap: decode.overlap(),
        }
    }
}

/// What one source drafted.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(not(feature = "internals"), non_exhaustive)]
pub struct SourceStats {
    /// Its name.
    pub name: SourceName,
    /// The class of its claims.
    pub evidence: EvidenceClass,
    /// Draft tokens that went into verification batches.
    pub drafted: usize,
    /// Draft tokens that the target agreed with.
    pub accepted: usize,
    /// What it computed for that, where it computes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub computed: Option<Computed>,
}

/// Rows of the verification batches: `valid + wasted + padded` in all. (CoordGen and sd.npu call what is padded
/// underutilised.)
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(not(feature = "internals"), non_exhaustive)]
pub struct RowStats {
    /// Roots and accepted draft tokens: rows whose logits gave a token.
    pub valid: usize,
    /// Rejected draft tokens.
    pub wasted: usize,
    /// Rows without a token.
    pub padded: usize,
    /// Rows projected onto the vocabulary.
    pub projected: usize,
}

impl RowStats {
    /// Rows of all batches.
    pub fn total(&self) -> usize {
        self.valid + self.wasted + self.padded
    }
}

impl std::ops::AddAssign for RowStats {
    fn add_assign(&mut self, other: Self) {
        self.valid += other.valid;
        self.wasted += other.wasted;
        self.padded += other.padded;
        self.projected += other.projected;
    }
}

/// How drafts were pruned. (How many tokens would have been accepted of what was left behind, nobody knows: `refrain bench ablate`
/// compares.)
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
#[cfg_attr(not(feature = "internals"), non_exhaustive)]
pub struct PruningStats {
    /// Steps whose batch was cut down.
    pub pruned_steps: usize,
    /// Steps in which everything went on: too little would have been saved.
    pub whole_steps: usize,
    /// Rows of these steps' batches, padding included.
    pub rows_before: usize,
    /// Of them, rows that went through the layers behind the predictor's.
    pub rows_kept: usize,
    /// Steps that ended at a draft token which was right and had been left behind.
    pub cut_short: usize,
    /// Time of the predictor, in µs: a part of the forward passes'.
    pub time_us: f64,
}

impl PruningStats {
    /// The share of the rows that went on, 0 to 1; 1 where there were none.
    pub fn kept_share(&self) -> f64 {
        if self.rows_before == 0 { 1.0 } else { self.rows_kept as f64 / self.rows_before as f64 }
    }
}

impl PruningStats {
    pub(crate) fn count_step(&mut self, n_rows: usize, pruned: Option<Pruned>) {
        let n_kept = pruned.map_or(n_rows, |pruned| pruned.n_rows);
        *(if n_kept < n_rows { &mut self.pruned_steps } else { &mut self.whole_steps }) += 1;
        self.rows_before += n_rows;
        self.rows_kept += n_kept;
        self.time_us += pruned.map_or(0.0, |pruned| pruned.time_us);
    }
}

impl std::ops::AddAssign for PruningStats {
    fn add_assign(&mut self, other: Self) {
        self.pruned_steps += other.pruned_steps;
        self.whole_steps += other.whole_steps;
        self.rows_before += other.rows_before;
        self.rows_kept += other.rows_kept;
        self.cut_short += other.cut_short;
        self.time_us += other.time_us;
    }
}

/// Steps that drafted nothing.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(not(feature = "internals"), non_exhaustive)]
pub struct DraftingOffStats {
    /// Drafting is off by option.
    pub disabled: usize,
    /// The output could not have become longer than one token.
    pub output_end: usize,
    /// No source had a continuation.
    pub no_candidate: usize,
    /// Drafts would have cost more than they promised.
    pub not_worth: usize,
    /// The generation may give too few tokens ([`SkipRules`](crate::engine::SkipRules)).
    pub short_output: usize,
    /// The temperature is too high (the same).
    pub high_temperature: usize,
    /// The system has too little memory (the same).
    pub low_memory: usize,
    /// Acceptance was below the floor ([`AcceptanceFloor`](crate::engine::AcceptanceFloor)).
    pub below_floor: usize,
    /// The app reported critical [`MemoryPressure`](crate::engine::MemoryPressure).
    pub memory_pressure: usize,
    /// The app reported a critical [`ThermalState`](crate::engine::ThermalState).
    pub heat: usize,
}

/// What the policy has done besides turning drafting off.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(not(feature = "internals"), non_exhaustive)]
pub struct PolicyStats {
    /// Steps that could have drafted more rows but for heat.
    pub heat_limited: usize,
    /// Steps that could have drafted more rows but for memory pressure.
    pub memory_limited: usize,
    /// Reports of memory pressure that were answered, each at the beginning of a step; what a prefill answers is not counted.
    pub memory_reports: usize,
    /// How often acceptance fell below the floor.
    pub floor_falls: usize,
    /// With a fixed or controlled number of rows, steps by how many they might draft: entry `i` counts those of `i`, the root
    /// not counted.
    pub rows_allowed: Vec<usize>,
}

/// What lossy acceptance has done.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
#[cfg_attr(not(feature = "internals"), non_exhaustive)]
pub struct LossyStats {
    /// The probability that a nucleus has.
    pub top_p: f32,
    /// Tokens of the output that the target did not choose.
    pub replaced: usize,
}

/// Microseconds per stage.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
#[cfg_attr(not(feature = "internals"), non_exhaustive)]
pub struct StageTimes {
    /// The prompt's forward passes.
    pub prefill: f64,
    /// The prompt's positions are projected and their likeliest successors kept. The last layer of the rows, which a prefill
    /// without calibration leaves out, counts as prefill.
    pub calibrate: f64,
    /// Sources learn the prompt.
    pub prime: f64,
    /// Building draft trees.
    pub draft: f64,
    /// Forward passes over verification batches.
    pub forward: f64,
    /// Projection, sampling, and the walk.
    pub walk: f64,
    /// Closing up the KV cache.
    pub commit: f64,
    /// Sources, reliability and costs learn from the step.
    pub observe: f64,
}

impl StageTimes {
    /// All stages of decoding together.
    pub fn decode(&self) -> f64 {
        self.draft + self.forward + self.walk + self.commit + self.observe
    }
}

impl Stats {
    /// Tokens committed per step, the bonus token included.
    pub fn acceptance_length(&self) -> f64 {
        if self.steps == 0 { 0.0 } else { self.tokens as f64 / self.steps as f64 }
    }

    /// Output tokens per second of decoding.
    pub fn decode_tokens_per_s(&self) -> f64 {
        per_second(self.tokens, self.time_us.decode())
    }

    /// Prompt tokens per second of prefill; 0 where there was nothing to prefill.
    pub fn prefill_tokens_per_s(&self) -> f64 {
        per_second(self.prefilled_tokens, self.time_us.prefill)
    }

    /// A step ends of which the app has taken `n_tokens` tokens.
    pub(super) fn count_step(&mut self, n_tokens: usize) {
        self.steps += 1;
        if self.acceptance_lengths.len() <= n_tokens {
            self.acceptance_lengths.resize(n_tokens + 1, 0);
        }
        self.acceptance_lengths[n_tokens] += 1;
    }
}

fn per_second(count: usize, us: f64) -> f64 {
    if us > 0.0 { count as f64 * 1e6 / us } else { 0.0 }
}

/// Splits a step's time into stages.
pub(crate) struct Stopwatch(std::time::Instant);

impl Stopwatch {
    pub(crate) fn start() -> Self {
        Self(std::time::Instant::now())
    }

    /// Adds the time since the start or the last lap to `stage_us`, and returns it.
    pub(crate) fn lap(&mut self, stage_us: &mut f64) -> f64 {
        let now = std::time::Instant::now();
        let us = Duration::as_secs_f64(&(now - self.0)) * 1e6;
        self.0 = now;
        *stage_us += us;
        us
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn acceptance_length_counts_the_bonus_token() {
        let mut stats = Stats::default();
        assert_eq!(stats.acceptance_length(), 0.0);
        for n_tokens in [1, 4, 1] {
            stats.tokens += n_tokens;
            stats.count_step(n_tokens);
        }
        assert_eq!(stats.acceptance_lengths, [0, 2, 0, 0, 1]);
        assert_eq!((stats.steps, stats.tokens, stats.acceptance_length()), (3, 6, 2.0));
    }
}
