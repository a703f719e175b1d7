//! Gemma 4 (its text part): wider heads and a partial rotation in layers without a window, layers that read the keys and
//! values of earlier ones, and inputs of each layer beside the residual stream; in a variant, experts with norms of their own
//! beside each dense network.

use super::family::{Architecture, Family};
use super::keys::{Key, Keys, Object, key};
use super::read::{self, Defaults};
use super::tensors::{Container, LayerWeight, Place, RowOrder, Slot, WeightId};
use super::{gemma3, llama, rope};
use crate::model::config::{
    Activation, Attention, CONTEXT_LEN_MAX, ConfigError, Dense, Experts, FeedForward, KvSource, ModelConfig,
    Norms, PerLayerInputs, QkNorm, RopeConfig, RopeScaling, Routing,
};

pub(super) static FAMILY: Family = Family {
    name: "gemma4",
    json: &["gemma4_text", "gemma4"],
    read,
    place,
    roots: &["model.", "model.language_model.", "language_model.model."],
    is_redundant: is_other_medium,
    ..Family::STANDARD
};

const DEFAULTS: Defaults =
    Defaults { context_len: 131_072, tied_head: true, vocab_size: Some(262_144), ..Defaults::LLAMA };

const LOGIT_CAP: Key = key("final_logit_softcapping", "final_logit_softcapping");
const PATTERN: Key = key("attention.sliding_window_pattern", "");
const LAYER_TYPES: Key = key("", "layer_types");
/// Width of a head in layers without a window, and in the others.
const FULL_DIM: Key = key("attention.key_length", "global_head_dim");
const FULL_VALUE_DIM: Key = key("attention.value_length", "");
const SLIDING_DIM: Key = key("attention.key_length_swa", "head_dim");
const SLIDING_VALUE_DIM: Key = key("attention.value_length_swa", "");
const FULL_KV_HEADS: Key = key("", "num_global_key_value_heads");
const OVERRIDES: Key = key("", "per_layer_config");
const ONE_PROJECTION: Key = key("", "attention_k_eq_v");
pub(super) const N_SHARED: Key = key("attention.shared_kv_layers", "num_kv_shared_layers");
const DOUBLE_WIDE: Key = key("", "use_double_wide_mlp");
const PER_LAYER_DIM: Key = key("embedding_length_per_layer_input", "hidden_size_per_layer_input");
const PER_LAYER_VOCAB: Key = key("", "vocab_size_per_layer_input");
const SLIDING_THETA: Key = key("rope.freq_base_swa", "");
const SLIDING_ROTARY_DIM: Key = key("rope.dimension_count_swa", "");
const HAS_EXPERTS: Key = key("", "enable_moe_block");
const N_EXPERTS: Key = key("expert_count", "num_experts");
const N_USED: Key = key("expert_used_count", "top_k_experts");
const EXPERT_DIM: Key = key("expert_feed_forward_length", "moe_intermediate_size");
const BIDIRECTIONAL: Key = key("", "use_bidirectional_attention");

