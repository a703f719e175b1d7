//! Qwen2 and Qwen2.5: biases on queries, keys and values.

use super::family::{Architecture, Family};
use super::keys::{Keys, key};
use super::read::{self, Defaults};
use crate::model::config::{ConfigError, Mixer, ModelConfig};

pub(super) static FAMILY: Family = Family { name: "qwen2", json: &["qwen2"], read, ..Family::STANDARD };

fn read(keys: &Keys<'_>, architecture: Architecture) -> Result<ModelConfig, ConfigError> {
    let mut config = read::uniform(keys, architecture, &Defaults::LLAMA)?;
    for layer in &mut config.layers {
        if let Mixer::Attention(attention) = &mut layer.mixer {
            // There is no field for these biases.
            attention.qkv_bias = true;
            attention.o_bias = false;
        }
    }
    set_window(keys, &mut config)?;
    Ok(config)
}

/// The window of Qwen2 and Qwen3, which a field switches on for the layers from some number on.
pub(super) fn set_window(keys: &Keys<'_>, config: &mut ModelConfig) -> Result<(), ConfigError> {
    let window = keys.count(read::WINDOW)?.filter(|&window| window > 0);
    let is_on = match keys.json() {
        None => window.is_some(),
        Some(object) => object.flag("use_sliding_window")?.unwrap_or(false),
    };
    if !is_on {
        return Ok(());
    }
    let first =
        keys.count(key("", "max_window_layers"))?.unwrap_or(if keys.json().is_some() { 28 } else { 0 });
    read::set_windows(keys, config, window, |layer_idx| layer_idx >= first)
}
