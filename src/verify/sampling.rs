//! One token from one row of logits.
//!
//! The order is fixed: processors, logit bias, penalties, temperature, top-k, top-p, min-p, draw. Ties are broken by the
//! lower token id everywhere, and sums run in a fixed order, so the choice is a function of the logits, the text before
//! it, the seed and the position.

use std::cmp::Ordering;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::kernels::{self, FloatEnv, Kernels};
use crate::token::TokenId;
use crate::verify::random::uniform;

/// How the next token is chosen.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Sampling {
    /// 0 (the default) takes the most likely token; larger values flatten the distribution. At most 100.
    pub temperature: f32,
    /// Keeps the `top_k` most likely tokens; 0 (the default) keeps all.
    pub top_k: usize,
    /// Keeps the fewest most likely tokens whose probabilities reach `top_p`; 1 (the default) keeps all.
    pub top_p: f32,
    /// Drops tokens less likely than `min_p` times the most likely one; 0 (the default) drops none.
    pub min_p: f32,
    /// Divides positive and multiplies negative logits of tokens seen in the window (Keskar et al. 2019); 1 is off.
    pub repetition_penalty: f32,
    /// Subtracted from a token's logit for each time that it stands in the window; 0 is off.
    pub frequency_penalty: f32,
    /// Subtracted once from the logit of each token that stands in the window; 0 is off.
    pub presence_penalty: f32,
    /// How many of the newest tokens, prompt included, the penalties look at.
    pub penalty_window: usize,
    /// Added to the logits of these tokens; minus infinity forbids one.
    pub logit_bias: Vec<(TokenId, f32)>,
    /// Keys the random numbers. The same seed gives the same text, with and without drafting.
    pub seed: u64,
}

impl Default for Sampling {
    fn default() -> Self {
        Self {
            temperature: 0.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            frequency_penalty: 0.0,
            presence_penalty: 0.0,
            // What llama.cpp looks at by default.
            penalty_window: 64,
            logit_bias: Vec::new(),
            seed: 0,
        }
    }
}

/// Why a token could not be chosen, or the options are not usable.
#[derive(Debug, Error, Clone, PartialEq)]
#[non_exhaustive]
pub enum SamplingError {
    /// An option is outside its range.
    #[error("{option} is {given}, outside {range}")]
    OutOfRange {
        /// The option.
        option: &'static str,
        /// Its value.
        given: f64,
        /// What it may be.
        range: &'static str,
    },
    /// A logit bias names a token that the model does not have.
    #[error("logit_bias names token {token}, but the vocabulary has {vocab_size} tokens")]
    BiasOutOfVocabulary {
        /// The token.
        token: u32,
        /// Tokens of the vocabulary.
        vocab_size: usize,
    },
    /// Every token is forbidden by bias or processors, or the logits are not numbers.
    #[error("no token can be chosen at position {position}: every logit is -inf or not a number")]
    NoCandidate {
        /// Position of the token in the sequence.
        position: usize,
    },
}

impl Sampling {
    /// Checks every option.
    ///
    /// # Errors
    /// The first option that is not usable.
    pub fn check(&self, vocab_size: usize) -> Result<(), SamplingError> {
        let in_range = |option, given: f32, range, ok: bool| match ok {
            true => Ok(()),
            false => Err(SamplingError::OutOfRange { option, given: f64::from(given), range }),
        };
        let (t, p, m) = (self.temperature, self.top_p, self.min_p);
        in_range("temperature", t, "0..=100", (0.0..=100.0).contains(&t))?;
        in_range("top_p", p, "0..=1 (not 0)", p > 0.0 && p <= 1.0)?;
        in_range("min_p", m, "0..=1", (0.0..=1.0).contains(&m))?;
        let r = self.repetition_penalty;
        in_range("repetition_penalty", r, "0.01..=100", (0.01..=100.0).contains(&r))?;
        for (option, value) in
            [("frequency_penalty", self.frequency_penalty), ("presence_penalty", self.presence_penalty)]
        {
            in_range(option, value, "-100..=100", (-100.0..=100.0).contains(&value))?;
        }
        for &(token, bias) in &self.logit_bias {
            if token.index() >= vocab_size {
                return Err(SamplingError::BiasOutOfVocabulary { token: token.0, vocab_size });
            }
            in_range("logit_bias", bias, "numbers below +inf", !bias.is_nan() && bias < f32::INFINITY)?;
        }
        Ok(())
    }