fn read(keys: &Keys<'_>, architecture: Architecture) -> Result<ModelConfig, ConfigError> {
    // Pictures see all of themselves; text is causal.
    match keys.text(BIDIRECTIONAL)? {
        None | Some("vision") => {}
        Some(other) => return Err(keys.unsupported(BIDIRECTIONAL, other)),
    }
    let mut config = read::base(keys, architecture, &DEFAULTS)?;
    config.embedding_scale = (config.hidden_dim as f32).sqrt();
    config.logit_softcap = read::multiplier(keys, LOGIT_CAP)?;
    let n_layers = read::n_layers(keys)?;
    let slides = sliding_layers(keys, n_layers)?;
    let heads = heads(keys, &slides)?;
    let one_projection = has_one_projection(keys)?;
    let is_one = |layer_idx: usize| match keys.json() {
        Some(_) => one_projection,
        None => !keys.has_tensor(&format!("blk.{layer_idx}.attn_v.weight")),
    };
    let sources = kv_sources(keys, &slides, keys.count(N_SHARED)?.unwrap_or(0), is_one)?;
    let feeds = feeds(keys, ffn_dims(keys, &sources)?)?;
    config.per_layer = per_layer(keys, &config)?;
    config.ropes = ropes(keys, &heads, &slides, &config)?;
    let window = keys.count(read::WINDOW)?.or(keys.json().map(|_| 512));
    let has_bias = match keys.json() {
        Some(object) => object.flag("attention_bias")?.unwrap_or(false),
        None => false,
    };
    for ((layer_idx, &slides), feed) in slides.iter().enumerate().zip(feeds) {
        let Heads { n_heads, n_kv_heads, head_dim } = heads[layer_idx];
        let mut attention = Attention::plain(n_heads, n_kv_heads, head_dim);
        attention.rope = Some(usize::from(slides));
        attention.scale = 1.0;
        attention.qk_norm = Some(QkNorm::Head);
        attention.v_norm = true;
        (attention.qkv_bias, attention.o_bias) = (has_bias, has_bias);
        attention.kv = sources[layer_idx];
        if slides {
            let window = window.ok_or_else(|| keys.missing(read::WINDOW))?;
            // A window as long as any context limits nothing.
            attention.window = (window < config.context_len.min(CONTEXT_LEN_MAX)).then_some(window);
        }
        let mut layer = read::layer(attention, feed);
        layer.norms = Norms::Both;
        layer.output_scaled =
            keys.json().is_some() || keys.has_tensor(&format!("blk.{layer_idx}.layer_output_scale.weight"));
        config.layers.push(layer);
    }
    Ok(config)
}

/// Whether each layer has a window; the last one of a `config.json` never has.
fn sliding_layers(keys: &Keys<'_>, n_layers: usize) -> Result<Vec<bool>, ConfigError> {
    let known = ["full_attention", "sliding_attention"];
    let types = keys.layer_types(n_layers)?.unwrap_or_default();
    if let Some(other) = types.iter().find(|kind| !known.contains(*kind)) {
        return Err(keys.unsupported(LAYER_TYPES, other));
    }
    let mut slides = read::sliding_layers(keys, PATTERN, 6, n_layers)?;
    if let (Some(_), Some(last)) = (keys.json(), slides.last_mut()) {
        *last = false;
    }
    Ok(slides)
}

/// The heads of a layer.
#[derive(Clone, Copy, PartialEq)]
struct Heads {
    n_heads: usize,
    n_kv_heads: usize,
    head_dim: usize,
}

fn heads(keys: &Keys<'_>, slides: &[bool]) -> Result<Vec<Heads>, ConfigError> {
    let n_heads = keys.count_or(read::N_HEADS, 8)?;
    let n_kv_heads = keys.counts(read::N_KV_HEADS, slides.len())?;
    let n_kv_heads = n_kv_heads.or(keys.json().map(|_| vec![4; slides.len()]));
    let n_kv_heads = n_kv_heads.ok_or_else(|| keys.missing(read::N_KV_HEADS))?;
    let sliding_dim = keys.count(SLIDING_DIM)?.or(keys.json().map(|_| 256));
    let full_dim = keys.count_or(FULL_DIM, 512)?;
    let sliding_dim = sliding_dim.unwrap_or(full_dim);
    for (field, dim) in [(FULL_VALUE_DIM, full_dim), (SLIDING_VALUE_DIM, sliding_dim)] {
        if let Some(value_dim) = keys.count(field)?.filter(|&value_dim| value_dim != dim) {
            return Err(keys.unsupported(field, value_dim));
        }
    }
    let full_kv_heads = keys.count(FULL_KV_HEADS)?.filter(|_| matches!(has_one_projection(keys), Ok(true)));
    let mut heads: Vec<Heads> = slides
        .iter()
        .zip(n_kv_heads)
        .map(|(&slides, stated)| Heads {
            n_heads,
            n_kv_heads: full_kv_heads.filter(|_| !slides).unwrap_or(stated),
            head_dim: if slides { sliding_dim } else { full_dim },
        })
        .collect();
    if let Some(root) = keys.json() {
        override_heads(keys, &root, sliding_dim, &mut heads)?;
    }
    Ok(heads)
}

