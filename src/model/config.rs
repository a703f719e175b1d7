//! Hyper-parameters of a model as a value: what each layer computes. It is read from any container, checked once, and
//! stored in packed files.
//!
//! Loading, packing, streaming, static graphs, inspection and the forward pass all read this value. A family of models
//! ([`arch`](crate::model::arch)) only says how its containers state it. Unknown rotation schemes, activations and
//! attention variants are errors that name the field, because computing without them would give fluent, wrong text.

mod check;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::face::{internal_fields, internals};
pub use crate::model::arch::family::Architecture;
use refrain_files::{ErrorKind, Facts, Fault};

/// Largest number of layers accepted. The deepest published dense models have about 130.
pub const N_LAYERS_MAX: usize = 1024;
/// Largest `hidden_dim` accepted (published: 16 384).
pub const HIDDEN_DIM_MAX: usize = 1 << 18;
/// Largest number of attention heads accepted (published: 128).
pub const N_HEADS_MAX: usize = 4096;
/// Largest `head_dim` accepted (published: 512).
pub const HEAD_DIM_MAX: usize = 4096;
/// Largest `ffn_dim` accepted (published: 53 248).
pub const FFN_DIM_MAX: usize = 1 << 20;
/// Largest number of experts of a layer accepted (published: 512).
pub const N_EXPERTS_MAX: usize = 4096;
pub use refrain_tokenizer::VOCAB_SIZE_MAX;
/// Largest context length accepted (published: 10 million).
pub const CONTEXT_LEN_MAX: usize = 1 << 30;
/// Largest number of different rotations of a model accepted (published: 2).
pub const ROPES_MAX: usize = 16;
/// Longest convolution of a recurrent layer accepted (published: 4).
pub const CONV_LEN_MAX: usize = 64;
/// Largest width of a layer's own inputs accepted (published: 256).
pub const PER_LAYER_DIM_MAX: usize = 4096;
/// Largest number of residual streams accepted (published: 4).
pub const STREAMS_MAX: usize = 8;
/// Largest rank of a branch beside the mixer accepted (published: 64).
pub const BRANCH_RANK_MAX: usize = 4096;

internal_fields! {
    /// Hyper-parameters of a transformer. All counts are at least one and below the limits of this module.
    #[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
    #[serde(deny_unknown_fields)]
    pub struct ModelConfig {
        /// The family, which names tensors and fields in containers.
        architecture: Architecture,
        /// Width of the residual stream.
        hidden_dim: usize,
        /// Rows of the embedding; the tokenizer may have fewer tokens (padded vocabularies).
        vocab_size: usize,
        /// Trained context length.
        context_len: usize,
        /// Epsilon of every RMS norm.
        norm_eps: f32,
        /// The output matrix is the embedding.
        tied_head: bool,
        /// The embedding of a token is multiplied by this number.
        embedding_scale: f32,
        /// Logits are multiplied by this number.
        logit_scale: f32,
        /// Logits become `cap · tanh(logit / cap)`, after their scale.
        #[serde(default, skip_serializing_if = "is_default")]
        logit_softcap: Option<f32>,
        /// Inputs that each layer receives of its own, beside the residual stream.
        #[serde(default, skip_serializing_if = "is_default")]
        per_layer: Option<PerLayerInputs>,
        /// Several residual streams in place of one.
        #[serde(default, skip_serializing_if = "is_default")]
        streams: Option<Streams>,
        /// The model is a layer that drafts for another model, its target, from the target's hidden states.
        #[serde(default, skip_serializing_if = "is_default")]
        draft_head: Option<DraftHead>,
        /// The rotary position embeddings that layers name by index.
        ropes: Vec<RopeConfig>,
        /// The layers, in order.
        layers: Vec<LayerPlan>,
    }
}

/// A layer that predicts the token behind the next one of its target. Below, `e` is the embedding of a token, and `h` a hidden state at
/// the token before: the target's, or where the target has not been yet, the head's own.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum DraftHead {
    /// A head for multi-token prediction (Gloeckle et al. 2024; DeepSeek-V3, 2024). Its residual stream begins as
    /// `input · [norm(e); norm(h)]` with the target's final hidden state. Embedding and output matrix are the target's.
    Mtp,
    /// An EAGLE-3 head.
    Eagle3(Eagle3),
}

