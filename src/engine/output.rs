//! Converts tokens to text: complete UTF-8, stop strings, and the end of the output.
//!
//! A [`Scanner`] processes one token at a time, as in plain decoding. The walk scans with a copy, so an end
//! inside a draft falls on the same token and the same byte. The commit stage replaces the output's scanner
//! by that copy.

use crate::engine::event::FinishReason;
use refrain_tokenizer::{Tokenizer, Utf8Stream};
use refrain_trees::TokenId;

/// The limits of one output.
#[derive(Debug)]
pub(super) struct OutputLimits {
    pub(super) stop: Vec<String>,
    pub(super) stop_tokens: Vec<TokenId>,
    pub(super) end_tokens: Vec<TokenId>,
    pub(super) max_tokens: usize,
    /// Maximum output tokens that fit into the context.
    pub(super) context_tokens: usize,
}

impl OutputLimits {
    fn reached(&self, n_tokens: usize) -> Option<FinishReason> {
        if n_tokens >= self.max_tokens {
            Some(FinishReason::MaxTokens)
        } else if n_tokens >= self.context_tokens {
            Some(FinishReason::ContextFull)
        } else {
            None
        }
    }
}

/// State of an output: bytes of an incomplete character, text that may become a stop string, and the reason
/// of its end.
#[derive(Debug, Clone)]
pub(super) struct Scanner {
    utf8: Utf8Stream,
    /// Complete text that may become a stop string.
    held: String,
    n_tokens: usize,
    finish: Option<FinishReason>,
}

impl Scanner {
    fn new(limits: &OutputLimits) -> Self {
        let finish = limits.reached(0);
        Self { utf8: Utf8Stream::new(), held: String::new(), n_tokens: 0, finish }
    }

    /// Processes one token; returns the text that becomes final with it.
    pub(super) fn push(&mut self, limits: &OutputLimits, tokenizer: &Tokenizer, token: TokenId) -> String {
        self.n_tokens += 1;
        let released = self.take(limits, tokenizer, token);
        if self.finish.is_none() {
            self.finish = limits.reached(self.n_tokens);
        }
        match self.finish {
            // Text held back for a stop string that did not complete belongs to the output.
            Some(FinishReason::Stop) | None => released,
            Some(_) => released + &self.drain(),
        }
    }

    fn take(&mut self, limits: &OutputLimits, tokenizer: &Tokenizer, token: TokenId) -> String {
        if limits.end_tokens.contains(&token) {
            self.finish = Some(FinishReason::EndToken);
            return String::new();
        }
        if limits.stop_tokens.contains(&token) {
            let released = self.drain();
            self.finish = Some(FinishReason::Stop);
            return released;
        }
        if !tokenizer.is_special(token) {
            let bytes = tokenizer.token_bytes(token).unwrap_or_default();
            self.held.push_str(self.utf8.push(bytes));
        }
        if let Some(start) = limits.stop.iter().filter_map(|s| self.held.find(s.as_str())).min() {
            self.held.truncate(start);
            self.finish = Some(FinishReason::Stop);
            return std::mem::take(&mut self.held);
        }
        let keep = limits.stop.iter().map(|s| overlap(&self.held, s)).max().unwrap_or(0);
        let held = self.held.split_off(self.held.len() - keep);
        std::mem::replace(&mut self.held, held)
    }

    /// Returns all held-back text; an incomplete character becomes U+FFFD.
    fn drain(&mut self) -> String {
        let mut text = std::mem::take(&mut self.held);
        text.push_str(self.utf8.finish());
        text
    }

    /// Why the output has ended, if it has.
    pub(super) fn finish(&self) -> Option<FinishReason> {
        self.finish
    }
}

/// The output of one generation: the committed tokens' scanner, and the text of the tokens that the app has
/// taken.
#[derive(Debug)]
pub(super) struct Output {
    pub(super) limits: OutputLimits,
    pub(super) scanner: Scanner,
    text: String,
}

impl Output {
    pub(super) fn new(limits: OutputLimits) -> Self {
        Self { scanner: Scanner::new(&limits), limits, text: String::new() }
    }

    /// Records the text of a token that the app has taken.
    pub(super) fn take(&mut self, text: &str) {
        self.text.push_str(text);
    }

    /// Rewinds to the tokens in `kept`; the text stays.
    pub(super) fn rewind(&mut self, tokenizer: &Tokenizer, kept: &[TokenId]) {
        let mut scanner = Scanner::new(&self.limits);
        kept.iter().for_each(|&token| drop(scanner.push(&self.limits, tokenizer, token)));
        self.scanner = scanner;
    }

    /// Cancels the output; returns the held-back text.
    pub(super) fn cancel(&mut self) -> String {
        self.scanner.finish = Some(FinishReason::Cancelled);
        let released = self.scanner.drain();
        self.text.push_str(&released);
        released
    }

    /// Why the output has ended, if it has.
    pub(super) fn finish(&self) -> Option<FinishReason> {
        self.scanner.finish
    }

    /// The text of the tokens that the app has taken.
    pub(super) fn text(&self) -> &str {
        &self.text
    }

    /// Committed output tokens.
    pub(super) fn n_tokens(&self) -> usize {
        self.scanner.n_tokens
    }

    /// Maximum further tokens.
    pub(super) fn remaining(&self) -> usize {
        self.limits.max_tokens.min(self.limits.context_tokens).saturating_sub(self.n_tokens())
    }
}

/// Length of the longest suffix of `text` that is a prefix of `stop`.
fn overlap(text: &str, stop: &str) -> usize {
    let longest = text.len().min(stop.len().saturating_sub(1));
    (1..=longest)
        .rev()
        .find(|&len| stop.is_char_boundary(len) && text.as_bytes().ends_with(&stop.as_bytes()[..len]))
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::overlap;

    #[test]
    fn overlap_is_the_longest_start_of_the_stop_string() {
        assert_eq!(overlap("abcab", "abd"), 2);
        assert_eq!(overlap("aaa", "aaaa"), 3);
        assert_eq!(overlap("xyz", "abc"), 0);
        assert_eq!(overlap("é", "éa"), 2);
        assert_eq!(overlap("", "a"), 0);
        assert_eq!(overlap("\u{e9}", "\u{e8}"), 0, "half a character is no overlap");
    }
}
