//! Drafting rules for llama.cpp. The crate compiles llama.cpp's own without an interface, so they are written here after its
//! released sources (llama-cpp-sys-2 0.1.161).
//!
//! | rule | draft | source |
//! | --- | --- | --- |
//! | [`NgramSimple`](Rule::NgramSimple) | the 48 tokens after the last earlier occurrence of the last 12, if at least 12 follow it | `common/ngram-map.cpp`, `common_ngram_simple_draft`, with the defaults of `common/common.h` |
//! | [`NgramCache`](Rule::NgramCache) | token by token the most frequent successor of the last 4 tokens (then 3, 2, 1), if it was seen often enough and in enough of the cases | `common/ngram-cache.cpp`, `common_ngram_cache_draft`, with the cache of the context alone; what `llama-lookup` runs |
//! | [`Pld`](Rule::Pld) | the 10 tokens after the first occurrence of the last 3 tokens (then 2, 1) | prompt lookup decoding (Saxena 2023), from `refrain-bench` |

use std::collections::HashMap;
use std::fmt;
use std::str::FromStr;

use refrain::internals::draft::{BuilderConfig, CostProfile, StepLimits, TreeBuilder};
use refrain::drafting::{DraftSource, DraftTree, NodeIdx};
use refrain::TokenId;
use refrain_bench::rules::Baseline;

/// A drafting rule.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Rule {
    NgramSimple,
    NgramCache,
    Pld,
}

/// A rule with what it has read of one text.
pub trait Drafter {
    /// Appends a draft behind `committed`, which continues that of the last call. `out` is empty.
    fn draft(&mut self, committed: &[TokenId], out: &mut Vec<TokenId>);
}

impl Rule {
    /// All rules.
    pub const ALL: [Rule; 3] = [Rule::NgramSimple, Rule::NgramCache, Rule::Pld];

    fn name(self) -> &'static str {
        match self {
            Rule::NgramSimple => "ngram-simple",
            Rule::NgramCache => "ngram-cache",
            Rule::Pld => "pld",
        }
    }

    /// The longest draft, where a batch has room for `n_draft` tokens. The first rule has a length of its own.
    pub fn n_draft_max(self, n_draft: usize) -> usize {
        if self == Rule::NgramSimple { SIMPLE_DRAFT } else { n_draft }
    }

    /// The rule before a text, for drafts of up to `n_draft` tokens.
    pub fn drafter(self, n_draft: usize, vocab_size: usize) -> Box<dyn Drafter> {
        match self {
            Rule::NgramSimple => Box::new(NgramSimple),
            Rule::NgramCache => Box::new(NgramCache { n_draft, n_read: 0, successors: HashMap::new() }),
            Rule::Pld => Box::new(Pld::new(n_draft, vocab_size)),
        }
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Rule {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        let names = Rule::ALL.map(Rule::name);
        let found = Rule::ALL.into_iter().find(|rule| rule.name() == name);
        found.ok_or_else(|| format!("no such rule; there are: {}", names.join(", ")))
    }
}

/// `size_n` and `size_m` of llama.cpp's defaults.
const SIMPLE_NGRAM: usize = 12;
const SIMPLE_DRAFT: usize = 48;

struct NgramSimple;

impl Drafter for NgramSimple {
    fn draft(&mut self, committed: &[TokenId], out: &mut Vec<TokenId>) {
        let len = committed.len();
        // llama.cpp counts the tokens without the newest one.
        if len <= SIMPLE_NGRAM + SIMPLE_DRAFT + 2 {
            return;
        }
        let last = &committed[len - SIMPLE_NGRAM..];
        // An occurrence at the very start does not count, and one needs a token behind it that is not its own last.
        let found = (1..len - SIMPLE_NGRAM - 1).rev().find(|&at| committed[at..].starts_with(last));
        if let Some(at) = found {
            let end = (at + SIMPLE_NGRAM + SIMPLE_DRAFT).min(len - 1);
            let draft = &committed[at + SIMPLE_NGRAM..end];
            if draft.len() >= SIMPLE_NGRAM {
                out.extend_from_slice(draft);
            }
        }
    }
}

/// `LLAMA_NGRAM_MAX`
const CACHE_NGRAM: usize = 4;
/// `draft_min_sample_size_lax` and `draft_min_percent_lax` of n-grams of 1 to 4 tokens.
const CACHE_SEEN_MIN: [u32; CACHE_NGRAM] = [2, 2, 1, 1];
const CACHE_PERCENT_MIN: [u32; CACHE_NGRAM] = [66, 50, 50, 50];

struct NgramCache {
    n_draft: usize,
    n_read: usize,
    /// Successors of each n-gram of 1 to 4 tokens and how often each was seen, in the order of their first occurrence.
    successors: HashMap<Vec<TokenId>, Vec<(TokenId, u32)>>,
}

impl NgramCache {
    fn read(&mut self, committed: &[TokenId]) {
        for at in self.n_read.max(1)..committed.len() {
            for n in 1..=CACHE_NGRAM.min(at) {
                let successors = self.successors.entry(committed[at - n..at].to_vec()).or_default();
                match successors.iter_mut().find(|(token, _)| *token == committed[at]) {
                    Some((_, seen)) => *seen += 1,
                    None => successors.push((committed[at], 1)),
                }
            }
        }
        self.n_read = committed.len();
    }

