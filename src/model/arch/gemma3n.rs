//! Gemma 3n (its text part): several residual streams, a branch beside attention, inputs of each layer of its own, sparse
//! activations, and layers that read the keys and values of earlier ones.

use super::family::{Architecture, Family};
use super::keys::{Key, Keys, key};
use super::read::{self, Defaults};
use super::tensors::{Container, Place, RowOrder, Slot, WeightId};
use super::{gemma3, gemma4};
use crate::model::config::{
    Activation, ConfigError, Dense, FeedForward, Mixer, ModelConfig, Norms, QkNorm, Streams,
};

pub(super) static FAMILY: Family = Family {
    name: "gemma3n",
    json: &["gemma3n_text", "gemma3n"],
    read,
    place,
    roots: &["model.", "model.language_model.", "language_model.model."],
    is_redundant: gemma4::is_other_medium,
    ..Family::STANDARD
};

const DEFAULTS: Defaults = Defaults {
    context_len: 32_768,
    tied_head: true,
    head_dim: Some(256),
    n_heads: Some(8),
    n_kv_heads: Some(2),
    vocab_size: Some(262_400),
    ..Defaults::LLAMA
};

const LOGIT_CAP: Key = key("final_logit_softcapping", "final_logit_softcapping");
/// The reference implementation does not read it: scores are not scaled.
const SCORE_SCALE: Key = key("", "query_pre_attn_scalar");
const PATTERN: Key = key("attention.sliding_window_pattern", "");
const N_STREAMS: Key = key("altup.num_inputs", "altup_num_inputs");
const ACTIVE: Key = key("altup.active_idx", "altup_active_idx");
const IS_GATE_SCALED: Key = key("", "altup_correct_scale");
const BRANCH_RANK: Key = key("", "laurel_rank");
/// The share of a row's activations that become 0, and the cutoff for that share in a normal distribution.
const SPARSITY: Key = key("", "activation_sparsity_pattern");
const CUTOFF: Key = key("activation_sparsity_scale", "");
/// Layers with keys and values of their own in files that do not state how many share some.
const N_OWN_KV: usize = 20;

fn read(keys: &Keys<'_>, architecture: Architecture) -> Result<ModelConfig, ConfigError> {
    let mut config = read::base(keys, architecture, &DEFAULTS)?;
    config.embedding_scale = (config.hidden_dim as f32).sqrt();
    config.logit_softcap = match keys.json() {
        Some(object) if object.has(LOGIT_CAP.json) => read::multiplier(keys, LOGIT_CAP)?,
        _ => Some(read::multiplier(keys, LOGIT_CAP)?.unwrap_or(30.0)),
    };
    let n_layers = read::n_layers(keys)?;
    let mut attention = read::attention(keys, config.hidden_dim, &DEFAULTS)?;
    keys.number(SCORE_SCALE)?;
    attention.scale = 1.0;
    attention.qk_norm = Some(QkNorm::Head);
    attention.v_norm = true;
    config.ropes = gemma3::ropes(keys, attention.head_dim, &config)?;
    let activation = read::activation(keys, Activation::GeluTanh)?;
    let ffn_dims = keys.counts(read::FFN_DIM, n_layers)?.ok_or_else(|| keys.missing(read::FFN_DIM))?;
    let cutoffs = cutoffs(keys, n_layers)?;
    config.layers = ffn_dims
        .into_iter()
        .zip(cutoffs)
        .map(|(ffn_dim, cutoff)| {
            let dense = Dense { cutoff, ..Dense::plain(ffn_dim, activation) };
            let mut layer = read::layer(attention.clone(), FeedForward::Dense(dense));
            layer.norms = Norms::Both;
            layer
        })
        .collect();
    let window = keys.count(read::WINDOW)?.or(keys.json().map(|_| 512)).filter(|&window| window > 0);
    let slides = read::sliding_layers(keys, PATTERN, 5, n_layers)?;
    read::set_windows(keys, &mut config, window, |layer_idx| slides[layer_idx])?;
    let n_shared = match keys.json() {
        Some(_) => keys.count(gemma4::N_SHARED)?.unwrap_or(15),
        None => keys.count(gemma4::N_SHARED)?.unwrap_or(n_layers.saturating_sub(N_OWN_KV)),
    };
    let sources = gemma4::kv_sources(keys, &slides, n_shared, |_| false)?;
    let branch_rank = branch_rank(keys)?;
    for ((layer, slides), source) in config.layers.iter_mut().zip(slides).zip(sources) {
        layer.branch_rank = Some(branch_rank);
        if let Mixer::Attention(attention) = &mut layer.mixer {
            (attention.rope, attention.kv) = (Some(usize::from(slides)), source);
        }
    }
    config.per_layer = gemma4::per_layer(keys, &config)?;
    config.streams = Some(streams(keys)?);
    Ok(config)
}