/// An EAGLE-3 head (Li et al. 2025, arXiv 2503.01840). Its residual stream begins as `h`: `input · [a; b; c]` with the target's residual
/// streams `a`, `b`, `c` before three of its layers, or the head's own stream behind its layer. Queries, keys and values of
/// the layer are those of `[norm(e); norm(h)]`. The output matrix has the tokens of a smaller vocabulary.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Eagle3 {
    /// Width of the target's residual stream.
    pub target_hidden_dim: usize,
    /// The layers before which the head reads it, counted from 0; `None`: 2, n / 2 and n − 3 of n.
    pub taps: Option<[usize; 3]>,
    /// Tokens that the head can draft.
    pub draft_vocab_size: usize,
    /// Its residual stream begins as `norm(h)`.
    pub normed_residual: bool,
}

impl Eagle3 {
    /// The layers of a target with `n_layers` layers before which the head reads the residual stream. They may not be there.
    pub(crate) fn taps_of(&self, n_layers: usize) -> [usize; 3] {
        self.taps.unwrap_or([2, n_layers / 2, n_layers.saturating_sub(3)])
    }
}

/// Inputs of each layer beside the residual stream (Gemma 3n and 4). With `x` the scaled embedding of a token and `e` its
/// row of a second embedding, layer `l` receives the `l`-th part, of length `dim`, of
/// `(norm(projection · x / √hidden_dim) + √dim · e) / √2`, and adds `post_norm(out · (activation(gate · x) ∘ part))` to the
/// residual stream behind its feed-forward part. With several [`Streams`], it adds them to all but the first.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PerLayerInputs {
    /// Width of a layer's inputs.
    pub dim: usize,
    /// Rows of the second embedding. Tokens behind them have its first row.
    pub vocab_size: usize,
    /// Activation of the gate.
    pub activation: Activation,
}

/// Several residual streams (AltUp, Baykal et al. 2023), of which layers compute one. With `e` the scaled embedding of a token,
/// stream 0 begins as `e` and stream `i` as a projection of it, scaled to the root mean square of `e`. A layer first predicts all
/// streams, `p[j] = s[j] + Σ a[j, i] · s[i]`, computes `y` from `p[active]`, and corrects them:
/// `s[j] = p[j] + c[j] · (y − p[active])`. The weights are those of small matrices, `a = A · m(s[active])` and `c = 1 + C · m(y)`
/// with `m(x) = tanh(router · norm(x) / hidden_dim)`. The final hidden state is the mean of stream 0 and of projections of the
/// others, scaled to its root mean square.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Streams {
    /// Their number, at least 2.
    pub n: usize,
    /// The one that layers compute.
    pub active: usize,
    /// The gate of a layer's own inputs reads the active stream times a vector.
    pub gate_scaled: bool,
}

/// Whether a field has the value of a model without the feature. Such fields are not written, so that a new feature changes
/// neither the packed files of models without it nor their identities.
fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// What a layer computes: `x += scale · mix(x)`, then `x += scale · feed(x)`, with norms around them.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LayerPlan {
    /// How positions exchange information.
    pub mixer: Mixer,
    /// The feed-forward part.
    pub feed: FeedForward,
    /// The places of the RMS norms around mixer and feed-forward part.
    pub norms: Norms,
    /// The results of mixer and feed-forward part are multiplied by this number before they are added.
    pub residual_scale: f32,
    /// The residual stream behind the layer is multiplied by a number among the weights.
    #[serde(default, skip_serializing_if = "is_default")]
    pub output_scaled: bool,
    /// The rank of a branch beside the mixer (LAuReL, Menghani et al. 2024). With `a` the normed input, the layer adds
    /// `a + post_norm(out · in · a)` with the mixer's result, and divides the sum by √2.
    #[serde(default, skip_serializing_if = "is_default")]
    pub branch_rank: Option<usize>,
}