/// Newer files state what differs from `head_dim` and `num_key_value_heads`, by the number of the layer.
fn override_heads(
    keys: &Keys<'_>,
    root: &Object<'_>,
    head_dim: usize,
    heads: &mut [Heads],
) -> Result<(), ConfigError> {
    let Some(overrides) = root.object(OVERRIDES.json)? else { return Ok(()) };
    let n_kv_heads = keys.count(read::N_KV_HEADS)?.unwrap_or(4);
    for (layer_idx, heads) in heads.iter_mut().enumerate() {
        (heads.head_dim, heads.n_kv_heads) = (head_dim, n_kv_heads);
        let name = layer_idx.to_string();
        let Some(own) = overrides.object(&name)? else { continue };
        heads.head_dim = own.count("head_dim")?.unwrap_or(head_dim);
        heads.n_kv_heads = own.count("num_key_value_heads")?.unwrap_or(n_kv_heads);
    }
    Ok(())
}

/// Whether values of layers without a window are their keys before norm and rotation, by `config.json`.
fn has_one_projection(keys: &Keys<'_>) -> Result<bool, ConfigError> {
    Ok(keys.flag(ONE_PROJECTION)?.unwrap_or(false))
}

/// Where the keys and values of each layer come from: the last `n_shared` layers read those of the last layer of their kind
/// before them; `is_one` says whether an earlier layer without a window has one projection for both.
pub(super) fn kv_sources(
    keys: &Keys<'_>,
    slides: &[bool],
    n_shared: usize,
    is_one: impl Fn(usize) -> bool,
) -> Result<Vec<KvSource>, ConfigError> {
    let inconsistent = |right: String| ConfigError::Inconsistent {
        file: keys.file().to_owned(),
        left: format!("{} = {n_shared}", keys.full_name(N_SHARED)),
        right,
    };
    let n_own = match slides.len().checked_sub(n_shared) {
        Some(n_own) if n_own > 0 => n_own,
        _ => return Err(inconsistent(format!("{} layers", slides.len()))),
    };
    let source = |(layer_idx, &slides_here): (usize, &bool)| {
        if layer_idx >= n_own {
            let source = slides[..n_own].iter().rposition(|&slides| slides == slides_here);
            let kind = if slides_here { "with" } else { "without" };
            let none = || inconsistent(format!("no layer {kind} a window before layer {n_own}"));
            return source.map(KvSource::Layer).ok_or_else(none);
        }
        Ok(if !slides_here && is_one(layer_idx) { KvSource::OneProjection } else { KvSource::Own })
    };
    slides.iter().enumerate().map(source).collect()
}

/// The width of each feed-forward part; `config.json` can double those of layers that share keys and values.
fn ffn_dims(keys: &Keys<'_>, sources: &[KvSource]) -> Result<Vec<usize>, ConfigError> {
    let stated = keys.counts(read::FFN_DIM, sources.len())?;
    let stated = stated.ok_or_else(|| keys.missing(read::FFN_DIM))?;
    let doubles = keys.flag(DOUBLE_WIDE)?.unwrap_or(false);
    let width = |(ffn_dim, source): (usize, &KvSource)| match source {
        KvSource::Layer(_) if doubles => ffn_dim.saturating_mul(2),
        _ => ffn_dim,
    };
    Ok(stated.into_iter().zip(sources).map(width).collect())
}

