//! Fields that most families state in the same way.

use super::family::Architecture;
use super::keys::{Key, Keys, key};
use super::rope;
use crate::model::config::{
    Activation, Attention, CONTEXT_LEN_MAX, ConfigError, Dense, FeedForward, LayerPlan, Mixer, ModelConfig,
    N_HEADS_MAX, N_LAYERS_MAX, Norms, RopeScaling,
};

pub(super) const N_LAYERS: Key = key("block_count", "num_hidden_layers");
pub(super) const HIDDEN_DIM: Key = key("embedding_length", "hidden_size");
pub(super) const FFN_DIM: Key = key("feed_forward_length", "intermediate_size");
pub(super) const N_HEADS: Key = key("attention.head_count", "num_attention_heads");
pub(super) const N_KV_HEADS: Key = key("attention.head_count_kv", "num_key_value_heads");
pub(super) const HEAD_DIM: Key = key("attention.key_length", "head_dim");
const VALUE_DIM: Key = key("attention.value_length", "");
const CONTEXT_LEN: Key = key("context_length", "max_position_embeddings");
const VOCAB_SIZE: Key = key("vocab_size", "vocab_size");
pub(super) const WINDOW: Key = key("attention.sliding_window", "sliding_window");
const MTP_BLOCKS: Key = key("nextn_predict_layers", "");
const ACTIVATION: Key = key("", "hidden_act");

/// What a family's classes take for fields that `config.json` leaves out.
pub(super) struct Defaults {
    pub(super) context_len: usize,
    pub(super) norm_eps: f64,
    pub(super) tied_head: bool,
    /// `None`: `hidden_dim / n_heads`.
    pub(super) head_dim: Option<usize>,
    /// Without the field, each query head has keys and values of its own.
    pub(super) kv_heads_like_heads: bool,
    pub(super) n_heads: Option<usize>,
    pub(super) n_kv_heads: Option<usize>,
    pub(super) vocab_size: Option<usize>,
    pub(super) rope_theta: f64,
    /// The field of `norm_eps` in `config.json`.
    pub(super) norm_eps_field: &'static str,
}

impl Defaults {
    /// Those of Llama.
    pub(super) const LLAMA: Defaults = Defaults {
        context_len: 2048,
        norm_eps: 1e-6,
        tied_head: false,
        head_dim: None,
        kv_heads_like_heads: false,
        n_heads: None,
        n_kv_heads: None,
        vocab_size: None,
        rope_theta: 10_000.0,
        norm_eps_field: "rms_norm_eps",
    };
}

/// A model without layers: its sizes, and neutral multipliers.
pub(super) fn base(
    keys: &Keys<'_>,
    architecture: Architecture,
    defaults: &Defaults,
) -> Result<ModelConfig, ConfigError> {
    let is_json = keys.json().is_some();
    let or_default = |value: Option<usize>, default: usize| value.or(is_json.then_some(default));
    let context_len = or_default(keys.count(CONTEXT_LEN)?, defaults.context_len);
    let norm_eps_key = key("attention.layer_norm_rms_epsilon", defaults.norm_eps_field);
    let norm_eps = keys.number(norm_eps_key)?.or(is_json.then_some(defaults.norm_eps));
    Ok(ModelConfig {
        architecture,
        hidden_dim: keys.required_count(HIDDEN_DIM)?,
        vocab_size: vocab_size(keys, defaults)?,
        context_len: context_len.ok_or_else(|| keys.missing(CONTEXT_LEN))?,
        norm_eps: norm_eps.ok_or_else(|| keys.missing(norm_eps_key))? as f32,
        tied_head: tied_head(keys, defaults.tied_head)?,
        embedding_scale: 1.0,
        logit_scale: 1.0,
        logit_softcap: None,
        per_layer: None,
        streams: None,
        draft_head: None,
        ropes: Vec::new(),
        layers: Vec::new(),
    })
}

fn tied_head(keys: &Keys<'_>, default: bool) -> Result<bool, ConfigError> {
    match keys.json() {
        None => Ok(!keys.has_tensor("output.weight")),
        Some(object) => Ok(object.flag("tie_word_embeddings")?.unwrap_or(default)),
    }
}