/// The places of RMS norms in a layer.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Norms {
    /// Before mixer and feed-forward part (Llama).
    Pre,
    /// Behind each of them, before the residual is added (OLMo 2).
    Post,
    /// Before and behind each of them (Gemma).
    Both,
}

impl Norms {
    /// Whether the inputs are normed.
    pub fn has_pre(self) -> bool {
        self != Norms::Post
    }

    /// Whether the results are normed.
    pub fn has_post(self) -> bool {
        self != Norms::Pre
    }
}

/// How the positions of a sequence exchange information in a layer.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Mixer {
    /// Attention over keys and values.
    Attention(Attention),
    /// A gated short convolution (LFM2).
    ShortConv(ShortConv),
    /// The gated delta rule (Qwen3.5).
    DeltaNet(DeltaNet),
    /// A selective state space (Mamba-2).
    Mamba2(Mamba2),
}

/// Attention of a layer.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Attention {
    /// Query heads; a multiple of `n_kv_heads`.
    pub n_heads: usize,
    /// Key and value heads.
    pub n_kv_heads: usize,
    /// Width of one head. Not always `hidden_dim / n_heads`.
    pub head_dim: usize,
    /// The rotation of queries and keys, by index in [`ModelConfig::ropes`]; `None`: no position embedding.
    pub rope: Option<usize>,
    /// A position sees this number of positions, its own included; `None`: all before it.
    #[serde(default, skip_serializing_if = "is_default")]
    pub window: Option<usize>,
    /// Scores are multiplied by this number.
    pub scale: f32,
    /// Scores become `cap · tanh(score / cap)`, after their scale.
    #[serde(default, skip_serializing_if = "is_default")]
    pub softcap: Option<f32>,
    /// Each query head has a learned score that takes part in the softmax without a value.
    #[serde(default, skip_serializing_if = "is_default")]
    pub sinks: bool,
    /// RMS norm of queries and keys before their rotation.
    #[serde(default, skip_serializing_if = "is_default")]
    pub qk_norm: Option<QkNorm>,
    /// Q, K and V have a bias.
    #[serde(default, skip_serializing_if = "is_default")]
    pub qkv_bias: bool,
    /// The output projection has a bias.
    #[serde(default, skip_serializing_if = "is_default")]
    pub o_bias: bool,
    /// Queries grow with their position.
    #[serde(default, skip_serializing_if = "is_default")]
    pub query_growth: Option<QueryGrowth>,
    /// The result is multiplied by the sigmoid of a gate, which is projected beside the queries (Qwen3.5).
    #[serde(default, skip_serializing_if = "is_default")]
    pub gated: bool,
    /// Where keys and values come from.
    #[serde(default, skip_serializing_if = "is_default")]
    pub kv: KvSource,
    /// RMS norm of the values of each head, without a weight.
    #[serde(default, skip_serializing_if = "is_default")]
    pub v_norm: bool,
}

/// Where the keys and values of a layer come from.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KvSource {
    /// A projection of the input for each.
    #[default]
    Own,
    /// One projection of the input: values are keys before their norm and rotation.
    OneProjection,
    /// The keys and values of this earlier layer, which has its own.
    Layer(usize),
}

impl Attention {
    /// Attention over all positions, scaled by `1 / √head_dim`, with the first rotation.
    pub fn plain(n_heads: usize, n_kv_heads: usize, head_dim: usize) -> Self {
        Self {
            n_heads,
            n_kv_heads,
            head_dim,
            rope: Some(0),
            window: None,
            scale: 1.0 / (head_dim as f32).sqrt(),
            softcap: None,
            sinks: false,
            qk_norm: None,
            qkv_bias: false,
            o_bias: false,
            query_growth: None,
            gated: false,
            kv: KvSource::Own,
            v_norm: false,
        }
    }

    /// The earlier layer whose keys and values the layer reads; `None` if it has its own.
    pub fn kv_layer(&self) -> Option<usize> {
        match self.kv {
            KvSource::Layer(layer_idx) => Some(layer_idx),
            KvSource::Own | KvSource::OneProjection => None,
        }
    }

