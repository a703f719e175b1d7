//! The mask: forbids the tokens that a grammar does not allow.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use llguidance::toktrie::SimpleVob;
use refrain::{LogitsProcessor, ProcessorError, TokenId};

use crate::compiled::{Compiled, OutputStart};
use crate::error::GrammarError;
use crate::follower::{Allowed, Follower};

/// Forbids the tokens that a grammar does not allow, in one generation; made by [`Grammar::constrain`](crate::Grammar::constrain)
/// or [`Grammar::mask`](crate::Grammar::mask).
///
/// The output begins with the first token that the mask is asked for. The mask is a function of the output alone. The parser
/// sees the same calls with drafts as without: one per committed token.
///
/// If the mask cannot be computed, the generation ends with an error of the kind [`Processor`](refrain::ErrorKind::Processor) and a
/// [`GrammarError`] as its source.
pub struct GrammarMask {
    follower: Arc<Mutex<Follower>>,
    start: Arc<OutputStart>,
}

impl GrammarMask {
    pub(crate) fn new(grammar: Arc<Compiled>, start: Arc<OutputStart>) -> Self {
        Self { follower: Arc::new(Mutex::new(Follower::new(grammar))), start }
    }

    /// A handle that computes the masks of this generation between passes.
    pub fn ahead(&self) -> MaskAhead {
        MaskAhead { follower: Arc::clone(&self.follower) }
    }

    /// The output begins behind so many tokens, in place of at the first call of the mask. Without an effect after that call.
    pub fn begin_at(&mut self, n_tokens: usize) {
        self.start.of(n_tokens);
    }

    fn apply(&mut self, tokens: &[TokenId], logits: &mut [f32]) -> Result<(), GrammarError> {
        let output = &tokens[self.start.of(tokens.len()).min(tokens.len())..];
        let mut follower = self.follower.lock().unwrap_or_else(PoisonError::into_inner);
        follower.follow(output)?;
        let vocabulary = follower.vocabulary();
        let ends = vocabulary.tokenizer().eos();
        let is_any_left = match follower.allowed()? {
            Allowed::AllBut(forbidden) => {
                for token in forbidden.iter().chain(ends) {
                    logits.get_mut(token.index()).into_iter().for_each(|logit| *logit = f32::NEG_INFINITY);
                }
                true
            }
            Allowed::Tokens(mask) => keep(&mask, logits),
            Allowed::End => keep_only(ends, logits),
        };
        if is_any_left { Ok(()) } else { Err(GrammarError::NoToken { position: output.len() }) }
    }
}

impl LogitsProcessor for GrammarMask {
    fn process(&mut self, tokens: &[TokenId], logits: &mut [f32]) -> Result<(), ProcessorError> {
        Ok(self.apply(tokens, logits)?)
    }
}

impl fmt::Debug for GrammarMask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GrammarMask").finish_non_exhaustive()
    }
}

/// Computes the masks of one generation before they are asked for, so that a pass of the model does not wait for them; made by
/// [`Grammar::constrain_ahead`](crate::Grammar::constrain_ahead) or [`GrammarMask::ahead`]. The output is the same.
pub struct MaskAhead {
    follower: Arc<Mutex<Follower>>,
}

impl MaskAhead {
    /// Computes the mask behind `output`, the tokens of the generation so far. Call it between passes; a failure shows at the mask itself.
    pub fn compute(&self, output: &[TokenId]) {
        self.follower.lock().unwrap_or_else(PoisonError::into_inner).compute_ahead(output);
    }
}

impl fmt::Debug for MaskAhead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MaskAhead").finish_non_exhaustive()
    }
}

/// Keeps the tokens of a mask; returns whether there are any. The model's vocabulary may be longer than the mask.
fn keep(mask: &SimpleVob, logits: &mut [f32]) -> bool {
    let mut is_any_left = false;
    let mut words = mask.as_slice().iter();
    for chunk in logits.chunks_mut(u32::BITS as usize) {
        let n_tokens = chunk.len() as u32;
        let word = words.next().copied().unwrap_or(0) & (u32::MAX >> (u32::BITS - n_tokens));
        is_any_left |= word != 0;
        match word {
            0 => chunk.fill(f32::NEG_INFINITY),
            u32::MAX => {}
            _ => (0..)
                .zip(chunk)
                .filter(|(bit, _)| word >> bit & 1 == 0)
                .for_each(|(_, logit)| *logit = f32::NEG_INFINITY),
        }
    }
    is_any_left
}

/// Keeps these tokens; returns whether there are any.
fn keep_only(tokens: &[TokenId], logits: &mut [f32]) -> bool {
    let kept: Vec<(usize, f32)> =
        tokens.iter().filter_map(|token| Some((token.index(), *logits.get(token.index())?))).collect();
    logits.fill(f32::NEG_INFINITY);
    kept.iter().for_each(|&(token, logit)| logits[token] = logit);
    !kept.is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masks_shorter_and_longer_than_the_logits() {
        for n_mask in [1, 31, 32, 33, 64, 100] {
            for n_logits in [1, 31, 32, 33, 64, 100] {
                let mut mask = SimpleVob::alloc(n_mask);
                (0..n_mask as u32).filter(|i| i % 3 == 2).for_each(|i| mask.allow_token(i));
                let mut logits = vec![1.0; n_logits];
                let is_any_left = keep(&mask, &mut logits);
                let expected: Vec<f32> = (0..n_logits)
                    .map(|i| if i < n_mask && i % 3 == 2 { 1.0 } else { f32::NEG_INFINITY })
                    .collect();
                assert_eq!(logits, expected, "{n_mask} of {n_logits}");
                assert_eq!(is_any_left, expected.contains(&1.0));
            }
        }
    }

    #[test]
    fn only_the_end_is_kept() {
        let mut logits = vec![0.5, 1.5, 2.5];
        assert!(keep_only(&[TokenId(1), TokenId(7)], &mut logits));
        assert_eq!(logits, [f32::NEG_INFINITY, 1.5, f32::NEG_INFINITY]);
        assert!(!keep_only(&[TokenId(7)], &mut logits));
    }
}