/// Rows of the embedding; GGUF metadata may state the same number or omit it.
fn vocab_size(keys: &Keys<'_>, defaults: &Defaults) -> Result<usize, ConfigError> {
    let Some(file) = keys.gguf() else {
        return match keys.count(VOCAB_SIZE)?.or(defaults.vocab_size) {
            Some(n) => Ok(n),
            None => Err(keys.missing(VOCAB_SIZE)),
        };
    };
    let rows = file.tensor("token_embd.weight").and_then(|t| t.dims.get(1)).copied();
    let rows = rows.and_then(|n| usize::try_from(n).ok());
    match (keys.count(VOCAB_SIZE)?, rows) {
        (Some(stated), Some(rows)) if stated != rows => Err(ConfigError::Inconsistent {
            file: file.name().to_owned(),
            left: format!("{} = {stated}", keys.full_name(VOCAB_SIZE)),
            right: format!("token_embd.weight with {rows} rows"),
        }),
        (_, Some(rows)) => Ok(rows),
        (Some(stated), None) => Ok(stated),
        (None, None) => Err(keys.missing(VOCAB_SIZE)),
    }
}

/// The number of layers, checked before a plan is made for each. The blocks of a GGUF file that belong to a head for multi-token
/// prediction are none.
pub(super) fn n_layers(keys: &Keys<'_>) -> Result<usize, ConfigError> {
    match keys.required_count(N_LAYERS)? {
        n if n > N_LAYERS_MAX => Err(out_of_range(keys, N_LAYERS, n, N_LAYERS_MAX)),
        n => Ok(n.saturating_sub(n_mtp_blocks(keys)?)),
    }
}

/// Blocks of a GGUF file behind the layers, for multi-token prediction. Of families without such heads, the field is left
/// unread, and refused where it is not 0.
pub(super) fn n_mtp_blocks(keys: &Keys<'_>) -> Result<usize, ConfigError> {
    match Architecture::from_name(keys.name) {
        Some(architecture) if architecture.family().has_mtp && keys.gguf().is_some() => {
            Ok(keys.count(MTP_BLOCKS)?.unwrap_or(0).min(N_LAYERS_MAX))
        }
        _ => Ok(0),
    }
}

fn out_of_range(keys: &Keys<'_>, field: Key, value: usize, max: usize) -> ConfigError {
    ConfigError::OutOfRange {
        file: keys.file().to_owned(),
        field: keys.full_name(field),
        value: value.to_string(),
        allowed: format!("1 to {max}"),
    }
}

/// As [`attention`], of a model in which only some layers have attention: GGUF files list 0 KV heads for the others.
pub(super) fn attention_of_kinds(
    keys: &Keys<'_>,
    hidden_dim: usize,
    defaults: &Defaults,
    n_layers: usize,
) -> Result<Attention, ConfigError> {
    if keys.json().is_some() || !keys.is_list(N_KV_HEADS) {
        return attention(keys, hidden_dim, defaults);
    }
    let listed = keys.counts(N_KV_HEADS, n_layers)?.unwrap_or_default();
    let mut others = listed.iter().copied().filter(|&n| n > 0);
    let first = others.next();
    if let Some(other) = others.find(|&n| Some(n) != first) {
        return Err(keys.unsupported(N_KV_HEADS, format!("{} and {other}", first.unwrap_or(0))));
    }
    attention_with(keys, hidden_dim, defaults, first.map(Some))
}

/// Attention with the stated heads and biases, over all positions.
pub(super) fn attention(
    keys: &Keys<'_>,
    hidden_dim: usize,
    defaults: &Defaults,
) -> Result<Attention, ConfigError> {
    attention_with(keys, hidden_dim, defaults, None)
}

/// As [`attention`]; with the number of KV heads, if it was read already.
fn attention_with(
    keys: &Keys<'_>,
    hidden_dim: usize,
    defaults: &Defaults,
    n_kv_heads: Option<Option<usize>>,
) -> Result<Attention, ConfigError> {
    let of_json = |value: Option<usize>| value.filter(|_| keys.json().is_some());
    let n_heads = keys.count(N_HEADS)?.or(of_json(defaults.n_heads));
    let n_heads = n_heads.ok_or_else(|| keys.missing(N_HEADS))?;
    let n_kv_heads = match n_kv_heads {
        Some(n) => n,
        None => keys.count(N_KV_HEADS)?,
    };
    let n_kv_heads = match n_kv_heads.or(of_json(defaults.n_kv_heads)) {
        Some(n) => n,
        None if keys.json().is_none() || defaults.kv_heads_like_heads => n_heads,
        None => return Err(keys.missing(N_KV_HEADS)),
    };
    let head_dim = match keys.count(HEAD_DIM)?.or(of_json(defaults.head_dim)) {
        Some(n) => n,
        None if n_heads == 0 => return Err(out_of_range(keys, N_HEADS, n_heads, N_HEADS_MAX)),
        None if hidden_dim.is_multiple_of(n_heads) => hidden_dim / n_heads,
        None => return Err(keys.missing(HEAD_DIM)),
    };
    if let Some(value_dim) = keys.count(VALUE_DIM)?.filter(|&n| n != head_dim) {
        return Err(keys.unsupported(VALUE_DIM, value_dim));
    }
    let mut attention = Attention::plain(n_heads, n_kv_heads, head_dim);
    match keys.json() {
        None => {
            attention.qkv_bias = keys.has_tensor("blk.0.attn_q.bias");
            attention.o_bias = keys.has_tensor("blk.0.attn_output.bias");
        }
        Some(object) => {
            let has_bias = object.flag("attention_bias")?.unwrap_or(false);
            (attention.qkv_bias, attention.o_bias) = (has_bias, has_bias);
        }
    }
    Ok(attention)
}

