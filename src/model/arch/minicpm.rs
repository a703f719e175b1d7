//! MiniCPM: Llama with multipliers that follow from the depth and the width of a smaller base model.

use super::family::{Architecture, Family};
use super::granite::{EMBEDDING_SCALE, LOGIT_DIVISOR, RESIDUAL_SCALE};
use super::keys::{Keys, key};
use super::read::{self, Defaults};
use crate::model::config::{ConfigError, ModelConfig};

pub(super) static FAMILY: Family = Family {
    name: "minicpm",
    json: &["minicpm"],
    read,
    interleaves: true,
    is_redundant: |name, _| name == "rope_factors_long.weight" || name == "rope_factors_short.weight",
    ..Family::STANDARD
};

const DEFAULTS: Defaults =
    Defaults { context_len: 32_768, kv_heads_like_heads: true, tied_head: true, ..Defaults::LLAMA };

fn read(keys: &Keys<'_>, architecture: Architecture) -> Result<ModelConfig, ConfigError> {
    let mut config = read::uniform(keys, architecture, &DEFAULTS)?;
    let depth_root = (config.layers.len() as f32).sqrt();
    let residual_scale = match keys.json() {
        None => {
            // Older files leave them out; these are the values of the models of that time.
            config.embedding_scale = read::multiplier(keys, EMBEDDING_SCALE)?.unwrap_or(12.0);
            let divisor = read::multiplier(keys, LOGIT_DIVISOR)?;
            config.logit_scale = 1.0 / divisor.unwrap_or(config.hidden_dim as f32 / 256.0);
            read::multiplier(keys, RESIDUAL_SCALE)?.unwrap_or(1.4 / depth_root)
        }
        Some(object) => {
            // What is missing has the class's default; `null` switches a multiplier off.
            let default = |field: &str, value: f32| (!object.has(field)).then_some(value);
            let scale = read::multiplier(keys, key("", "scale_emb"))?.or(default("scale_emb", 12.0));
            config.embedding_scale = scale.unwrap_or(1.0);
            let base =
                read::multiplier(keys, key("", "dim_model_base"))?.or(default("dim_model_base", 256.0));
            config.logit_scale = base.map_or(1.0, |base| base / config.hidden_dim as f32);
            let depth = read::multiplier(keys, key("", "scale_depth"))?.or(default("scale_depth", 1.4));
            depth.map_or(1.0, |depth| depth / depth_root)
        }
    };
    config.layers.iter_mut().for_each(|layer| layer.residual_scale = residual_scale);
    Ok(config)
}
