//! From tokens to text: complete UTF-8, stop strings, and the end of the output.
//!
//! Works token by token, as plain decoding would; the walk asks after each token whether the output has ended, so an end
//! inside a draft falls on the same token and the same byte.

use serde::Serialize;

use crate::token::TokenId;
use crate::tokenizer::{Tokenizer, Utf8Stream};

/// Why a generation ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum FinishReason {
    /// The model gave an end token.
    EndToken,
    /// A stop string or stop token came.
    Stop,
    /// `max_tokens` are there.
    MaxTokens,
    /// The session's context is full.
    ContextFull,
    /// The app cancelled. Where no token had been taken, a conversation has no answer turn, and its last turn is the user's.
    Cancelled,
}

/// The limits of one output.
pub(crate) struct OutputLimits {
    pub(crate) stop: Vec<String>,
    pub(crate) stop_tokens: Vec<TokenId>,
    pub(crate) end_tokens: Vec<TokenId>,
    pub(crate) max_tokens: usize,
    /// Output tokens that the context has room for.
    pub(crate) context_tokens: usize,
}

/// The output of one generation as it grows.
pub(crate) struct Output {
    limits: OutputLimits,
    utf8: Utf8Stream,
    /// Complete text that may become a stop string.
    held: String,
    text: String,
    n_tokens: usize,
    finish: Option<FinishReason>,
}

impl Output {
    pub(crate) fn new(limits: OutputLimits) -> Self {
        let mut output = Self {
            limits,
            utf8: Utf8Stream::new(),
            held: String::new(),
            text: String::new(),
            n_tokens: 0,
            finish: None,
        };
        output.finish = output.out_of_room();
        output
    }

    /// Forgets all tokens; the limits stay.
    pub(crate) fn restart(&mut self) {
        self.utf8 = Utf8Stream::new();
        self.held.clear();
        self.text.clear();
        self.n_tokens = 0;
        self.finish = self.out_of_room();
    }

    /// Takes one token; returns the text that it releases.
    pub(crate) fn push(&mut self, tokenizer: &Tokenizer, token: TokenId) -> String {
        self.n_tokens += 1;
        let released = self.take(tokenizer, token);
        if self.finish.is_none() {
            self.finish = self.out_of_room();
        }
        let released = match self.finish {
            // Text held back for a stop string that did not come belongs to the output.
            Some(FinishReason::Stop) | None => released,
            Some(_) => released + &self.drain(),
        };
        self.text.push_str(&released);
        released
    }

    fn take(&mut self, tokenizer: &Tokenizer, token: TokenId) -> String {
        if self.limits.end_tokens.contains(&token) {
            self.finish = Some(FinishReason::EndToken);
            return String::new();
        }
        if self.limits.stop_tokens.contains(&token) {
            let released = self.drain();
            self.finish = Some(FinishReason::Stop);
            return released;
        }
        if !tokenizer.is_special(token) {
            let bytes = tokenizer.token_bytes(token).unwrap_or_default();
            self.held.push_str(self.utf8.push(bytes));
        }
        if let Some(start) = self.limits.stop.iter().filter_map(|s| self.held.find(s.as_str())).min() {
            self.held.truncate(start);
            self.finish = Some(FinishReason::Stop);
            return std::mem::take(&mut self.held);
        }
        let keep = self.limits.stop.iter().map(|s| overlap(&self.held, s)).max().unwrap_or(0);
        let held = self.held.split_off(self.held.len() - keep);
        std::mem::replace(&mut self.held, held)
    }

    /// Everything held back, an incomplete character as U+FFFD.
    fn drain(&mut self) -> String {
        let mut text = std::mem::take(&mut self.held);
        text.push_str(self.utf8.finish());
        text
    }

    fn out_of_room(&self) -> Option<FinishReason> {
        if self.n_tokens >= self.limits.max_tokens {
            Some(FinishReason::MaxTokens)
        } else if self.n_tokens >= self.limits.context_tokens {
            Some(FinishReason::ContextFull)
        } else {
            None
        }
    }

    /// Ends the output from outside; returns the text that was held back.
    pub(crate) fn cancel(&mut self) -> String {
        self.finish = Some(FinishReason::Cancelled);
        let released = self.drain();
        self.text.push_str(&released);
        released
    }

    pub(crate) fn finish(&self) -> Option<FinishReason> {
        self.finish
    }

    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    pub(crate) fn n_tokens(&self) -> usize {
        self.n_tokens
    }

    /// Tokens that may still come.
    pub(crate) fn remaining(&self) -> usize {
        self.limits.max_tokens.min(self.limits.context_tokens).saturating_sub(self.n_tokens)
    }
}

/// The length of the longest end of `text` that a `stop` string starts with.
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
