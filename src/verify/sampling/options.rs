//! The options of sampling and their ranges.

use serde::{Deserialize, Serialize};

use super::dry::DryOptions;
use super::error::SamplingError;
use crate::error::GenerateError;
use crate::kernels;
use crate::model::GenerationDefaults;
use refrain_trees::TokenId;

/// The method to choose the next token.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[cfg_attr(not(feature = "internals"), non_exhaustive)]
pub struct Sampling {
    /// 0 (the default) takes the most likely token; larger values flatten the distribution. At most 100.
    pub temperature: f32,
    /// Keeps the `top_k` most likely tokens; 0 (the default) keeps all.
    pub top_k: usize,
    /// Keeps the fewest most likely tokens whose probabilities reach `top_p`; 1 (the default) keeps all.
    pub top_p: f32,
    /// Drops tokens less likely than `min_p` times the most likely one; 0 (the default) drops none.
    pub min_p: f32,
    /// Divides positive and multiplies negative logits of tokens in the window (Keskar et al. 2019); 1 is off.
    pub repetition_penalty: f32,
    /// Subtracted from a token's logit for each of its occurrences in the window; 0 is off.
    pub frequency_penalty: f32,
    /// Subtracted once from the logit of each token in the window; 0 is off.
    pub presence_penalty: f32,
    /// The window of the three penalties above: the number of newest tokens, prompt included.
    pub penalty_window: usize,
    /// The penalty on continuing a repeated sequence; off by default.
    pub dry: DryOptions,
    /// Added to the logits of these tokens. Minus infinity forbids a token.
    pub logit_bias: Vec<(TokenId, f32)>,
    /// The key of the random numbers. The same seed gives the same text, with and without drafting. With `None` (the
    /// default), each generation draws a seed and reports it in [`Summary::seed`](crate::engine::Summary::seed).
    /// Temperature 0 uses no seed.
    pub seed: Option<u64>,
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
            // llama.cpp's default.
            penalty_window: 64,
            dry: DryOptions::default(),
            logit_bias: Vec::new(),
            seed: None,
        }
    }
}

impl Sampling {
    /// Checks every option.
    ///
    /// # Errors
    /// The first option outside its range, which is the error's [field](GenerateError::field).
    pub fn check(&self, vocab_size: usize) -> Result<(), GenerateError> {
        Ok(self.check_options(vocab_size)?)
    }

    pub(crate) fn check_options(&self, vocab_size: usize) -> Result<(), SamplingError> {
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
        self.dry.check()?;
        for &(token, bias) in &self.logit_bias {
            if token.index() >= vocab_size {
                return Err(SamplingError::BiasOutOfVocabulary { token: token.0, vocab_size });
            }
            in_range("logit_bias", bias, "numbers below +inf", !bias.is_nan() && bias < f32::INFINITY)?;
        }
        Ok(())
    }

    /// Draws a seed if the options sample and contain no seed. Returns the generation's seed; `None` if it is greedy.
    pub(crate) fn resolve_seed(&mut self) -> Option<u64> {
        if self.temperature == 0.0 {
            return None;
        }
        Some(*self.seed.get_or_insert_with(draw_seed))
    }

    /// Replaces these options by the model's own defaults. If the model states a temperature or a filter, its filters
    /// replace all filters here. `do_sample: false` sets temperature 0.
    ///
    /// ```
    /// # use refrain::{Engine, EngineOptions, GenerateOptions, Sampling};
    /// # fn run(engine: &Engine) {
    /// let sampling = Sampling::default().with_model_defaults(engine.generation_defaults());
    /// let mut options = GenerateOptions::default();
    /// options.sampling = sampling;
    /// # }
    /// ```
    pub fn with_model_defaults(self, stated: &GenerationDefaults) -> Self {
        let GenerationDefaults { do_sample, temperature, top_k, top_p, min_p, .. } = *stated;
        let mut sampling = self;
        let states_filter = top_k.is_some() || top_p.is_some() || min_p.is_some();
        if temperature.is_some() || states_filter || do_sample == Some(true) {
            let neutral = Self::default();
            sampling.temperature = temperature.unwrap_or(1.0);
            sampling.top_k = top_k.unwrap_or(neutral.top_k);
            sampling.top_p = top_p.unwrap_or(neutral.top_p);
            sampling.min_p = min_p.unwrap_or(neutral.min_p);
        }
        if do_sample == Some(false) {
            sampling.temperature = 0.0;
        }
        sampling.repetition_penalty = stated.repetition_penalty.unwrap_or(sampling.repetition_penalty);
        sampling.penalty_window = stated.penalty_window.unwrap_or(sampling.penalty_window);
        sampling
    }