    /// Width of the queries of a row.
    pub fn q_dim(&self) -> usize {
        self.n_heads * self.head_dim
    }

    /// Width of the keys, and of the values, of a row.
    pub fn kv_dim(&self) -> usize {
        self.n_kv_heads * self.head_dim
    }
}

/// Rotated queries are multiplied by `1 + beta · ln(1 + ⌊position / original_context_len⌋)`.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct QueryGrowth {
    /// Its slope.
    pub beta: f32,
    /// Context length before scaling.
    pub original_context_len: usize,
}

/// The numbers that a norm of queries or keys takes together.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum QkNorm {
    /// Each head (Qwen3, Gemma 3).
    Head,
    /// All heads of a row (OLMo 2).
    Row,
}

/// A gated short convolution: `out · (c ∘ conv(b ∘ x))`, where `b`, `c` and `x` are projections of the input.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ShortConv {
    /// Channels of the convolution.
    pub conv_dim: usize,
    /// Positions that the convolution sees, its own included.
    pub conv_len: usize,
    /// Projections and convolution have a bias.
    pub bias: bool,
}

/// The gated delta rule (Yang et al. 2024, Gated DeltaNet) behind a short convolution.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeltaNet {
    /// Heads of queries and keys.
    pub n_key_heads: usize,
    /// Heads of values; a multiple of `n_key_heads`.
    pub n_value_heads: usize,
    /// Width of a head of queries or keys.
    pub key_dim: usize,
    /// Width of a head of values.
    pub value_dim: usize,
    /// Positions that the convolution sees, its own included.
    pub conv_len: usize,
    /// Value head `h` reads key head `h % n_key_heads` (GGUF files), not `h / (n_value_heads / n_key_heads)`.
    #[serde(default, skip_serializing_if = "is_default")]
    pub strided: bool,
}

/// The state space of Mamba-2 (Dao and Gu 2024) behind a short convolution.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Mamba2 {
    /// Heads.
    pub n_heads: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// Groups of heads that share B and C; a divisor of `n_heads`.
    pub n_groups: usize,
    /// Width of the state of each element of a head.
    pub state_dim: usize,
    /// Positions that the convolution sees, its own included.
    pub conv_len: usize,
    /// The convolution has a bias.
    pub conv_bias: bool,
}

/// The feed-forward part of a layer.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum FeedForward {
    /// None.
    None,
    /// One gated network.
    Dense(Dense),
    /// A choice among gated networks for each row.
    Experts(Experts),
}

/// A gated feed-forward network: `down · (activation(gate · x) ∘ up · x)`.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Dense {
    /// Its width.
    pub ffn_dim: usize,
    /// Its activation.
    pub activation: Activation,
    /// Before its activation, the gate's values of a row are reduced by their mean plus so many standard deviations, and
    /// those below become 0 (Gemma 3n).
    #[serde(default, skip_serializing_if = "is_default")]
    pub cutoff: Option<f32>,
}

impl Dense {
    /// A network without a cutoff.
    pub fn plain(ffn_dim: usize, activation: Activation) -> Self {
        Self { ffn_dim, activation, cutoff: None }
    }
}

/// A mixture of gated feed-forward networks.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Experts {
    /// Networks of the layer.
    pub n_experts: usize,
    /// Networks that a row uses.
    pub n_used: usize,
    /// Width of a network; a multiple of 16.
    pub ffn_dim: usize,
    /// Activation of every network.
    pub activation: Activation,
    /// How scores of the router become weights.
    pub routing: Routing,
    /// The router has a bias, and so has every projection of the networks (gpt-oss).
    pub bias: bool,
    /// Width of a further network that every row uses; 0: none.
    pub shared_ffn_dim: usize,
    /// The result of the further network is multiplied by the sigmoid of a gate.
    pub shared_gated: bool,
    /// Router, experts and the further network have norms of their own (Gemma 4). With `x` the residual stream, the layer's norm is
    /// that of the further network's input alone, the router reads `rms_norm(x) / √hidden_dim` with a factor of each dimension, the
    /// experts read a norm of `x`, weights are multiplied by a factor of each expert, and the result is
    /// `norm(shared) + norm(Σ weight · expert)`.
    #[serde(default, skip_serializing_if = "is_default")]
    pub own_norms: bool,
}

