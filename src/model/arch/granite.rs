//! Granite 3 and 4 without recurrent layers: Llama with multipliers.

use super::family::{Architecture, Family};
use super::keys::{Key, Keys, key};
use super::read::{self, Defaults};
use crate::model::config::{ConfigError, Mixer, ModelConfig};

pub(super) static FAMILY: Family =
    Family { name: "granite", json: &["granite"], read, interleaves: true, ..Family::STANDARD };

const DEFAULTS: Defaults = Defaults { kv_heads_like_heads: true, ..Defaults::LLAMA };

pub(super) const EMBEDDING_SCALE: Key = key("embedding_scale", "embedding_multiplier");
pub(super) const RESIDUAL_SCALE: Key = key("residual_scale", "residual_multiplier");
pub(super) const SCORE_SCALE: Key = key("attention.scale", "attention_multiplier");
/// Logits are divided by it.
pub(super) const LOGIT_DIVISOR: Key = key("logit_scale", "logits_scaling");

fn read(keys: &Keys<'_>, architecture: Architecture) -> Result<ModelConfig, ConfigError> {
    let mut config = read::uniform(keys, architecture, &DEFAULTS)?;
    set_multipliers(keys, &mut config)?;
    // Converters write so where a model has no position embedding.
    if keys.flag(key("rope.scaling.finetuned", ""))? == Some(false) {
        for layer in &mut config.layers {
            if let Mixer::Attention(attention) = &mut layer.mixer {
                attention.rope = None;
            }
        }
    }
    Ok(config)
}

/// The multipliers of embedding, scores, residuals and logits.
pub(super) fn set_multipliers(keys: &Keys<'_>, config: &mut ModelConfig) -> Result<(), ConfigError> {
    config.embedding_scale = read::multiplier(keys, EMBEDDING_SCALE)?.unwrap_or(1.0);
    config.logit_scale = 1.0 / read::multiplier(keys, LOGIT_DIVISOR)?.unwrap_or(1.0);
    let residual_scale = read::multiplier(keys, RESIDUAL_SCALE)?.unwrap_or(1.0);
    let score_scale = read::multiplier(keys, SCORE_SCALE)?;
    for layer in &mut config.layers {
        layer.residual_scale = residual_scale;
        if let Mixer::Attention(attention) = &mut layer.mixer {
            // The classes of `config.json` have 1 as the default, not the usual root.
            let default = if keys.json().is_some() { 1.0 } else { attention.scale };
            attention.scale = score_scale.unwrap_or(default);
        }
    }
    Ok(())
}
