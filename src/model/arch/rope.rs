//! The fields of rotary position embeddings.

use super::keys::{Key, Keys, Object, StoredFactors, key};
use crate::model::config::{ConfigError, ModelConfig, RopeConfig, RopeScaling};

const THETA: Key = key("rope.freq_base", "rope_theta");
const ROTARY_DIM: Key = key("rope.dimension_count", "");
const KIND: Key = key("rope.scaling.type", "");
const FACTOR: Key = key("rope.scaling.factor", "");
/// Older writers state a linear factor under another key.
const OLDER_FACTOR: Key = key("rope.scale_linear", "");
const ORIGINAL_CONTEXT: Key = key("rope.scaling.original_context_length", "");
const ATTENTION_FACTOR: Key = key("rope.scaling.attn_factor", "");
const BETA_FAST: Key = key("rope.scaling.yarn_beta_fast", "");
const BETA_SLOW: Key = key("rope.scaling.yarn_beta_slow", "");
/// The weight of YaRN's growth of scores that a model's training took back.
const LOG_MULTIPLIER: Key = key("rope.scaling.yarn_log_multiplier", "");
const THETA_DEFAULT: f64 = 10_000.0;

/// The rotation of a model with one rotation for all layers. `config` has the context length.
pub(super) fn read(
    keys: &Keys<'_>,
    head_dim: usize,
    config: &ModelConfig,
    theta_default: f64,
) -> Result<RopeConfig, ConfigError> {
    let Some(root) = keys.json() else { return of_gguf(keys, head_dim, config) };
    let settings = settings(&root)?;
    if let Some(name) = settings.and_then(|settings| settings.first_object()) {
        let settings = settings.unwrap_or(root);
        return Err(settings.unsupported(name, "rotary settings per layer type"));
    }
    of_json(&root, settings, head_dim, config, theta_default)
}

/// The rotary settings of a `config.json`: the newer layout holds theta and scaling in one object, the older one scaling
/// only.
pub(super) fn settings<'a>(root: &Object<'a>) -> Result<Option<Object<'a>>, ConfigError> {
    match root.object("rope_parameters")? {
        Some(parameters) => Ok(Some(parameters)),
        None => root.object("rope_scaling"),
    }
}

/// The rotations of layers without a window and with one, if the settings are those of each kind of layer.
pub(super) fn by_kind(
    root: &Object<'_>,
    head_dim: usize,
    config: &ModelConfig,
    theta_default: f64,
) -> Result<Option<Vec<RopeConfig>>, ConfigError> {
    let by_kind = settings(root)?.filter(|settings| settings.first_object().is_some());
    let Some(by_kind) = by_kind else { return Ok(None) };
    let of_kind = |name: &str| of_json(root, by_kind.object(name)?, head_dim, config, theta_default);
    Ok(Some(vec![of_kind("full_attention")?, of_kind("sliding_attention")?]))
}

/// The rotation that `settings` describes, with the fields of `root` where it leaves them out.
pub(super) fn of_json(
    root: &Object<'_>,
    settings: Option<Object<'_>>,
    head_dim: usize,
    config: &ModelConfig,
    theta_default: f64,
) -> Result<RopeConfig, ConfigError> {
    let number = |field: &str| -> Result<Option<f64>, ConfigError> {
        match settings.map(|settings| settings.number(field)).transpose()?.flatten() {
            Some(value) => Ok(Some(value)),
            None => root.number(field),
        }
    };
    let theta = number("rope_theta")?.unwrap_or(theta_default);
    let rotary_dim = match number("partial_rotary_factor")? {
        None => head_dim,
        // As Python's int().
        Some(share) if share > 0.0 && share <= 1.0 && head_dim as f64 * share >= 2.0 => {
            (head_dim as f64 * share) as usize
        }
        Some(share) => {
            return Err(root.unsupported("partial_rotary_factor", share));
        }
    };
    let scaling = match &settings {
        Some(settings) => scaling(root, settings, config)?,
        None => RopeScaling::None,
    };
    Ok(RopeConfig { theta, rotary_dim, scaling })
}