/// How the scores of a router become the weights of the chosen networks.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Routing {
    /// Softmax over all networks; the chosen probabilities are divided by their sum (Qwen3-MoE).
    SoftmaxNormalized,
    /// Softmax over all networks; the chosen probabilities are used as they are.
    Softmax,
    /// Softmax over the chosen networks' scores (gpt-oss, Granite).
    SoftmaxOfChosen,
    /// The sigmoid of each score (LFM2).
    Sigmoid {
        /// A number of each network is added to its sigmoid for the choice, but not to its weight.
        biased: bool,
        /// The chosen sigmoids are divided by their sum, to which 1e-6 is added.
        normalized: bool,
        /// The weights are multiplied by this number.
        scale: f32,
    },
}

/// The activation of a gated feed-forward network.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Activation {
    /// `x · sigmoid(x)`.
    Silu,
    /// GELU by the formula with tanh.
    GeluTanh,
    /// `min(x, limit) · sigmoid(1.702 · min(x, limit))`, where `up` is clamped to ±limit and raised by 1 (gpt-oss).
    ClampedSwiglu {
        /// The limit.
        limit: f32,
    },
}

/// Rotary position embedding: frequency `i` is `theta^(-2i/rotary_dim)`, then scaled.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RopeConfig {
    /// Base of the frequencies.
    pub theta: f64,
    /// Rotated dimensions of each head, from the first on; even, and at most `head_dim`.
    pub rotary_dim: usize,
    /// Scaling of the frequencies for long contexts.
    pub scaling: RopeScaling,
}

/// Scaling of rotary frequencies.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum RopeScaling {
    /// None.
    None,
    /// Every frequency divided by `factor`.
    Linear {
        /// The divisor.
        factor: f64,
    },
    /// Llama 3.1: low frequencies divided by `factor`, high ones kept, a ramp between.
    Llama3 {
        /// Divisor of the lowest frequencies.
        factor: f64,
        /// Wavelengths longer than `original_context_len / low_freq_factor` are scaled fully.
        low_freq_factor: f64,
        /// Wavelengths shorter than `original_context_len / high_freq_factor` are kept.
        high_freq_factor: f64,
        /// Context length before scaling.
        original_context_len: usize,
    },
    /// Only the first `n_pairs` pairs of dimensions turn, with the frequencies of a rotation of all of them.
    Proportional {
        /// Pairs that turn.
        n_pairs: usize,
    },
    /// One divisor per frequency, `[rotary_dim / 2]`: the Llama 3.1 rule in GGUF's form
    /// (`rope_freqs.weight`).
    Factors(Vec<f32>),
    /// YaRN (Peng et al. 2023): frequencies below a ramp are divided by `factor`, those above it are kept.
    Yarn {
        /// Divisor of the lowest frequencies.
        factor: f64,
        /// Rotations over the original context above which a frequency is kept.
        beta_fast: f64,
        /// Rotations over the original context below which a frequency is divided.
        beta_slow: f64,
        /// Context length before scaling.
        original_context_len: usize,
        /// Cosines and sines are multiplied by this number.
        attention_factor: f64,
        /// The ends of the ramp are rounded to whole dimensions.
        truncate: bool,
    },
    /// Dynamic NTK: in contexts longer than the original, the base grows with the context of the session.
    Dynamic {
        /// The factor of the longest context.
        factor: f64,
        /// Context length before scaling.
        original_context_len: usize,
    },
    /// LongRoPE (Ding et al. 2024): one divisor per frequency, `[rotary_dim / 2]`. The context of the session chooses
    /// between the two sets.
    LongRope {
        /// The divisors of contexts up to the original length.
        short: Vec<f32>,
        /// The divisors of longer contexts.
        long: Vec<f32>,
        /// Context length before scaling.
        original_context_len: usize,
        /// Cosines and sines are multiplied by this number.
        attention_factor: f64,
    },
}

