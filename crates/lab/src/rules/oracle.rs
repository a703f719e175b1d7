//! Upper bounds: drafts by a rule that knows the response, from what the sources hold.
//!
//! | oracle | draft: the response, as long as |
//! | --- | --- |
//! | [`Anchored`](Oracle::Anchored) `oracle-anchored` | it follows one occurrence of the last committed token |
//! | [`Jump`](Oracle::Jump) `oracle-jump` | it follows one place of the sources, which may be anywhere |
//! | [`Pairs`](Oracle::Pairs) `oracle-pairs` | each of its tokens occurs after the token before it |
//! | [`Tokens`](Oracle::Tokens) `oracle-tokens` | each of its tokens occurs |
//!
//! `oracle-jump` and `oracle-pairs` bound `oracle-anchored`, and `oracle-tokens` bounds all. A draft is a path within the rows of a batch.

use std::fmt;

use refrain::TokenId;
use refrain::drafting::DraftSource;

use super::seen::Seen;
use super::source::{Plan, Rule, RuleSource};

/// An upper bound for drafts from text.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Oracle {
    /// A pointer at the best occurrence of the last token, without jumps.
    Anchored,
    /// A pointer that may jump once per step, to the best place.
    Jump,
    /// The closure of all pairs that were seen.
    Pairs,
    /// Any token of the sources.
    Tokens,
}

impl Oracle {
    /// All oracles. The first one is bounded by all, the last one bounds all.
    pub const ALL: [Oracle; 4] = [Oracle::Anchored, Oracle::Jump, Oracle::Pairs, Oracle::Tokens];

    /// The oracle as a source for one row. `before` are the texts of the sources besides prompt and output.
    pub(crate) fn source(
        self,
        max_rows: usize,
        before: &[&[TokenId]],
        prompt_len: usize,
        response: &[TokenId],
    ) -> Box<dyn DraftSource> {
        let rule = Known { oracle: self, seen: Seen::new(before), prompt_len, response: response.to_vec() };
        RuleSource::boxed(self, max_rows.max(1) - 1, rule)
    }
}

impl fmt::Display for Oracle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Oracle::Anchored => "oracle-anchored",
            Oracle::Jump => "oracle-jump",
            Oracle::Pairs => "oracle-pairs",
            Oracle::Tokens => "oracle-tokens",
        })
    }
}

#[derive(Clone)]
struct Known {
    oracle: Oracle,
    seen: Seen,
    prompt_len: usize,
    response: Vec<TokenId>,
}

impl Rule for Known {
    fn read(&mut self, committed: &[TokenId]) {
        self.seen.read(committed);
    }

    fn reset(&mut self) {
        self.seen.clear();
    }

    fn plan(&mut self, committed: &[TokenId], plan: &mut Plan) {
        let Known { oracle, seen, prompt_len, response } = self;
        let Some(&root) = committed.last() else { return };
        let rest = response.get(committed.len().saturating_sub(*prompt_len)..).unwrap_or_default();
        let n = match oracle {
            Oracle::Anchored => seen.run(Some(root), rest),
            Oracle::Jump => seen.run(None, rest),
            Oracle::Pairs => {
                let pairs = std::iter::once(&root).chain(rest).zip(rest);
                pairs.take_while(|&(&token, &next)| seen.holds_pair(token, next)).count()
            }
            Oracle::Tokens => rest.iter().take_while(|&&token| seen.holds(token)).count(),
        };
        plan.push_path(&rest[..n]);
    }

    fn memory_usage(&self) -> usize {
        self.seen.memory_usage() + self.response.capacity() * size_of::<TokenId>()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use refrain::drafting::{Candidates, Cursor};

    use super::*;

    fn n_drafted(oracle: Oracle, before: &[&[TokenId]], prompt: &[TokenId], response: &[TokenId]) -> usize {
        let mut source = oracle.source(64, before, prompt.len(), response);
        source.prime(prompt);
        source.anchors(prompt, &mut Vec::new());
        let mut candidates = Candidates::with_limit(64);
        source.expand(&(0..64).map(Cursor).collect::<Vec<_>>(), &mut candidates);
        candidates.as_slice().len()
    }

    /// The definitions, by scanning every text.
    fn scanned(oracle: Oracle, texts: &[&[TokenId]], root: TokenId, rest: &[TokenId]) -> usize {
        let holds = |part: &[TokenId]| texts.iter().any(|text| text.windows(part.len()).any(|w| w == part));
        let anchored = [&[root], rest].concat();
        let n_max = rest.len().min(63);
        (0..=n_max)
            .rev()
            .find(|&n| match oracle {
                Oracle::Anchored => n == 0 || holds(&anchored[..=n]),
                Oracle::Jump => n == 0 || holds(&rest[..n]),
                Oracle::Pairs => anchored[..=n].windows(2).all(holds),
                Oracle::Tokens => rest[..n].chunks(1).all(holds),
            })
            .unwrap_or(0)
    }

    fn text(at_least: usize) -> impl Strategy<Value = Vec<TokenId>> {
        prop::collection::vec((0u32..6).prop_map(TokenId), at_least..60)
    }

    proptest! {
        #[test]
        fn oracles_are_their_definitions((prompt, response, before) in (text(1), text(0), text(0))) {
            let mut lengths = [0; 4];
            for (oracle, length) in Oracle::ALL.into_iter().zip(&mut lengths) {
                let n = n_drafted(oracle, &[&before], &prompt, &response);
                prop_assert_eq!(n, scanned(oracle, &[&prompt, &before], prompt[prompt.len() - 1], &response), "{}", oracle);
                *length = n;
            }
            let [anchored, jump, pairs, tokens] = lengths;
            prop_assert!(anchored <= jump.min(pairs) && jump.max(pairs) <= tokens, "{:?}", lengths);
        }
    }
}