/// The feed-forward parts, with dense networks of these widths.
fn feeds(keys: &Keys<'_>, ffn_dims: Vec<usize>) -> Result<Vec<FeedForward>, ConfigError> {
    let activation = read::activation(keys, Activation::GeluTanh)?;
    let has_experts = match keys.json() {
        Some(_) => keys.flag(HAS_EXPERTS)?.unwrap_or(false),
        None => keys.count(N_EXPERTS)?.is_some_and(|n| n > 0),
    };
    if !has_experts {
        let dense = |ffn_dim| FeedForward::Dense(Dense::plain(ffn_dim, activation));
        return Ok(ffn_dims.into_iter().map(dense).collect());
    }
    let experts = Experts {
        n_experts: keys.required_count(N_EXPERTS)?,
        n_used: keys.required_count(N_USED)?,
        ffn_dim: keys.required_count(EXPERT_DIM)?,
        activation,
        routing: Routing::SoftmaxNormalized,
        bias: false,
        shared_ffn_dim: 0,
        shared_gated: false,
        own_norms: true,
    };
    let with_dense = |shared_ffn_dim| FeedForward::Experts(Experts { shared_ffn_dim, ..experts.clone() });
    Ok(ffn_dims.into_iter().map(with_dense).collect())
}

/// The dense networks beside experts have the names of those without. Gate and up of an expert lie behind each other, in GGUF files of
/// some writers apart.
fn place(config: &ModelConfig, slot: &Slot, container: Container) -> Place {
    use LayerWeight::*;
    let place = gemma3::place_pre_norm(config, slot, container);
    let WeightId::Layer(layer_idx, weight) = slot.id else { return place };
    let FeedForward::Experts(Experts { n_experts, ffn_dim, .. }) = config.layers[layer_idx].feed else {
        return place;
    };
    let hidden_dim = config.hidden_dim;
    let is_gguf = container == Container::Gguf;
    let name = |gguf: &str, json: &str| match container {
        Container::Gguf => format!("blk.{layer_idx}.{gguf}.weight"),
        Container::Json => format!("model.layers.{layer_idx}.{json}"),
    };
    let gate_up = |first: usize| {
        let shape = [n_experts, 2 * ffn_dim, hidden_dim].map(|n| n as u64);
        let rows = RowOrder::Blocks { first, len: ffn_dim, stride: 2 * ffn_dim };
        Place::whole(name("ffn_gate_up_exps", "experts.gate_up_proj"), slot).shaped(shape).with_rows(rows)
    };
    match weight {
        SharedGate => Place::whole(name("ffn_gate", "mlp.gate_proj.weight"), slot),
        SharedUp => Place::whole(name("ffn_up", "mlp.up_proj.weight"), slot),
        SharedDown => Place::whole(name("ffn_down", "mlp.down_proj.weight"), slot),
        ExpertGate if is_gguf => gate_up(0).or(place),
        ExpertUp if is_gguf => gate_up(ffn_dim).or(place),
        ExpertGate => gate_up(0),
        ExpertUp => gate_up(ffn_dim),
        ExpertDown if !is_gguf => {
            let shape = [n_experts, hidden_dim, ffn_dim].map(|n| n as u64);
            Place::whole(name("", "experts.down_proj"), slot).shaped(shape)
        }
        Router if !is_gguf => Place::whole(name("", "router.proj.weight"), slot),
        _ => place,
    }
}

/// The inputs of layers beside the residual stream; a width of 0 means none.
pub(super) fn per_layer(
    keys: &Keys<'_>,
    config: &ModelConfig,
) -> Result<Option<PerLayerInputs>, ConfigError> {
    let default = keys.json().filter(|object| !object.has(PER_LAYER_DIM.json)).map(|_| 256);
    let Some(dim) = keys.count(PER_LAYER_DIM)?.or(default).filter(|&dim| dim > 0) else { return Ok(None) };
    let vocab_size = match keys.gguf() {
        None => keys.count(PER_LAYER_VOCAB)?.unwrap_or(262_144),
        Some(file) => {
            let rows = file.tensor("per_layer_token_embd.weight").and_then(|tensor| tensor.dims.get(1));
            rows.and_then(|&n| usize::try_from(n).ok()).unwrap_or(config.vocab_size)
        }
    };
    let activation = read::activation(keys, Activation::GeluTanh)?;
    Ok(Some(PerLayerInputs { dim, vocab_size, activation }))
}