/// An error in the hyper-parameters.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// The configuration is not JSON, or not an object.
    #[error("{file}: not a JSON object: {reason}")]
    NotJson {
        /// The file.
        file: String,
        /// The parser's message.
        reason: String,
    },
    /// A required field is missing.
    #[error("{file}: field `{field}` is missing")]
    Missing {
        /// The file.
        file: String,
        /// The field.
        field: String,
    },
    /// A field has the wrong type.
    #[error("{file}: field `{field}` should be {expected}, found {found}")]
    WrongType {
        /// The file.
        file: String,
        /// The field.
        field: String,
        /// The expected type.
        expected: &'static str,
        /// The value or type found.
        found: String,
    },
    /// A number is outside its limits.
    #[error("{file}: `{field}` is {value}, allowed is {allowed}")]
    OutOfRange {
        /// The file.
        file: String,
        /// The field.
        field: String,
        /// The value found.
        value: String,
        /// The values allowed.
        allowed: String,
    },
    /// The model family is not implemented.
    #[error("{file}: architecture `{name}` is not supported (supported: {supported})")]
    UnknownArchitecture {
        /// The file.
        file: String,
        /// Its name.
        name: String,
        /// The names of all supported architectures.
        supported: String,
    },
    /// A feature is not implemented; computing without it would be wrong.
    #[error("{file}: `{field}` = {value} is not supported")]
    Unsupported {
        /// The file.
        file: String,
        /// The field of the feature.
        field: String,
        /// Its value.
        value: String,
    },
    /// Two fields contradict each other.
    #[error("{file}: `{left}` and `{right}` do not fit together")]
    Inconsistent {
        /// The file.
        file: String,
        /// One field with its value.
        left: String,
        /// The other field with its value.
        right: String,
    },
}

impl Fault for ConfigError {
    fn facts(&self) -> Facts<'_> {
        let damaged = Facts::new(ErrorKind::Damaged);
        let unsupported = Facts::new(ErrorKind::Unsupported);
        match self {
            Self::NotJson { file, .. } => damaged.file(file),
            Self::Missing { file, field }
            | Self::WrongType { file, field, .. }
            | Self::OutOfRange { file, field, .. }
            | Self::Inconsistent { file, left: field, .. } => damaged.file(file).field(field),
            Self::UnknownArchitecture { file, .. } => unsupported.file(file),
            Self::Unsupported { file, field, .. } => unsupported.file(file).field(field),
        }
    }
}

/// What the widths of all layers of a model have in common.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Widths {
    /// Query heads of a layer, at most.
    pub n_heads: usize,
    /// Key and value heads of a layer, at most.
    pub n_kv_heads: usize,
    /// Width of a head, at most.
    pub head_dim: usize,
    /// Width of the queries of a row, at most.
    pub q_dim: usize,
    /// Width of the keys of a row, at most.
    pub kv_dim: usize,
    /// Width of a dense or shared feed-forward network, or of all networks that a row uses together, at most.
    pub ffn_dim: usize,
    /// Width of the inputs of a recurrent layer's mixer, at most.
    pub recurrent_dim: usize,
}