    fn next(&self, text: &[TokenId]) -> Option<TokenId> {
        (1..=CACHE_NGRAM.min(text.len())).rev().find_map(|n| {
            let successors = self.successors.get(&text[text.len() - n..])?;
            let of: u32 = successors.iter().map(|&(_, seen)| seen).sum();
            // Of equally frequent ones the first; llama.cpp takes that of its hash table.
            let &(token, seen) = successors.iter().rev().max_by_key(|&&(_, seen)| seen)?;
            (of >= CACHE_SEEN_MIN[n - 1] && 100 * seen >= CACHE_PERCENT_MIN[n - 1] * of).then_some(token)
        })
    }
}

impl Drafter for NgramCache {
    fn draft(&mut self, committed: &[TokenId], out: &mut Vec<TokenId>) {
        self.read(committed);
        let mut text = committed[committed.len().saturating_sub(CACHE_NGRAM)..].to_vec();
        while out.len() < self.n_draft {
            let Some(token) = self.next(&text) else { break };
            out.push(token);
            text.push(token);
        }
    }
}

struct Pld {
    sources: Vec<Box<dyn DraftSource>>,
    builder: TreeBuilder,
    tree: DraftTree,
    costs: CostProfile,
    n_rows_max: usize,
}

impl Pld {
    fn new(n_draft: usize, vocab_size: usize) -> Self {
        let n_rows_max = n_draft + 1;
        Pld {
            sources: vec![Baseline::Pld.source(n_rows_max, &[])],
            builder: TreeBuilder::new(BuilderConfig::as_claimed(vocab_size, n_rows_max)),
            tree: DraftTree::default(),
            costs: CostProfile::free_rows(1.0),
            n_rows_max,
        }
    }
}

impl Drafter for Pld {
    fn draft(&mut self, committed: &[TokenId], out: &mut Vec<TokenId>) {
        let limits = StepLimits { max_rows: self.n_rows_max, max_depth: self.n_rows_max, ..StepLimits::NONE };
        self.builder.build(&mut self.sources, committed, limits, &self.costs, &mut self.tree);
        // The rule drafts a path.
        out.extend((1..self.tree.len()).map(|i| self.tree.token(NodeIdx(i as u32))));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tokens(ids: impl IntoIterator<Item = u32>) -> Vec<TokenId> {
        ids.into_iter().map(TokenId).collect()
    }

    fn draft(rule: Rule, n_draft: usize, committed: &[TokenId]) -> Vec<u32> {
        let mut out = Vec::new();
        rule.drafter(n_draft, 1000).draft(committed, &mut out);
        out.into_iter().map(|token| token.0).collect()
    }

    #[test]
    fn ngram_simple_needs_twelve_tokens_and_twelve_behind_them() {
        // A text of 100 tokens, of which twelve come again at the end.
        let text = |at: u32| tokens((0..100).chain(at..at + 12));
        assert_eq!(draft(Rule::NgramSimple, 0, &text(20)), (32..80).collect::<Vec<_>>());
        assert_eq!(draft(Rule::NgramSimple, 0, &text(70)), (82..100).chain(70..81).collect::<Vec<_>>());
        assert!(draft(Rule::NgramSimple, 0, &text(0)).is_empty(), "an occurrence at the start");
        assert!(draft(Rule::NgramSimple, 0, &tokens((0..100).chain(20..31))).is_empty(), "eleven tokens");
        assert!(draft(Rule::NgramSimple, 0, &tokens((0..40).chain(5..17))).is_empty(), "a short text");
    }

    #[test]
    fn ngram_cache_takes_the_most_frequent_successor() {
        // After (1, 2) comes 3 twice and 4 once.
        let text = tokens([1, 2, 3, 9, 1, 2, 4, 8, 1, 2, 3, 7, 1, 2]);
        assert_eq!(draft(Rule::NgramCache, 1, &text), [3]);
        // One occurrence suffices for three tokens, not for one.
        assert_eq!(draft(Rule::NgramCache, 2, &tokens([5, 6, 7, 8, 9, 5, 6, 7])), [8, 9]);
        assert!(draft(Rule::NgramCache, 2, &tokens([1, 7, 8, 2, 7])).is_empty());
    }

    #[test]
    fn a_drafter_reads_what_is_added() {
        let (mut cache, mut out) = (Rule::NgramCache.drafter(3, 1000), Vec::new());
        let text = tokens([5, 6, 7, 8, 9, 5, 6, 7]);
        cache.draft(&text[..5], &mut out);
        assert!(out.is_empty());
        cache.draft(&text, &mut out);
        assert_eq!(out, tokens([8, 9, 5]));
    }

    #[test]
    fn pld_drafts_behind_the_first_occurrence() {
        let text = tokens([1, 2, 3, 4, 5, 6, 1, 2, 3]);
        assert_eq!(draft(Rule::Pld, 15, &text), [4, 5, 6, 1, 2, 3]);
        assert_eq!(draft(Rule::Pld, 2, &text), [4, 5]);
    }
}
