//! Converts GGUF metadata to [`ModelConfig`].

use super::{GgufFile, GgufValue};
use crate::model::config::{Architecture, ConfigError, ModelConfig, RopeConfig, RopeScaling};

/// Reads the hyper-parameters of a GGUF model.
///
/// `rope_factors` is the content of `rope_freqs.weight`, if the model has it.
///
/// # Errors
/// [`ConfigError`]; it names any field that would change the computation and is not implemented.
pub fn config_from_gguf(file: &GgufFile, rope_factors: Option<Vec<f32>>) -> Result<ModelConfig, ConfigError> {
    let general = Keys { file, prefix: "general" };
    let name = general.required("architecture", "a string", GgufValue::as_str)?;
    let Some(architecture) = Architecture::from_name(name) else {
        return Err(ConfigError::UnknownArchitecture { file: file.name().to_owned(), name: name.to_owned() });
    };
    let keys = Keys { file, prefix: name };
    refuse_unsupported(&keys)?;

    let hidden_dim = keys.required_count("embedding_length")?;
    let n_heads = keys.required_count("attention.head_count")?;
    let n_kv_heads = keys.count("attention.head_count_kv")?.unwrap_or(n_heads);
    let head_dim = match keys.count("attention.key_length")? {
        Some(n) => n,
        None if n_heads > 0 && hidden_dim % n_heads == 0 => hidden_dim / n_heads,
        None => return Err(keys.missing("attention.key_length")),
    };
    if let Some(value_dim) = keys.count("attention.value_length")?.filter(|&n| n != head_dim) {
        return Err(keys.unsupported("attention.value_length", value_dim));
    }
    let config = ModelConfig {
        architecture,
        n_layers: keys.required_count("block_count")?,
        hidden_dim,
        n_heads,
        n_kv_heads,
        head_dim,
        ffn_dim: keys.required_count("feed_forward_length")?,
        vocab_size: vocab_size(&keys)?,
        context_len: context_len(&keys)?,
        norm_eps: keys.required("attention.layer_norm_rms_epsilon", "a float", GgufValue::as_f64)? as f32,
        rope: rope(&keys, head_dim, rope_factors)?,
        tied_head: file.tensor("output.weight").is_none(),
        qkv_bias: architecture == Architecture::Qwen2 || file.tensor("blk.0.attn_q.bias").is_some(),
        o_bias: file.tensor("blk.0.attn_output.bias").is_some(),
    };
    config.validate(file.name())?;
    Ok(config)
}

fn refuse_unsupported(keys: &Keys<'_>) -> Result<(), ConfigError> {
    let counts = ["expert_count", "expert_used_count", "leading_dense_block_count", "nextn_predict_layers"];
    for key in counts {
        if let Some(n) = keys.count(key)?.filter(|&n| n != 0) {
            return Err(keys.unsupported(key, n));
        }
    }
    let neutral = [
        ("attention.clamp_kqv", 0.0),
        ("attention.max_alibi_bias", 0.0),
        ("attn_logit_softcapping", 0.0),
        ("final_logit_softcapping", 0.0),
        ("logit_scale", 1.0),
        ("residual_scale", 1.0),
        ("embedding_scale", 1.0),
        ("attention.scale", 0.0),
    ];
    for (key, value) in neutral {
        if let Some(x) = keys.number(key)?.filter(|&x| x != value) {
            return Err(keys.unsupported(key, x));
        }
    }
    if keys.get("attention.causal", "a bool", GgufValue::as_bool)? == Some(false) {
        return Err(keys.unsupported("attention.causal", "false"));
    }
    Ok(())
}

/// Rows of the embedding; the metadata may state the same number or omit it.
fn vocab_size(keys: &Keys<'_>) -> Result<usize, ConfigError> {
    let rows = keys.file.tensor("token_embd.weight").and_then(|t| t.dims.get(1)).copied();
    let rows = rows.and_then(|n| usize::try_from(n).ok());
    match (keys.count("vocab_size")?, rows) {
        (Some(stated), Some(rows)) if stated != rows => Err(ConfigError::Inconsistent {
            file: keys.file.name().to_owned(),
            left: format!("{}.vocab_size = {stated}", keys.prefix),
            right: format!("token_embd.weight with {rows} rows"),
        }),
        (_, Some(rows)) => Ok(rows),
        (Some(stated), None) => Ok(stated),
        (None, None) => Err(keys.missing("vocab_size")),
    }
}

