//! Text with an automaton, shared by several rules.

use refrain::TokenId;
use refrain_trees::sam::{Match, SuffixAutomaton};

/// Maximum tokens of a corpus: about 70 MB.
const TOKENS_MAX: u32 = 1 << 20;

/// One or more texts and the automaton of their substrings; no match spans two texts.
#[derive(Clone, Debug)]
pub(crate) struct Corpus {
    automaton: SuffixAutomaton,
    tokens: Vec<TokenId>,
    /// The end of each text in `tokens`.
    ends: Vec<usize>,
}

impl Corpus {
    pub(crate) fn new(texts: &[&[TokenId]]) -> Self {
        let automaton = SuffixAutomaton::with_max_tokens(TOKENS_MAX);
        let mut corpus = Corpus { automaton, tokens: Vec::new(), ends: Vec::new() };
        for text in texts {
            corpus.automaton.start_sequence();
            corpus.ends.push(corpus.tokens.len());
            corpus.extend(text);
        }
        corpus
    }

    /// Appends to the newest text. At the limit, further tokens are ignored.
    pub(crate) fn extend(&mut self, text: &[TokenId]) {
        for &token in text {
            if self.automaton.extend(token.0).is_err() {
                break;
            }
            self.tokens.push(token);
        }
        match self.ends.last_mut() {
            Some(end) => *end = self.tokens.len(),
            None => self.ends.push(self.tokens.len()),
        }
    }

    /// Clears the corpus to one empty text.
    pub(crate) fn clear(&mut self) {
        self.automaton.clear();
        self.tokens.clear();
        self.ends.clear();
    }

    /// Tokens of all texts.
    pub(crate) fn len(&self) -> usize {
        self.tokens.len()
    }

    pub(crate) fn automaton(&self) -> &SuffixAutomaton {
        &self.automaton
    }

    /// The tokens after the first occurrence of `m`, up to the end of its text, at most `n_max`.
    pub(crate) fn after_first(&self, m: Match, n_max: usize) -> &[TokenId] {
        if m.is_empty() {
            return &[];
        }
        let start = self.automaton.first_end(self.automaton.renew(m)) as usize + 1;
        // The last token of the occurrence determines its text: a text that ends at `start` is complete.
        let text = self.ends.partition_point(|&end| end < start);
        let end = self.ends.get(text).copied().unwrap_or(start);
        &self.tokens[start..end.min(start + n_max)]
    }

    pub(crate) fn memory_usage(&self) -> usize {
        self.automaton.memory_usage()
            + self.tokens.capacity() * size_of::<TokenId>()
            + self.ends.capacity() * size_of::<usize>()
    }
}

/// The session's own text, and a match of it in earlier texts.
#[derive(Clone, Debug)]
pub(crate) struct Texts {
    pub(crate) own: Corpus,
    pub(crate) earlier: Earlier,
}

impl Texts {
    pub(crate) fn new(earlier: &[&[TokenId]]) -> Self {
        Texts { own: Corpus::new(&[]), earlier: Earlier::new(earlier) }
    }

    /// Reads the new tokens of the committed text.
    pub(crate) fn read(&mut self, committed: &[TokenId]) {
        self.own.extend(&committed[self.own.len().min(committed.len())..]);
        self.earlier.follow(committed);
    }

    /// Clears the own text.
    pub(crate) fn reset(&mut self) {
        self.own.clear();
        self.earlier.reset();
    }

    pub(crate) fn memory_usage(&self) -> usize {
        self.own.memory_usage() + self.earlier.corpus().memory_usage()
    }
}

/// The running match of the session's text in earlier texts.
#[derive(Clone, Debug)]
pub(crate) struct Earlier {
    corpus: std::sync::Arc<Corpus>,
    matched: Match,
    n_followed: usize,
}

impl Earlier {
    pub(crate) fn new(texts: &[&[TokenId]]) -> Self {
        Earlier { corpus: std::sync::Arc::new(Corpus::new(texts)), matched: Match::EMPTY, n_followed: 0 }
    }

    pub(crate) fn follow(&mut self, committed: &[TokenId]) {
        for token in &committed[self.n_followed..] {
            self.matched = self.corpus.automaton.follow(self.matched, token.0);
        }
        self.n_followed = committed.len();
    }

    pub(crate) fn reset(&mut self) {
        (self.matched, self.n_followed) = (Match::EMPTY, 0);
    }

    pub(crate) fn matched(&self) -> Match {
        self.matched
    }

    pub(crate) fn corpus(&self) -> &Corpus {
        &self.corpus
    }
}
