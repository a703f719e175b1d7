//! Penalties on the tokens of a window: repetition, frequency and presence.

use super::options::Sampling;
use refrain_trees::TokenId;

/// Applies the penalties. Keeps its buffer of the window's tokens between calls, to avoid allocations.
#[derive(Default)]
pub(super) struct Penalties {
    /// Distinct tokens of the window with their counts.
    window: Vec<(TokenId, u32)>,
}

impl Penalties {
    /// Lowers the logits `[vocab_size]` of the newest `penalty_window` of `tokens`.
    pub(super) fn apply(&mut self, config: &Sampling, tokens: &[TokenId], logits: &mut [f32]) {
        if !config.has_window_penalties() {
            return;
        }
        let newest = &tokens[tokens.len().saturating_sub(config.penalty_window)..];
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
            // A text from outside may contain tokens beyond the vocabulary.
            let Some(logit) = logits.get_mut(token.index()) else { continue };
            let r = config.repetition_penalty;
            *logit = if *logit > 0.0 { *logit / r } else { *logit * r };
            *logit -= count as f32 * config.frequency_penalty + config.presence_penalty;
        }
    }
}