    pub(super) fn has_window_penalties(&self) -> bool {
        self.repetition_penalty != 1.0 || self.frequency_penalty != 0.0 || self.presence_penalty != 0.0
    }
}

/// A seed from the system's random numbers. 32 bits are enough to distinguish answers, are short to type, and survive JSON
/// readers that store numbers as doubles.
fn draw_seed() -> u64 {
    kernels::random() >> 32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_out_of_range_are_named() {
        let out_of_range = |config: Sampling| match config.check_options(2) {
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
        let dry = |dry| out_of_range(Sampling { dry, ..base.clone() });
        assert_eq!(dry(DryOptions { multiplier: f32::NAN, ..DryOptions::default() }), "dry.multiplier");
        assert_eq!(dry(DryOptions { base: 0.5, ..DryOptions::default() }), "dry.base");
        assert_eq!(dry(DryOptions { allowed_length: 0, ..DryOptions::default() }), "dry.allowed_length");
        let breakers = |breakers| dry(DryOptions { breakers, ..DryOptions::default() });
        assert_eq!(breakers(vec!["\n".to_owned(); 65]), "dry.breakers");
        assert_eq!(breakers(vec![String::new()]), "dry.breakers");
        assert_eq!(breakers(vec!["x".repeat(257)]), "dry.breakers");
        let far = Sampling { logit_bias: vec![(TokenId(2), 0.0)], ..base };
        assert_eq!(far.check_options(2), Err(SamplingError::BiasOutOfVocabulary { token: 2, vocab_size: 2 }));
    }

    #[test]
    fn what_a_model_states_replaces_filters_as_a_whole() {
        let base = Sampling { temperature: 0.7, top_p: 0.9, min_p: 0.05, ..Sampling::default() };
        let none = GenerationDefaults::default();
        assert_eq!(base.clone().with_model_defaults(&none), base);
        let stated = GenerationDefaults { temperature: Some(0.6), top_k: Some(20), ..none.clone() };
        let expected = Sampling { temperature: 0.6, top_k: 20, top_p: 1.0, min_p: 0.0, ..base.clone() };
        assert_eq!(base.clone().with_model_defaults(&stated), expected);
        let sampled = GenerationDefaults { do_sample: Some(true), ..none.clone() };
        assert_eq!(Sampling::default().with_model_defaults(&sampled).temperature, 1.0);
        let greedy = GenerationDefaults { do_sample: Some(false), temperature: Some(0.6), ..none.clone() };
        assert_eq!(base.clone().with_model_defaults(&greedy).temperature, 0.0);
        let penalty = GenerationDefaults { repetition_penalty: Some(1.1), ..none };
        assert_eq!(base.clone().with_model_defaults(&penalty), Sampling { repetition_penalty: 1.1, ..base });
    }

    #[test]
    fn a_seed_is_drawn_only_where_sampling_has_none() {
        assert_eq!(Sampling::default().resolve_seed(), None);
        let sampled = Sampling { temperature: 0.7, ..Sampling::default() };
        assert_eq!(Sampling { seed: Some(9), ..sampled.clone() }.resolve_seed(), Some(9));
        let draw = || sampled.clone().resolve_seed().expect("a seed");
        let drawn: Vec<u64> = (0..64).map(|_| draw()).collect();
        // 64 draws of 32 bits. If all are equal, no random number was drawn.
        assert!(drawn.iter().any(|&seed| seed != drawn[0]), "{drawn:?}");
        assert!(drawn.iter().all(|&seed| seed <= u64::from(u32::MAX)));
        let mut again = sampled;
        let seed = again.resolve_seed();
        assert_eq!(again.seed, seed, "the options keep the seed, so that they repeat the text");
    }
}