impl ModelConfig {
    /// The name of the family, such as `llama`.
    pub fn architecture(&self) -> &'static str {
        self.architecture.name()
    }

    /// Number of layers.
    pub fn n_layers(&self) -> usize {
        self.layers.len()
    }

    /// Width of the residual stream.
    pub fn hidden_dim(&self) -> usize {
        self.hidden_dim
    }

    /// Rows of the embedding; the tokenizer may have fewer tokens (padded vocabularies).
    pub fn vocab_size(&self) -> usize {
        self.vocab_size
    }

    /// Trained context length.
    pub fn context_len(&self) -> usize {
        self.context_len
    }

    /// Whether a layer keeps a state that cannot be cut back to any position.
    pub fn is_recurrent(&self) -> bool {
        self.layers.iter().any(|layer| !matches!(layer.mixer, Mixer::Attention(_)))
    }

    internals! {
        /// The largest widths of any layer.
        fn widths(&self) -> Widths {
            let mut widths = Widths::default();
            for layer in &self.layers {
                match &layer.mixer {
                    Mixer::Attention(attention) => {
                        widths.n_heads = widths.n_heads.max(attention.n_heads);
                        widths.n_kv_heads = widths.n_kv_heads.max(attention.n_kv_heads);
                        widths.head_dim = widths.head_dim.max(attention.head_dim);
                        widths.q_dim = widths.q_dim.max(attention.q_dim());
                        widths.kv_dim = widths.kv_dim.max(attention.kv_dim());
                    }
                    Mixer::ShortConv(conv) => {
                        widths.recurrent_dim = widths.recurrent_dim.max(3 * conv.conv_dim);
                    }
                    Mixer::DeltaNet(delta) => {
                        let width = delta.conv_dim() + 2 * delta.n_value_heads;
                        widths.recurrent_dim = widths.recurrent_dim.max(width);
                        widths.q_dim = widths.q_dim.max(delta.n_value_heads * delta.value_dim);
                    }
                    Mixer::Mamba2(mamba) => {
                        let width = mamba.conv_dim() + mamba.inner_dim() + mamba.n_heads;
                        widths.recurrent_dim = widths.recurrent_dim.max(width);
                        widths.q_dim = widths.q_dim.max(mamba.inner_dim());
                    }
                }
                let ffn_dim = match &layer.feed {
                    FeedForward::None => 0,
                    FeedForward::Dense(dense) => dense.ffn_dim,
                    FeedForward::Experts(experts) => {
                        experts.shared_ffn_dim.max(experts.ffn_dim.saturating_mul(experts.n_used))
                    }
                };
                widths.ffn_dim = widths.ffn_dim.max(ffn_dim);
            }
            widths
        }

        /// The attention of a layer; `None` if its mixer is another one.
        fn attention(&self, layer_idx: usize) -> Option<&Attention> {
            match &self.layers.get(layer_idx)?.mixer {
                Mixer::Attention(attention) => Some(attention),
                _ => None,
            }
        }

        /// The last layer that writes keys and values, or has a state. Layers behind it have nothing to do for tokens whose
        /// final hidden states nobody reads.
        fn last_stateful_layer(&self) -> usize {
            let has_state = |layer: &LayerPlan| match &layer.mixer {
                Mixer::Attention(attention) => attention.kv_layer().is_none(),
                _ => true,
            };
            self.layers.iter().rposition(has_state).unwrap_or(0)
        }

        /// Width of the inputs of all layers beside the residual stream.
        fn per_layer_dims(&self) -> usize {
            self.per_layer.map_or(0, |per_layer| per_layer.dim * self.layers.len())
        }
    }

    /// The EAGLE-3 head that the model is.
    pub(crate) fn eagle3(&self) -> Option<&Eagle3> {
        match &self.draft_head {
            Some(DraftHead::Eagle3(eagle3)) => Some(eagle3),
            _ => None,
        }
    }

    /// Numbers of the target that a draft head reads for a row.
    pub(crate) fn target_state_dim(&self) -> usize {
        match &self.draft_head {
            None => 0,
            Some(DraftHead::Mtp) => self.hidden_dim,
            Some(DraftHead::Eagle3(eagle3)) => 3 * eagle3.target_hidden_dim,
        }
    }

    /// Logits of a row.
    pub(crate) fn n_logits(&self) -> usize {
        self.eagle3().map_or(self.vocab_size, |eagle3| eagle3.draft_vocab_size)
    }
}

impl DeltaNet {
    /// Channels of the convolution: queries, keys and values.
    pub fn conv_dim(&self) -> usize {
        2 * self.n_key_heads * self.key_dim + self.n_value_heads * self.value_dim
    }
}

impl Mamba2 {
    /// Width of all heads.
    pub fn inner_dim(&self) -> usize {
        self.n_heads * self.head_dim
    }

    /// Channels of the convolution: the heads, B and C.
    pub fn conv_dim(&self) -> usize {
        self.inner_dim() + 2 * self.n_groups * self.state_dim
    }
}
