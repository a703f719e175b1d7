//! What the sources of a replay hold: the session's own text, earlier responses, and passages.

use std::sync::Arc;

use refrain::TokenId;
use refrain_trees::sam::{Match, SuffixAutomaton};

use super::corpus::Corpus;

/// The text so far, and the texts from before.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    own: Corpus,
    before: Arc<Corpus>,
}

impl Seen {
    /// `before` are earlier responses and passages.
    pub(crate) fn new(before: &[&[TokenId]]) -> Self {
        Seen { own: Corpus::new(&[]), before: Arc::new(Corpus::new(before)) }
    }

    /// Reads the new tokens of the committed text.
    pub(crate) fn read(&mut self, committed: &[TokenId]) {
        self.own.extend(&committed[self.own.len().min(committed.len())..]);
    }

    pub(crate) fn clear(&mut self) {
        self.own.clear();
    }

    /// Whether a token occurs anywhere.
    pub(crate) fn holds(&self, token: TokenId) -> bool {
        self.run(None, &[token]) == 1
    }

    /// Whether `next` occurs right after `token` anywhere.
    pub(crate) fn holds_pair(&self, token: TokenId, next: TokenId) -> bool {
        self.run(Some(token), &[next]) == 1
    }

    /// Length of the longest start of `text` that occurs anywhere, right after `anchor` if there is one.
    pub(crate) fn run(&self, anchor: Option<TokenId>, text: &[TokenId]) -> usize {
        let in_automaton = |automaton: &SuffixAutomaton| {
            let mut at = match anchor {
                Some(anchor) => automaton.advance(Match::EMPTY, anchor.0),
                None => Some(Match::EMPTY),
            };
            let goes_on = |token: &&TokenId| {
                at = at.and_then(|m| automaton.advance(m, token.0));
                at.is_some()
            };
            text.iter().take_while(goes_on).count()
        };
        in_automaton(self.own.automaton()).max(in_automaton(self.before.automaton()))
    }

    pub(crate) fn memory_usage(&self) -> usize {
        self.own.memory_usage() + self.before.memory_usage()
    }
}
