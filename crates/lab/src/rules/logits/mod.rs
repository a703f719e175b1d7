//! Published rules that draft from the target's logits, in replays of traces.
//!
//! | rule | draft | source | deviation |
//! | --- | --- | --- | --- |
//! | [`Recycle`](LogitRule::Recycle) `recycle-logits` | Token Recycling's tree 2.2.2 over the 8 likeliest tokens after the newest row of each token: of the prompt, and of all verified rows, rejected ones included; kept across requests | arXiv 2408.08696, section 3 and `TOPK` 8 of its code | of the tree's 80 nodes, those with the largest subtrees are kept, if the batch is smaller |
//! | [`SamRecycle`](LogitRule::SamRecycle) `sam-recycle-logits` | 40 tokens after the longest suffix, for matches of at least 5; a match in the session's own text is shortened until 40 tokens follow its first occurrence (`to_anc`); otherwise as `Recycle` | SAM-Decoding\[T\], arXiv 2411.10666: `n_predicts` 40, `len_threshold` 5, `len_bias` 5 | as `Recycle` |
//! | [`Racer`](LogitRule::Racer) `racer` | the most frequent continuations of all suffixes of 2 or more tokens within 10-grams; rows that are left go to a tree over the same 8 likeliest tokens, breadth first, with breadth 8 at the root and half of it for each next sibling and layer | RACER, arXiv 2604.14885: `ngram` 10, `max_breadth` 8, `min_depth` 2 of its code | the n-grams are an automaton's counts, which also has those shorter than 10 at the end of a text, equal continuations of several suffixes are one, and nothing is evicted (the published automaton has 10,000 nodes) |
//! | [`LogitSpec`](LogitRule::LogitSpec) `logitspec` | 20 tokens after the newest occurrence of the last 3 tokens (then 2, then 1); below the root the runners-up of the row before it, each with what follows it by the same lookup, 4 tokens together | LogitSpec, arXiv 2507.01449: `max_ngram_size` 3, `num_pred_tokens` 20, 4 tokens for ranks up to 8 | traces have 8 ranks of the 64; equal beginnings of sequences are one path |
//! | [`PldCoordGen`](LogitRule::PldCoordGen) `pld-coordgen`, [`SamCoordGen`](LogitRule::SamCoordGen) `sam-coordgen` | as `pld` or `sam-only`; the longest likely rejected segment is appended to the end of its path; rows that are left go to the calibrated tree | CoordGen, arXiv 2510.15312, sections 3.3 and 3.4: threshold of equation 3, 32 tokens; for its Table 4 | the calibrated tree (`calibration.rs`) has the most likely paths first; a segment lives for one step, because longer lives commit less (`benches/RESULTS.md`) |
//!
//! All rules stay within the rows of the batch.

mod calibration;
mod coord_gen;
mod logit_spec;
mod observed;
mod racer;

use std::fmt;

use refrain::TokenId;
use refrain::drafting::DraftSource;

use super::source::{Plan, Rule, RuleSource};
use super::text::{Pld, Sam, SamConfig, SamRecycle, plan_template};

pub(crate) use observed::SharedRows;

/// A published rule that drafts from logits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[non_exhaustive]
pub enum LogitRule {
    /// Token Recycling.
    Recycle,
    /// SAM-Decoding with Token Recycling as its auxiliary drafter.
    SamRecycle,
    /// RACER.
    Racer,
    /// LogitSpec.
    LogitSpec,
    /// CoordGen's calibration and reuse over prompt lookup.
    PldCoordGen,
    /// CoordGen's calibration and reuse over a suffix automaton.
    SamCoordGen,
}

impl LogitRule {
    /// All rules.
    pub const ALL: [LogitRule; 6] = [
        LogitRule::Recycle,
        LogitRule::SamRecycle,
        LogitRule::Racer,
        LogitRule::LogitSpec,
        LogitRule::PldCoordGen,
        LogitRule::SamCoordGen,
    ];

    /// The rule as a draft source, for trees of at most `max_rows` rows. `earlier` are texts from before the request;
    /// `rows` are kept by the caller from request to request.
    pub(crate) fn source(
        self,
        max_rows: usize,
        earlier: &[&[TokenId]],
        rows: &SharedRows,
    ) -> Box<dyn DraftSource> {
        let n_max = max_rows.max(1) - 1;
        let recycle = Recycle { rows: rows.clone() };
        match self {
            LogitRule::Recycle => RuleSource::boxed(self, n_max, recycle),
            LogitRule::SamRecycle => {
                let sam = Sam::new(earlier, SamConfig::PUBLISHED);
                RuleSource::boxed(self, n_max, SamRecycle::new(sam, recycle))
            }
            LogitRule::Racer => RuleSource::boxed(self, n_max, racer::Racer::new(earlier, rows)),
            LogitRule::LogitSpec => RuleSource::boxed(self, n_max, logit_spec::LogitSpec::new(rows)),
            LogitRule::PldCoordGen => {
                RuleSource::boxed(self, n_max, coord_gen::CoordGen::new(Pld::PUBLISHED, rows))
            }
            LogitRule::SamCoordGen => {
                let sam = Sam::new(earlier, SamConfig::ANY_MATCH);
                RuleSource::boxed(self, n_max, coord_gen::CoordGen::new(sam, rows))
            }
        }
    }
}

