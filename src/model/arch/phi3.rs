//! Phi-3, Phi-3.5 and Phi-4-mini: fused projections, partial rotation, LongRoPE.

use super::family::{Architecture, Family};
use super::keys::Keys;
use super::read::{self, Defaults};
use super::tensors::{Container, LayerWeight, Place, Slot, WeightId};
use crate::model::config::{ConfigError, FeedForward, ModelConfig};

pub(super) static FAMILY: Family = Family {
    name: "phi3",
    json: &["phi3"],
    read,
    place,
    is_redundant: |name, _| name == "rope_factors_long.weight" || name == "rope_factors_short.weight",
    ..Family::STANDARD
};

const DEFAULTS: Defaults =
    Defaults { norm_eps: 1e-5, context_len: 4096, kv_heads_like_heads: true, ..Defaults::LLAMA };

fn read(keys: &Keys<'_>, architecture: Architecture) -> Result<ModelConfig, ConfigError> {
    let mut config = read::uniform(keys, architecture, &DEFAULTS)?;
    let window = keys.count(read::WINDOW)?.filter(|&window| window > 0);
    read::set_windows(keys, &mut config, window, |_| window.is_some())?;
    Ok(config)
}

/// Queries, keys and values are one stored matrix, and so are gate and up.
fn place(config: &ModelConfig, slot: &Slot, container: Container) -> Place {
    use LayerWeight::*;
    let standard = slot.standard(config, container);
    let WeightId::Layer(layer_idx, weight) = slot.id else { return standard };
    let layer = &config.layers[layer_idx];
    let Some(attention) = config.attention(layer_idx) else { return standard };
    let FeedForward::Dense(dense) = &layer.feed else { return standard };
    let (q_dim, kv_dim) = (attention.q_dim(), attention.kv_dim());
    let name = |gguf: &str, json: &str| match container {
        Container::Gguf => format!("blk.{layer_idx}.{gguf}"),
        Container::Json => format!("model.layers.{layer_idx}.{json}"),
    };
    let qkv = |first: usize| {
        let name = name("attn_qkv.weight", "self_attn.qkv_proj.weight");
        Place::part(name, slot, first, q_dim + 2 * kv_dim)
    };
    let gate_up = |first: usize| {
        Place::part(name("ffn_up.weight", "mlp.gate_up_proj.weight"), slot, first, 2 * dense.ffn_dim)
    };
    match weight {
        Q => qkv(0),
        K => qkv(q_dim),
        V => qkv(q_dim + kv_dim),
        Gate => gate_up(0),
        Up => gate_up(dense.ffn_dim),
        _ => standard,
    }
}
