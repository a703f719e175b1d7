//! LFM2 with experts: those with the greatest sigmoids, chosen with a bias, behind leading layers without experts.

use super::family::{Architecture, Family};
use super::keys::{Key, Keys, key};
use super::tensors::{Container, LayerWeight, Place, Slot, WeightId};
use super::{lfm2, read};
use crate::model::config::{Activation, ConfigError, Dense, Experts, FeedForward, ModelConfig, Routing};

pub(super) static FAMILY: Family =
    Family { name: "lfm2moe", json: &["lfm2_moe"], read, place, ..Family::STANDARD };

const N_DENSE: Key = key("leading_dense_block_count", "num_dense_layers");
const EXPERT_FFN_DIM: Key = key("expert_feed_forward_length", "moe_intermediate_size");
const IS_BIASED: Key = key("", "use_expert_bias");
const NORMALIZES: Key = key("expert_weights_norm", "norm_topk_prob");

fn read(keys: &Keys<'_>, architecture: Architecture) -> Result<ModelConfig, ConfigError> {
    lfm2::with_feeds(keys, architecture, |n_layers| feeds(keys, n_layers))
}

fn feeds(keys: &Keys<'_>, n_layers: usize) -> Result<Vec<FeedForward>, ConfigError> {
    let n_dense = keys.count(N_DENSE)?.unwrap_or(if keys.json().is_some() { 2 } else { 0 });
    let activation = Activation::Silu;
    let (n_experts, n_used) = read::expert_counts(keys, (32, 4))?;
    // Files state the sigmoid, which is number 2.
    if keys.json().is_none() {
        match keys.required_count(read::GATING)? {
            2 => {}
            other => return Err(keys.unsupported(read::GATING, other)),
        }
    }
    let biased = match keys.json() {
        Some(_) => keys.flag(IS_BIASED)?.unwrap_or(true),
        None => keys.has_tensor(&format!("blk.{n_dense}.exp_probs_b.bias")),
    };
    // A scale of 0 in a file means none.
    let stated = keys.scalar(read::EXPERT_SCALE)?.filter(|&scale| scale != 0.0 || keys.json().is_some());
    let scale = stated.unwrap_or(1.0) as f32;
    let normalized = keys.flag(NORMALIZES)?.unwrap_or(true);
    let ffn_dim = keys.count_or(EXPERT_FFN_DIM, 1792)?;
    let experts = FeedForward::Experts(Experts {
        n_experts,
        n_used,
        ffn_dim,
        activation,
        routing: Routing::Sigmoid { biased, normalized, scale },
        bias: false,
        shared_ffn_dim: 0,
        shared_gated: false,
        own_norms: false,
    });
    let mut feeds = vec![experts; n_layers];
    if n_dense > 0 {
        let ffn_dim = keys.required_count(read::FFN_DIM)?;
        feeds.iter_mut().take(n_dense).for_each(|feed| {
            *feed = FeedForward::Dense(Dense::plain(ffn_dim, activation));
        });
    }
    Ok(feeds)
}

fn place(config: &ModelConfig, slot: &Slot, container: Container) -> Place {
    use LayerWeight::*;
    let place = lfm2::place(config, slot, container);
    let (WeightId::Layer(layer_idx, weight), Container::Json) = (slot.id, container) else { return place };
    let name = |name: &str| format!("model.layers.{layer_idx}.feed_forward.{name}");
    let of_experts = |place: Place, matrix: &str| {
        let experts = 0..place.names.len();
        Place {
            names: experts.map(|expert| name(&format!("experts.{expert}.{matrix}.weight"))).collect(),
            ..place
        }
    };
    match weight {
        Router => Place::whole(name("gate.weight"), slot),
        ChoiceBias => Place::whole(name("expert_bias"), slot),
        ExpertGate => of_experts(place, "w1"),
        ExpertUp => of_experts(place, "w3"),
        ExpertDown => of_experts(place, "w2"),
        _ => place,
    }
}
