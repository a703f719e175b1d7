//! Chooses one token from one row of logits.
//!
//! The order is fixed: processors, logit bias, window penalties, DRY, temperature, top-k, top-p, min-p, draw. The
//! lower token id wins every tie, and sums run in a fixed order. So the choice is a function of the logits, the text
//! before it, the seed and the position.

mod candidates;
mod dry;
mod error;
mod options;
mod penalties;

use crate::kernels::{self, FloatEnv, Kernels};
use crate::verify::random::uniform;
use candidates::Candidates;
use dry::Dry;
use penalties::Penalties;
use refrain_trees::TokenId;

pub use dry::{Breakers, DryOptions};
pub use error::SamplingError;
pub use options::Sampling;

/// Changes logits before a token is chosen: grammar masks, custom biases, observers.
///
/// Called once for each visited node, in order of position, with the text that plain decoding would have there. The
/// result must be a function of the arguments alone; otherwise the output would depend on drafting. A logit of +∞
/// ends the generation (kind [`NoToken`](crate::ErrorKind::NoToken)). To force a token, forbid all others.
pub trait LogitsProcessor: Send {
    /// `tokens`: the prompt and all output before this token; `logits`: `[vocab_size]`.
    ///
    /// # Errors
    /// The processor has no result. The generation ends with an error of the kind [`Processor`](crate::ErrorKind::Processor), whose source
    /// is this one, after the tokens that plain decoding would have given before.
    fn process(&mut self, tokens: &[TokenId], logits: &mut [f32]) -> Result<(), ProcessorError>;
}

/// Why a [`LogitsProcessor`] has no result: an error of the processor's own type.
pub type ProcessorError = Box<dyn std::error::Error + Send + Sync>;

/// A sampler with its scratch memory.
pub struct Sampler {
    kernels: Kernels,
    config: Sampling,
    penalties: Penalties,
    dry: Dry,
    candidates: Candidates,
}

impl Sampler {
    /// A sampler for checked options and an output that begins after `prompt_len` tokens. If there is no seed, the
    /// seed is 0: see `Sampling::resolve_seed`.
    pub fn new(kernels: Kernels, config: Sampling, breakers: Breakers, prompt_len: usize) -> Self {
        Self {
            kernels,
            config,
            penalties: Penalties::default(),
            dry: Dry::new(breakers, prompt_len),
            candidates: Candidates::default(),
        }
    }

    /// Chooses the token that follows `tokens` from `logits` `[vocab_size]`. The logits are changed in place.
    ///
    /// # Errors
    /// [`SamplingError::NoCandidate`], [`SamplingError::InfiniteLogit`].
    pub fn choose(&mut self, tokens: &[TokenId], logits: &mut [f32]) -> Result<TokenId, SamplingError> {
        let _env = FloatEnv::ieee();
        let config = &self.config;
        for &(token, bias) in &config.logit_bias {
            logits[token.index()] += bias;
        }
        self.penalties.apply(config, tokens, logits);
        self.dry.apply(&config.dry, tokens, logits);
        let position = tokens.len();
        let best = kernels::argmax(self.kernels, logits);
        let max = logits[best];
        if max.is_nan() || max == f32::NEG_INFINITY {
            return Err(SamplingError::NoCandidate { position });
        }
        if max == f32::INFINITY {
            return Err(SamplingError::InfiniteLogit { token: best as u32, position });
        }
        if config.temperature == 0.0 {
            return Ok(TokenId(best as u32));
        }
        let u = uniform(config.seed.unwrap_or_default(), position as u64);
        Ok(self.candidates.choose(self.kernels, config, (logits, max), u))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn choose(config: Sampling, tokens: &[TokenId], logits: &[f32]) -> Result<TokenId, SamplingError> {
        config.check_options(logits.len())?;
        Sampler::new(Kernels::detect(), config, Breakers::default(), 0).choose(tokens, &mut logits.to_vec())
    }

    /// The count of each token over many seeds.
    fn frequencies(config: Sampling, logits: &[f32]) -> Vec<f64> {
        let n = 20_000u64;
        let mut counts = vec![0.0; logits.len()];
        let mut sampler = Sampler::new(Kernels::detect(), config, Breakers::default(), 0);
        for seed in 0..n {
            sampler.config.seed = Some(seed);
            counts[sampler.choose(&[], &mut logits.to_vec()).unwrap().index()] += 1.0 / n as f64;
        }
        counts
    }

    /// The reference: the distribution by its definition, in f64, sorting all tokens.
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
    fn nan_is_never_chosen_and_infinity_is_an_error() {
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
                let config = Sampling { seed: Some(seed), ..config.clone() };
                let chosen = choose(config.clone(), &[], &[f32::NAN, 1.0, f32::NAN, 0.5]).unwrap();
                assert!(chosen == TokenId(1) || chosen == TokenId(3), "{config:?}: {chosen}");
                let text = [TokenId(0); 3];
                let infinite = choose(config.clone(), &text, &[5.0, f32::NAN, f32::INFINITY, f32::INFINITY]);
                assert_eq!(
                    infinite,
                    Err(SamplingError::InfiniteLogit { token: 2, position: 3 }),
                    "{config:?}"
                );
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
    fn rows_without_a_candidate_are_named() {
        for logits in [[f32::NEG_INFINITY; 2], [f32::NAN; 2]] {
            let found = choose(Sampling::default(), &[], &logits);
            assert_eq!(found, Err(SamplingError::NoCandidate { position: 0 }));
        }
    }

    #[test]
    fn dry_and_penalties_are_applied_before_the_choice() {
        let tokens: Vec<TokenId> = [1, 2, 3, 1, 2].map(TokenId).into();
        let logits = [0.0, 0.0, 0.0, 5.0, 4.5];
        assert_eq!(choose(Sampling::default(), &tokens, &logits), Ok(TokenId(3)));
        let dry = DryOptions { multiplier: 0.8, ..DryOptions::default() };
        assert_eq!(choose(Sampling { dry, ..Sampling::default() }, &tokens, &logits), Ok(TokenId(4)));
    }
}
