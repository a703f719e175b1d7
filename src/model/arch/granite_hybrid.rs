//! Granite 4 with recurrent layers: Mamba-2, and attention in some layers, with Granite's multipliers; experts beside a
//! network that every row uses, or that network alone.

use super::family::{Architecture, Family};
use super::granite::set_multipliers;
use super::keys::{Key, Keys, key};
use super::read::{self, Defaults};
use super::rope;
use super::tensors::{Container, LayerWeight, Place, RowOrder, Slot, WeightId};
use crate::model::config::{
    Activation, ConfigError, Dense, Experts, FeedForward, Mamba2, Mixer, ModelConfig, Routing,
};

pub(super) static FAMILY: Family = Family {
    name: "granitehybrid",
    json: &["granitemoehybrid"],
    read,
    place,
    interleaves: true,
    ..Family::STANDARD
};

const DEFAULTS: Defaults = Defaults { kv_heads_like_heads: true, ..Defaults::LLAMA };

const N_EXPERTS: Key = key("expert_count", "num_local_experts");
const N_USED: Key = key("expert_used_count", "num_experts_per_tok");
const EXPERT_DIM: Key = key("feed_forward_length", "intermediate_size");
const SHARED_DIM: Key = key("expert_shared_feed_forward_length", "shared_intermediate_size");
/// Of a model without experts.
const DENSE_DIM: Key = key("feed_forward_length", "shared_intermediate_size");
const CONV_LEN: Key = key("ssm.conv_kernel", "mamba_d_conv");
const STATE_DIM: Key = key("ssm.state_size", "mamba_d_state");
const N_GROUPS: Key = key("ssm.group_count", "mamba_n_groups");
const N_STATE_HEADS: Key = key("ssm.time_step_rank", "mamba_n_heads");
const INNER: Key = key("ssm.inner_size", "");
const ROTATES: Key = key("rope.scaling.finetuned", "");
const POSITIONS: Key = key("", "position_embedding_type");

fn read(keys: &Keys<'_>, architecture: Architecture) -> Result<ModelConfig, ConfigError> {
    let mut config = read::base(keys, architecture, &DEFAULTS)?;
    let n_layers = read::n_layers(keys)?;
    let attention = read::attention_of_kinds(keys, config.hidden_dim, &DEFAULTS, n_layers)?;
    let rotates = match keys.json() {
        None => keys.flag(ROTATES)?.unwrap_or(true),
        Some(_) => match keys.text(POSITIONS)? {
            Some("rope") => true,
            None | Some("nope") => false,
            Some(other) => return Err(keys.unsupported(POSITIONS, other)),
        },
    };
    if rotates {
        config.ropes = vec![rope::read(keys, attention.head_dim, &config, DEFAULTS.rope_theta)?];
    }
    let feed = feed(keys)?;
    let has_attention = attention_layers(keys, n_layers)?;
    let mamba = match has_attention.iter().all(|has_attention| *has_attention) {
        true => None,
        false => Some(mamba(keys, config.hidden_dim)?),
    };
    config.layers = has_attention
        .into_iter()
        .map(|has_attention| {
            let mut attention = attention.clone();
            attention.rope = rotates.then_some(0);
            let mut layer = read::layer(attention, feed.clone());
            if let (Some(mamba), false) = (&mamba, has_attention) {
                layer.mixer = Mixer::Mamba2(mamba.clone());
            }
            layer
        })
        .collect();
    set_multipliers(keys, &mut config)?;
    Ok(config)
}

/// The network that every row uses, with experts beside it if there are some.
fn feed(keys: &Keys<'_>) -> Result<FeedForward, ConfigError> {
    let activation = read::activation(keys, Activation::Silu)?;
    let n_experts = keys.count(N_EXPERTS)?.or(keys.json().map(|_| 8)).unwrap_or(0);
    if n_experts == 0 {
        return Ok(FeedForward::Dense(Dense::plain(keys.count_or(DENSE_DIM, 1024)?, activation)));
    }
    Ok(FeedForward::Experts(Experts {
        n_experts,
        n_used: keys.count_or(N_USED, 2)?,
        ffn_dim: keys.count_or(EXPERT_DIM, 11_008)?,
        activation,
        routing: Routing::SoftmaxOfChosen,
        bias: false,
        shared_ffn_dim: keys.count_or(SHARED_DIM, 1024)?,
        shared_gated: false,
        own_norms: false,
    }))
}

