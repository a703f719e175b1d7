//! Published drafting rules, as baselines behind the same verifier.
//!
//! | rule | what it drafts | source | where this one differs |
//! | --- | --- | --- | --- |
//! | [`Pld`](Baseline::Pld) | a path: what followed the first occurrence of the last 3 tokens (then 2, then 1), 10 tokens | prompt lookup decoding (Saxena 2023), as in Hugging Face transformers | none |
//! | [`Sam`](Baseline::Sam) | a path: what followed the first occurrence of the longest suffix, 40 tokens; the session's own text unless a match in earlier text is more than 5 longer; from a match of 5 on | SAM-Decoding, arXiv 2411.10666 | below 5 it drafts nothing, where the paper asks an auxiliary drafter |
//! | [`SamRecycle`](Baseline::SamRecycle) | as `Sam`; where that drafts nothing, as `Recycle` | the paper's SAM-Decoding\[T\] | as `Recycle` |
//! | [`SamOnly`](Baseline::SamOnly) | as `Sam`, from a match of 1 on | the authors' evaluation without auxiliary drafter | none |
//! | [`Suffix`](Baseline::Suffix) | a best-first tree over counts, one token per matched token, paths of at least 0.1; of all match lengths, and of the session's own and earlier text, the one with the highest sum of probabilities | SuffixDecoding, arXiv 2411.04975; its repository's depth of 64 | none |
//! | [`Recycle`](Baseline::Recycle) | a fixed tree over an adjacency list of 8 likely successors per token | Token Recycling, arXiv 2408.08696, tree 2.2.2 | the list holds the successors *seen*, the newest first, where the paper stores the target's 8 most likely ones: no draft source sees logits. Of the tree's 80 nodes those with the largest subtrees are kept |
//!
//! A rule plans its whole tree when it is asked for anchors and hands the plan over node by node, so that the tree builder,
//! the engine and the statistics treat it as any source. With [`BuilderConfig::as_claimed`] the builder keeps the plan as it
//! is. Rules that draft by a model (chains, SpecInfer, OPT-Tree, EdgeLLM) are [`ModelRule`](crate::draft_model::ModelRule)s. What all rules keep within: `max_rows` of the batch, and 2²⁰ tokens of text (what comes later is not read).

mod corpus;
mod pld;
mod recycle;
mod sam;
mod suffix;
#[cfg(test)]
mod tests;

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use serde::{Deserialize, Serialize};

use super::source::{Anchor, Candidate, Candidates, Computed, Cursor, DraftSource, SourceKind, StepOutcome};
use crate::token::TokenId;
use corpus::Corpus;

#[cfg(doc)]
use super::BuilderConfig;

/// A published drafting rule.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Baseline {
    /// Prompt lookup decoding.
    Pld,
    /// SAM-Decoding without auxiliary drafter, from its published match length on.
    Sam,
    /// SAM-Decoding with Token Recycling as its auxiliary drafter.
    SamRecycle,
    /// SAM-Decoding without auxiliary drafter, from any match on.
    SamOnly,
    /// SuffixDecoding.
    Suffix,
    /// Token Recycling of the tokens that were seen.
    Recycle,
}

impl Baseline {
    /// All rules.
    pub const ALL: [Baseline; 6] = [
        Baseline::Pld,
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
            Baseline::Sam => "sam",
            Baseline::SamRecycle => "sam-recycle",
            Baseline::SamOnly => "sam-only",
            Baseline::Suffix => "suffix",
            Baseline::Recycle => "recycle",
        }
    }

    /// The rule as a draft source, for trees of at most `max_rows` rows. `earlier` are texts from before the session
    /// (the static part of `Sam`, the global tree of `Suffix`, a first reading for `Recycle`; `Pld` has no use for them).
    pub fn source(self, max_rows: usize, earlier: &[&[TokenId]]) -> Box<dyn DraftSource> {
        let n_max = max_rows.max(1) - 1;
        match self {
            Baseline::Pld => RuleSource::boxed(self, n_max, pld::Pld),
            Baseline::Sam => RuleSource::boxed(self, n_max, sam::Sam::new(earlier, sam::THRESHOLD)),
            Baseline::SamRecycle => {
                let sam = sam::Sam::new(earlier, sam::THRESHOLD);
                RuleSource::boxed(self, n_max, sam::SamRecycle::new(sam, recycle::Recycle::new(earlier)))
            }
            Baseline::SamOnly => RuleSource::boxed(self, n_max, sam::Sam::new(earlier, 1)),
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

/// No baseline has this name.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("`{name}` is no baseline: pld, sam, sam-recycle, sam-only, suffix or recycle")]
pub struct UnknownBaseline {
    /// What was asked for.
    pub name: String,
}

impl FromStr for Baseline {
    type Err = UnknownBaseline;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        let found = Baseline::ALL.into_iter().find(|baseline| baseline.name() == name);
        found.ok_or_else(|| UnknownBaseline { name: name.to_owned() })
    }
}

/// What a rule is to the source that hands its plans over.
pub(crate) trait Rule: Clone + Send + 'static {
    /// What kind of source it is.
    const KIND: SourceKind = SourceKind::Other;

    /// Reads what was committed since the last time; `committed` is everything, and was not shortened.
    fn read(&mut self, committed: &[TokenId]);

    /// Forgets the session's text.
    fn reset(&mut self);

    /// As [`DraftSource::release`].
    fn release(&mut self) {
        self.reset();
    }

    /// Plans the draft after `committed`, all of which was read. `plan` comes empty.
    fn plan(&mut self, committed: &[TokenId], plan: &mut Plan);

    /// Learns what became of the newest draft.
    fn learn(&mut self, step: &StepOutcome<'_>) {
        let _ = step;
    }

    /// As [`DraftSource::watch`].
    fn watch(&mut self, cancel: &Arc<AtomicBool>) {
        let _ = cancel;
    }

    /// As [`DraftSource::computed`].
    fn computed(&self) -> Option<Computed> {
        None
    }

    /// Bytes on the heap.
    fn memory_usage(&self) -> usize;
}

