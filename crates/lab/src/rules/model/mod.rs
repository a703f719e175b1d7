//! Published rules that draft with a model.
//!
//! | rule | draft | source | deviation |
//! | --- | --- | --- | --- |
//! | [`Chain`](ModelRule::Chain) `chain:k` | a path of `k` tokens, each the draft model's likeliest | speculative decoding, arXiv 2211.17192; 8 tokens are Lever's baseline | follows the target's choices (sample, then match) instead of its rejection sampling, so that the output stays that of plain decoding |
//! | [`SpecInfer`](ModelRule::SpecInfer) | a tree of fixed widths: ⟨1, 1, 3, 1, 1, 1, 1, 1⟩ likeliest successors, layer by layer, one pass each | SpecInfer, arXiv 2305.09781, expansion-based trees | one draft model; as `Chain` |
//! | [`OptTree`](ModelRule::OptTree) | layers of the `n` likeliest paths; the best `n` nodes of all layers by expected accepted tokens; stops when a layer adds less than 0.5 to the expectation; at most 60 nodes and 10 layers | OPT-Tree, arXiv 2406.17276, and the constants of its evaluation | `n` is the capacity of the batch, if that is less than 60; as `Chain` |
//! | [`OptTreeFine`](ModelRule::OptTreeFine) `opt-tree-0.05` | as `OptTree`; stops when a layer adds less than 0.05 | OPT-Tree, section 3 (δ) | as `OptTree` |
//! | [`Eagle2`](ModelRule::Eagle2) `eagle-2` | 10 likeliest successors of the root; five times the 10 likeliest successors of each of the 10 likeliest nodes of the newest layer; of all these the 59 likeliest by the product of the probabilities | EAGLE-2, arXiv 2406.16858, section 4: `top_k` 10, `depth` 5, `total_token` 60 with the root | the rule for trees alone, with a draft model instead of EAGLE's head; as `Chain` |
//! | [`EdgeLlm`](ModelRule::EdgeLlm) `edgellm` | the branch with the largest `M·Cᵢ − Tᵢ` gets the next pass; tokens above 0.3 open branches; stops when every branch is below a threshold, which follows the best-matching branch | LLMCad, arXiv 2309.04255, and its journal version EdgeLLM (IEEE TMC 2025): branching at 0.3, initial threshold 0.01 | up to the 64 rows of the longest batch, whatever other rules get (the publication reports 12 to 15 tokens per verification); provisional generation is made by the engine while a streamed target waits for weights (in memory both would use the same cores): the likeliest tokens, of all branches, not of the best one alone; as `Chain` |
//! | [`BestFirst`](ModelRule::BestFirst) `best-first` | the branch with the highest confidence (product of the probabilities) gets the next pass, one node at a time, until that confidence is below EdgeLLM's threshold; it follows the deepest branch | none: EdgeLLM without pacing | as `Chain` |
//!
//! All other rules stay within the rows of the batch, and all within the draft model's context.

mod best_first;
mod chain;
mod eagle2;
mod edge_llm;
mod opt_tree;
mod planner;
mod spec_infer;

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use refrain::drafting::DraftSource;
use refrain::internals::draft::VERIFY_ROWS_MAX;
use refrain::internals::draft_model::{DraftModel, Drafter};
use refrain::internals::model::kv_cache::KvCacheError;
use serde::{Deserialize, Serialize};

use self::planner::boxed;

/// A published rule that drafts with a model.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum ModelRule {
    /// A path of the given number of tokens.
    Chain(u8),
    /// SpecInfer's tree of fixed widths.
    SpecInfer,
    /// OPT-Tree.
    OptTree,
    /// OPT-Tree with a smaller threshold.
    #[serde(rename = "opt-tree-0.05")]
    OptTreeFine,
    /// EAGLE-2's dynamic tree.
    #[serde(rename = "eagle-2")]
    Eagle2,
    /// The branch navigation and pacing of LLMCad and EdgeLLM.
    EdgeLlm,
    /// The most confident branch first.
    BestFirst,
}

impl ModelRule {
    /// All rules; the chain has Lever's length.
    pub const ALL: [ModelRule; 7] = [
        ModelRule::Chain(8),
        ModelRule::SpecInfer,
        ModelRule::OptTree,
        ModelRule::OptTreeFine,
        ModelRule::Eagle2,
        ModelRule::EdgeLlm,
        ModelRule::BestFirst,
    ];

    /// The longest chain: the capacity of a batch beside its root.
    pub const CHAIN_MAX: u8 = VERIFY_ROWS_MAX as u8 - 1;

    /// Maximum number of computed nodes for a draft.
    fn n_nodes_max(self, max_rows: usize) -> usize {
        let n_max = max_rows.max(1) - 1;
        match self {
            ModelRule::Chain(len) => usize::from(len),
            ModelRule::SpecInfer => spec_infer::N_NODES,
            ModelRule::OptTree | ModelRule::OptTreeFine => {
                n_max.min(opt_tree::NODES_MAX) * opt_tree::LAYERS_MAX
            }
            ModelRule::Eagle2 => eagle2::N_COMPUTED,
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
            ModelRule::OptTree | ModelRule::OptTreeFine => {
                let drafter = drafter(n_max.min(opt_tree::NODES_MAX))?;
                let is_fine = self == ModelRule::OptTreeFine;
                let threshold = if is_fine { opt_tree::THRESHOLD_FINE } else { opt_tree::THRESHOLD };
                boxed(self, n_max, drafter, opt_tree::OptTree { threshold })
            }
            ModelRule::Eagle2 => boxed(self, n_max, drafter(eagle2::WIDTH.min(n_max))?, eagle2::Eagle2),
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
            ModelRule::OptTreeFine => f.write_str("opt-tree-0.05"),
            ModelRule::Eagle2 => f.write_str("eagle-2"),
            ModelRule::EdgeLlm => f.write_str("edgellm"),
            ModelRule::BestFirst => f.write_str("best-first"),
        }
    }
}

/// The name is not one of a rule that drafts with a model.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "`{name}` is not one of chain:1 to chain:{}, specinfer, opt-tree, opt-tree-0.05, eagle-2, edgellm and best-first",
    ModelRule::CHAIN_MAX
)]
pub struct UnknownModelRule {
    /// The given name.
    pub name: String,
}

impl FromStr for ModelRule {
    type Err = UnknownModelRule;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        let chain = || {
            let len: u8 = name.strip_prefix("chain:")?.parse().ok()?;
            (1..=Self::CHAIN_MAX).contains(&len).then_some(ModelRule::Chain(len))
        };
        let fixed = || Self::ALL[1..].iter().copied().find(|rule| rule.to_string() == name);
        chain().or_else(fixed).ok_or_else(|| UnknownModelRule { name: name.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_read_back() {
        for rule in ModelRule::ALL.into_iter().chain([ModelRule::Chain(1), ModelRule::Chain(63)]) {
            assert_eq!(rule.to_string().parse(), Ok(rule));
        }
        for name in ["chain", "chain:", "chain:0", "chain:64", "chain:8x", "spec-infer", "pld"] {
            assert!(name.parse::<ModelRule>().is_err(), "{name}");
        }
    }
}
