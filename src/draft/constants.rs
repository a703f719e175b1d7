//! Types of the constants fitted to recorded responses; `fitted.rs` contains the values.

use super::evidence::{COUNTS, MATCH_LENS, PROBABILITIES};

/// Shares in thousandths, by match length, probability and count. Shape
/// `[MATCH_LENS, PROBABILITIES, COUNTS]`.
pub(super) type Permille = [[[u16; COUNTS]; PROBABILITIES]; MATCH_LENS];

/// Parameters of candidates from the suffix orders of a match. The defaults were fitted to recorded
/// responses.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct OrderConfig {
    /// Minimum length of a suffix that proposes. Successors of a single token, and the most frequent tokens
    /// of the text (successors of the empty suffix), are weak evidence, but fill free rows well.
    pub match_len_min: u32,
    /// Maximum candidates per cursor.
    pub n_candidates_max: usize,
    /// Maximum suffix links followed per cursor, including orders without a new token.
    pub n_links_max: usize,
    /// Weight of the most recent successor against the counts, 0 to 1.
    pub recency_weight: f32,
}

/// The rates at which a [`ReliabilityTable`](super::ReliabilityTable) learns and forgets. The default was
/// fitted to recorded responses.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct ReliabilityConfig {
    /// Weight of the prior (κ), in expected hits. A small value adapts to a copying task within a few steps.
    pub prior_hits: f32,
    /// Memory of a cell, in expected hits or hits. It makes the cell follow a change of text.
    pub hits_max: f32,
}