    fn has_penalties(&self) -> bool {
        self.repetition_penalty != 1.0 || self.frequency_penalty != 0.0 || self.presence_penalty != 0.0
    }
}

/// Changes logits before a token is chosen: grammar masks, custom biases, observers.
///
/// Called once for each visited node, in order of position, with the text that plain decoding would have there. To keep
/// the output independent of drafting, the result must be a function of the arguments alone.
pub trait LogitsProcessor: Send {
    /// `tokens`: the prompt and all output before this token; `logits`: `[vocab_size]`.
    fn process(&mut self, tokens: &[TokenId], logits: &mut [f32]);
}

/// A sampler with its scratch memory.
pub struct Sampler {
    kernels: Kernels,
    config: Sampling,
    /// Distinct tokens of the penalty window with their counts.
    window: Vec<(TokenId, u32)>,
    /// Candidates as (scaled logit or probability, token), most likely first once sorted.
    candidates: Vec<(f32, u32)>,
    probabilities: Vec<f32>,
}

/// Where the probabilities of a choice stand afterwards.
#[derive(Debug, Clone, Copy)]
enum Chosen {
    /// Nowhere: there was nothing to draw.
    Forced,
    /// Nowhere yet: the logits are as they were.
    Greedy,
    /// In the logits.
    Whole,
    /// In so many of the candidates.
    Kept(usize),
}

/// A token that the target accepts, by its own choice or not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Choice {
    /// The token.
    pub token: TokenId,
    /// Whether the target chose another one.
    pub is_replaced: bool,
}

impl Sampler {
    /// A sampler for checked options.
    pub fn new(kernels: Kernels, config: Sampling) -> Self {
        Self { kernels, config, window: Vec::new(), candidates: Vec::new(), probabilities: Vec::new() }
    }

    /// Chooses the token that follows `tokens` from `logits` `[vocab_size]`, which are changed in place.
    ///
    /// # Errors
    /// [`SamplingError::NoCandidate`].
    pub fn choose(&mut self, tokens: &[TokenId], logits: &mut [f32]) -> Result<TokenId, SamplingError> {
        let _env = FloatEnv::ieee();
        self.choose_from(tokens, logits).map(|(token, _)| token)
    }

    /// **Lossy.** As [`choose`](Self::choose), but where none of `drafted` is that token, the first of them that lies in the nucleus
    /// of `top_p` takes its place: a token, not dropped by the options, whose likelier ones have less than `top_p` together. (The
    /// token that reaches `top_p` is in it. Where the temperature is 0 the probabilities are those at 1.)
    ///
    /// # Errors
    /// [`SamplingError::NoCandidate`].
    pub fn choose_or_accept(
        &mut self,
        tokens: &[TokenId],
        logits: &mut [f32],
        drafted: impl Iterator<Item = TokenId> + Clone,
        top_p: f32,
    ) -> Result<Choice, SamplingError> {
        let _env = FloatEnv::ieee();
        let (own, chosen) = self.choose_from(tokens, logits)?;
        let nobody_drafted = drafted.clone().next().is_none();
        if nobody_drafted || matches!(chosen, Chosen::Forced) || drafted.clone().any(|token| token == own) {
            return Ok(Choice { token: own, is_replaced: false });
        }
        if matches!(chosen, Chosen::Greedy) {
            logits.iter_mut().filter(|logit| logit.is_nan()).for_each(|logit| *logit = f32::NEG_INFINITY);
            kernels::softmax(self.kernels, logits);
        }
        let in_nucleus = |&token: &TokenId| self.is_in_nucleus(chosen, logits, token, top_p);
        let token = drafted.clone().find(in_nucleus);
        Ok(Choice { token: token.unwrap_or(own), is_replaced: token.is_some() })
    }

