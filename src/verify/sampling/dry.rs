//! DRY: a penalty on continuing a sequence that already occurs in the text.
//!
//! The definition is that of text-generation-webui, which llama.cpp follows ("don't repeat yourself", p-e-w 2024).
//! For each token `v` of the window, let `L(v)` be the length of the longest suffix of the text that also occurs
//! directly before an occurrence of `v` in the window. If `L(v) ≥ allowed_length`, the logit of `v` is reduced by
//! `multiplier · base^(L(v) − allowed_length)`. A match never extends over a sequence breaker.
//!
//! There are three deviations:
//!
//! - `output_only` excludes the prompt from the window, and what the prompt repeats itself from the penalty: `L(v)` is
//!   then reduced by `P(v)`, the length of the longest suffix of the text that occurs directly before an occurrence of
//!   `v` in the prompt. Copying a table or a list whose lines resemble each other is no loop, although the copy
//!   repeats long sequences; the prompt does so too. A loop over a sentence of the prompt is one, because the prompt does not
//!   go on with the sentence's start.
//! - Control tokens always break a sequence and are never penalised. Otherwise each turn of a conversation would make
//!   the end token of the next turn less likely.
//! - The penalty is at most [`PENALTY_MAX`], so that long matches stay finite.
//!
//! The lengths of all matches come from one pass of the Z algorithm (Gusfield 1997, section 1.4) over the reversed
//! window: O(window) per visited node for any text. The result is a function of the text and the logits, so drafting
//! does not change it.

use crate::face::internals;
use serde::{Deserialize, Serialize};

use super::error::SamplingError;
use refrain_tokenizer::{SpecialTokens, Tokenizer};
use refrain_trees::TokenId;

/// Maximum number of breaker strings. Published lists have 4 to 20.
const BREAKERS_MAX: usize = 64;

/// Maximum length of a breaker string, in bytes.
const BREAKER_BYTES_MAX: usize = 256;

/// The largest penalty: far above any logit, and far below the largest f32.
const PENALTY_MAX: f64 = 1e30;

/// The options of DRY. The defaults are those of llama.cpp and text-generation-webui: `multiplier` 0 switches DRY
/// off. A usual value is 0.8.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[cfg_attr(not(feature = "internals"), non_exhaustive)]
pub struct DryOptions {
    /// The penalty of a match of `allowed_length` tokens, 0..=100; 0 (the default) switches DRY off.
    pub multiplier: f32,
    /// The factor for each further token of the match, 1..=10; 1.75 by default.
    pub base: f32,
    /// The length of the shortest penalised match, in tokens, 1 or more; 2 by default.
    pub allowed_length: usize,
    /// The number of newest tokens, prompt included, that are searched for repetitions. The default 4096 is the
    /// engine's default context.
    pub window: usize,
    /// Whether only tokens of the output are searched, less what the prompt repeats in the same way, so that copying from
    /// the prompt is not penalised, lists of similar lines included; false by default.
    pub output_only: bool,
    /// Sequence breakers: no match extends over a token that contains one of these texts. If no token contains a
    /// text, the last token of its encoding is the breaker. The defaults are a line end, `:`, `"` and `*`. At most 64
    /// texts of 1 to 256 bytes each.
    pub breakers: Vec<String>,
}

impl Default for DryOptions {
    fn default() -> Self {
        Self {
            multiplier: 0.0,
            base: 1.75,
            allowed_length: 2,
            window: 4096,
            output_only: false,
            breakers: ["\n", ":", "\"", "*"].map(str::to_owned).into(),
        }
    }
}

impl DryOptions {
    /// Options that end loops in an answer and leave copies of the prompt alone: `multiplier` 0.8, `output_only`, matches of
    /// 4 or more tokens, no breakers. Common phrases are shorter than a match.
    pub fn against_loops() -> Self {
        Self {
            multiplier: 0.8,
            allowed_length: 4,
            output_only: true,
            breakers: Vec::new(),
            ..Self::default()
        }
    }

    internals! {
        /// Whether DRY is on.
        fn is_on(&self) -> bool {
            self.multiplier != 0.0
        }
    }

