//! The source *context*: prompt and output of the session.

use super::constants::OrderConfig;
use super::evidence::EvidenceClass;
use super::orders;
use super::source::{Anchor, Candidates, Cursor, DraftSource};
use refrain_trees::TokenId;
use refrain_trees::sam::SuffixAutomaton;

/// Drafts from the session's own text, prompt and output, with a suffix automaton over it.
///
/// The match is read from the automaton itself (the link of its last state), so a step costs one `extend` per
/// new token and one expansion per tree node. At its token bound the source drops the older half: it rebuilds
/// the automaton from the newest half, which takes about 0.2 µs per kept token.
#[derive(Clone, Debug)]
pub struct ContextSource {
    automaton: SuffixAutomaton,
    config: OrderConfig,
    /// Number of committed tokens that were read, including dropped ones.
    n_read: usize,
}

impl ContextSource {
    /// Default maximum tokens of a source: about 60 MB.
    pub const MAX_TOKENS: u32 = 1 << 20;

    /// A source without text, bounded by [`MAX_TOKENS`](Self::MAX_TOKENS).
    pub fn new() -> Self {
        Self::with_config(OrderConfig::default(), Self::MAX_TOKENS)
    }

    /// A source that holds at most `max_tokens` tokens (at least 2).
    pub fn with_config(config: OrderConfig, max_tokens: u32) -> Self {
        ContextSource { automaton: SuffixAutomaton::with_max_tokens(max_tokens.max(2)), config, n_read: 0 }
    }

    /// Reads the tokens committed since the last call.
    fn read(&mut self, committed: &[TokenId]) {
        if committed.len() < self.n_read {
            self.truncate(0); // truncated without a call of `truncate`: read everything again
        }
        let keep = self.automaton.max_tokens() as usize / 2;
        if committed.len() - self.n_read > keep {
            self.truncate(0);
            self.n_read = committed.len() - keep;
        }
        for (position, token) in committed.iter().enumerate().skip(self.n_read) {
            if self.automaton.extend(token.0).is_err() {
                self.automaton.clear();
                for token in &committed[position + 1 - keep..=position] {
                    self.automaton.extend(token.0).expect("half of the bound fits");
                }
            }
        }
        self.n_read = committed.len();
    }
}

impl Default for ContextSource {
    fn default() -> Self {
        Self::new()
    }
}

impl DraftSource for ContextSource {
    fn name(&self) -> &str {
        "context"
    }

    fn evidence(&self) -> EvidenceClass {
        EvidenceClass::TextMatch
    }

    fn prime(&mut self, committed: &[TokenId]) {
        self.read(committed);
    }

    fn truncate(&mut self, _len: usize) {
        self.automaton.clear();
        self.n_read = 0;
    }

    fn release(&mut self) {
        self.automaton = SuffixAutomaton::with_max_tokens(self.automaton.max_tokens());
        self.n_read = 0;
    }

    fn anchors(&mut self, _committed: &[TokenId], out: &mut Vec<Anchor>) {
        let m = self.automaton.suffix_match();
        if m.len() >= self.config.match_len_min as usize {
            out.push(Anchor { cursor: orders::encode(m, 0), match_len: m.len() as u32 });
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