    /// Whether the tokens that are likelier than `token` have less than `top_p` together.
    fn is_in_nucleus(&self, chosen: Chosen, probabilities: &[f32], token: TokenId, top_p: f32) -> bool {
        let sum = |likelier: &mut dyn Iterator<Item = f32>| likelier.map(f64::from).sum::<f64>();
        let (before, own, total) = match chosen {
            Chosen::Forced => return false,
            Chosen::Kept(n_kept) => {
                // Sorted, and those that were dropped are not among them.
                let kept = &self.candidates[..n_kept];
                let Some(at) = kept.iter().position(|&(_, id)| id == token.0) else { return false };
                let total = sum(&mut kept.iter().map(|c| c.0));
                (sum(&mut kept[..at].iter().map(|c| c.0)), kept[at].0, total)
            }
            Chosen::Greedy | Chosen::Whole => {
                let Some(&own) = probabilities.get(token.index()) else { return false };
                let likelier = |&(id, &p): &(u32, &f32)| p > own || (p == own && id < token.0);
                let likelier = (0u32..).zip(probabilities).filter(likelier);
                (sum(&mut likelier.map(|(_, &p)| p)), own, 1.0)
            }
        };
        own > 0.0 && before < f64::from(top_p) * total
    }

    /// The choice, and where its probabilities are.
    fn choose_from(
        &mut self,
        tokens: &[TokenId],
        logits: &mut [f32],
    ) -> Result<(TokenId, Chosen), SamplingError> {
        for &(token, bias) in &self.config.logit_bias {
            logits[token.index()] += bias;
        }
        if self.config.has_penalties() {
            self.penalise(tokens, logits);
        }
        let position = tokens.len();
        let best = kernels::argmax(self.kernels, logits);
        let max = logits[best];
        if max.is_nan() || max == f32::NEG_INFINITY {
            return Err(SamplingError::NoCandidate { position });
        }
        // An infinite logit leaves nothing to draw: a processor forces the token.
        if self.config.temperature == 0.0 || max == f32::INFINITY {
            let chosen = if max == f32::INFINITY { Chosen::Forced } else { Chosen::Greedy };
            return Ok((TokenId(best as u32), chosen));
        }
        for logit in logits.iter_mut() {
            let scaled = (*logit - max) / self.config.temperature;
            *logit = if scaled.is_nan() { f32::NEG_INFINITY } else { scaled };
        }
        let u = uniform(self.config.seed, position as u64);
        let filtered = self.config.top_p < 1.0 || self.config.min_p > 0.0;
        if self.config.top_k > 0 && self.config.top_k < logits.len() {
            self.keep_top_k(logits);
        } else if filtered {
            self.keep_likely(logits);
        } else {
            kernels::softmax(self.kernels, logits);
            return Ok((draw(logits.iter().copied().zip(0..), u), Chosen::Whole));
        }
        let kept = self.nucleus_len();
        Ok((draw(self.candidates[..kept].iter().copied(), u), Chosen::Kept(kept)))
    }

    fn penalise(&mut self, tokens: &[TokenId], logits: &mut [f32]) {
        let newest = &tokens[tokens.len().saturating_sub(self.config.penalty_window)..];
        self.window.clear();
        self.window.extend(newest.iter().map(|&t| (t, 1)));
        self.window.sort_unstable();
        self.window.dedup_by(|later, kept| {
            later.0 == kept.0 && {
                kept.1 += 1;
                true
            }
        });
        for &(token, count) in &self.window {
            // A text from outside may hold tokens past the vocabulary.
            let Some(logit) = logits.get_mut(token.index()) else { continue };
            let r = self.config.repetition_penalty;
            *logit = if *logit > 0.0 { *logit / r } else { *logit * r };
            *logit -= count as f32 * self.config.frequency_penalty + self.config.presence_penalty;
        }
    }