/// A planned tree: parents before children, node 0 the root.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    nodes: Vec<Planned>,
    /// Nodes below the root at most.
    n_max: usize,
}

#[derive(Clone, Copy, Debug)]
struct Planned {
    parent: u32,
    token: TokenId,
    /// The rule's own probability that the walk comes here.
    reach: f32,
}

impl Plan {
    fn new(n_max: usize) -> Self {
        Plan { nodes: Vec::with_capacity(n_max + 1), n_max }
    }

    fn clear(&mut self) {
        self.nodes.clear();
        self.nodes.push(Planned { parent: 0, token: TokenId(0), reach: 1.0 });
    }

    /// Nodes below the root.
    pub(crate) fn len(&self) -> usize {
        self.nodes.len() - 1
    }

    /// Nodes below the root at most.
    pub(crate) fn n_max(&self) -> usize {
        self.n_max
    }

    /// Appends a node and returns its index; `None` where the plan is full.
    pub(crate) fn push(&mut self, parent: usize, token: TokenId, reach: f32) -> Option<usize> {
        (self.len() < self.n_max).then(|| {
            self.nodes.push(Planned { parent: parent as u32, token, reach });
            self.nodes.len() - 1
        })
    }

    /// Appends a path below the root.
    fn push_path(&mut self, tokens: &[TokenId]) {
        let mut parent = Some(0);
        for &token in tokens {
            let Some(node) = parent else { return };
            parent = self.push(node, token, 1.0);
        }
    }
}

/// A rule as a draft source. A cursor is the index of a planned node.
#[derive(Clone)]
pub(crate) struct RuleSource<R> {
    name: String,
    rule: R,
    plan: Plan,
    n_read: usize,
}

impl<R: Rule> RuleSource<R> {
    /// The source of `rule`, for drafts of `n_max` tokens.
    pub(crate) fn boxed(name: impl fmt::Display, n_max: usize, rule: R) -> Box<dyn DraftSource> {
        Box::new(RuleSource { name: name.to_string(), rule, plan: Plan::new(n_max), n_read: 0 })
    }

    fn read(&mut self, committed: &[TokenId]) {
        if committed.len() < self.n_read {
            self.reset(); // shortened without notice
        }
        self.rule.read(committed);
        self.n_read = committed.len();
    }
}

impl<R: Rule> DraftSource for RuleSource<R> {
    fn kind(&self) -> SourceKind {
        R::KIND
    }

    fn name(&self) -> &str {
        &self.name
    }

    fn prime(&mut self, committed: &[TokenId]) {
        self.read(committed);
    }

    fn reset(&mut self) {
        self.rule.reset();
        self.n_read = 0;
    }

    fn release(&mut self) {
        self.rule.release();
        self.n_read = 0;
    }

    fn anchors(&mut self, committed: &[TokenId], out: &mut Vec<Anchor>) {
        self.read(committed);
        self.plan.clear();
        self.rule.plan(committed, &mut self.plan);
        if self.plan.len() > 0 {
            out.push(Anchor { cursor: Cursor(0), match_len: 1 });
        }
    }

    fn expand(&mut self, frontier: &[Cursor], out: &mut Candidates) {
        for (index, cursor) in frontier.iter().enumerate() {
            let parent = cursor.0 as usize;
            let Some(&Planned { reach, .. }) = self.plan.nodes.get(parent) else { continue };
            // A parent stands before its children.
            for (i, node) in self.plan.nodes.iter().enumerate().skip(parent + 1) {
                if node.parent as usize == parent {
                    out.push(Candidate {
                        parent: index as u32,
                        token: node.token,
                        probability: node.reach / reach,
                        match_len: 1,
                        count: 1,
                        next: Cursor(i as u64),
                    });
                }
            }
        }
    }

    fn watch(&mut self, cancel: &Arc<AtomicBool>) {
        self.rule.watch(cancel);
    }

    fn computed(&self) -> Option<Computed> {
        self.rule.computed()
    }

    fn observe(&mut self, committed: &[TokenId], step: &StepOutcome<'_>) {
        self.rule.learn(step);
        self.read(committed);
    }

    fn memory_usage(&self) -> usize {
        self.rule.memory_usage() + self.plan.nodes.capacity() * size_of::<Planned>()
    }

    fn fork(&self) -> Box<dyn DraftSource> {
        Box::new(self.clone())
    }
}