    pub(super) fn check(&self) -> Result<(), SamplingError> {
        let lengths = self.breakers.iter().map(String::len);
        let bad_length = lengths.clone().find(|len| !(1..=BREAKER_BYTES_MAX).contains(len));
        let checks = [
            (
                "dry.multiplier",
                f64::from(self.multiplier),
                "0..=100",
                (0.0..=100.0).contains(&self.multiplier),
            ),
            ("dry.base", f64::from(self.base), "1..=10", (1.0..=10.0).contains(&self.base)),
            ("dry.allowed_length", self.allowed_length as f64, "1 or more", self.allowed_length > 0),
            ("dry.breakers", self.breakers.len() as f64, "0..=64 texts", self.breakers.len() <= BREAKERS_MAX),
            (
                "dry.breakers",
                bad_length.unwrap_or_default() as f64,
                "1..=256 bytes a text",
                bad_length.is_none(),
            ),
        ];
        match checks.into_iter().find(|&(_, _, _, is_ok)| !is_ok) {
            Some((option, given, range, _)) => Err(SamplingError::OutOfRange { option, given, range }),
            None => Ok(()),
        }
    }
}

/// The treatment of each token, by token id: the bits `BREAKS` and `EXEMPT`.
#[derive(Debug, Default)]
pub struct Breakers(Vec<u8>);

/// No match extends over the token.
const BREAKS: u8 = 1;

/// The token is not penalised.
const EXEMPT: u8 = 2;

impl Breakers {
    /// The breakers of a vocabulary: one byte per token, computed in one pass over the tokens' texts. Empty if DRY is
    /// off.
    pub fn of(tokenizer: &Tokenizer, options: &DryOptions) -> Self {
        if !options.is_on() {
            return Self::default();
        }
        let mut flags = vec![0u8; tokenizer.vocab_size()];
        let mut is_found = vec![false; options.breakers.len()];
        for (id, flag) in (0u32..).zip(&mut flags) {
            let token = TokenId(id);
            if tokenizer.is_special(token) {
                *flag = BREAKS | EXEMPT;
                continue;
            }
            let text = tokenizer.token_bytes(token).unwrap_or_default();
            for (breaker, is_found) in options.breakers.iter().zip(&mut is_found) {
                if contains(text, breaker.as_bytes()) {
                    *flag = BREAKS;
                    *is_found = true;
                }
            }
        }
        for (breaker, _) in options.breakers.iter().zip(is_found).filter(|(_, is_found)| !is_found) {
            let encoded = tokenizer.encode(breaker, SpecialTokens::AsText).unwrap_or_default();
            if let Some(flag) = encoded.last().and_then(|last| flags.get_mut(last.index())) {
                *flag |= BREAKS;
            }
        }
        Self(flags)
    }

    fn breaks(&self, token: TokenId) -> bool {
        self.has(token, BREAKS)
    }

    fn is_exempt(&self, token: TokenId) -> bool {
        self.has(token, EXEMPT)
    }

    fn has(&self, token: TokenId, bit: u8) -> bool {
        self.0.get(token.index()).is_some_and(|flags| flags & bit != 0)
    }
}

fn contains(text: &[u8], part: &[u8]) -> bool {
    match part {
        [] => false,
        [byte] => text.contains(byte),
        _ => text.windows(part.len()).any(|window| window == part),
    }
}

/// Applies DRY. Its scratch memory is 8 bytes per token of the window (of the text, with `output_only`) and 4 per token of the
/// vocabulary.
#[derive(Default)]
pub(super) struct Dry {
    breakers: Breakers,
    prompt_len: usize,
    /// The match lengths of [`suffix_matches`].
    matches: Vec<u32>,
    /// For each token, the longest match before one of its occurrences; 0 except during a call.
    longest: Vec<u32>,
    /// The tokens with a match.
    matched: Vec<u32>,
}

impl Dry {
    pub(super) fn new(breakers: Breakers, prompt_len: usize) -> Self {
        Self { breakers, prompt_len, ..Self::default() }
    }