fn mamba(keys: &Keys<'_>, hidden_dim: usize) -> Result<Mamba2, ConfigError> {
    let n_heads = keys.count_or(N_STATE_HEADS, 128)?;
    let (inner, conv_bias) = match keys.json() {
        None => (keys.required_count(INNER)?, keys.has_tensor("blk.0.ssm_conv1d.bias")),
        Some(object) => {
            let expand = object.count("mamba_expand")?.unwrap_or(2);
            if object.flag("mamba_proj_bias")?.unwrap_or(false) {
                return Err(object.unsupported("mamba_proj_bias", true));
            }
            let bias = object.flag("mamba_conv_bias")?.unwrap_or(true);
            (expand.saturating_mul(hidden_dim), bias)
        }
    };
    if n_heads == 0 || !inner.is_multiple_of(n_heads) {
        return Err(ConfigError::Inconsistent {
            file: keys.file().to_owned(),
            left: format!("a Mamba-2 width of {inner}"),
            right: format!("{} = {n_heads}", keys.full_name(N_STATE_HEADS)),
        });
    }
    Ok(Mamba2 {
        n_heads,
        head_dim: inner / n_heads,
        n_groups: keys.count_or(N_GROUPS, 1)?,
        state_dim: keys.count_or(STATE_DIM, 256)?,
        conv_len: keys.count_or(CONV_LEN, 4)?,
        conv_bias,
    })
}

fn attention_layers(keys: &Keys<'_>, n_layers: usize) -> Result<Vec<bool>, ConfigError> {
    if keys.json().is_none() {
        return read::attention_by_kv_heads(keys, n_layers);
    }
    // Newer writers name every recurrent layer `linear_attention`.
    let (with, without) = (["attention", "full_attention"], ["mamba", "linear_attention"]);
    Ok(read::attention_by_type(keys, n_layers, &with, &without)?.unwrap_or_else(|| vec![false; n_layers]))
}

fn place(config: &ModelConfig, slot: &Slot, container: Container) -> Place {
    use LayerWeight::*;
    let standard = slot.standard(config, container);
    let WeightId::Layer(layer_idx, weight) = slot.id else { return standard };
    if container == Container::Gguf {
        return standard;
    }
    let name = |name: &str| format!("model.layers.{layer_idx}.{name}.weight");
    let of_shared =
        |first: usize, ffn_dim: usize| Place::part(name("shared_mlp.input_linear"), slot, first, 2 * ffn_dim);
    match (&config.layers[layer_idx].feed, weight) {
        (FeedForward::Dense(Dense { ffn_dim, .. }), Gate) => of_shared(0, *ffn_dim),
        (FeedForward::Dense(Dense { ffn_dim, .. }), Up) => of_shared(*ffn_dim, *ffn_dim),
        (FeedForward::Experts(experts), SharedGate) => of_shared(0, experts.shared_ffn_dim),
        (FeedForward::Experts(experts), SharedUp) => {
            of_shared(experts.shared_ffn_dim, experts.shared_ffn_dim)
        }
        (_, Down | SharedDown) => Place::whole(name("shared_mlp.output_linear"), slot),
        (_, Router) => Place::whole(name("block_sparse_moe.router.layer"), slot),
        (FeedForward::Experts(experts), ExpertGate | ExpertUp) => {
            // Gate and up of an expert lie behind each other.
            let Experts { n_experts, ffn_dim, .. } = *experts;
            let first = if weight == ExpertGate { 0 } else { ffn_dim };
            let shape = [n_experts, 2 * ffn_dim, config.hidden_dim].map(|n| n as u64);
            let rows = RowOrder::Blocks { first, len: ffn_dim, stride: 2 * ffn_dim };
            Place::whole(name("block_sparse_moe.input_linear"), slot).shaped(shape).with_rows(rows)
        }
        (FeedForward::Experts(experts), ExpertDown) => {
            let shape = [experts.n_experts, config.hidden_dim, experts.ffn_dim].map(|n| n as u64);
            Place::whole(name("block_sparse_moe.output_linear"), slot).shaped(shape)
        }
        _ => standard,
    }
}