/// A dense feed-forward part with the stated activation; GGUF files do not state it.
pub(super) fn dense(keys: &Keys<'_>, of_gguf: Activation) -> Result<FeedForward, ConfigError> {
    let activation = activation(keys, of_gguf)?;
    Ok(FeedForward::Dense(Dense::plain(keys.required_count(FFN_DIM)?, activation)))
}

pub(super) fn activation(keys: &Keys<'_>, default: Activation) -> Result<Activation, ConfigError> {
    let names = [ACTIVATION, key("", "hidden_activation")];
    for name in names {
        match keys.text(name)? {
            None => {}
            Some("silu" | "swish") => return Ok(Activation::Silu),
            Some("gelu_pytorch_tanh") => return Ok(Activation::GeluTanh),
            Some(other) => return Err(keys.unsupported(name, other)),
        }
    }
    Ok(default)
}

/// Whether each layer has attention, by the names in `layer_types`, of which the first list names layers with attention and the second
/// the others; `None` without the field.
pub(super) fn attention_by_type(
    keys: &Keys<'_>,
    n_layers: usize,
    with: &[&str],
    without: &[&str],
) -> Result<Option<Vec<bool>>, ConfigError> {
    let Some(types) = keys.layer_types(n_layers)? else { return Ok(None) };
    let has_attention = |kind: &str| match kind {
        kind if with.contains(&kind) => Ok(true),
        kind if without.contains(&kind) => Ok(false),
        other => Err(keys.unsupported(key("", "layer_types"), other)),
    };
    types.into_iter().map(has_attention).collect::<Result<_, _>>().map(Some)
}

/// Whether each layer of a GGUF file has attention: the file gives the others no KV heads.
pub(super) fn attention_by_kv_heads(keys: &Keys<'_>, n_layers: usize) -> Result<Vec<bool>, ConfigError> {
    let n_kv_heads = keys.counts(N_KV_HEADS, n_layers)?.ok_or_else(|| keys.missing(N_KV_HEADS))?;
    Ok(n_kv_heads.into_iter().map(|n| n > 0).collect())
}

/// The number of experts of a layer.
pub(super) const N_EXPERTS: Key = key("expert_count", "num_experts");
/// The number of experts of a row.
pub(super) const N_USED: Key = key("expert_used_count", "num_experts_per_tok");

/// The numbers of experts of a layer and of a row, which are chosen by a softmax. Folders name them in two ways.
pub(super) fn softmax_counts(
    keys: &Keys<'_>,
    defaults: (usize, usize),
) -> Result<(usize, usize), ConfigError> {
    if let Some(other) = keys.count(GATING)?.filter(|&function| function > 1 && function != 3) {
        return Err(keys.unsupported(GATING, other));
    }
    if let Some(scale) = keys.scalar(EXPERT_SCALE)?.filter(|&scale| scale != 1.0 && scale != 0.0) {
        return Err(keys.unsupported(EXPERT_SCALE, scale));
    }
    expert_counts(keys, defaults)
}

/// What makes weights of scores: 1 is a softmax of all, 2 the sigmoid, 3 a softmax of the chosen ones.
pub(super) const GATING: Key = key("expert_gating_func", "");
/// The factor of weights.
pub(super) const EXPERT_SCALE: Key = key("expert_weights_scale", "routed_scaling_factor");