/// The context length, at most the sliding window if there is one: within the window, full attention is the
/// same function.
fn context_len(keys: &Keys<'_>) -> Result<usize, ConfigError> {
    let context_len = keys.required_count("context_length")?;
    match keys.count("attention.sliding_window")? {
        Some(window) if window > 0 => Ok(context_len.min(window)),
        _ => Ok(context_len),
    }
}

fn rope(keys: &Keys<'_>, head_dim: usize, factors: Option<Vec<f32>>) -> Result<RopeConfig, ConfigError> {
    // ggml's defaults: a missing type is linear, a factor of 0 or 1 means no scaling, and older writers state
    // a linear factor under another key.
    let kind = keys.get("rope.scaling.type", "a string", GgufValue::as_str)?.unwrap_or("linear");
    let factor = match keys.number("rope.scaling.factor")? {
        Some(factor) => Some(factor),
        None => keys.number("rope.scale_linear")?,
    };
    let factor = factor.filter(|&f| kind != "none" && f != 0.0 && f != 1.0);
    let scaling = match (kind, factor, factors) {
        ("none" | "linear", None, None) => RopeScaling::None,
        ("none" | "linear", None, Some(factors)) => RopeScaling::Factors(factors),
        ("linear", Some(factor), None) => RopeScaling::Linear { factor },
        // ggml divides by both; no published model has both.
        ("linear", Some(factor), Some(_)) => {
            return Err(keys.unsupported("rope.scaling.factor with rope_freqs.weight", factor));
        }
        (other, ..) => return Err(keys.unsupported("rope.scaling.type", other)),
    };
    Ok(RopeConfig {
        theta: keys.number("rope.freq_base")?.unwrap_or(10_000.0),
        rotary_dim: keys.count("rope.dimension_count")?.unwrap_or(head_dim),
        scaling,
    })
}

/// Typed access to the keys under one prefix.
struct Keys<'a> {
    file: &'a GgufFile,
    prefix: &'a str,
}

impl<'a> Keys<'a> {
    fn get<T>(
        &self,
        key: &str,
        expected: &'static str,
        read: impl Fn(&'a GgufValue) -> Option<T>,
    ) -> Result<Option<T>, ConfigError> {
        let field = format!("{}.{key}", self.prefix);
        let Some(value) = self.file.get(&field) else { return Ok(None) };
        match read(value) {
            Some(typed) => Ok(Some(typed)),
            None => Err(ConfigError::WrongType {
                file: self.file.name().to_owned(),
                field,
                expected,
                found: format!("a {}", value.type_name()),
            }),
        }
    }

    fn required<T>(
        &self,
        key: &str,
        expected: &'static str,
        read: impl Fn(&'a GgufValue) -> Option<T>,
    ) -> Result<T, ConfigError> {
        self.get(key, expected, read)?.ok_or_else(|| self.missing(key))
    }

    /// A count. A list with one value per layer is accepted if all values are equal.
    fn count(&self, key: &str) -> Result<Option<usize>, ConfigError> {
        self.get(key, "a whole number, the same for all layers", |value| {
            let n = match value.as_array() {
                None => value.as_u64()?,
                Some(array) => {
                    let values = array.to_u64s()?;
                    let first = *values.first()?;
                    values.iter().all(|&n| n == first).then_some(first)?
                }
            };
            usize::try_from(n).ok()
        })
    }

    fn required_count(&self, key: &str) -> Result<usize, ConfigError> {
        self.count(key)?.ok_or_else(|| self.missing(key))
    }

    fn number(&self, key: &str) -> Result<Option<f64>, ConfigError> {
        self.get(key, "a float", GgufValue::as_f64)
    }

    fn missing(&self, key: &str) -> ConfigError {
        ConfigError::Missing { file: self.file.name().to_owned(), field: format!("{}.{key}", self.prefix) }
    }

    fn unsupported(&self, key: &str, value: impl ToString) -> ConfigError {
        ConfigError::Unsupported {
            file: self.file.name().to_owned(),
            field: format!("{}.{key}", self.prefix),
            value: value.to_string(),
        }
    }
}