    /// Lowers the logits `[vocab_size]` of tokens that would continue a repeated sequence of `tokens`.
    pub(super) fn apply(&mut self, options: &DryOptions, tokens: &[TokenId], logits: &mut [f32]) {
        if !options.is_on() {
            return;
        }
        let first = if options.output_only { self.prompt_len.min(tokens.len()) } else { 0 };
        let window = &tokens[first.max(tokens.len().saturating_sub(options.window))..];
        // A match equals a suffix of the text, so the text's last breaker limits its length.
        let len_max = window.iter().rev().take_while(|&&token| !self.breakers.breaks(token)).count();
        if len_max < options.allowed_length {
            return;
        }
        suffix_matches(window, &mut self.matches);
        self.longest.resize(logits.len(), 0);
        for distance in 1..window.len() {
            // The token that follows the match; the match ends `distance` tokens before the end of the text.
            let next = window[window.len() - distance];
            let len = self.matches[distance].min(len_max as u32);
            // A text from outside may contain tokens beyond the vocabulary.
            let Some(longest) = self.longest.get_mut(next.index()) else { continue };
            if len as usize >= options.allowed_length && !self.breakers.is_exempt(next) {
                if *longest == 0 {
                    self.matched.push(next.0);
                }
                *longest = len.max(*longest);
            }
        }
        // Most visited nodes have no match, and then the prompt is not searched.
        if options.output_only && !self.matched.is_empty() {
            self.spare_copies(tokens, len_max as u32);
        }
        for token in self.matched.drain(..) {
            let token = token as usize;
            let len = std::mem::take(&mut self.longest[token]) as usize;
            if len >= options.allowed_length {
                logits[token] -= penalty(options, len) as f32;
            }
        }
    }

    /// Reduces the match of each matched token by its longest match in the prompt.
    fn spare_copies(&mut self, tokens: &[TokenId], len_max: u32) {
        let n = tokens.len();
        suffix_matches(tokens, &mut self.matches);
        let mut in_prompt: Vec<(u32, u32)> = self.matched.iter().map(|&token| (token, 0)).collect();
        in_prompt.sort_unstable();
        for distance in n - self.prompt_len.min(n) + 1..=n {
            let next = tokens[n - distance].0;
            if let Ok(place) = in_prompt.binary_search_by_key(&next, |&(token, _)| token) {
                // Nothing stands before the first token.
                let len = self.matches.get(distance).map_or(0, |&len| len.min(len_max));
                in_prompt[place].1 = in_prompt[place].1.max(len);
            }
        }
        for (token, len) in in_prompt {
            let longest = &mut self.longest[token as usize];
            *longest = longest.saturating_sub(len);
        }
    }
}

/// `multiplier · base^(len − allowed_length)`, at most [`PENALTY_MAX`]. `libm` gives the same bits on every platform.
fn penalty(options: &DryOptions, len: usize) -> f64 {
    let excess = (len - options.allowed_length) as f64;
    (f64::from(options.multiplier) * libm::pow(f64::from(options.base), excess)).min(PENALTY_MAX)
}