impl fmt::Display for LogitRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            LogitRule::Recycle => "recycle-logits",
            LogitRule::SamRecycle => "sam-recycle-logits",
            LogitRule::Racer => "racer",
            LogitRule::LogitSpec => "logitspec",
            LogitRule::PldCoordGen => "pld-coordgen",
            LogitRule::SamCoordGen => "sam-coordgen",
        })
    }
}

/// Token Recycling over the target's rows.
#[derive(Clone)]
struct Recycle {
    rows: SharedRows,
}

impl Rule for Recycle {
    fn read(&mut self, _committed: &[TokenId]) {}

    fn reset(&mut self) {}

    fn plan(&mut self, committed: &[TokenId], plan: &mut Plan) {
        let rows = self.rows.lock();
        plan_template(committed, plan, |token, rank| rows.after(token)?.token(rank));
    }

    fn memory_usage(&self) -> usize {
        self.rows.lock().memory_usage()
    }
}

#[cfg(test)]
mod tests {
    use refrain::drafting::{DraftTree, NodeIdx};

    use super::*;
    use crate::rules::source::built;
    use crate::trace::answer::Top;

    fn tokens(ids: &[u32]) -> Vec<TokenId> {
        ids.iter().copied().map(TokenId).collect()
    }

    fn top(ids: &[u32]) -> Top {
        Top::new(ids.iter().zip(1..).map(|(&id, rank)| (TokenId(id), 0.5 / rank as f32)))
    }

    /// The rows after a prompt whose row of each token found the given tokens likeliest.
    fn after_prompt(prompt: &[TokenId], likely: impl Fn(u32) -> Vec<u32>) -> SharedRows {
        let rows = SharedRows::default();
        let tops: Vec<Top> = prompt.iter().map(|token| top(&likely(token.0))).collect();
        rows.lock().read_prompt(prompt, &tops);
        rows
    }

    fn draft(rule: LogitRule, max_rows: usize, rows: &SharedRows, committed: &[TokenId]) -> DraftTree {
        built(rule.source(max_rows, &[], rows), max_rows, committed)
    }

    fn has_path(tree: &DraftTree, ids: &[u32]) -> bool {
        let mut node = Some(NodeIdx::ROOT);
        ids.iter().for_each(|&id| node = node.and_then(|node| tree.child(node, TokenId(id))));
        node.is_some()
    }

    #[test]
    fn recycling_follows_the_newest_rows_of_all_tokens() {
        // Each token's row finds the next two numbers likeliest.
        let prompt = tokens(&[1, 2, 3, 4, 1]);
        let rows = after_prompt(&prompt, |id| vec![id + 1, id + 2]);
        let tree = draft(LogitRule::Recycle, 16, &rows, &prompt);
        for path in [&[2, 3, 4][..], &[3, 4], &[2, 4]] {
            assert!(has_path(&tree, path), "{path:?} in {tree:?}");
        }
        assert!(!has_path(&tree, &[5]));
        // A rejected row of token 2 finds 9 likeliest: the newest row counts.
        let mut step = DraftTree::new(TokenId(1));
        step.push(NodeIdx::ROOT, TokenId(2), 1.0, 0);
        rows.lock().read_step(&step, &[NodeIdx::ROOT], 4, &[Some(top(&[7])), Some(top(&[9]))]);
        let tree = draft(LogitRule::Recycle, 16, &rows, &[prompt, tokens(&[7, 1])].concat());
        assert!(has_path(&tree, &[7]) && !has_path(&tree, &[2]), "{tree:?}");
        let tree = draft(LogitRule::Recycle, 16, &rows, &tokens(&[2]));
        assert!(has_path(&tree, &[9]), "{tree:?}");
    }

