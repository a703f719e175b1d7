//! The source *passages*: retrieved texts, separate from the prompt that contains them.

use std::sync::Arc;

use super::constants::OrderConfig;
use super::evidence::EvidenceClass;
use super::orders;
use super::source::{Anchor, Candidates, Cursor, DraftSource};
use refrain_trees::TokenId;
use refrain_trees::sam::{Match, SuffixAutomaton};

/// Drafts from passages. No draft crosses from one passage into another, and the source has its own
/// reliability record.
///
/// A passage in the prompt is part of [`ContextSource`](super::ContextSource) too. Here it is separate from
/// the instructions and the conversation, and it may be a passage that did not fit into the prompt. The
/// automaton is built once and shared by forks.
#[derive(Clone, Debug)]
pub struct PassagesSource {
    automaton: Arc<SuffixAutomaton>,
    config: OrderConfig,
    matched: Match,
    n_followed: usize,
}

impl PassagesSource {
    /// Maximum tokens of all passages; later tokens are left out. About 60 MB.
    pub const TOKENS_MAX: u32 = 1 << 20;

    /// A source of these passages.
    pub fn new<'a>(passages: impl IntoIterator<Item = &'a [TokenId]>) -> Self {
        Self::with_config(OrderConfig::default(), passages)
    }

    /// A source with other constants.
    pub fn with_config<'a>(config: OrderConfig, passages: impl IntoIterator<Item = &'a [TokenId]>) -> Self {
        let mut automaton = SuffixAutomaton::with_max_tokens(Self::TOKENS_MAX);
        for passage in passages {
            automaton.start_sequence();
            if passage.iter().any(|token| automaton.extend(token.0).is_err()) {
                break;
            }
        }
        // The empty suffix is excluded: only the session's own sources propose its most frequent tokens.
        let config = OrderConfig { match_len_min: config.match_len_min.max(1), ..config };
        PassagesSource { automaton: Arc::new(automaton), config, matched: Match::EMPTY, n_followed: 0 }
    }

    fn follow(&mut self, committed: &[TokenId]) {
        if committed.len() < self.n_followed {
            self.truncate(0); // truncated without a call of `truncate`
        }
        for token in &committed[self.n_followed..] {
            self.matched = self.automaton.follow(self.matched, token.0);
        }
        self.n_followed = committed.len();
    }
}

impl DraftSource for PassagesSource {
    fn name(&self) -> &str {
        "passages"
    }

    fn evidence(&self) -> EvidenceClass {
        EvidenceClass::TextMatch
    }

    fn prime(&mut self, committed: &[TokenId]) {
        self.follow(committed);
    }

    fn truncate(&mut self, _len: usize) {
        (self.matched, self.n_followed) = (Match::EMPTY, 0);
    }

    fn anchors(&mut self, committed: &[TokenId], out: &mut Vec<Anchor>) {
        self.follow(committed);
        if self.matched.len() >= self.config.match_len_min as usize {
            out.push(Anchor {
                cursor: orders::encode(self.matched, 0),
                match_len: self.matched.len() as u32,
            });
        }
    }

    fn expand(&mut self, frontier: &[Cursor], out: &mut Candidates) {
        for (parent, &cursor) in frontier.iter().enumerate() {
            let (m, generation) = orders::decode(cursor);
            orders::propose(&self.automaton, m, &self.config, (parent as u32, generation), out);
        }
    }

    fn memory_usage(&self) -> u64 {
        self.automaton.memory_usage() as u64
    }

    fn fork(&self) -> Box<dyn DraftSource> {
        Box::new(self.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn next_tokens(source: &mut PassagesSource, committed: &[u32]) -> Vec<u32> {
        let committed: Vec<TokenId> = committed.iter().copied().map(TokenId).collect();
        let mut anchors = Vec::new();
        source.anchors(&committed, &mut anchors);
        let frontier: Vec<Cursor> = anchors.iter().map(|anchor| anchor.cursor).collect();
        let mut candidates = Candidates::with_limit(16);
        source.expand(&frontier, &mut candidates);
        candidates.as_slice().iter().map(|candidate| candidate.token.0).collect()
    }

    #[test]
    fn drafts_within_a_passage_and_not_into_the_next() {
        let [first, second] = [[1, 2, 3].map(TokenId), [4, 5, 6].map(TokenId)];
        let mut source = PassagesSource::new([first.as_slice(), second.as_slice()]);
        assert_eq!(next_tokens(&mut source, &[9, 1, 2]), [3]);
        assert!(next_tokens(&mut source, &[9, 1, 2, 3]).is_empty());
        assert_eq!(next_tokens(&mut source, &[9, 1, 2, 3, 5]), [6]);
        assert_eq!(next_tokens(&mut source, &[4]), [5], "a shorter text is read anew");
    }
}
