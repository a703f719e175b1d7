//! The identity of a model: the key of its measurements and caches.

use std::fmt;

use serde::Serialize;
use xxhash_rust::xxh3::Xxh3;

use super::plan::{PlannedSection, Scope, parts, plan};
use super::sum::SectionSum;
use crate::kernels::PANEL_LAYOUT_VERSION;
use crate::model::config::{
    Activation, Architecture, Attention, Dense, FeedForward, LayerPlan, Mixer, ModelConfig, Norms, QkNorm,
    RopeScaling,
};
use crate::model::resident::{StoredTensor, Weights};

/// A hash of hyper-parameters and packed weights. It is equal for equal models from any container, if they
/// are quantised the same way and packed in the same layout. The tokenizer has a
/// [fingerprint](refrain_tokenizer::Tokenizer::fingerprint) of its own.
///
/// The hash has 128 bits (XXH3) and detects mistakes, not forgery. It is displayed as 32 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ModelIdentity(u128);

impl ModelIdentity {
    /// The identity of a model whose weights have not been read yet.
    pub(in crate::model) const UNKNOWN: Self = Self(0);

    /// The identity with a stored number.
    pub fn from_bits(bits: u128) -> Self {
        Self(bits)
    }

    /// The hash as a number.
    pub fn to_bits(self) -> u128 {
        self.0
    }
}

impl fmt::Display for ModelIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl std::str::FromStr for ModelIdentity {
    type Err = std::num::ParseIntError;

    /// Parses the hexadecimal digits of [`Display`](fmt::Display).
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        u128::from_str_radix(text, 16).map(Self)
    }
}

/// The hyper-parameters of a Llama, Qwen2 or Qwen3 of equal layers, in the form that identities of such models have had
/// since the first version. Predictors, histories and measurements of a model stay valid.
#[derive(Serialize)]
struct Uniform<'a> {
    architecture: Architecture,
    n_layers: usize,
    hidden_dim: usize,
    n_heads: usize,
    n_kv_heads: usize,
    head_dim: usize,
    ffn_dim: usize,
    vocab_size: usize,
    context_len: usize,
    norm_eps: f32,
    rope_theta: f64,
    rotary_dim: usize,
    rope_scaling: &'a RopeScaling,
    tied_head: bool,
    qkv_bias: bool,
    o_bias: bool,
}

impl<'a> Uniform<'a> {
    /// `None` if the model has anything that these fields do not state.
    fn of(config: &'a ModelConfig) -> Option<Self> {
        use RopeScaling::{Factors, Linear, Llama3, None as Unscaled};
        let ([rope], [first, ..]) = (&config.ropes[..], &config.layers[..]) else { return None };
        let (Mixer::Attention(attention), FeedForward::Dense(dense)) = (&first.mixer, &first.feed) else {
            return None;
        };
        let qk_norm = match config.architecture.name() {
            "llama" | "qwen2" => None,
            "qwen3" => Some(QkNorm::Head),
            _ => return None,
        };
        let Attention { n_heads, n_kv_heads, head_dim, qkv_bias, o_bias, .. } = *attention;
        let stated = LayerPlan {
            mixer: Mixer::Attention(Attention {
                qkv_bias,
                o_bias,
                qk_norm,
                ..Attention::plain(n_heads, n_kv_heads, head_dim)
            }),
            feed: FeedForward::Dense(Dense::plain(dense.ffn_dim, Activation::Silu)),
            norms: Norms::Pre,
            residual_scale: 1.0,
            output_scaled: false,
            branch_rank: None,
        };
        let is_stated = config.layers.iter().all(|layer| *layer == stated)
            && matches!(rope.scaling, Unscaled | Linear { .. } | Llama3 { .. } | Factors(_))
            && (config.embedding_scale, config.logit_scale) == (1.0, 1.0)
            && config.logit_softcap.is_none()
            && config.per_layer.is_none()
            && config.streams.is_none();
        is_stated.then_some(Self {
            architecture: config.architecture,
            n_layers: config.layers.len(),
            hidden_dim: config.hidden_dim,
            n_heads,
            n_kv_heads,
            head_dim,
            ffn_dim: dense.ffn_dim,
            vocab_size: config.vocab_size,
            context_len: config.context_len,
            norm_eps: config.norm_eps,
            rope_theta: rope.theta,
            rotary_dim: rope.rotary_dim,
            rope_scaling: &rope.scaling,
            tied_head: config.tied_head,
            qkv_bias,
            o_bias,
        })
    }
}

/// The identity, from the checksums of all sections, in order.
pub(super) fn identity(
    config: &ModelConfig,
    sections: &[PlannedSection],
    checksums: &[u64],
) -> ModelIdentity {
    let mut hash = Xxh3::new();
    hash.update(&PANEL_LAYOUT_VERSION.to_le_bytes());
    let config = match Uniform::of(config) {
        Some(uniform) => serde_json::to_vec(&uniform),
        None => serde_json::to_vec(config),
    };
    let config = config.expect("numbers and names have a JSON form");
    hash.update(&(config.len() as u64).to_le_bytes());
    hash.update(&config);
    for (section, checksum) in sections.iter().zip(checksums) {
        // The shapes follow from the hyper-parameters. A zero ends the name of each type.
        for tensor in &section.tensors {
            hash.update(tensor.ty.name().as_bytes());
            hash.update(&[0]);
        }
        hash.update(&checksum.to_le_bytes());
    }
    ModelIdentity(hash.digest128())
}

/// The identity of weights in memory: that of a packed file with these weights. Reads every weight once.
pub(crate) fn identity_of_weights(config: &ModelConfig, weights: &Weights) -> ModelIdentity {
    let ty_of = |id| match weights.tensor(id) {
        Some(StoredTensor::Matrix(matrix)) => matrix.block_type(),
        _ => crate::kernels::BlockType::F32,
    };
    let sections =
        plan(config, &Scope::All, 0, &ty_of).expect("the weights are in memory, so their sizes fit");
    let checksums: Vec<u64> = sections.iter().map(|section| checksum(section, weights)).collect();
    identity(config, &sections, &checksums)
}

/// A hash of hyper-parameters and of the format of each matrix: what the time of a pass depends on, besides the machine. Unlike the
/// [identity](identity_of_weights), it reads no weights. Matrices that are not in memory do not count.
pub(crate) fn layout_of_weights(config: &ModelConfig, weights: &Weights) -> ModelIdentity {
    let mut hash = Xxh3::new();
    hash.update(&PANEL_LAYOUT_VERSION.to_le_bytes());
    hash.update(&serde_json::to_vec(config).expect("numbers and names have a JSON form"));
    for slot in parts(config, &Scope::All).iter().flat_map(|(_, slots)| slots) {
        if let Some(StoredTensor::Matrix(matrix)) = weights.tensor(slot.id) {
            hash.update(matrix.block_type().name().as_bytes());
        }
        hash.update(&[0]);
    }
    ModelIdentity(hash.digest128())
}

fn checksum(section: &PlannedSection, weights: &Weights) -> u64 {
    let mut sum = SectionSum::new();
    for tensor in &section.tensors {
        match weights.tensor(tensor.id) {
            Some(StoredTensor::Matrix(matrix)) => sum.update(matrix.panel_bytes()),
            Some(StoredTensor::Vector(values)) => sum.update(&vector_bytes(values)),
            None => debug_assert!(false, "{:?} is in the plan and not in the weights", tensor.id),
        }
        sum.pad_line();
    }
    sum.pad_page();
    sum.digest()
}

/// A vector in the form of a packed file.
pub(super) fn vector_bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}
