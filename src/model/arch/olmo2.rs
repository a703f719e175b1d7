//! OLMo 2 and OLMo 3: norms behind attention and feed-forward part, and over whole rows of queries and keys. In OLMo 3 three
//! of four layers have a window, and their rotation is not scaled.

use super::family::{Architecture, Family};
use super::keys::{Key, Keys, key};
use super::read::{self, Defaults};
use super::rope;
use crate::model::config::{
    Activation, ConfigError, Mixer, ModelConfig, Norms, QkNorm, RopeConfig, RopeScaling,
};

pub(super) static FAMILY: Family =
    Family { name: "olmo2", json: &["olmo2", "olmo3"], read, ..Family::STANDARD };

const DEFAULTS: Defaults = Defaults { norm_eps: 1e-5, kv_heads_like_heads: true, ..Defaults::LLAMA };
const SLIDING_THETA: Key = key("rope.freq_base_swa", "");
const PATTERN: Key = key("attention.sliding_window_pattern", "");

fn read(keys: &Keys<'_>, architecture: Architecture) -> Result<ModelConfig, ConfigError> {
    let mut config = read::base(keys, architecture, &DEFAULTS)?;
    let attention = read::attention(keys, config.hidden_dim, &DEFAULTS)?;
    config.ropes = ropes(keys, attention.head_dim, &config)?;
    config.layers = vec![read::layer(attention, read::dense(keys, Activation::Silu)?); read::n_layers(keys)?];
    for layer in &mut config.layers {
        layer.norms = Norms::Post;
        if let Mixer::Attention(attention) = &mut layer.mixer {
            attention.qk_norm = Some(QkNorm::Row);
        }
    }
    let stated = keys.count(read::WINDOW)?.or((keys.name == "olmo3").then_some(4096));
    let Some(window) = stated.filter(|&window| window > 0 && keys.name != "olmo2" || keys.json().is_none())
    else {
        config.ropes.truncate(1);
        return Ok(config);
    };
    let slides = read::sliding_layers(keys, PATTERN, 4, config.layers.len())?;
    read::set_windows(keys, &mut config, Some(window), |layer_idx| slides[layer_idx])?;
    for (layer, slides) in config.layers.iter_mut().zip(slides) {
        if let (Mixer::Attention(attention), true) = (&mut layer.mixer, slides) {
            attention.rope = Some(1);
        }
    }
    Ok(config)
}

/// The rotation of layers without a window, and that of layers with one.
fn ropes(keys: &Keys<'_>, head_dim: usize, config: &ModelConfig) -> Result<Vec<RopeConfig>, ConfigError> {
    let theta = if keys.name == "olmo3" { 500_000.0 } else { DEFAULTS.rope_theta };
    if let (Some(root), "olmo3") = (keys.json(), keys.name)
        && let Some(ropes) = rope::by_kind(&root, head_dim, config, theta)?
    {
        return Ok(ropes);
    }
    let full = rope::read(keys, head_dim, config, theta)?;
    let sliding = RopeConfig { scaling: RopeScaling::None, ..full.clone() };
    let sliding = RopeConfig { theta: keys.number(SLIDING_THETA)?.unwrap_or(sliding.theta), ..sliding };
    Ok(vec![full, sliding])
}
