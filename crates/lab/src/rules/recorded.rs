//! Drafters of a recording: which of their tokens were accepted is known at every position, their rejected tokens are not.
//!
//! | drafter | draft: the response, as long as |
//! | --- | --- |
//! | [`Eagle`](Recorded::Eagle) `recorded-eagle` | the recorded draft head predicted it |
//! | [`Ngram`](Recorded::Ngram) `recorded-ngram` | the recorded n-gram rule predicted it |
//! | [`Best`](Recorded::Best) `recorded-best` | one of both predicted it |
//!
//! Before the first token of a response, which the prefill gives, none drafts. A draft is a path within the rows of a batch.

use std::fmt;

use refrain::TokenId;
use refrain::drafting::{DraftSource, StepOutcome};

use super::source::{Plan, Rule, RuleSource};
use crate::rows::{Accepted, TokenRow};

/// A drafter of a recording.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Recorded {
    /// The draft head.
    Eagle,
    /// The n-gram rule.
    Ngram,
    /// The better of both in each step.
    Best,
}

impl Recorded {
    /// All drafters.
    pub const ALL: [Recorded; 3] = [Recorded::Eagle, Recorded::Ngram, Recorded::Best];

    /// The drafter as a source for one row.
    pub(crate) fn source(self, max_rows: usize, row: &TokenRow) -> Box<dyn DraftSource> {
        let rule = Accurate { drafter: self, record: Record::new(row) };
        RuleSource::boxed(self, max_rows.max(1) - 1, rule)
    }
}

impl fmt::Display for Recorded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Recorded::Eagle => "recorded-eagle",
            Recorded::Ngram => "recorded-ngram",
            Recorded::Best => "recorded-best",
        })
    }
}

/// The draft head as one source among others: its accepted tokens, and wrong ones behind them.
pub(crate) fn draft_head(max_rows: usize, row: &TokenRow) -> Box<dyn DraftSource> {
    RuleSource::boxed("eagle", max_rows.max(1) - 1, DraftHead::new(Record::new(row)))
}

#[derive(Clone)]
struct Record {
    accepted: Accepted,
    prompt_len: usize,
    response: Vec<TokenId>,
}

impl Record {
    fn new(row: &TokenRow) -> Self {
        Record {
            accepted: row.accepted.clone(),
            prompt_len: row.prompt.len(),
            response: row.response.clone(),
        }
    }

    /// The rest of the response, and how many of its tokens the drafter predicted; `None` where that is unknown.
    fn after(&self, committed: &[TokenId], drafter: Recorded) -> Option<(&[TokenId], usize)> {
        let n_said = committed.len().checked_sub(self.prompt_len).filter(|&n_said| n_said > 0)?;
        let rest = self.response.get(n_said..)?;
        let of = |list: &[u32]| list.get(n_said).map(|&n| n as usize);
        let n_new = match drafter {
            Recorded::Eagle => of(&self.accepted.eagle),
            Recorded::Ngram => of(&self.accepted.ngram),
            Recorded::Best => of(&self.accepted.eagle).max(of(&self.accepted.ngram)),
        }?;
        // The last one is the bonus token.
        Some((rest, n_new.saturating_sub(1).min(rest.len())))
    }

    fn memory_usage(&self) -> usize {
        let Accepted { eagle, ngram } = &self.accepted;
        4 * (eagle.capacity() + ngram.capacity() + self.response.capacity())
    }
}

/// Drafts accepted tokens only.
#[derive(Clone)]
struct Accurate {
    drafter: Recorded,
    record: Record,
}

impl Rule for Accurate {
    fn read(&mut self, _committed: &[TokenId]) {}

    fn reset(&mut self) {}

    fn plan(&mut self, committed: &[TokenId], plan: &mut Plan) {
        if let Some((rest, n)) = self.record.after(committed, self.drafter) {
            plan.push_path(&rest[..n]);
        }
    }

    fn memory_usage(&self) -> usize {
        self.record.memory_usage()
    }
}

/// Length of the draft head's drafts: the longest recorded ones have 19 accepted tokens.
const DRAFT_LEN: usize = 20;

/// Drafts that the estimate of a depth counts before the first step, and those of them that were right there: EAGLE-3 has about 0.6
/// on each of the four task sets of SpecDecode-Bench.
const PRIOR: (f32, f32) = (10.0, 6.0);

