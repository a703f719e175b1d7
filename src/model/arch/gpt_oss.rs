//! gpt-oss: experts in MXFP4 with biases, attention with sinks, windows in every second layer.

use super::family::{Architecture, Family};
use super::keys::{Key, Keys, key};
use super::read::{self, Defaults};
use super::rope;
use super::tensors::{Container, LayerWeight, Place, RowOrder, Slot, WeightId};
use crate::model::config::{
    Activation, ConfigError, Experts, FeedForward, ModelConfig, RopeConfig, RopeScaling, Routing,
};

pub(super) static FAMILY: Family =
    Family { name: "gpt-oss", json: &["gpt_oss"], read, place, ..Family::STANDARD };

const DEFAULTS: Defaults = Defaults {
    context_len: 131_072,
    norm_eps: 1e-5,
    head_dim: Some(64),
    n_heads: Some(64),
    n_kv_heads: Some(8),
    vocab_size: Some(201_088),
    rope_theta: 150_000.0,
    ..Defaults::LLAMA
};

const EXPERT_FFN_DIM: Key = key("expert_feed_forward_length", "intermediate_size");
const PATTERN: Key = key("attention.sliding_window_pattern", "");
const ALPHA: Key = key("", "swiglu_alpha");
const LIMIT: Key = key("", "swiglu_limit");

fn read(keys: &Keys<'_>, architecture: Architecture) -> Result<ModelConfig, ConfigError> {
    let mut config = read::base(keys, architecture, &DEFAULTS)?;
    let mut attention = read::attention(keys, config.hidden_dim, &DEFAULTS)?;
    attention.sinks = true;
    if let Some(root) = keys.json() {
        let has_bias = root.flag("attention_bias")?.unwrap_or(true);
        (attention.qkv_bias, attention.o_bias) = (has_bias, has_bias);
    }
    config.ropes = vec![rotation(keys, attention.head_dim, &config)?];
    if let Some(quantization) = keys.object("quantization_config")? {
        match quantization.required_text("quant_method")? {
            "mxfp4" => {}
            other => return Err(quantization.unsupported("quant_method", other)),
        }
    }
    if let Some(alpha) = keys.number(ALPHA)?.filter(|&alpha| alpha != 1.702) {
        return Err(keys.unsupported(ALPHA, alpha));
    }
    let limit = keys.number(LIMIT)?.unwrap_or(7.0) as f32;
    let (n_experts, n_used) = read::softmax_counts(keys, (128, 4))?;
    let ffn_dim = match (keys.count(EXPERT_FFN_DIM)?, keys.json()) {
        (Some(ffn_dim), _) => ffn_dim,
        (None, Some(_)) => 2880,
        (None, None) => keys.required_count(read::FFN_DIM)?,
    };
    let experts = FeedForward::Experts(Experts {
        n_experts,
        n_used,
        ffn_dim,
        activation: Activation::ClampedSwiglu { limit },
        routing: Routing::SoftmaxOfChosen,
        bias: true,
        shared_ffn_dim: 0,
        shared_gated: false,
        own_norms: false,
    });
    let n_layers = read::n_layers(keys)?;
    config.layers = vec![read::layer(attention, experts); n_layers];
    let window = keys.count(read::WINDOW)?.or(keys.json().map(|_| 128)).filter(|&window| window > 0);
    let slides = read::sliding_layers(keys, PATTERN, 2, n_layers)?;
    read::set_windows(keys, &mut config, window, |layer_idx| slides[layer_idx])?;
    Ok(config)
}

/// YaRN whose ramp is not rounded to whole dimensions. GGUF files do not state this.
fn rotation(keys: &Keys<'_>, head_dim: usize, config: &ModelConfig) -> Result<RopeConfig, ConfigError> {
    let stated = match keys.json() {
        Some(root) => rope::settings(&root)?.is_some(),
        None => true,
    };
    if !stated {
        let attention_factor = 0.1 * libm::log(32.0) + 1.0;
        let scaling = RopeScaling::Yarn {
            factor: 32.0,
            beta_fast: 32.0,
            beta_slow: 1.0,
            original_context_len: 4096,
            attention_factor,
            truncate: false,
        };
        let theta = keys.number(key("", "rope_theta"))?.unwrap_or(DEFAULTS.rope_theta);
        return Ok(RopeConfig { theta, rotary_dim: head_dim, scaling });
    }
    let mut rope = rope::read(keys, head_dim, config, DEFAULTS.rope_theta)?;
    if let (RopeScaling::Yarn { truncate, .. }, None) = (&mut rope.scaling, keys.json()) {
        *truncate = false;
    }
    Ok(rope)
}

/// Folders hold the blocks of all experts of a layer, rows of gate and up in turns, and their exponents apart. GGUF files
/// call the norm before the experts by its name in folders.
fn place(config: &ModelConfig, slot: &Slot, container: Container) -> Place {
    use LayerWeight::*;
    let standard = slot.standard(config, container);
    let WeightId::Layer(layer_idx, weight) = slot.id else { return standard };
    if container == Container::Gguf {
        return match weight {
            FfnNorm => Place::whole(format!("blk.{layer_idx}.post_attention_norm.weight"), slot),
            _ => standard,
        };
    }
    let FeedForward::Experts(Experts { n_experts, ffn_dim, .. }) = config.layers[layer_idx].feed else {
        return standard;
    };
    let hidden_dim = config.hidden_dim;
    let name = |name: &str| format!("model.layers.{layer_idx}.mlp.{name}");
    let stack = |matrix: &str, n_rows: usize, n_cols: usize| {
        let (blocks, scales) = (format!("experts.{matrix}_blocks"), format!("experts.{matrix}_scales"));
        let shape = [n_experts, n_rows, n_cols].map(|n| n as u64);
        Place::whole(name(&blocks), slot).shaped(shape).mxfp4(name(&scales))
    };
    let bias = |matrix: &str, n_rows: usize| {
        let shape = [n_experts, n_rows].map(|n| n as u64);
        Place::whole(name(&format!("experts.{matrix}_bias")), slot).shaped(shape)
    };
    let in_turns =
        |place: Place, first: usize| place.with_rows(RowOrder::Blocks { first, len: 1, stride: 2 });
    let gate_up = |first: usize| in_turns(stack("gate_up_proj", 2 * ffn_dim, hidden_dim), first);
    let gate_up_bias = |first: usize| in_turns(bias("gate_up_proj", 2 * ffn_dim), first);
    match weight {
        Router => Place::whole(name("router.weight"), slot),
        RouterBias => Place::whole(name("router.bias"), slot),
        ExpertGate => gate_up(0),
        ExpertUp => gate_up(1),
        ExpertDown => stack("down_proj", hidden_dim, ffn_dim),
        ExpertGateBias => gate_up_bias(0),
        ExpertUpBias => gate_up_bias(1),
        ExpertDownBias => bias("down_proj", hidden_dim),
        _ => standard,
    }
}