    #[test]
    fn sam_recycles_where_nothing_matches() {
        let prompt = tokens(&[1, 2, 3, 4, 5, 6, 9, 1, 2, 3, 4, 5]);
        let rows = after_prompt(&prompt, |id| vec![id + 20]);
        let tree = draft(LogitRule::SamRecycle, 16, &rows, &prompt);
        assert!(has_path(&tree, &[6, 9, 1, 2, 3, 4, 5]) && !has_path(&tree, &[25]), "{tree:?}");
        let tree = draft(LogitRule::SamRecycle, 16, &rows, &prompt[..11]);
        assert!(has_path(&tree, &[24]), "a match of 4 is not enough: {tree:?}");
    }

    /// The longest match, with 9 before it, has 8 tokens after its first occurrence; without 9 it has 59.
    #[test]
    fn a_match_at_the_end_is_shortened_to_one_with_text_behind_it() {
        let long: Vec<u32> = (100..150).collect();
        let text = tokens(&[&long[..], &[9], &long[..6], &[3, 9], &long[..6]].concat());
        let tree = draft(LogitRule::SamRecycle, 64, &SharedRows::default(), &text);
        assert_eq!(tree.tokens()[1..3], tokens(&[106, 107]), "{tree:?}");
        assert_eq!(tree.len(), 41, "{tree:?}");
    }

    #[test]
    fn racer_merges_retrieval_with_rows() {
        let prompt = tokens(&[1, 2, 3, 8, 1, 2, 3, 8, 5, 1, 2]);
        let rows = after_prompt(&prompt, |id| vec![id + 40, id + 50]);
        let tree = draft(LogitRule::Racer, 8, &rows, &prompt);
        assert!(has_path(&tree, &[3, 8]), "{tree:?}");
        let tree = draft(LogitRule::Racer, 32, &rows, &prompt);
        for path in [&[3, 8, 5][..], &[3, 8, 1], &[42], &[52]] {
            assert!(has_path(&tree, path), "{path:?} in {tree:?}");
        }
    }

    #[test]
    fn logitspec_looks_up_the_runners_up_of_the_row_before_the_root() {
        let prompt = tokens(&[4, 6, 7, 8, 9, 10, 1, 4, 5, 2, 3]);
        // The row before the root, of token 2, found 3 likeliest, and then 6 and 30.
        let rows = after_prompt(&prompt, |id| if id == 2 { vec![3, 6, 30] } else { vec![id] });
        let tree = draft(LogitRule::LogitSpec, 16, &rows, &prompt);
        for path in [&[6, 7, 8, 9][..], &[30]] {
            assert!(has_path(&tree, path), "{path:?} in {tree:?}");
        }
        assert!(!has_path(&tree, &[6, 7, 8, 9, 10]), "four tokens together: {tree:?}");
        assert!(!has_path(&tree, &[3]), "the root is no runner-up");
    }

    #[test]
    fn coordgen_appends_rejected_segments_and_follows_rows() {
        let prompt = tokens(&[1, 2, 3, 5, 6, 1]);
        let rows = after_prompt(&prompt, |id| if id == 1 { vec![2, 9] } else { vec![id + 1] });
        let tree = draft(LogitRule::PldCoordGen, 16, &rows, &prompt);
        assert!(has_path(&tree, &[2, 3, 5, 6, 1]) && has_path(&tree, &[9]), "{tree:?}");
        // A rejected path 40 → 41 → 42 whose tokens after the first are likely.
        let mut step = DraftTree::new(TokenId(1));
        let mut node = NodeIdx::ROOT;
        for id in [40, 41, 42] {
            node = step.push(node, TokenId(id), 1.0, 0);
        }
        let tops = [top(&[2]), top(&[41]), top(&[42]), top(&[43])].map(Some);
        rows.lock().read_step(&step, &[NodeIdx::ROOT], 5, &tops);
        let tree = draft(LogitRule::PldCoordGen, 16, &rows, &[prompt, tokens(&[2])].concat());
        assert!(has_path(&tree, &[3, 5, 6, 1, 2, 41, 42]), "{tree:?}");
    }

    /// Each token has several places with the same likely successor, along a path of 41 tokens.
    #[test]
    fn coordgen_looks_at_each_node_once() {
        let prompt = tokens(&[1, 2, 3, 4].repeat(40));
        let rows = SharedRows::default();
        let certain = |token: &TokenId| Top::new([(TokenId(token.0 % 4 + 1), 1.0)]);
        rows.lock().read_prompt(&prompt, &prompt.iter().map(certain).collect::<Vec<_>>());
        for rule in [LogitRule::PldCoordGen, LogitRule::SamCoordGen] {
            let tree = draft(rule, 64, &rows, &prompt);
            assert!(tree.len() > 10 && has_path(&tree, &[1, 2, 3, 4, 1]), "{rule}: {tree:?}");
        }
    }
}