    /// The `top_k` largest scaled logits, as sorted candidates with their probabilities among themselves.
    fn keep_top_k(&mut self, scaled: &[f32]) {
        let k = self.config.top_k;
        self.candidates.clear();
        self.candidates.extend(scaled.iter().copied().zip(0u32..));
        if k < self.candidates.len() {
            self.candidates.select_nth_unstable_by(k, most_likely_first);
            self.candidates.truncate(k);
        }
        self.candidates.sort_unstable_by(most_likely_first);
        self.probabilities.clear();
        self.probabilities.extend(self.candidates.iter().map(|c| c.0));
        kernels::softmax(self.kernels, &mut self.probabilities);
        for (candidate, &p) in self.candidates.iter_mut().zip(&self.probabilities) {
            candidate.0 = p;
        }
    }

    /// Every token that top-p or min-p can keep, as sorted candidates with probabilities.
    ///
    /// Sorting a whole vocabulary would cost more than a step of a small model, so the tail is only taken in when the
    /// likelier tokens do not reach `top_p`; the outcome is that of sorting everything.
    fn keep_likely(&mut self, scaled: &mut [f32]) {
        kernels::softmax(self.kernels, scaled);
        for floor in [1e-3, 1e-6, 0.0] {
            self.candidates.clear();
            self.candidates.extend(scaled.iter().copied().zip(0u32..).filter(|c| c.0 > floor));
            let sum: f64 = self.candidates.iter().map(|c| f64::from(c.0)).sum();
            // The margin keeps the order of this sum from deciding; the cut itself is made over the sorted candidates.
            if sum > f64::from(self.config.top_p) + 1e-6 {
                break;
            }
        }
        self.candidates.sort_unstable_by(most_likely_first);
    }

    /// How many of the sorted candidates survive top-p and min-p; at least one.
    fn nucleus_len(&self) -> usize {
        let floor = self.config.min_p * self.candidates[0].0;
        let mut sum = 0.0f64;
        for (len, &(p, _)) in self.candidates.iter().enumerate() {
            let reached = self.config.top_p < 1.0 && sum >= f64::from(self.config.top_p);
            if len > 0 && (reached || p < floor) {
                return len;
            }
            sum += f64::from(p);
        }
        self.candidates.len()
    }
}

fn most_likely_first(a: &(f32, u32), b: &(f32, u32)) -> Ordering {
    b.0.partial_cmp(&a.0).unwrap_or(Ordering::Equal).then(a.1.cmp(&b.1))
}

