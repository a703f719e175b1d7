//! Converts `config.json` to [`ModelConfig`].

use serde_json::{Map, Value};

use crate::model::config::{Architecture, ConfigError, ModelConfig, RopeConfig, RopeScaling};

/// Reads the hyper-parameters; `file` is for messages.
///
/// Both layouts of the rotary settings are read: `rope_theta` with `rope_scaling`, and the newer
/// `rope_parameters`.
///
/// # Errors
/// [`ConfigError`]; it names any field that would change the computation and is not implemented.
pub fn parse_config(text: &str, file: &str) -> Result<ModelConfig, ConfigError> {
    let value: Value = serde_json::from_str(text)
        .map_err(|e| ConfigError::NotJson { file: file.to_owned(), reason: e.to_string() })?;
    let Value::Object(map) = value else {
        return Err(ConfigError::NotJson { file: file.to_owned(), reason: "not an object".to_owned() });
    };
    let fields = Fields { file, path: "", map: &map };
    let model_type = fields.required_str("model_type")?;
    let Some(architecture) = Architecture::from_name(model_type) else {
        return Err(ConfigError::UnknownArchitecture { file: file.to_owned(), name: model_type.to_owned() });
    };
    refuse_unsupported(&fields)?;

    let n_heads = fields.required_count("num_attention_heads")?;
    let n_kv_heads = match fields.count("num_key_value_heads")? {
        Some(n) => n,
        // In Llama only, a missing value means one key/value head per query head.
        None if model_type == "llama" => n_heads,
        None => return Err(fields.missing("num_key_value_heads")),
    };
    let hidden_dim = fields.required_count("hidden_size")?;
    let head_dim = match fields.count("head_dim")? {
        Some(n) => n,
        None if architecture == Architecture::Qwen3 => 128,
        None if n_heads > 0 && hidden_dim % n_heads == 0 => hidden_dim / n_heads,
        None => return Err(fields.missing("head_dim")),
    };
    let attention_bias = fields.bool("attention_bias")?.unwrap_or(false);
    let config = ModelConfig {
        architecture,
        n_layers: fields.required_count("num_hidden_layers")?,
        hidden_dim,
        n_heads,
        n_kv_heads,
        head_dim,
        ffn_dim: fields.required_count("intermediate_size")?,
        vocab_size: fields.required_count("vocab_size")?,
        context_len: context_len(&fields, model_type)?,
        norm_eps: fields.number("rms_norm_eps")?.unwrap_or(1e-6) as f32,
        rope: rope(&fields, head_dim)?,
        tied_head: fields.bool("tie_word_embeddings")?.unwrap_or(false),
        // Qwen2 has biases but no field for them; in the other families, `attention_bias` covers all four
        // projections.
        qkv_bias: architecture == Architecture::Qwen2 || attention_bias,
        o_bias: architecture != Architecture::Qwen2 && attention_bias,
    };
    config.validate(file)?;
    Ok(config)
}

fn refuse_unsupported(fields: &Fields<'_>) -> Result<(), ConfigError> {
    if let Some(activation) = fields.str("hidden_act")?.filter(|&a| a != "silu" && a != "swish") {
        return Err(fields.unsupported("hidden_act", activation));
    }
    if fields.bool("mlp_bias")? == Some(true) {
        return Err(fields.unsupported("mlp_bias", "true"));
    }
    if fields.bool("rope_interleaved")? == Some(true) {
        return Err(fields.unsupported("rope_interleaved", "true"));
    }
    if let Some(factor) = fields.number("partial_rotary_factor")?.filter(|&f| f != 1.0) {
        return Err(fields.unsupported("partial_rotary_factor", factor));
    }
    let absent = [
        "quantization_config",
        "num_local_experts",
        "num_experts",
        "n_routed_experts",
        "attn_logit_softcapping",
        "final_logit_softcapping",
        "embedding_multiplier",
        "residual_multiplier",
        "attention_multiplier",
        "logits_scaling",
        "no_rope_layers",
    ];
    for field in absent {
        if let Some(value) = fields.get(field) {
            let text = value.to_string();
            return Err(fields.unsupported(field, text.chars().take(60).collect::<String>()));
        }
    }
    if let Some(layer_types) = fields.get("layer_types") {
        let all_known = layer_types.as_array().is_some_and(|types| {
            types.iter().all(|t| matches!(t.as_str(), Some("full_attention" | "sliding_attention")))
        });
        if !all_known {
            return Err(fields.unsupported("layer_types", "with a layer that is neither full nor sliding"));
        }
    }
    Ok(())
}

/// The context length, at most the sliding window if one is in use: within the window, full attention is the
/// same function.
fn context_len(fields: &Fields<'_>, model_type: &str) -> Result<usize, ConfigError> {
    let context_len = fields.count("max_position_embeddings")?.unwrap_or(2048);
    let in_use = match model_type {
        "mistral" => true,
        _ => fields.bool("use_sliding_window")? == Some(true),
    };
    match fields.count("sliding_window")? {
        Some(window) if in_use => Ok(context_len.min(window)),
        _ => Ok(context_len),
    }
}

