//! Hyper-parameters of a model, from either container, validated once.
//!
//! Unknown rotation schemes, activations and attention variants are errors that name the field, because
//! computing without them would give fluent, wrong text.

use thiserror::Error;

/// Largest number of layers accepted. The deepest published dense models have about 130.
pub const N_LAYERS_MAX: usize = 1024;
/// Largest `hidden_dim` accepted (published: 16 384).
pub const HIDDEN_DIM_MAX: usize = 1 << 18;
/// Largest number of attention heads accepted (published: 128).
pub const N_HEADS_MAX: usize = 4096;
/// Largest `head_dim` accepted (published: 256).
pub const HEAD_DIM_MAX: usize = 4096;
/// Largest `ffn_dim` accepted (published: 53 248).
pub const FFN_DIM_MAX: usize = 1 << 20;
/// Largest vocabulary accepted (published: 262 144).
pub const VOCAB_SIZE_MAX: usize = 1 << 24;
/// Largest context length accepted (published: 10 million).
pub const CONTEXT_LEN_MAX: usize = 1 << 30;

/// Model families with an implemented forward pass.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Architecture {
    /// Llama 2 and 3, SmolLM2, and Mistral (within its sliding window).
    Llama,
    /// Qwen2 and Qwen2.5: biases on Q, K and V.
    Qwen2,
    /// Qwen3: RMS norm over each head of Q and K.
    Qwen3,
}

impl Architecture {
    /// The name in `general.architecture` and `model_type`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Llama => "llama",
            Self::Qwen2 => "qwen2",
            Self::Qwen3 => "qwen3",
        }
    }

    /// The architecture called `name`; Mistral is computed as Llama.
    pub fn from_name(name: &str) -> Option<Self> {
        match name {
            "llama" | "mistral" => Some(Self::Llama),
            "qwen2" => Some(Self::Qwen2),
            "qwen3" => Some(Self::Qwen3),
            _ => None,
        }
    }

    /// Whether each head of Q and K is normalised.
    pub fn has_qk_norm(self) -> bool {
        self == Self::Qwen3
    }
}

/// Hyper-parameters of a transformer. All counts are at least one and below the limits of this module.
#[derive(Clone, PartialEq, Debug)]
pub struct ModelConfig {
    /// The family, which decides the forward pass.
    pub architecture: Architecture,
    /// Transformer layers.
    pub n_layers: usize,
    /// Width of the residual stream.
    pub hidden_dim: usize,
    /// Query heads; a multiple of `n_kv_heads`.
    pub n_heads: usize,
    /// Key/value heads.
    pub n_kv_heads: usize,
    /// Width of one head; even. Not always `hidden_dim / n_heads`.
    pub head_dim: usize,
    /// Width of the feed-forward layer.
    pub ffn_dim: usize,
    /// Rows of the embedding; the tokenizer may have fewer tokens (padded vocabularies).
    pub vocab_size: usize,
    /// Trained context length. For a model with a shorter sliding window (Mistral 7B v0.1), the length of the
    /// window: within it, full attention is the model's own.
    pub context_len: usize,
    /// Epsilon of every RMS norm.
    pub norm_eps: f32,
    /// Rotary position embedding.
    pub rope: RopeConfig,
    /// The output matrix is the embedding.
    pub tied_head: bool,
    /// Q, K and V have a bias: always in Qwen2, in the others if the checkpoint states so.
    pub qkv_bias: bool,
    /// The attention's output projection has a bias.
    pub o_bias: bool,
}

/// Rotary position embedding: frequency `i` is `theta^(-2i/rotary_dim)`, then scaled.
#[derive(Clone, PartialEq, Debug)]
pub struct RopeConfig {
    /// Base of the frequencies.
    pub theta: f64,
    /// Rotated dimensions of each head; equal to `head_dim` (partial rotation is refused).
    pub rotary_dim: usize,
    /// Scaling of the frequencies for long contexts.
    pub scaling: RopeScaling,
}