/// Inverse transform over probabilities in the order given (they need not sum to one).
fn draw(candidates: impl Iterator<Item = (f32, u32)> + Clone, u: f64) -> TokenId {
    let total: f64 = candidates.clone().map(|c| f64::from(c.0)).sum();
    let threshold = u * total;
    let mut sum = 0.0f64;
    let mut chosen = 0;
    for (p, token) in candidates {
        if p > 0.0 {
            chosen = token;
            sum += f64::from(p);
            if sum > threshold {
                break;
            }
        }
    }
    TokenId(chosen)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn choose(config: Sampling, tokens: &[TokenId], logits: &[f32]) -> Result<TokenId, SamplingError> {
        config.check(logits.len())?;
        Sampler::new(Kernels::detect(), config).choose(tokens, &mut logits.to_vec())
    }

    /// A nucleus by sorting everything.
    fn naive_nucleus(probabilities: &[f32], top_p: f32) -> Vec<usize> {
        let mut tokens: Vec<usize> = (0..probabilities.len()).collect();
        tokens.sort_by(|&a, &b| probabilities[b].total_cmp(&probabilities[a]).then(a.cmp(&b)));
        let mut sum = 0.0;
        let in_it = tokens.into_iter().take_while(|&token| {
            let before = sum;
            sum += f64::from(probabilities[token]);
            before < f64::from(top_p)
        });
        in_it.collect()
    }

    fn accept(config: &Sampling, logits: &[f32], drafted: &[u32], top_p: f32) -> Choice {
        let mut sampler = Sampler::new(Kernels::detect(), config.clone());
        let drafted = drafted.iter().map(|&token| TokenId(token));
        sampler.choose_or_accept(&[], &mut logits.to_vec(), drafted, top_p).unwrap()
    }

    #[test]
    fn what_is_accepted_lies_in_the_nucleus() {
        let logits: Vec<f32> = (0..40u32).map(|i| ((i * 17) % 40) as f32 / 8.0).collect();
        let mut probabilities = logits.clone();
        kernels::softmax(Kernels::detect(), &mut probabilities);
        let greedy = Sampling::default();
        for top_p in [0.05, 0.3, 0.7, 0.95, 1.0] {
            let nucleus = naive_nucleus(&probabilities, top_p);
            for token in 0..40u32 {
                let Choice { token: accepted, is_replaced } = accept(&greedy, &logits, &[token], top_p);
                let in_it = nucleus.contains(&(token as usize));
                assert_eq!(accepted.index() == token as usize, in_it, "{token} at {top_p}");
                assert_eq!(is_replaced, in_it && token as usize != nucleus[0]);
            }
        }
    }

    #[test]
    fn the_own_choice_comes_first_and_then_the_first_draft() {
        let (greedy, logits) = (Sampling::default(), [3.0, 2.9, 2.8, -50.0]);
        let token = |drafted: &[u32]| accept(&greedy, &logits, drafted, 0.9).token.0;
        assert_eq!(
            [token(&[]), token(&[2, 1, 0]), token(&[2, 1]), token(&[3, 1]), token(&[3, 99])],
            [0, 0, 2, 1, 0]
        );
        assert_eq!(accept(&greedy, &[1.0, f32::INFINITY], &[0], 1.0).token.0, 1, "a token that is forced");
        assert_eq!(
            accept(&greedy, &[1.0, f32::NEG_INFINITY, f32::NAN], &[2, 1], 1.0).token.0,
            0,
            "and forbidden"
        );
    }

    #[test]
    fn what_the_options_drop_is_never_accepted() {
        let logits = [3.0, 2.9, 2.8, 2.7];
        let with =
            |top_k, top_p, min_p| Sampling { temperature: 1.0, top_k, top_p, min_p, ..Sampling::default() };
        for config in [with(2, 1.0, 0.0), with(0, 0.5, 0.0), with(0, 1.0, 0.88)] {
            for seed in 0..20 {
                let config = Sampling { seed, ..config.clone() };
                let accepted = accept(&config, &logits, &[3, 2], 1.0);
                assert!(accepted.token.0 < 2 && !accepted.is_replaced, "{config:?}");
                assert_eq!(accept(&config, &logits, &[1], 1.0).token.0, 1);
            }
        }
        // Without a filter the probabilities are those of the temperature.
        let hot = Sampling { temperature: 50.0, ..Sampling::default() };
        let cold = Sampling { temperature: 0.02, ..hot.clone() };
        assert_eq!(accept(&hot, &logits, &[3], 0.9).token.0, 3);
        assert_eq!(accept(&cold, &logits, &[3], 0.9).token.0, 0);
    }

    /// How often each token is chosen over many seeds.
    fn frequencies(config: Sampling, logits: &[f32]) -> Vec<f64> {
        let n = 20_000u64;
        let mut counts = vec![0.0; logits.len()];
        let mut sampler = Sampler::new(Kernels::detect(), config);
        for seed in 0..n {
            sampler.config.seed = seed;
            counts[sampler.choose(&[], &mut logits.to_vec()).unwrap().index()] += 1.0 / n as f64;
        }
        counts
    }

    /// The distribution by the definition, in f64, sorting everything.
    fn reference(config: &Sampling, logits: &[f32]) -> Vec<f64> {
        let t = f64::from(config.temperature);
        let mut order: Vec<usize> = (0..logits.len()).collect();
        order.sort_by(|&a, &b| logits[b].partial_cmp(&logits[a]).unwrap().then(a.cmp(&b)));
        let max = f64::from(logits[order[0]]);
        let weight = |i: usize| ((f64::from(logits[i]) - max) / t).exp();
        if config.top_k > 0 {
            order.truncate(config.top_k);
        }
        let z: f64 = order.iter().map(|&i| weight(i)).sum();
        let mut kept = Vec::new();
        let mut sum = 0.0;
        for &i in &order {
            if !kept.is_empty() && (sum >= f64::from(config.top_p) || weight(i) < f64::from(config.min_p)) {
                break;
            }
            sum += weight(i) / z;
            kept.push(i);
        }
        let z: f64 = kept.iter().map(|&i| weight(i)).sum();
        let mut p = vec![0.0; logits.len()];
        kept.iter().for_each(|&i| p[i] = weight(i) / z);
        p
    }

    #[test]
    fn the_distribution_is_the_one_asked_for() {
        let logits = [1.0, 3.0, 2.5, -1.0, 2.5, 0.0, -4.0];
        let base = Sampling { temperature: 1.3, ..Sampling::default() };
        for config in [
            base.clone(),
            Sampling { top_k: 3, ..base.clone() },
            Sampling { top_p: 0.8, ..base.clone() },
            Sampling { min_p: 0.3, ..base.clone() },
            Sampling { top_k: 5, top_p: 0.9, min_p: 0.1, ..base.clone() },
        ] {
            let expected = reference(&config, &logits);
            for (i, (seen, p)) in frequencies(config.clone(), &logits).iter().zip(&expected).enumerate() {
                // Five standard deviations of 20,000 draws.
                let tolerance = 5.0 * (p * (1.0 - p) / 20_000.0).sqrt();
                assert!((seen - p).abs() <= tolerance, "{config:?}: token {i}: {seen} for {p}");
            }
        }
    }

    #[test]
    fn greedy_takes_the_lowest_id_of_a_tie() {
        assert_eq!(choose(Sampling::default(), &[], &[0.0, 7.0, 7.0, 1.0]), Ok(TokenId(1)));
    }

    #[test]
    fn penalties_count_the_window_alone() {
        let tokens = [TokenId(2), TokenId(0), TokenId(1), TokenId(1)];
        let logits = [1.0, 1.5, 1.4, 0.0];
        let config = |frequency, presence, penalty_window| Sampling {
            frequency_penalty: frequency,
            presence_penalty: presence,
            penalty_window,
            ..Sampling::default()
        };
        assert_eq!(choose(config(0.0, 0.0, 4), &tokens, &logits), Ok(TokenId(1)));
        assert_eq!(choose(config(0.3, 0.0, 4), &tokens, &logits), Ok(TokenId(2)), "1.5 - 2·0.3 < 1.4 - 0.3");
        assert_eq!(choose(config(0.0, 2.0, 4), &tokens, &logits), Ok(TokenId(3)));
        assert_eq!(choose(config(0.0, 2.0, 2), &tokens, &logits), Ok(TokenId(2)));
        let repetition = Sampling { repetition_penalty: 2.0, penalty_window: 2, ..Sampling::default() };
        assert_eq!(choose(repetition, &tokens, &logits), Ok(TokenId(2)));
    }

    #[test]
    fn what_is_no_number_is_never_chosen_and_infinity_forces() {
        let base = Sampling { temperature: 0.7, ..Sampling::default() };
        let configs = [
            base.clone(),
            Sampling { top_k: 2, ..base.clone() },
            Sampling { top_p: 0.9, ..base.clone() },
            Sampling { min_p: 0.1, ..base.clone() },
            Sampling::default(),
        ];
        for config in configs {
            for seed in 0..50 {
                let config = Sampling { seed, ..config.clone() };
                let chosen = choose(config.clone(), &[], &[f32::NAN, 1.0, f32::NAN, 0.5]).unwrap();
                assert!(chosen == TokenId(1) || chosen == TokenId(3), "{config:?}: {chosen}");
                let forced = choose(config.clone(), &[], &[5.0, f32::NAN, f32::INFINITY, f32::INFINITY]);
                assert_eq!(forced, Ok(TokenId(2)), "{config:?}");
                let none = choose(config.clone(), &[], &[f32::NAN, f32::NEG_INFINITY]);
                assert_eq!(none, Err(SamplingError::NoCandidate { position: 0 }), "{config:?}");
            }
        }
    }

    #[test]
    fn bias_can_forbid_and_force() {
        let bias =
            |token, value| Sampling { logit_bias: vec![(TokenId(token), value)], ..Sampling::default() };
        assert_eq!(choose(bias(1, f32::NEG_INFINITY), &[], &[0.0, 9.0, 1.0]), Ok(TokenId(2)));
        assert_eq!(choose(bias(0, 100.0), &[], &[0.0, 9.0, 1.0]), Ok(TokenId(0)));
    }

    #[test]
    fn unusable_options_and_logits_are_named() {
        let out_of_range = |config| match choose(config, &[], &[0.0, 1.0]) {
            Err(SamplingError::OutOfRange { option, .. }) => option,
            other => panic!("{other:?}"),
        };
        let base = Sampling::default();
        assert_eq!(out_of_range(Sampling { temperature: -1.0, ..base.clone() }), "temperature");
        assert_eq!(out_of_range(Sampling { temperature: f32::NAN, ..base.clone() }), "temperature");
        assert_eq!(out_of_range(Sampling { top_p: 0.0, ..base.clone() }), "top_p");
        assert_eq!(out_of_range(Sampling { min_p: 1.5, ..base.clone() }), "min_p");
        assert_eq!(out_of_range(Sampling { repetition_penalty: 0.0, ..base.clone() }), "repetition_penalty");
        assert_eq!(out_of_range(Sampling { presence_penalty: 1e9, ..base.clone() }), "presence_penalty");
        let bias = Sampling { logit_bias: vec![(TokenId(0), f32::INFINITY)], ..base.clone() };
        assert_eq!(out_of_range(bias), "logit_bias");
        let far = Sampling { logit_bias: vec![(TokenId(2), 0.0)], ..base.clone() };
        assert_eq!(
            choose(far, &[], &[0.0, 1.0]),
            Err(SamplingError::BiasOutOfVocabulary { token: 2, vocab_size: 2 })
        );
        for logits in [[f32::NEG_INFINITY; 2], [f32::NAN; 2]] {
            assert_eq!(choose(base.clone(), &[], &logits), Err(SamplingError::NoCandidate { position: 0 }));
        }
    }

    proptest! {
        #[test]
        fn taking_the_tail_in_steps_changes_nothing(
            logits in proptest::collection::vec(-30.0f32..10.0, 2..200),
            top_p in 0.05f32..0.999,
            seed in any::<u64>(),
        ) {
            let config = Sampling { temperature: 1.0, top_p, seed, ..Sampling::default() };
            let chosen = choose(config.clone(), &[], &logits).unwrap();
            // All candidates at once, by way of a top-k that keeps all but the least likely token.
            let mut probabilities = logits.clone();
            kernels::softmax(Kernels::detect(), &mut probabilities);
            let mut all: Vec<(f32, u32)> = probabilities.iter().copied().zip(0..).collect();
            all.sort_unstable_by(most_likely_first);
            let mut sum = 0.0f64;
            let len = all.iter().take_while(|c| { let go = sum < f64::from(top_p); sum += f64::from(c.0); go }).count();
            prop_assert_eq!(chosen, draw(all[..len.max(1)].iter().copied(), uniform(seed, 0)));
        }
    }
}
