//! Published rules that draft from text.
//!
//! | rule | draft | source | deviation |
//! | --- | --- | --- | --- |
//! | [`Pld`](Baseline::Pld) | a path: 10 tokens after the first occurrence of the last 3 tokens (then 2, then 1) | prompt lookup decoding (Saxena 2023): `max_ngram_size`, `num_pred_tokens` of its code | none |
//! | [`Pld2`](Baseline::Pld2) | as `Pld`, from the last 2 tokens (then 1) | Hugging Face transformers, `prompt_lookup_num_tokens` with its default of `max_matching_ngram_size` | none |
//! | [`Sam`](Baseline::Sam) | a path: 40 tokens after the first occurrence of the longest suffix; from the session's own text, unless a match in earlier text is more than 5 longer; for matches of at least 5 | SAM-Decoding, arXiv 2411.10666 | drafts nothing below 5; the paper uses an auxiliary drafter. A match at the end of the text is not shortened (`to_anc`), as `SamRecycle` with logits does |
//! | [`SamRecycle`](Baseline::SamRecycle) | as `Sam`; if `Sam` drafts nothing, as `Recycle` | the paper's SAM-Decoding\[T\] | as `Recycle` |
//! | [`SamOnly`](Baseline::SamOnly) | as `Sam`, for matches of at least 1 | the authors' evaluation without auxiliary drafter | none |
//! | [`Suffix`](Baseline::Suffix) | a best-first tree over counts, one token per matched token, paths of at least 0.1; among all match lengths, and the session's own and earlier text, the tree with the highest sum of probabilities | SuffixDecoding, arXiv 2411.04975; its repository's depth of 64 | none |
//! | [`Recycle`](Baseline::Recycle) | a fixed tree over an adjacency list of 8 likely successors per token | Token Recycling, arXiv 2408.08696, tree 2.2.2 | the list contains the *seen* successors, newest first, because draft sources do not receive logits; the paper stores the target's 8 most likely ones, as [`LogitRule`](super::LogitRule) does. Of the tree's 80 nodes, those with the largest subtrees are kept |
//!
//! All rules stay within the `max_rows` of the batch, and read at most 2²⁰ tokens of text.

mod pld;
mod recycle;
mod sam;
mod suffix;
#[cfg(test)]
mod tests;

use std::fmt;

use refrain::TokenId;
use refrain::drafting::DraftSource;

use super::source::RuleSource;

pub(crate) use pld::Pld;
pub(crate) use recycle::plan_template;
pub(crate) use sam::{Sam, SamConfig, SamRecycle};

/// A published drafting rule.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[non_exhaustive]
pub enum Baseline {
    /// Prompt lookup decoding.
    Pld,
    /// Prompt lookup decoding with the n-grams of Hugging Face transformers.
    Pld2,
    /// SAM-Decoding without auxiliary drafter, with its published minimum match length.
    Sam,
    /// SAM-Decoding with Token Recycling as its auxiliary drafter.
    SamRecycle,
    /// SAM-Decoding without auxiliary drafter, for matches of any length.
    SamOnly,
    /// SuffixDecoding.
    Suffix,
    /// Token Recycling from seen tokens.
    Recycle,
}

impl Baseline {
    /// All rules.
    pub const ALL: [Baseline; 7] = [
        Baseline::Pld,
        Baseline::Pld2,
        Baseline::Sam,
        Baseline::SamRecycle,
        Baseline::SamOnly,
        Baseline::Suffix,
        Baseline::Recycle,
    ];

    /// The rule's name in options and statistics.
    pub fn name(self) -> &'static str {
        match self {
            Baseline::Pld => "pld",
            Baseline::Pld2 => "pld-2",
            Baseline::Sam => "sam",
            Baseline::SamRecycle => "sam-recycle",
            Baseline::SamOnly => "sam-only",
            Baseline::Suffix => "suffix",
            Baseline::Recycle => "recycle",
        }
    }

    /// The rule as a draft source, for trees of at most `max_rows` rows. `earlier` are texts from before the session:
    /// the static part of `Sam`, the global tree of `Suffix`, the initial text of `Recycle`. `Pld` ignores them.
    pub fn source(self, max_rows: usize, earlier: &[&[TokenId]]) -> Box<dyn DraftSource> {
        let n_max = max_rows.max(1) - 1;
        match self {
            Baseline::Pld => RuleSource::boxed(self, n_max, Pld::PUBLISHED),
            Baseline::Pld2 => RuleSource::boxed(self, n_max, Pld { ngram_max: pld::NGRAM_MAX_TRANSFORMERS }),
            Baseline::Sam => RuleSource::boxed(self, n_max, Sam::new(earlier, SamConfig::UNSHORTENED)),
            Baseline::SamRecycle => {
                let sam = Sam::new(earlier, SamConfig::UNSHORTENED);
                RuleSource::boxed(self, n_max, SamRecycle::new(sam, recycle::Recycle::new(earlier)))
            }
            Baseline::SamOnly => RuleSource::boxed(self, n_max, Sam::new(earlier, SamConfig::ANY_MATCH)),
            Baseline::Suffix => RuleSource::boxed(self, n_max, suffix::Suffix::new(earlier)),
            Baseline::Recycle => RuleSource::boxed(self, n_max, recycle::Recycle::new(earlier)),
        }
    }
}

impl fmt::Display for Baseline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
