//! SmolLM3: Llama, where some layers have no position embedding.

use super::family::{Architecture, Family};
use super::keys::{Keys, key};
use super::read::{self, Defaults};
use crate::model::config::{ConfigError, Mixer, ModelConfig};

pub(super) static FAMILY: Family =
    Family { name: "smollm3", json: &["smollm3"], read, interleaves: true, ..Family::STANDARD };

const DEFAULTS: Defaults = Defaults {
    context_len: 32_768,
    tied_head: true,
    n_kv_heads: Some(4),
    rope_theta: 2_000_000.0,
    ..Defaults::LLAMA
};

fn read(keys: &Keys<'_>, architecture: Architecture) -> Result<ModelConfig, ConfigError> {
    let mut config = read::uniform(keys, architecture, &DEFAULTS)?;
    let n_layers = config.layers.len();
    let interval = keys.count(key("", "no_rope_layer_interval"))?.unwrap_or(4).max(1);
    // Despite its name, the list has a 1 for each layer that rotates.
    let rotates = match keys.flags(key("", "no_rope_layers"), n_layers)? {
        Some(rotates) => rotates,
        None => (0..n_layers).map(|layer_idx| !(layer_idx + 1).is_multiple_of(interval)).collect(),
    };
    for (layer, rotates) in config.layers.iter_mut().zip(rotates) {
        if let (Mixer::Attention(attention), false) = (&mut layer.mixer, rotates) {
            attention.rope = None;
        }
    }
    let window = keys.count(read::WINDOW)?.filter(|&window| window > 0);
    let is_on = keys.flag(key("", "use_sliding_window"))?.unwrap_or(false);
    if is_on {
        read::set_windows(keys, &mut config, window, |_| window.is_some())?;
    }
    Ok(config)
}
