//! Types of the constants that are fitted to recorded responses; `fitted.rs` has their values.

use super::evidence::{COUNTS, MATCH_LENS, PROBABILITIES};

/// Shares in thousandths, by match length, probability and count. Shape `[MATCH_LENS, PROBABILITIES, COUNTS]`.
pub(super) type Permille = [[[u16; COUNTS]; PROBABILITIES]; MATCH_LENS];

/// How the suffix orders of a match become candidates. The defaults were fitted to recorded responses.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct OrderConfig {
    /// The shortest suffix that may propose. What follows a single token, and the most frequent tokens of the text, which
    /// follow the empty suffix, are weak evidence, but fill free rows well.
    pub match_len_min: u32,
    /// Candidates per cursor at most.
    pub n_candidates_max: usize,
    /// Suffix links followed per cursor at most, orders without a new token included.
    pub n_links_max: usize,
    /// Weight of the most recent successor against the counts, 0 to 1.
    pub recency_weight: f32,
}

/// How fast a [`ReliabilityTable`](super::ReliabilityTable) learns and forgets. The default was fitted to recorded responses.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct ReliabilityConfig {
    /// Weight of the prior (κ), in expected hits: small, so that a task that copies is known after a few steps.
    pub prior_hits: f32,
    /// A cell remembers about this many expected hits (or hits), so that it follows a change of text.
    pub hits_max: f32,
}
