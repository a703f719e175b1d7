//! LFM2: gated short convolutions, and attention in some layers.

use super::family::{Architecture, Family};
use super::keys::{Key, Keys, Object, key};
use super::read::{self, Defaults};
use super::tensors::{Container, LayerWeight, Place, Slot, WeightId};
use crate::model::config::{
    Activation, ConfigError, Dense, FFN_DIM_MAX, FeedForward, Mixer, ModelConfig, QkNorm, ShortConv,
};

pub(super) static FAMILY: Family = Family { name: "lfm2", json: &["lfm2"], read, place, ..Family::STANDARD };

pub(super) const DEFAULTS: Defaults = Defaults {
    context_len: 128_000,
    norm_eps: 1e-5,
    tied_head: true,
    n_kv_heads: Some(8),
    rope_theta: 1_000_000.0,
    norm_eps_field: "norm_eps",
    ..Defaults::LLAMA
};

const CONV_LEN: Key = key("shortconv.l_cache", "conv_L_cache");

fn read(keys: &Keys<'_>, architecture: Architecture) -> Result<ModelConfig, ConfigError> {
    with_feeds(keys, architecture, |n_layers| {
        let ffn_dim = match keys.json() {
            None => keys.required_count(read::FFN_DIM)?,
            Some(object) => ffn_dim(keys, &object)?,
        };
        Ok(vec![FeedForward::Dense(Dense::plain(ffn_dim, Activation::Silu)); n_layers])
    })
}

/// A model with LFM2's mixers, and the feed-forward part that `feeds` gives each layer.
pub(super) fn with_feeds(
    keys: &Keys<'_>,
    architecture: Architecture,
    feeds: impl FnOnce(usize) -> Result<Vec<FeedForward>, ConfigError>,
) -> Result<ModelConfig, ConfigError> {
    let mut config = read::base(keys, architecture, &DEFAULTS)?;
    let n_layers = read::n_layers(keys)?;
    let has_attention = attention_layers(keys, n_layers)?;
    let mut attention = read::attention_of_kinds(keys, config.hidden_dim, &DEFAULTS, n_layers)?;
    attention.qk_norm = Some(QkNorm::Head);
    let bias = keys.flag(key("", "conv_bias"))?.unwrap_or(keys.has_tensor("blk.0.shortconv.in_proj.bias"));
    let conv = ShortConv { conv_dim: config.hidden_dim, conv_len: keys.count_or(CONV_LEN, 3)?, bias };
    if let Some(object) = keys.json() {
        config.tied_head = object.flag("tie_embedding")?.unwrap_or(config.tied_head);
        // An older name of the base.
        if let Some(theta) = object.number("theta")?.filter(|_| object.get("rope_theta").is_none()) {
            config.ropes = vec![super::rope::read(keys, attention.head_dim, &config, theta)?];
        }
    }
    if config.ropes.is_empty() {
        config.ropes = vec![super::rope::read(keys, attention.head_dim, &config, DEFAULTS.rope_theta)?];
    }
    config.layers = has_attention
        .into_iter()
        .zip(feeds(n_layers)?)
        .map(|(has_attention, feed)| {
            let mut layer = read::layer(attention.clone(), feed);
            if !has_attention {
                layer.mixer = Mixer::ShortConv(conv.clone());
            }
            layer
        })
        .collect();
    Ok(config)
}

/// Whether each layer has attention: GGUF files give the others no KV heads.
fn attention_layers(keys: &Keys<'_>, n_layers: usize) -> Result<Vec<bool>, ConfigError> {
    let Some(object) = keys.json() else { return read::attention_by_kv_heads(keys, n_layers) };
    if let Some(by_type) = read::attention_by_type(keys, n_layers, &["full_attention"], &["conv"])? {
        return Ok(by_type);
    }
    let listed = object.counts("full_attn_idxs")?;
    Ok((0..n_layers)
        .map(|layer_idx| listed.as_ref().is_none_or(|listed| listed.contains(&layer_idx)))
        .collect())
}

/// The width of the feed-forward part, which follows from a larger number.
fn ffn_dim(keys: &Keys<'_>, object: &Object<'_>) -> Result<usize, ConfigError> {
    const OLDER: Key = key("", "block_ff_dim");
    let stated = match keys.count(OLDER)? {
        Some(stated) => stated,
        None => keys.required_count(read::FFN_DIM)?,
    };
    if !object.flag("block_auto_adjust_ff_dim")?.unwrap_or(true) || stated > FFN_DIM_MAX {
        return Ok(stated);
    }
    let adjusted = 2 * stated / 3;
    let factor = object.number("block_ffn_dim_multiplier")?.unwrap_or(1.0);
    if !(factor > 0.0 && factor <= 1024.0) {
        return Err(object.unsupported("block_ffn_dim_multiplier", factor));
    }
    let adjusted = (factor * adjusted as f64) as usize;
    let multiple = object.count("block_multiple_of")?.unwrap_or(256).clamp(1, FFN_DIM_MAX);
    Ok(adjusted.div_ceil(multiple) * multiple)
}

pub(super) fn place(config: &ModelConfig, slot: &Slot, container: Container) -> Place {
    use LayerWeight::*;
    let mut place = slot.standard(config, container);
    let name = match (container, slot.id) {
        (Container::Gguf, WeightId::OutputNorm) => "token_embd_norm.weight".to_owned(),
        (Container::Gguf, _) => return place,
        (Container::Json, WeightId::OutputNorm) => "model.embedding_norm.weight".to_owned(),
        (Container::Json, WeightId::Layer(layer_idx, weight)) => {
            let name = match weight {
                AttnNorm => "operator_norm.weight",
                FfnNorm => "ffn_norm.weight",
                O => "self_attn.out_proj.weight",
                QNorm => "self_attn.q_layernorm.weight",
                KNorm => "self_attn.k_layernorm.weight",
                Gate => "feed_forward.w1.weight",
                Up => "feed_forward.w3.weight",
                Down => "feed_forward.w2.weight",
                _ => return place,
            };
            format!("model.layers.{layer_idx}.{name}")
        }
        (Container::Json, _) => return place,
    };
    place.names = vec![name];
    place
}