fn streams(keys: &Keys<'_>) -> Result<Streams, ConfigError> {
    let n = keys.count(N_STREAMS)?.or(keys.json().map(|_| 4)).ok_or_else(|| keys.missing(N_STREAMS))?;
    let gate_scaled = match keys.json() {
        Some(_) => keys.flag(IS_GATE_SCALED)?.unwrap_or(true),
        None => keys.has_tensor("blk.0.altup_correct_scale.weight"),
    };
    Ok(Streams { n, active: keys.count(ACTIVE)?.unwrap_or(0), gate_scaled })
}

/// The rank of the branch: files state it in the shape of its first matrix.
fn branch_rank(keys: &Keys<'_>) -> Result<usize, ConfigError> {
    const FIRST: &str = "laurel_l.weight";
    let Some(file) = keys.gguf() else { return Ok(keys.count(BRANCH_RANK)?.unwrap_or(64)) };
    let rank = file.tensor(&format!("blk.0.{FIRST}")).and_then(|tensor| tensor.dims.get(1));
    rank.and_then(|&rank| usize::try_from(rank).ok()).ok_or_else(|| keys.missing(key(FIRST, "")))
}

/// The cutoff of each layer's activations.
fn cutoffs(keys: &Keys<'_>, n_layers: usize) -> Result<Vec<Option<f32>>, ConfigError> {
    if keys.json().is_none() {
        // Minus infinity where there is none.
        let stated = keys.numbers(CUTOFF, n_layers)?.unwrap_or_else(|| vec![f64::NEG_INFINITY; n_layers]);
        return Ok(stated
            .into_iter()
            .map(|cutoff| (cutoff != f64::NEG_INFINITY).then_some(cutoff as f32))
            .collect());
    }
    let stated = keys.numbers(SPARSITY, n_layers)?;
    let default = || (0..n_layers).map(|i| if n_layers > 10 && i < 10 { 0.95 } else { 0.0 }).collect();
    let of_share = |share: f64| match share {
        0.0 => Ok(None),
        // Shares near 1 would leave nothing.
        share if share > 0.0 && share <= 0.999 => Ok(Some(normal_quantile(share) as f32)),
        other => Err(keys.unsupported(SPARSITY, other)),
    };
    stated.unwrap_or_else(default).into_iter().map(of_share).collect()
}

/// The number below which a share of a normal distribution lies, by Newton's method.
fn normal_quantile(share: f64) -> f64 {
    if share < 0.5 {
        return -normal_quantile(1.0 - share);
    }
    // The distribution is concave above 0, so the steps from 0 on never pass the quantile.
    let mut x = 0.0;
    for _ in 0..100 {
        let below = 0.5 * (1.0 + libm::erf(x / std::f64::consts::SQRT_2));
        let density = libm::exp(-x * x / 2.0) / libm::sqrt(2.0 * std::f64::consts::PI);
        x += (share - below) / density;
    }
    x
}

/// GGUF files hold the projections of all streams as one tensor.
fn place(config: &ModelConfig, slot: &Slot, container: Container) -> Place {
    let place = gemma3::place_pre_norm(config, slot, container);
    let (name, i) = match (container, slot.id) {
        (Container::Gguf, WeightId::StreamIn(i)) => ("altup_proj.weight", i),
        (Container::Gguf, WeightId::StreamOut(i)) => ("altup_unembd_proj.weight", i),
        _ => return place,
    };
    let n_others = config.streams.map_or(0, |streams| streams.n - 1);
    let shape = [n_others, config.hidden_dim, config.hidden_dim].map(|n| n as u64);
    let rows = RowOrder::Blocks { first: i * config.hidden_dim, len: config.hidden_dim, stride: 0 };
    Place::whole(name, slot).shaped(shape).with_rows(rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_those_of_tables() {
        for (share, quantile) in [
            (0.5, 0.0),
            (0.6, 0.253_347_103_135_799_7),
            (0.95, 1.644_853_626_951_472_2),
            (0.999, 3.090_232_306_167_813_5),
            (0.05, -1.644_853_626_951_472_2),
        ] {
            let found = normal_quantile(share);
            assert!((found - quantile).abs() < 1e-9, "{share}: {found}");
        }
    }
}