/// The numbers of experts of a layer and of a row. Folders name them in two ways.
pub(super) fn expert_counts(
    keys: &Keys<'_>,
    (n_experts, n_used): (usize, usize),
) -> Result<(usize, usize), ConfigError> {
    let count = |field: Key, other: Key, default: usize| -> Result<usize, ConfigError> {
        match (keys.count(field)?, keys.count(other)?) {
            (Some(count), Some(same)) if count != same => Err(ConfigError::Inconsistent {
                file: keys.file().to_owned(),
                left: format!("{} = {count}", keys.full_name(field)),
                right: format!("{} = {same}", keys.full_name(other)),
            }),
            (Some(count), _) | (None, Some(count)) => Ok(count),
            (None, None) if keys.json().is_some() => Ok(default),
            (None, None) => Err(keys.missing(field)),
        }
    };
    let n_experts = count(N_EXPERTS, key("", "num_local_experts"), n_experts)?;
    let n_used = count(N_USED, key("", "experts_per_token"), n_used)?;
    const SHARED: Key = key("expert_shared_count", "");
    if let Some(other) = keys.count(SHARED)?.filter(|&n| n != 0) {
        return Err(keys.unsupported(SHARED, other));
    }
    Ok((n_experts, n_used))
}

/// A layer with norms before attention and feed-forward part.
pub(super) fn layer(attention: Attention, feed: FeedForward) -> LayerPlan {
    LayerPlan {
        mixer: Mixer::Attention(attention),
        feed,
        norms: Norms::Pre,
        residual_scale: 1.0,
        output_scaled: false,
        branch_rank: None,
    }
}

/// A Llama-like model: equal layers, one rotation.
pub(super) fn uniform(
    keys: &Keys<'_>,
    architecture: Architecture,
    defaults: &Defaults,
) -> Result<ModelConfig, ConfigError> {
    let mut config = base(keys, architecture, defaults)?;
    let attention = attention(keys, config.hidden_dim, defaults)?;
    let feed = dense(keys, Activation::Silu)?;
    let rotation = rope::read(keys, attention.head_dim, &config, defaults.rope_theta)?;
    if let RopeScaling::Dynamic { factor, original_context_len } = rotation.scaling {
        // The trained context is the original one; the scaling is there for longer ones.
        let longest = factor * original_context_len as f64;
        config.context_len = config.context_len.max(longest.min(CONTEXT_LEN_MAX as f64) as usize);
    }
    config.ropes = vec![rotation];
    config.layers = vec![layer(attention, feed); n_layers(keys)?];
    Ok(config)
}

/// Whether each layer has a window: those that `layer_types` or a list in GGUF metadata names, or else all but one in
/// `period`, which the field `pattern` may change.
pub(super) fn sliding_layers(
    keys: &Keys<'_>,
    pattern: Key,
    period: usize,
    n_layers: usize,
) -> Result<Vec<bool>, ConfigError> {
    if let Some(types) = keys.layer_types(n_layers)? {
        return Ok(types.into_iter().map(|kind| kind == "sliding_attention").collect());
    }
    if keys.is_list(pattern) {
        return Ok(keys.flags(pattern, n_layers)?.unwrap_or_default());
    }
    let period = keys.count(pattern)?.unwrap_or(period).max(1);
    Ok((0..n_layers).map(|layer_idx| !(layer_idx + 1).is_multiple_of(period)).collect())
}

/// Limits attention to the stated window in the layers that `layer_types` names, or else in those that `slides` chooses.
pub(super) fn set_windows(
    keys: &Keys<'_>,
    config: &mut ModelConfig,
    window: Option<usize>,
    slides: impl Fn(usize) -> bool,
) -> Result<(), ConfigError> {
    let types = keys.layer_types(config.layers.len())?;
    for (layer_idx, layer) in config.layers.iter_mut().enumerate() {
        let is_sliding = match types.as_ref().map(|types| types[layer_idx]) {
            None => slides(layer_idx),
            Some("full_attention") => false,
            Some("sliding_attention") => true,
            Some(other) => return Err(keys.unsupported(key("", "layer_types"), other)),
        };
        if let (Mixer::Attention(attention), true) = (&mut layer.mixer, is_sliding) {
            let window = window.ok_or_else(|| keys.missing(WINDOW))?;
            // A window as long as any context limits nothing.
            attention.window = (window < config.context_len.min(CONTEXT_LEN_MAX)).then_some(window);
        }
    }
    Ok(())
}

/// A multiplier that must not be 0; GGUF files state 0 where there is none.
pub(super) fn multiplier(keys: &Keys<'_>, field: Key) -> Result<Option<f32>, ConfigError> {
    let value = keys.number(field)?.filter(|&value| value != 0.0 || keys.json().is_some());
    Ok(value.map(|value| value as f32))
}