/// The rotation of layers without a window, and that of layers with one.
fn ropes(
    keys: &Keys<'_>,
    heads: &[Heads],
    slides: &[bool],
    config: &ModelConfig,
) -> Result<Vec<RopeConfig>, ConfigError> {
    let head_dim = |kind: bool| -> Result<usize, ConfigError> {
        let dims = slides.iter().zip(heads).filter(|(slides, _)| **slides == kind);
        let mut dims = dims.map(|(_, heads)| heads.head_dim);
        // A model without such layers does not use the rotation.
        let first = dims.next().unwrap_or(2);
        match dims.find(|&dim| dim != first) {
            None => Ok(first),
            Some(other) => Err(keys.unsupported(OVERRIDES, format!("heads of {first} and {other}"))),
        }
    };
    let (full_dim, sliding_dim) = (head_dim(false)?, head_dim(true)?);
    let Some(root) = keys.json() else {
        let mut full = rope::of_gguf(keys, full_dim, config)?;
        full.scaling = as_proportional(full.scaling);
        let sliding = RopeConfig {
            theta: keys.number(SLIDING_THETA)?.unwrap_or(10_000.0),
            rotary_dim: keys.count(SLIDING_ROTARY_DIM)?.unwrap_or(sliding_dim),
            scaling: RopeScaling::None,
        };
        return Ok(vec![full, sliding]);
    };
    let Some(by_type) = root.object("rope_parameters")? else {
        let full = proportional(1_000_000.0, 0.25, full_dim);
        let sliding = RopeConfig { theta: 10_000.0, rotary_dim: sliding_dim, scaling: RopeScaling::None };
        return Ok(vec![full, sliding]);
    };
    let of_type = |name: &'static str, head_dim: usize| {
        let settings = by_type.object(name)?;
        let settings = settings.ok_or_else(|| keys.missing(key("", "rope_parameters")))?;
        if settings.text("rope_type")? != Some("proportional") {
            return rope::of_json(&root, Some(settings), head_dim, config, 10_000.0);
        }
        if let Some(factor) = settings.number("factor")?.filter(|&factor| factor != 1.0) {
            return Err(settings.unsupported("factor", factor));
        }
        let share = settings.number("partial_rotary_factor")?.unwrap_or(1.0);
        if !(share > 0.0 && share <= 1.0) {
            return Err(settings.unsupported("partial_rotary_factor", share));
        }
        Ok(proportional(settings.required_number("rope_theta")?, share, head_dim))
    };
    Ok(vec![of_type("full_attention", full_dim)?, of_type("sliding_attention", sliding_dim)?])
}

/// A rotation of a share of each head's pairs.
fn proportional(theta: f64, share: f64, head_dim: usize) -> RopeConfig {
    // As Python's floor division.
    let n_pairs = (head_dim as f64 * share / 2.0) as usize;
    RopeConfig { theta, rotary_dim: head_dim, scaling: RopeScaling::Proportional { n_pairs } }
}

/// GGUF files divide frequencies of pairs that do not turn by 1e30.
fn as_proportional(scaling: RopeScaling) -> RopeScaling {
    let RopeScaling::Factors(factors) = &scaling else { return scaling };
    let n_pairs = factors.iter().take_while(|&&factor| factor == 1.0).count();
    if factors[n_pairs..].iter().all(|&factor| factor >= 1e30) {
        return RopeScaling::Proportional { n_pairs };
    }
    scaling
}

/// Whether a tensor belongs to the parts of a model that read pictures or sound.
pub(super) fn is_other_medium(name: &str, config: &ModelConfig) -> bool {
    let short = name.strip_prefix("model.").unwrap_or(name);
    llama::is_other_medium(name, config)
        || ["audio_tower.", "embed_vision.", "embed_audio."].iter().any(|part| short.starts_with(part))
}