/// Scaling of rotary frequencies.
#[derive(Clone, PartialEq, Debug)]
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
    /// One divisor per frequency, `[rotary_dim / 2]`: the Llama 3.1 rule in GGUF's form
    /// (`rope_freqs.weight`).
    Factors(Vec<f32>),
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
    #[error("{file}: architecture `{name}` is not supported (supported: llama, mistral, qwen2, qwen3)")]
    UnknownArchitecture {
        /// The file.
        file: String,
        /// Its name.
        name: String,
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

impl ModelConfig {
    /// Checks every limit and relation; `file` is used in messages.
    ///
    /// # Errors
    /// [`ConfigError::OutOfRange`] or [`ConfigError::Inconsistent`], naming the first field that fails.
    pub fn validate(&self, file: &str) -> Result<(), ConfigError> {
        let counts = [
            ("n_layers", self.n_layers, N_LAYERS_MAX),
            ("hidden_dim", self.hidden_dim, HIDDEN_DIM_MAX),
            ("n_heads", self.n_heads, N_HEADS_MAX),
            ("n_kv_heads", self.n_kv_heads, N_HEADS_MAX),
            ("head_dim", self.head_dim, HEAD_DIM_MAX),
            ("ffn_dim", self.ffn_dim, FFN_DIM_MAX),
            ("vocab_size", self.vocab_size, VOCAB_SIZE_MAX),
            ("context_len", self.context_len, CONTEXT_LEN_MAX),
        ];
        for (field, value, max) in counts {
            if value == 0 || value > max {
                return Err(out_of_range(file, field, value, format!("1 to {max}")));
            }
        }
        if !self.n_heads.is_multiple_of(self.n_kv_heads) {
            return Err(ConfigError::Inconsistent {
                file: file.to_owned(),
                left: format!("n_heads = {}", self.n_heads),
                right: format!("n_kv_heads = {}", self.n_kv_heads),
            });
        }
        if !self.head_dim.is_multiple_of(2) {
            return Err(out_of_range(file, "head_dim", self.head_dim, "an even number"));
        }
        if self.rope.rotary_dim != self.head_dim {
            return Err(ConfigError::Unsupported {
                file: file.to_owned(),
                field: "rotary_dim (partial rotation)".to_owned(),
                value: format!("{} of head_dim {}", self.rope.rotary_dim, self.head_dim),
            });
        }
        if !(self.norm_eps.is_finite() && self.norm_eps > 0.0) {
            return Err(out_of_range(file, "norm_eps", self.norm_eps, "a finite number above 0"));
        }
        if !(self.rope.theta.is_finite() && self.rope.theta > 0.0) {
            return Err(out_of_range(file, "rope_theta", self.rope.theta, "a finite number above 0"));
        }
        self.validate_scaling(file)
    }

    fn validate_scaling(&self, file: &str) -> Result<(), ConfigError> {
        let positive = |field: &str, value: f64| match value.is_finite() && value > 0.0 {
            true => Ok(()),
            false => Err(out_of_range(file, field, value, "a finite number above 0")),
        };
        match &self.rope.scaling {
            RopeScaling::None => Ok(()),
            RopeScaling::Linear { factor } => positive("rope_scaling.factor", *factor),
            RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_context_len } => {
                positive("rope_scaling.factor", *factor)?;
                positive("rope_scaling.low_freq_factor", *low_freq_factor)?;
                positive("rope_scaling.high_freq_factor", *high_freq_factor)?;
                if high_freq_factor <= low_freq_factor {
                    return Err(ConfigError::Inconsistent {
                        file: file.to_owned(),
                        left: format!("low_freq_factor = {low_freq_factor}"),
                        right: format!("high_freq_factor = {high_freq_factor}"),
                    });
                }
                if *original_context_len == 0 || *original_context_len > CONTEXT_LEN_MAX {
                    let field = "rope_scaling.original_max_position_embeddings";
                    let allowed = format!("1 to {CONTEXT_LEN_MAX}");
                    return Err(out_of_range(file, field, original_context_len, allowed));
                }
                Ok(())
            }
            RopeScaling::Factors(factors) => {
                if factors.len() != self.rope.rotary_dim / 2 {
                    return Err(ConfigError::Inconsistent {
                        file: file.to_owned(),
                        left: format!("rope_freqs.weight with {} factors", factors.len()),
                        right: format!("head_dim = {}", self.head_dim),
                    });
                }
                factors.iter().try_for_each(|&f| positive("rope_freqs.weight", f64::from(f)))
            }
        }
    }
}

fn out_of_range(file: &str, field: &str, value: impl ToString, allowed: impl Into<String>) -> ConfigError {
    ConfigError::OutOfRange {
        file: file.to_owned(),
        field: field.to_owned(),
        value: value.to_string(),
        allowed: allowed.into(),
    }
}