fn scaling(
    root: &Object<'_>,
    settings: &Object<'_>,
    config: &ModelConfig,
) -> Result<RopeScaling, ConfigError> {
    const ORIGINAL: &str = "original_max_position_embeddings";
    let kind = match settings.text("rope_type")? {
        Some(kind) => kind,
        None => settings.text("type")?.unwrap_or("default"),
    };
    let original = |settings: &Object<'_>| match settings.count(ORIGINAL)? {
        Some(n) => Ok(n),
        None => Ok(root.count(ORIGINAL)?.unwrap_or(config.context_len)),
    };
    // Phi-3 files call LongRoPE by other names too.
    let kind = if settings.get("long_factor").is_some() { "longrope" } else { kind };
    match kind {
        "default" => Ok(RopeScaling::None),
        "linear" => Ok(RopeScaling::Linear { factor: settings.required_number("factor")? }),
        "dynamic" => Ok(RopeScaling::Dynamic {
            factor: settings.required_number("factor")?,
            original_context_len: original(settings)?,
        }),
        "llama3" => Ok(RopeScaling::Llama3 {
            factor: settings.required_number("factor")?,
            low_freq_factor: settings.required_number("low_freq_factor")?,
            high_freq_factor: settings.required_number("high_freq_factor")?,
            original_context_len: settings.required_count(ORIGINAL)?,
        }),
        "yarn" => {
            let factor = settings.required_number("factor")?;
            let attention_factor = match settings.number("attention_factor")? {
                Some(given) => given,
                None => {
                    let scales = (settings.number("mscale")?, settings.number("mscale_all_dim")?);
                    match scales {
                        (Some(scale), Some(all)) if scale != 0.0 && all != 0.0 => {
                            yarn_attention(factor, scale) / yarn_attention(factor, all)
                        }
                        _ => yarn_attention(factor, 1.0),
                    }
                }
            };
            Ok(RopeScaling::Yarn {
                factor,
                beta_fast: settings.number("beta_fast")?.unwrap_or(32.0),
                beta_slow: settings.number("beta_slow")?.unwrap_or(1.0),
                original_context_len: original(settings)?,
                attention_factor,
                truncate: settings.flag("truncate")?.unwrap_or(true),
            })
        }
        "longrope" => {
            let original_context_len = original(settings)?;
            let stated = settings.number("attention_factor")?;
            let factor = match settings.number("factor")? {
                Some(factor) => factor,
                None => config.context_len as f64 / original_context_len.max(1) as f64,
            };
            Ok(RopeScaling::LongRope {
                short: settings.required_numbers("short_factor")?,
                long: settings.required_numbers("long_factor")?,
                attention_factor: stated.unwrap_or_else(|| long_rope_attention(factor, original_context_len)),
                original_context_len,
            })
        }
        other => Err(settings.unsupported("rope_type", other)),
    }
}

/// YaRN (Peng et al. 2023), eq. 22, times a weight.
fn yarn_attention(factor: f64, weight: f64) -> f64 {
    if factor <= 1.0 { 1.0 } else { 0.1 * weight * libm::log(factor) + 1.0 }
}

/// LongRoPE as Phi-3 computes it: `√(1 + ln factor / ln original)`.
fn long_rope_attention(factor: f64, original_context_len: usize) -> f64 {
    if factor <= 1.0 {
        return 1.0;
    }
    libm::sqrt(1.0 + libm::log(factor) / libm::log(original_context_len as f64))
}

/// The rotation of a GGUF file.
pub(super) fn of_gguf(
    keys: &Keys<'_>,
    head_dim: usize,
    config: &ModelConfig,
) -> Result<RopeConfig, ConfigError> {
    // ggml's defaults: a missing type is linear, and a factor of 0 or 1 means no scaling.
    let kind = keys.text(KIND)?.unwrap_or("linear");
    let factor = match keys.number(FACTOR)? {
        Some(factor) => Some(factor),
        None => keys.number(OLDER_FACTOR)?,
    };
    let factor = factor.filter(|&f| kind != "none" && f != 0.0 && f != 1.0);
    let original_context_len = keys.count(ORIGINAL_CONTEXT)?.unwrap_or(config.context_len);
    let attention_factor = keys.number(ATTENTION_FACTOR)?;
    let (beta_fast, beta_slow) = (keys.number(BETA_FAST)?, keys.number(BETA_SLOW)?);
    let taken_back = keys.number(LOG_MULTIPLIER)?.unwrap_or(0.0);
    let stored = keys.stored_factors();
    // With one of two sets of factors, frequencies would not be scaled at all.
    let missing = match (&stored.short, &stored.long) {
        (Some(_), None) => Some("rope_factors_long.weight"),
        (None, Some(_)) => Some("rope_factors_short.weight"),
        _ => None,
    };
    if let Some(field) = missing {
        return Err(ConfigError::Missing { file: keys.file().to_owned(), field: field.to_owned() });
    }
    let scaling = match (kind, factor, stored) {
        (_, _, StoredFactors { short: Some(short), long: Some(long), .. }) => RopeScaling::LongRope {
            short: short.clone(),
            long: long.clone(),
            original_context_len,
            attention_factor: attention_factor.filter(|&factor| factor != 0.0).unwrap_or(1.0),
        },
        ("none" | "linear", None, StoredFactors { factors: None, .. }) => RopeScaling::None,
        ("none" | "linear", None, StoredFactors { factors: Some(factors), .. }) => {
            RopeScaling::Factors(factors.clone())
        }
        ("linear", Some(factor), StoredFactors { factors: None, .. }) => RopeScaling::Linear { factor },
        // ggml divides by both; no published model has both.
        ("linear", Some(factor), _) => {
            return Err(keys.unsupported(key("rope.scaling.factor with rope_freqs.weight", ""), factor));
        }
        ("yarn", Some(factor), StoredFactors { factors: None, .. }) => RopeScaling::Yarn {
            factor,
            beta_fast: beta_fast.unwrap_or(32.0),
            beta_slow: beta_slow.unwrap_or(1.0),
            original_context_len,
            attention_factor: attention_factor.unwrap_or(1.0) * yarn_attention(factor, 1.0)
                / yarn_attention(factor, taken_back),
            truncate: true,
        },
        (other, ..) => return Err(keys.unsupported(KIND, other)),
    };
    let rotary_dim = keys.count(ROTARY_DIM)?.unwrap_or(head_dim);
    if config.architecture.family().interleaves && rotary_dim != head_dim {
        let field = key("rope.dimension_count (partial rotation)", "");
        return Err(keys.unsupported(field, format!("{rotary_dim} of head_dim {head_dim}")));
    }
    Ok(RopeConfig { theta: keys.number(THETA)?.unwrap_or(THETA_DEFAULT), rotary_dim, scaling })
}