/// The probability of a token is that of the earlier drafts of this row at its depth.
#[derive(Clone)]
struct DraftHead {
    record: Record,
    tried: [f32; DRAFT_LEN],
    right: [f32; DRAFT_LEN],
    /// Accepted tokens of the newest draft.
    planned: Option<usize>,
}

impl DraftHead {
    fn new(record: Record) -> Self {
        DraftHead { record, tried: [PRIOR.0; DRAFT_LEN], right: [PRIOR.1; DRAFT_LEN], planned: None }
    }
}

impl Rule for DraftHead {
    fn read(&mut self, _committed: &[TokenId]) {}

    fn reset(&mut self) {
        self.planned = None;
    }

    fn plan(&mut self, committed: &[TokenId], plan: &mut Plan) {
        self.planned = None;
        let Some((rest, n)) = self.record.after(committed, Recorded::Eagle) else { return };
        self.planned = Some(n);
        let (mut parent, mut reach) = (0, 1.0);
        for depth in 0..DRAFT_LEN {
            let token = match rest.get(depth) {
                Some(&right) if depth < n => right,
                // Another token, which exists in every vocabulary of at least two.
                right => TokenId(u32::from(right == Some(&TokenId(0)))),
            };
            reach *= self.right[depth] / self.tried[depth];
            let Some(node) = plan.push(parent, token, reach) else { break };
            parent = node;
        }
    }

    fn learn(&mut self, _step: &StepOutcome<'_>) {
        let Some(n) = self.planned.take() else { return };
        for depth in 0..DRAFT_LEN.min(n + 1) {
            self.tried[depth] += 1.0;
            self.right[depth] += f32::from(u8::from(depth < n));
        }
    }

    fn memory_usage(&self) -> usize {
        self.record.memory_usage()
    }
}

#[cfg(test)]
mod tests {
    use super::super::source::built;
    use super::*;
    use crate::trace::answer::tests::row;

    /// A response of six tokens. After its first token the head is right about three, the rule about one.
    fn recorded() -> TokenRow {
        let accepted = Accepted { eagle: vec![1, 4, 1, 9], ngram: vec![1, 2, 3] };
        TokenRow { accepted, target: None, ..row(&[1, 2], &[3, 4, 0, 6, 7, 8]) }
    }

    fn ids(tokens: &[u32]) -> Vec<TokenId> {
        tokens.iter().map(|&id| TokenId(id)).collect()
    }

    #[test]
    fn drafts_are_as_long_as_the_lists_say() {
        let lengths = |drafter: Recorded, committed: &[u32]| {
            let tree = built(drafter.source(16, &recorded()), 16, &ids(committed));
            tree.tokens()[1..].to_vec()
        };
        for drafter in Recorded::ALL {
            assert!(lengths(drafter, &[1, 2]).is_empty(), "{drafter} drafts before the first token");
        }
        assert_eq!(lengths(Recorded::Eagle, &[1, 2, 3]), ids(&[4, 0, 6]));
        assert_eq!(lengths(Recorded::Ngram, &[1, 2, 3]), ids(&[4]));
        assert_eq!(lengths(Recorded::Best, &[1, 2, 3, 4]), ids(&[0, 6]));
        assert_eq!(
            lengths(Recorded::Best, &[1, 2, 3, 4, 0]),
            ids(&[6, 7, 8]),
            "a list ends with the response"
        );
        assert!(lengths(Recorded::Best, &[1, 2, 3, 4, 0, 6]).is_empty(), "behind the lists");
    }

    #[test]
    fn the_head_drafts_wrong_tokens_behind_the_right_ones() {
        let tree = built(draft_head(16, &recorded()), 16, &ids(&[1, 2, 3]));
        assert_eq!(tree.tokens()[1..5], ids(&[4, 0, 6, 0]));
        assert_eq!(tree.len(), 16);
        let wrong = built(draft_head(16, &recorded()), 16, &ids(&[1, 2, 3, 4]));
        assert_eq!(wrong.tokens()[1], TokenId(1), "0 would be right");
        assert!(built(draft_head(16, &recorded()), 16, &ids(&[1, 2])).is_empty_draft());
    }
}
