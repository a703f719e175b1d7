//! Qwen3.5 (dense, its text part): the gated delta rule in three of four layers, gated attention with partial rotation in
//! the others.

use super::family::{Architecture, Family};
use super::keys::{Key, Keys, key};
use super::read::{self, Defaults};
use super::rope;
use super::tensors::{Change, Container, LayerWeight, Place, Slot, WeightId};
use crate::model::config::{Activation, ConfigError, DeltaNet, Mixer, ModelConfig, QkNorm};

pub(super) static FAMILY: Family = Family {
    name: "qwen35",
    json: &["qwen3_5", "qwen3_5_text"],
    read,
    place,
    roots: &["model.", "model.language_model."],
    has_mtp: true,
    is_redundant: |name, _| name.starts_with("model.visual."),
    ..Family::STANDARD
};

const DEFAULTS: Defaults = Defaults { context_len: 32_768, head_dim: Some(256), ..Defaults::LLAMA };

const PERIOD: Key = key("full_attention_interval", "full_attention_interval");
const RECURRENT: Key = key("attention.recurrent_layers", "");
const N_VALUE_HEADS: Key = key("ssm.time_step_rank", "linear_num_value_heads");
const N_KEY_HEADS: Key = key("ssm.group_count", "linear_num_key_heads");
const KEY_DIM: Key = key("ssm.state_size", "linear_key_head_dim");
const VALUE_DIM: Key = key("", "linear_value_head_dim");
const INNER: Key = key("ssm.inner_size", "");
const CONV_LEN: Key = key("ssm.conv_kernel", "linear_conv_kernel_dim");

fn read(keys: &Keys<'_>, architecture: Architecture) -> Result<ModelConfig, ConfigError> {
    let mut config = read::base(keys, architecture, &DEFAULTS)?;
    // The file of a model with a head for multi-token prediction flags its block too.
    let n_layers = read::n_layers(keys)?;
    let n_blocks = n_layers + read::n_mtp_blocks(keys)?;
    let mut attention = read::attention_of_kinds(keys, config.hidden_dim, &DEFAULTS, n_layers)?;
    attention.qk_norm = Some(QkNorm::Head);
    attention.gated = true;
    let feed = read::dense(keys, Activation::Silu)?;
    let mut rotation = rope::read(keys, attention.head_dim, &config, DEFAULTS.rope_theta)?;
    if let Some(object) = keys.json() {
        let stated = rope::settings(&object)?.is_some_and(|s| s.get("partial_rotary_factor").is_some());
        if !stated && object.get("partial_rotary_factor").is_none() {
            rotation.rotary_dim = attention.head_dim / 4;
        }
    }
    config.ropes = vec![rotation];
    let delta = delta(keys)?;
    let has_attention = attention_layers(keys, n_blocks, n_layers)?;
    config.layers = has_attention
        .into_iter()
        .map(|has_attention| {
            let mut layer = read::layer(attention.clone(), feed.clone());
            if !has_attention {
                layer.mixer = Mixer::DeltaNet(delta.clone());
            }
            layer
        })
        .collect();
    Ok(config)
}

fn delta(keys: &Keys<'_>) -> Result<DeltaNet, ConfigError> {
    let (n_key_heads, n_value_heads) = (keys.count_or(N_KEY_HEADS, 16)?, keys.count_or(N_VALUE_HEADS, 32)?);
    let key_dim = keys.count_or(KEY_DIM, 128)?;
    let value_dim = match keys.json() {
        Some(_) => keys.count_or(VALUE_DIM, 128)?,
        None => match keys.count(INNER)? {
            Some(inner) if n_value_heads > 0 && inner.is_multiple_of(n_value_heads) => inner / n_value_heads,
            _ => key_dim,
        },
    };
    Ok(DeltaNet {
        n_key_heads,
        n_value_heads,
        key_dim,
        value_dim,
        conv_len: keys.count_or(CONV_LEN, 4)?,
        // The converter reorders value heads, so that the sharing of keys repeats.
        strided: keys.gguf().is_some() && n_key_heads != n_value_heads,
    })
}

/// Whether each layer has attention.
fn attention_layers(keys: &Keys<'_>, n_blocks: usize, n_layers: usize) -> Result<Vec<bool>, ConfigError> {
    if let Some(recurrent) = keys.flags(RECURRENT, n_blocks)? {
        return Ok(recurrent.into_iter().take(n_layers).map(|recurrent| !recurrent).collect());
    }
    let period = keys.count(PERIOD)?.unwrap_or(4).max(1);
    let by_type = read::attention_by_type(keys, n_layers, &["full_attention"], &["linear_attention"])?;
    let by_period = || (0..n_layers).map(|layer_idx| (layer_idx + 1).is_multiple_of(period)).collect();
    Ok(by_type.unwrap_or_else(by_period))
}

fn place(config: &ModelConfig, slot: &Slot, container: Container) -> Place {
    use LayerWeight::*;
    let standard = slot.standard(config, container);
    let is_json = container == Container::Json;
    let (layer_idx, weight) = match slot.id {
        WeightId::OutputNorm if is_json => return standard.changed(Change::PlusOne),
        WeightId::Layer(layer_idx, weight) => (layer_idx, weight),
        _ => return standard,
    };
    let name = |gguf: &str, json: &str| match container {
        Container::Gguf => format!("blk.{layer_idx}.{gguf}"),
        Container::Json => format!("model.layers.{layer_idx}.{json}"),
    };
    if let (Some(attention), Q | AttnGate) = (config.attention(layer_idx), weight) {
        // The rows of each head's queries and gate alternate.
        let head_dim = attention.head_dim;
        let first = if weight == Q { 0 } else { head_dim };
        let name = name("attn_q.weight", "self_attn.q_proj.weight");
        return Place::blocks(name, slot, (first, head_dim, 2 * head_dim), 2 * attention.q_dim());
    }
    let renamed = |mut place: Place, name: String| {
        place.names = vec![name];
        place
    };
    match weight {
        FfnNorm => {
            let name = name("post_attention_norm.weight", "post_attention_layernorm.weight");
            renamed(standard, name).changed(if is_json { Change::PlusOne } else { Change::Keep })
        }
        AttnNorm | QNorm | KNorm if is_json => standard.changed(Change::PlusOne),
        StateConv if is_json => renamed(standard, name("", "linear_attn.conv1d.weight")),
        StateA if is_json => renamed(standard, name("", "linear_attn.A_log")),
        StateStepBias if is_json => renamed(standard, name("", "linear_attn.dt_bias")),
        StateNorm if is_json => renamed(standard, name("", "linear_attn.norm.weight")),
        _ => standard,
    }
}
