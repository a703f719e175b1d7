//! Ministral 3 and Mistral Small 3 (their text parts): YaRN, and queries that grow with their position.

use super::family::{Architecture, Family};
use super::keys::{Key, Keys, key};
use super::read::{self, Defaults};
use super::{llama, rope};
use crate::model::config::{ConfigError, Mixer, ModelConfig, QueryGrowth, RopeScaling};

pub(super) static FAMILY: Family = Family {
    name: "mistral3",
    json: &["mistral3", "ministral3"],
    read,
    interleaves: true,
    roots: &["model.", "language_model.model.", "model.language_model."],
    is_redundant: llama::is_other_medium,
    ..Family::STANDARD
};

const DEFAULTS: Defaults = Defaults {
    context_len: 262_144,
    norm_eps: 1e-5,
    head_dim: Some(128),
    n_heads: Some(32),
    n_kv_heads: Some(8),
    vocab_size: Some(131_072),
    rope_theta: 1_000_000.0,
    ..Defaults::LLAMA
};
const GROWTH: Key = key("attention.temperature_scale", "");

fn read(keys: &Keys<'_>, architecture: Architecture) -> Result<ModelConfig, ConfigError> {
    let mut config = read::uniform(keys, architecture, &DEFAULTS)?;
    let window = keys.count(read::WINDOW)?.filter(|&window| window > 0);
    read::set_windows(keys, &mut config, window, |_| window.is_some())?;
    let beta = match keys.json() {
        None => keys.number(GROWTH)?,
        Some(root) => rope::settings(&root)?.map(|s| s.number("llama_4_scaling_beta")).transpose()?.flatten(),
    };
    let Some(beta) = beta.filter(|&beta| beta != 0.0) else { return Ok(config) };
    let original_context_len = match config.ropes[0].scaling {
        RopeScaling::Yarn { original_context_len, .. } => original_context_len,
        _ => config.context_len,
    };
    for layer in &mut config.layers {
        if let Mixer::Attention(attention) = &mut layer.mixer {
            attention.query_growth = Some(QueryGrowth { beta: beta as f32, original_context_len });
        }
    }
    Ok(config)
}
