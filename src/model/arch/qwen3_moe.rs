//! Qwen3 with experts: those with the greatest probabilities, in all layers or in some.

use super::family::{Architecture, Family};
use super::keys::{Key, Keys, key};
use super::read::{self, Defaults};
use super::tensors::{Container, LayerWeight, Place, RowOrder, Slot, WeightId};
use super::{qwen2, rope};
use crate::model::config::{
    Activation, ConfigError, Dense, Experts, FeedForward, ModelConfig, QkNorm, Routing,
};

pub(super) static FAMILY: Family =
    Family { name: "qwen3moe", json: &["qwen3_moe"], read, place, ..Family::STANDARD };

const DEFAULTS: Defaults = Defaults {
    context_len: 32_768,
    n_heads: Some(32),
    n_kv_heads: Some(4),
    vocab_size: Some(151_936),
    ..Defaults::LLAMA
};

const EXPERT_FFN_DIM: Key = key("expert_feed_forward_length", "moe_intermediate_size");
const NORMALIZES: Key = key("", "norm_topk_prob");
/// A layer in so many has experts.
const STEP: Key = key("", "decoder_sparse_step");
const DENSE_LAYERS: &str = "mlp_only_layers";

fn read(keys: &Keys<'_>, architecture: Architecture) -> Result<ModelConfig, ConfigError> {
    let mut config = read::base(keys, architecture, &DEFAULTS)?;
    let mut attention = read::attention(keys, config.hidden_dim, &DEFAULTS)?;
    attention.qk_norm = Some(QkNorm::Head);
    config.ropes = vec![rope::read(keys, attention.head_dim, &config, DEFAULTS.rope_theta)?];
    let n_layers = read::n_layers(keys)?;
    let activation = read::activation(keys, Activation::Silu)?;
    let (n_experts, n_used) = read::softmax_counts(keys, (128, 8))?;
    let ffn_dim = match (keys.count(EXPERT_FFN_DIM)?, keys.json()) {
        (Some(ffn_dim), _) => ffn_dim,
        (None, Some(_)) => 768,
        (None, None) => keys.required_count(read::FFN_DIM)? / n_used.max(1),
    };
    let routing = match keys.json() {
        Some(_) if !keys.flag(NORMALIZES)?.unwrap_or(false) => Routing::Softmax,
        _ => Routing::SoftmaxNormalized,
    };
    let experts = FeedForward::Experts(Experts {
        n_experts,
        n_used,
        ffn_dim,
        activation,
        routing,
        bias: false,
        shared_ffn_dim: 0,
        shared_gated: false,
        own_norms: false,
    });
    config.layers = vec![read::layer(attention, experts); n_layers];
    let step = keys.count(STEP)?.unwrap_or(1);
    let listed = keys.json().map(|root| root.counts(DENSE_LAYERS)).transpose()?.flatten().unwrap_or_default();
    let out_of_range = |field: String, value: usize, allowed: String| ConfigError::OutOfRange {
        file: keys.file().to_owned(),
        field,
        value: value.to_string(),
        allowed,
    };
    if step == 0 {
        return Err(out_of_range(keys.full_name(STEP), step, "at least 1".to_owned()));
    }
    if let Some(&layer_idx) = listed.iter().find(|&&layer_idx| layer_idx >= n_layers) {
        return Err(out_of_range(DENSE_LAYERS.to_owned(), layer_idx, format!("below {n_layers} layers")));
    }
    for (layer_idx, layer) in config.layers.iter_mut().enumerate() {
        if listed.contains(&layer_idx) || !(layer_idx + 1).is_multiple_of(step) {
            let ffn_dim = keys.required_count(read::FFN_DIM)?;
            layer.feed = FeedForward::Dense(Dense::plain(ffn_dim, activation));
        }
    }
    qwen2::set_window(keys, &mut config)?;
    Ok(config)
}

/// Some folders hold the matrices of all experts of a layer as one tensor, gate and up of each behind each other.
fn place(config: &ModelConfig, slot: &Slot, container: Container) -> Place {
    use LayerWeight::*;
    let standard = slot.standard(config, container);
    let (WeightId::Layer(layer_idx, weight), Container::Json) = (slot.id, container) else { return standard };
    let FeedForward::Experts(Experts { n_experts, ffn_dim, .. }) = config.layers[layer_idx].feed else {
        return standard;
    };
    let stack = |name: &str, n_rows: usize, n_cols: usize| {
        let name = format!("model.layers.{layer_idx}.mlp.experts.{name}");
        Place::whole(name, slot).shaped([n_experts, n_rows, n_cols].map(|n| n as u64))
    };
    let gate_up = |first: usize| {
        let rows = RowOrder::Blocks { first, len: ffn_dim, stride: 2 * ffn_dim };
        stack("gate_up_proj", 2 * ffn_dim, config.hidden_dim).with_rows(rows)
    };
    match weight {
        ExpertGate => standard.or(gate_up(0)),
        ExpertUp => standard.or(gate_up(ffn_dim)),
        ExpertDown => standard.or(stack("down_proj", config.hidden_dim, ffn_dim)),
        _ => standard,
    }
}
