//! OLMo 2 and OLMo 3: norms behind attention and feed-forward part, and over whole rows of queries and keys. In OLMo 3 three
//! of four layers have a window, and their rotation is not scaled.

use super::keys::{Key, Keys, key};
use super::read::{self, Defaults};
use super::{Architecture, Family};
use crate::model::config::{ConfigError, Mixer, ModelConfig, Norms, QkNorm, RopeConfig, RopeScaling};

pub(super) static FAMILY: Family =
    Family { name: "olmo2", json: &["olmo2", "olmo3"], read, ..Family::STANDARD };

const DEFAULTS: Defaults = Defaults { norm_eps: 1e-5, kv_heads_like_heads: true, ..Defaults::LLAMA };
const PATTERN: Key = key("attention.sliding_window_pattern", "");

fn read(keys: &Keys<'_>, architecture: Architecture) -> Result<ModelConfig, ConfigError> {
    let mut config = read::uniform(keys, architecture, &DEFAULTS)?;
    for layer in &mut config.layers {
        layer.norms = Norms::Post;
        if let Mixer::Attention(attention) = &mut layer.mixer {
            attention.qk_norm = Some(QkNorm::Row);
        }
    }
    let stated = keys.count(read::WINDOW)?.or((keys.name == "olmo3").then_some(4096));
    let Some(window) = stated.filter(|&window| window > 0 && keys.name != "olmo2" || keys.json().is_none())
    else {
        return Ok(config);
    };
    let slides = read::sliding_layers(keys, PATTERN, 4, config.layers.len())?;
    read::set_windows(keys, &mut config, Some(window), |layer_idx| slides[layer_idx])?;
    let plain = RopeConfig { scaling: RopeScaling::None, ..config.ropes[0].clone() };
    config.ropes.push(plain);
    for (layer, slides) in config.layers.iter_mut().zip(slides) {
        if let (Mixer::Attention(attention), true) = (&mut layer.mixer, slides) {
            attention.rope = Some(1);
        }
    }
    Ok(config)
}
