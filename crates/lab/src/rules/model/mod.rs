//! Published rules that draft with a model.
//!
//! | rule | draft | source | deviation |
//! | --- | --- | --- | --- |
//! | [`Chain`](ModelRule::Chain) `chain:k` | a path of `k` tokens, each the draft model's likeliest | speculative decoding, arXiv 2211.17192; 8 tokens are Lever's baseline | follows the target's choices (sample, then match) instead of its rejection sampling, so that the output stays that of plain decoding |
//! | [`SpecInfer`](ModelRule::SpecInfer) | a tree of fixed widths: ⟨1, 1, 3, 1, 1, 1, 1, 1⟩ likeliest successors, layer by layer, one pass each | SpecInfer, arXiv 2305.09781, expansion-based trees | one draft model; as `Chain` |
//! | [`OptTree`](ModelRule::OptTree) | layers of the `n` likeliest paths; the best `n` nodes of all layers by expected accepted tokens; stops when a layer adds less than 0.5 to the expectation; at most 60 nodes and 10 layers | OPT-Tree, arXiv 2406.17276, and the constants of its evaluation | `n` is the capacity of the batch, if that is less than 60; as `Chain` |
//! | [`EdgeLlm`](ModelRule::EdgeLlm) `edgellm` | the branch with the largest `M·Cᵢ − Tᵢ` gets the next pass; tokens above 0.3 open branches; stops when every branch is below a threshold, which follows the best-matching branch | LLMCad, arXiv 2309.04255, and its journal version EdgeLLM (IEEE TMC 2025): branching at 0.3, initial threshold 0.01 | up to the 64 rows of the longest batch, whatever other rules get (the publication reports 12 to 15 tokens per verification); provisional generation is made by the engine while a streamed target waits for weights (in memory both would use the same cores): the likeliest tokens, of all branches, not of the best one alone; as `Chain` |
//! | [`BestFirst`](ModelRule::BestFirst) `best-first` | the branch with the highest confidence (product of the probabilities) gets the next pass, one node at a time, until that confidence is below EdgeLLM's threshold; it follows the deepest branch | none: EdgeLLM without pacing | as `Chain` |
//!
//! All other rules stay within the rows of the batch, and all within the draft model's context.

mod best_first;
mod chain;
mod edge_llm;
mod opt_tree;
mod planner;
mod spec_infer;

use std::fmt;
use std::sync::Arc;

use refrain::drafting::DraftSource;
use refrain::internals::draft::VERIFY_ROWS_MAX;
use refrain::internals::draft_model::{DraftModel, Drafter};
use refrain::internals::model::kv_cache::KvCacheError;

use self::planner::boxed;

/// A published rule that drafts with a model.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[non_exhaustive]
pub enum ModelRule {
    /// A path of the given number of tokens.
    Chain(u8),
    /// SpecInfer's tree of fixed widths.
    SpecInfer,
    /// OPT-Tree.
    OptTree,
    /// The branch navigation and pacing of LLMCad and EdgeLLM.
    EdgeLlm,
    /// The most confident branch first.
    BestFirst,
}

impl ModelRule {
    /// All rules; the chain has Lever's length.
    pub const ALL: [ModelRule; 5] = [
        ModelRule::Chain(8),
        ModelRule::SpecInfer,
        ModelRule::OptTree,
        ModelRule::EdgeLlm,
        ModelRule::BestFirst,
    ];

    /// The longest chain: the capacity of a batch beside its root.
    pub const CHAIN_MAX: u8 = VERIFY_ROWS_MAX as u8 - 1;

    /// The chain with this name.
    pub(crate) fn chain(name: &str) -> Option<Self> {
        let len: u8 = name.strip_prefix("chain:")?.parse().ok()?;
        (1..=Self::CHAIN_MAX).contains(&len).then_some(ModelRule::Chain(len))
    }

    /// Maximum number of computed nodes for a draft.
    fn n_nodes_max(self, max_rows: usize) -> usize {
        let n_max = max_rows.max(1) - 1;
        match self {
            ModelRule::Chain(len) => usize::from(len),
            ModelRule::SpecInfer => spec_infer::N_NODES,
            ModelRule::OptTree => n_max.min(opt_tree::NODES_MAX) * opt_tree::LAYERS_MAX,
            ModelRule::EdgeLlm => 2 * n_max,
            ModelRule::BestFirst => n_max,
        }
    }

    /// The rule as a draft source, for sessions of `context_len` tokens and trees of at most `max_rows` rows.
    ///
    /// # Errors
    /// The memory for the draft model's keys and values could not be allocated.
    pub fn source(
        self,
        model: &Arc<DraftModel>,
        context_len: usize,
        max_rows: usize,
    ) -> Result<Box<dyn DraftSource>, KvCacheError> {
        let n_max = max_rows.max(1) - 1;
        let n_nodes_max = self.n_nodes_max(max_rows);
        let drafter = |n_likely| Drafter::new(model, context_len, n_likely, n_nodes_max);
        Ok(match self {
            ModelRule::Chain(len) => {
                let drafter = drafter(1)?;
                boxed(self, n_max, drafter, chain::Chain { len: usize::from(len) })
            }
            ModelRule::SpecInfer => {
                let drafter = drafter(spec_infer::WIDTH_MAX)?;
                boxed(self, n_max, drafter, spec_infer::SpecInfer)
            }
            ModelRule::OptTree => {
                boxed(self, n_max, drafter(n_max.min(opt_tree::NODES_MAX))?, opt_tree::OptTree)
            }
            ModelRule::EdgeLlm => {
                boxed(self, n_max, drafter(edge_llm::BRANCHES)?, edge_llm::EdgeLlm::default())
            }
            ModelRule::BestFirst => {
                boxed(self, n_max, drafter(best_first::BRANCHES)?, best_first::BestFirst::default())
            }
        })
    }
}

impl fmt::Display for ModelRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ModelRule::Chain(len) => write!(f, "chain:{len}"),
            ModelRule::SpecInfer => f.write_str("specinfer"),
            ModelRule::OptTree => f.write_str("opt-tree"),
            ModelRule::EdgeLlm => f.write_str("edgellm"),
            ModelRule::BestFirst => f.write_str("best-first"),
        }
    }
}
