//! Statistics of a generation: counts, times, and the reasons for plain steps.

use std::time::Duration;

use serde::Serialize;

use crate::draft::{Computed, EvidenceClass, Rejections, SourceName};
use crate::energy::EnergyStats;
use crate::kernels::Instant;
use crate::model::streamed::{StreamMemory, Streamed};
use crate::pruning::Pruned;
use refrain_stream::{Flow, ReadMode};

/// Statistics of one generation.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[cfg_attr(not(feature = "internals"), non_exhaustive)]
pub struct Stats {
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Prompt tokens that were in the KV cache already.
    pub cached_tokens: usize,
    /// Prompt tokens that were run through the model before the first step: all but the cached ones and the
    /// newest.
    pub prefilled_tokens: usize,
    /// Output tokens, end token included.
    pub tokens: usize,
    /// Verification steps.
    pub steps: usize,
    /// Steps whose forward pass had rows of other generations too
    /// ([`step_together`](crate::step_together)); the newest step is counted before its tokens are taken. In
    /// [`time_us`](Self::time_us) such a pass counts in proportion to the generation's rows.
    pub shared_steps: usize,
    /// Steps by acceptance length: entry `i` counts the steps that committed `i` tokens.
    pub acceptance_lengths: Vec<usize>,
    /// Per draft source.
    pub sources: Vec<SourceStats>,
    /// Rows of the verification batches.
    pub rows: RowStats,
    /// How rejected drafts align with the tokens that the target chose instead.
    pub rejections: Rejections,
    /// Counts and times of pruning, if drafts are pruned.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pruning: Option<PruningStats>,
    /// Steps that drafted nothing, with the reason.
    pub drafting_off: DraftingOffStats,
    /// Other decisions of the policy.
    pub policy: PolicyStats,
    /// Estimated time that drafts have saved in decoding, in µs; negative: lost.
    pub saved_us: f64,
    /// Time per stage, in microseconds.
    pub time_us: StageTimes,
    /// Flash traffic, if the model is streamed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub streaming: Option<StreamingStats>,
    /// Energy of the device, if there is a meter ([`Device::set_energy_meter`](crate::device::Device::set_energy_meter)). Set
    /// at the end of the output.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub energy: Option<EnergyStats>,
}

/// Flash traffic of a generation.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[cfg_attr(not(feature = "internals"), non_exhaustive)]
pub struct StreamingStats {
    /// How the file was read.
    pub read_mode: ReadMode,
    /// The memory for weights.
    pub memory: StreamMemory,
    /// Traffic during prefill.
    pub prefill: Flow,
    /// Traffic during decoding.
    pub decode: Flow,
    /// Flash bytes read per output token.
    pub bytes_per_token: f64,
}

impl StreamingStats {
    /// Traffic of a generation that began at `start`, ended its prefill at `prefilled` and has output
    /// `n_tokens` so far.
    pub(crate) fn new(streamed: &Streamed, start: Flow, prefilled: Flow, n_tokens: usize) -> Self {
        let decode = streamed.flow().since(&prefilled);
        Self {
            read_mode: streamed.read_mode(),
            memory: streamed.memory(),
            prefill: prefilled.since(&start),
            decode,
            bytes_per_token: decode.read_bytes as f64 / n_tokens.max(1) as f64,
        }
    }
}

/// Statistics of one draft source.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(not(feature = "internals"), non_exhaustive)]
pub struct SourceStats {
    /// Its name.
    pub name: SourceName,
    /// The class of its claims.
    pub evidence: EvidenceClass,
    /// Draft tokens in verification batches.
    pub drafted: usize,
    /// Draft tokens that the target accepted.
    pub accepted: usize,
    /// The source's own computation, if it runs a model.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub computed: Option<Computed>,
}

/// Rows of the verification batches: `valid + wasted + padded` in total. (CoordGen and sd.npu call padded
/// rows underutilised.)
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
    /// Rows that the first layers left out, because these layers had drafted them.
    pub kept: usize,
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
        self.kept += other.kept;
    }
}