/// At `i`: the length of the longest common suffix of the window and of the window without its newest `i` tokens.
/// This is the Z function of the reversed window, with 0 at 0.
fn suffix_matches(window: &[TokenId], lens: &mut Vec<u32>) {
    let n = window.len();
    let from_end = |i: usize| window[n - 1 - i];
    lens.clear();
    lens.resize(n, 0);
    // `start..end` is the match with the largest end so far.
    let (mut start, mut end) = (0, 0);
    for i in 1..n {
        let mut len = if i < end { (lens[i - start] as usize).min(end - i) } else { 0 };
        while i + len < n && from_end(len) == from_end(i + len) {
            len += 1;
        }
        lens[i] = len as u32;
        if i + len > end {
            (start, end) = (i, i + len);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The reference: computes `L(v)` by comparing at every occurrence of `v`.
    fn naive(options: &DryOptions, breaks: &[bool], tokens: &[TokenId], logits: &mut [f32]) {
        let window = &tokens[tokens.len().saturating_sub(options.window)..];
        let n = window.len();
        for (v, logit) in logits.iter_mut().enumerate() {
            let mut longest = 0;
            for i in (0..n).filter(|&i| window[i].index() == v) {
                let pairs = window[..i].iter().rev().zip(window.iter().rev());
                let same = pairs.take_while(|(a, b)| a == b && !breaks[a.index()]);
                longest = longest.max(same.count());
            }
            if longest >= options.allowed_length {
                let excess = (longest - options.allowed_length) as f64;
                let penalty = f64::from(options.multiplier) * f64::from(options.base).powf(excess);
                *logit -= penalty.min(1e30) as f32;
            }
        }
    }

    fn apply(options: &DryOptions, flags: &[u8], tokens: &[u32], n_logits: usize) -> Vec<f32> {
        let tokens: Vec<TokenId> = tokens.iter().map(|&token| TokenId(token)).collect();
        let mut logits = vec![0.0; n_logits];
        Dry::new(Breakers(flags.to_vec()), 4).apply(options, &tokens, &mut logits);
        logits
    }

    fn on(allowed_length: usize) -> DryOptions {
        DryOptions { multiplier: 0.8, allowed_length, ..DryOptions::default() }
    }

    #[test]
    fn the_token_that_continues_a_repetition_is_penalised() {
        // 4 followed 1 2 3. A match of three tokens is one longer than allowed.
        assert_eq!(apply(&on(2), &[], &[1, 2, 3, 4, 1, 2, 3], 6), [0.0, 0.0, 0.0, 0.0, -0.8 * 1.75, 0.0]);
        assert_eq!(apply(&on(4), &[], &[1, 2, 3, 4, 1, 2, 3], 6), [0.0; 6], "a match shorter than allowed");
        // The longest of several matches counts.
        assert_eq!(
            apply(&on(1), &[], &[5, 3, 4, 2, 3, 4, 2, 3], 6)[4],
            (-0.8f64 * 1.75 * 1.75 * 1.75) as f32
        );
        assert_eq!(apply(&DryOptions::default(), &[], &[1, 1, 1, 1], 2), [0.0; 2], "off");
        let output_only = DryOptions { output_only: true, ..on(2) };
        assert_eq!(apply(&output_only, &[], &[1, 2, 3, 4, 1, 2, 3], 6), [0.0; 6], "the prompt has 4 tokens");
        assert_eq!(apply(&output_only, &[], &[1, 2, 3, 4, 2, 3, 1, 2, 3], 6)[1], -0.8);
        let short = DryOptions { window: 5, ..on(2) };
        assert_eq!(
            apply(&short, &[], &[1, 2, 3, 4, 1, 2, 3], 6),
            [0.0; 6],
            "the repetition has left the window"
        );
    }

    fn spared(prompt: &[u32], output: &[u32], next: u32) -> f32 {
        let tokens: Vec<TokenId> = [prompt, output].concat().into_iter().map(TokenId).collect();
        let mut logits = vec![0.0; 20];
        Dry::new(Breakers::default(), prompt.len()).apply(&DryOptions::against_loops(), &tokens, &mut logits);
        logits[next as usize]
    }

    #[test]
    fn a_copy_of_similar_lines_is_no_loop() {
        // Two lines that differ in their first token.
        let lines = [1, 10, 11, 12, 13, 14, 2, 10, 11, 12, 13, 14];
        assert!(spared(&[9], &lines[..11], 14) < 0.0, "the prompt has no such lines");
        assert_eq!(spared(&lines, &lines[..11], 14), 0.0);
        // In an edit, another word stands in each line.
        let edited = [1, 15, 11, 12, 13, 14, 2, 15, 11, 12, 13];
        assert_eq!(spared(&lines, &edited, 14), 0.0);
    }

    #[test]
    fn a_loop_over_a_sentence_of_the_prompt_is_broken() {
        let prompt = [1, 2, 3, 4, 5, 6, 7, 8];
        let sentence = [3, 4, 5, 6, 7];
        assert_eq!(spared(&prompt, &sentence.repeat(2), 8), 0.0);
        assert!(spared(&prompt, &sentence.repeat(2), 3) < 0.0, "the third time begins");
        let third = [&sentence.repeat(2)[..], &[3, 4]].concat();
        assert!(spared(&prompt, &third, 5) < 0.0, "and does not go on");
    }

    #[test]
    fn breakers_end_matches_and_control_tokens_are_exempt() {
        let mut flags = [0u8; 6];
        flags[2] = BREAKS;
        assert_eq!(apply(&on(2), &flags, &[1, 2, 3, 4, 1, 2, 3], 6), [0.0; 6]);
        assert_eq!(
            apply(&on(1), &flags, &[1, 2, 3, 4, 1, 2, 3], 6)[4],
            -0.8,
            "what follows the breaker counts"
        );
        let mut flags = [0u8; 6];
        flags[4] = BREAKS | EXEMPT;
        assert_eq!(apply(&on(2), &flags, &[1, 2, 3, 4, 1, 2, 3], 6), [0.0; 6]);
    }

    #[test]
    fn long_matches_and_tokens_past_the_vocabulary_stay_finite() {
        let logits = apply(&on(2), &[], &[7; 4000], 8);
        assert_eq!(logits[7], -1e30);
        assert_eq!(apply(&on(2), &[], &[9; 40], 8), [0.0; 8]);
        assert_eq!(apply(&on(2), &[], &[], 8), [0.0; 8]);
    }

    /// `P(v)` of the definition, for `output_only`.
    fn naive_output_only(options: &DryOptions, prompt_len: usize, tokens: &[TokenId], logits: &mut [f32]) {
        let output = &tokens[prompt_len.max(tokens.len().saturating_sub(options.window))..];
        let longest = |text: &[TokenId], places: std::ops::Range<usize>, suffix: &[TokenId], v: usize| {
            let before = |i: usize| {
                text[..i].iter().rev().zip(suffix.iter().rev()).take_while(|(a, b)| a == b).count()
            };
            places.filter(|&i| text[i].index() == v).map(before).max().unwrap_or(0)
        };
        for (v, logit) in logits.iter_mut().enumerate() {
            let in_output = longest(output, 0..output.len(), output, v);
            let in_prompt = longest(tokens, 0..prompt_len, tokens, v).min(output.len());
            let len = in_output.saturating_sub(in_prompt);
            if in_output >= options.allowed_length && len >= options.allowed_length {
                *logit -= penalty(options, len) as f32;
            }
        }
    }

    proptest! {
        #[test]
        fn the_penalty_of_an_output_is_that_of_the_definition(
            tokens in proptest::collection::vec(0u32..3, 0..60),
            prompt_len in 0usize..40,
            allowed_length in 1usize..4,
            window in 0usize..80,
        ) {
            let prompt_len = prompt_len.min(tokens.len());
            let options = DryOptions { allowed_length, window, ..DryOptions::against_loops() };
            let ids: Vec<TokenId> = tokens.iter().map(|&token| TokenId(token)).collect();
            let (mut expected, mut found) = (vec![0.0; 3], vec![0.0; 3]);
            naive_output_only(&options, prompt_len, &ids, &mut expected);
            Dry::new(Breakers::default(), prompt_len).apply(&options, &ids, &mut found);
            prop_assert_eq!(found, expected);
        }

        #[test]
        fn the_penalty_is_that_of_the_definition(
            tokens in proptest::collection::vec(0u32..5, 0..120),
            breaks in proptest::collection::vec(proptest::bool::weighted(0.15), 5),
            allowed_length in 1usize..6,
            window in 0usize..140,
            base in 1.0f32..2.0,
        ) {
            let options = DryOptions { multiplier: 0.8, base, allowed_length, window, ..DryOptions::default() };
            let flags: Vec<u8> = breaks.iter().map(|&breaks| u8::from(breaks) * BREAKS).collect();
            let mut expected = vec![0.0; 5];
            let ids: Vec<TokenId> = tokens.iter().map(|&token| TokenId(token)).collect();
            naive(&options, &breaks, &ids, &mut expected);
            let found = apply(&options, &flags, &tokens, 5);
            for (found, expected) in found.iter().zip(&expected) {
                // The platform's power and libm's may differ in the last bit.
                prop_assert!((found - expected).abs() <= expected.abs() * 1e-6, "{found} for {expected}");
            }
        }
    }
}
