//! Gemma 3 (its text part): norms before and behind each part of a layer, five layers with a window for each without one,
//! a rotation of its own for these two kinds.

use super::family::{Architecture, Family};
use super::keys::{Key, Keys, key};
use super::read::{self, Defaults};
use super::tensors::{Change, Container, LayerWeight, Place, Slot, WeightId};
use super::{llama, rope};
use crate::model::config::{
    Activation, ConfigError, Mixer, ModelConfig, Norms, QkNorm, RopeConfig, RopeScaling,
};

pub(super) static FAMILY: Family = Family {
    name: "gemma3",
    json: &["gemma3_text", "gemma3"],
    read,
    place,
    roots: &["model.", "language_model.model.", "model.language_model."],
    is_redundant: llama::is_other_medium,
    ..Family::STANDARD
};

const DEFAULTS: Defaults = Defaults {
    context_len: 131_072,
    tied_head: true,
    head_dim: Some(256),
    n_heads: Some(8),
    n_kv_heads: Some(4),
    vocab_size: Some(262_208),
    ..Defaults::LLAMA
};

const SCORE_SCALE: Key = key("", "query_pre_attn_scalar");
const LOCAL_THETA: Key = key("rope.freq_base_swa", "rope_local_base_freq");
const LOGIT_CAP: Key = key("final_logit_softcapping", "final_logit_softcapping");
const SCORE_CAP: Key = key("attn_logit_softcapping", "attn_logit_softcapping");
/// A layer in so many has no window; GGUF files may list the layers with one instead.
const PATTERN: Key = key("attention.sliding_window_pattern", "sliding_window_pattern");

fn read(keys: &Keys<'_>, architecture: Architecture) -> Result<ModelConfig, ConfigError> {
    let mut config = read::base(keys, architecture, &DEFAULTS)?;
    config.embedding_scale = (config.hidden_dim as f32).sqrt();
    config.logit_softcap = read::multiplier(keys, LOGIT_CAP)?;
    let n_layers = read::n_layers(keys)?;
    let mut attention = read::attention(keys, config.hidden_dim, &DEFAULTS)?;
    attention.qk_norm = Some(QkNorm::Head);
    attention.softcap = read::multiplier(keys, SCORE_CAP)?;
    attention.scale = match keys.json() {
        Some(_) => 1.0 / (keys.number(SCORE_SCALE)?.unwrap_or(256.0) as f32).sqrt(),
        // Only the largest model, which has 62 layers, scales scores by the width of its heads in the residual stream.
        None if n_layers == 62 => 1.0 / (config.hidden_dim as f32 / attention.n_heads.max(1) as f32).sqrt(),
        None => attention.scale,
    };
    let feed = read::dense(keys, Activation::GeluTanh)?;
    config.ropes = ropes(keys, attention.head_dim, &config)?;
    config.layers = vec![read::layer(attention, feed); n_layers];
    let window = keys.count(read::WINDOW)?.or(keys.json().map(|_| 4096)).filter(|&window| window > 0);
    let slides = read::sliding_layers(keys, PATTERN, 6, n_layers)?;
    let is_full = |layer_idx: usize| window.is_none() || !slides[layer_idx];
    read::set_windows(keys, &mut config, window, |layer_idx| !is_full(layer_idx))?;
    for (layer_idx, layer) in config.layers.iter_mut().enumerate() {
        layer.norms = Norms::Both;
        if let Mixer::Attention(attention) = &mut layer.mixer {
            attention.rope = Some(usize::from(!is_full(layer_idx)));
        }
    }
    Ok(config)
}

/// The rotation of layers without a window, and that of layers with one.
pub(super) fn ropes(
    keys: &Keys<'_>,
    head_dim: usize,
    config: &ModelConfig,
) -> Result<Vec<RopeConfig>, ConfigError> {
    let local = |theta: Option<f64>| RopeConfig {
        theta: theta.unwrap_or(10_000.0),
        rotary_dim: head_dim,
        scaling: RopeScaling::None,
    };
    let Some(root) = keys.json() else {
        let full = rope::of_gguf(keys, head_dim, config)?;
        return Ok(vec![full, local(keys.number(LOCAL_THETA)?)]);
    };
    if let Some(ropes) = rope::by_kind(&root, head_dim, config, 10_000.0)? {
        return Ok(ropes);
    }
    let full = rope::of_json(&root, rope::settings(&root)?, head_dim, config, 1_000_000.0)?;
    Ok(vec![full, local(keys.number(LOCAL_THETA)?)])
}

fn place(config: &ModelConfig, slot: &Slot, container: Container) -> Place {
    use LayerWeight::*;
    let place = place_pre_norm(config, slot, container);
    if container == Container::Gguf {
        return place;
    }
    match slot.id {
        WeightId::OutputNorm
        | WeightId::Layer(_, AttnNorm | PostAttnNorm | FfnNorm | PostFfnNorm | QNorm | KNorm) => {
            place.changed(Change::PlusOne)
        }
        _ => place,
    }
}

/// The standard places, but for the name of the norm before the feed-forward part.
pub(super) fn place_pre_norm(config: &ModelConfig, slot: &Slot, container: Container) -> Place {
    let mut place = slot.standard(config, container);
    if let (WeightId::Layer(layer_idx, LayerWeight::FfnNorm), Container::Json) = (slot.id, container) {
        place.names = vec![format!("model.layers.{layer_idx}.pre_feedforward_layernorm.weight")];
    }
    place
}