fn rope(fields: &Fields<'_>, head_dim: usize) -> Result<RopeConfig, ConfigError> {
    // The newer layout holds theta and scaling in one object, the older one scaling only.
    let parameters = fields.object("rope_parameters")?;
    let scaling = match &parameters {
        Some(_) => parameters,
        None => fields.object("rope_scaling")?,
    };
    let theta = match &scaling {
        Some(scaling) => scaling.number("rope_theta")?,
        None => None,
    };
    let theta = match theta {
        Some(theta) => theta,
        None => fields.number("rope_theta")?.unwrap_or(10_000.0),
    };
    let scaling = match &scaling {
        Some(scaling) => rope_scaling(scaling)?,
        None => RopeScaling::None,
    };
    Ok(RopeConfig { theta, rotary_dim: head_dim, scaling })
}

fn rope_scaling(fields: &Fields<'_>) -> Result<RopeScaling, ConfigError> {
    if let Some((name, _)) = fields.map.iter().find(|(_, value)| value.is_object()) {
        return Err(fields.unsupported(name, "rotary settings per layer type"));
    }
    if let Some(factor) = fields.number("partial_rotary_factor")?.filter(|&f| f != 1.0) {
        return Err(fields.unsupported("partial_rotary_factor", factor));
    }
    let kind = match fields.str("rope_type")? {
        Some(kind) => kind,
        None => fields.str("type")?.unwrap_or("default"),
    };
    match kind {
        "default" => Ok(RopeScaling::None),
        "linear" => Ok(RopeScaling::Linear { factor: fields.required_number("factor")? }),
        "llama3" => Ok(RopeScaling::Llama3 {
            factor: fields.required_number("factor")?,
            low_freq_factor: fields.required_number("low_freq_factor")?,
            high_freq_factor: fields.required_number("high_freq_factor")?,
            original_context_len: fields.required_count("original_max_position_embeddings")?,
        }),
        other => Err(fields.unsupported("rope_type", other)),
    }
}

/// Typed access to a JSON object; `null` counts as absent, as it does in Python's `config.get`.
struct Fields<'a> {
    file: &'a str,
    path: &'static str,
    map: &'a Map<String, Value>,
}

impl<'a> Fields<'a> {
    fn get(&self, field: &str) -> Option<&'a Value> {
        self.map.get(field).filter(|value| !value.is_null())
    }

    fn str(&self, field: &str) -> Result<Option<&'a str>, ConfigError> {
        self.typed(field, "a string", Value::as_str)
    }

    fn bool(&self, field: &str) -> Result<Option<bool>, ConfigError> {
        self.typed(field, "true or false", Value::as_bool)
    }

    fn number(&self, field: &str) -> Result<Option<f64>, ConfigError> {
        self.typed(field, "a number", Value::as_f64)
    }

    fn count(&self, field: &str) -> Result<Option<usize>, ConfigError> {
        self.typed(field, "a whole number of at least 0", |value| {
            value.as_u64().and_then(|n| usize::try_from(n).ok())
        })
    }

    fn object(&self, field: &'static str) -> Result<Option<Fields<'a>>, ConfigError> {
        let map = self.typed(field, "an object", Value::as_object)?;
        Ok(map.map(|map| Fields { file: self.file, path: field, map }))
    }

    fn required_str(&self, field: &str) -> Result<&'a str, ConfigError> {
        self.str(field)?.ok_or_else(|| self.missing(field))
    }

    fn required_number(&self, field: &str) -> Result<f64, ConfigError> {
        self.number(field)?.ok_or_else(|| self.missing(field))
    }

    fn required_count(&self, field: &str) -> Result<usize, ConfigError> {
        self.count(field)?.ok_or_else(|| self.missing(field))
    }

    fn typed<T>(
        &self,
        field: &str,
        expected: &'static str,
        read: impl Fn(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, ConfigError> {
        let Some(value) = self.get(field) else { return Ok(None) };
        match read(value) {
            Some(typed) => Ok(Some(typed)),
            None => Err(ConfigError::WrongType {
                file: self.file.to_owned(),
                field: self.full_name(field),
                expected,
                found: value.to_string().chars().take(60).collect(),
            }),
        }
    }

    fn missing(&self, field: &str) -> ConfigError {
        ConfigError::Missing { file: self.file.to_owned(), field: self.full_name(field) }
    }

    fn unsupported(&self, field: &str, value: impl ToString) -> ConfigError {
        let field = self.full_name(field);
        ConfigError::Unsupported { file: self.file.to_owned(), field, value: value.to_string() }
    }

    fn full_name(&self, field: &str) -> String {
        if self.path.is_empty() { field.to_owned() } else { format!("{}.{field}", self.path) }
    }
}