/// Statistics of pruning. The accepted tokens lost by pruning cannot be counted in one run;
/// `refrain-bench ablate` compares runs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
#[cfg_attr(not(feature = "internals"), non_exhaustive)]
pub struct PruningStats {
    /// Steps whose batch was pruned.
    pub pruned_steps: usize,
    /// Steps whose batch was not pruned, because too few rows would have been dropped.
    pub whole_steps: usize,
    /// Rows of these batches before pruning, including padding.
    pub rows_before: usize,
    /// Rows that passed the layers above the predictor's.
    pub rows_kept: usize,
    /// Steps whose walk ended at a draft token that the target chose but pruning dropped.
    pub cut_short: usize,
    /// Time of the predictor, in µs: a part of the forward pass.
    pub time_us: f64,
}

impl PruningStats {
    /// Share of the rows that were kept, 0 to 1; 1 if there were no rows.
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
    /// The output could have at most one more token.
    pub output_end: usize,
    /// No source proposed a continuation.
    pub no_candidate: usize,
    /// Every draft cost more than its expected gain.
    pub not_worth: usize,
    /// A plain step was due, to compare its time with that of steps that draft.
    pub measured: usize,
    /// The generation can output too few tokens ([`SkipRules`](crate::engine::SkipRules)).
    pub short_output: usize,
    /// The temperature is too high ([`SkipRules`](crate::engine::SkipRules)).
    pub high_temperature: usize,
    /// The system has too little available memory ([`SkipRules`](crate::engine::SkipRules)).
    pub low_memory: usize,
    /// Acceptance was below the floor ([`AcceptanceFloor`](crate::engine::AcceptanceFloor)).
    pub below_floor: usize,
    /// The app reported critical [`MemoryPressure`](crate::engine::MemoryPressure).
    pub memory_pressure: usize,
    /// The app reported a critical [`ThermalState`](crate::engine::ThermalState).
    pub heat: usize,
    /// Drafts have not saved enough time to pay for another one ([`DraftPolicy::stake`](crate::engine::DraftPolicy::stake)).
    pub not_paid: usize,
}

/// Decisions of the policy besides turning drafting off.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(not(feature = "internals"), non_exhaustive)]
pub struct PolicyStats {
    /// Steps whose number of draft rows was limited by heat.
    pub heat_limited: usize,
    /// Steps whose number of draft rows was limited by memory pressure.
    pub memory_limited: usize,
    /// Memory pressure reports handled at the beginning of a step; reports handled by a prefill are not
    /// counted.
    pub memory_reports: usize,
    /// Number of times that acceptance fell below the floor.
    pub floor_falls: usize,
    /// With a fixed number of rows: steps by their allowed draft rows. Entry `i` counts the
    /// steps with at most `i` rows, the root not counted.
    pub rows_allowed: Vec<usize>,
}

/// Microseconds per stage.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
#[cfg_attr(not(feature = "internals"), non_exhaustive)]
pub struct StageTimes {
    /// The prompt's forward passes.
    pub prefill: f64,
    /// Projecting the prompt's rows and listing their likeliest successors. The last layer of these rows,
    /// which prefill skips without calibration, counts as prefill.
    pub calibrate: f64,
    /// Passing the prompt to the sources.
    pub prime: f64,
    /// Building draft trees.
    pub draft: f64,
    /// Forward passes over verification batches.
    pub forward: f64,
    /// Projection, sampling, and the walk.
    pub walk: f64,
    /// Compacting the KV cache.
    pub commit: f64,
    /// Updating sources, reliability and costs.
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

    /// Prompt tokens per second of prefill; 0 if nothing was prefilled.
    pub fn prefill_tokens_per_s(&self) -> f64 {
        per_second(self.prefilled_tokens, self.time_us.prefill)
    }

    /// Counts a finished step; the app has taken `n_tokens` of its tokens.
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

/// Measures the stages of a step.
pub(crate) struct Stopwatch(Instant);

impl Stopwatch {
    pub(crate) fn start() -> Self {
        Self(Instant::now())
    }

    /// Adds the time since the start or the last lap to `stage_us`, and returns it.
    pub(crate) fn lap(&mut self, stage_us: &mut f64) -> f64 {
        let now = Instant::now();
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
