//! Model families: how containers state the hyper-parameters of a model and name its tensors.
//!
//! A family is a value (`Family`) in a file of its own. It reads fields into a [`ModelConfig`], which says what every
//! layer computes, and names the tensors that are not under their standard names. Nothing else knows families: the
//! forward pass and everything that loads, packs, streams or inspects a model reads the configuration.
//!
//! A new family is a file here, a line in `FAMILIES`, and its golden model.

pub(in crate::model) mod eagle3;
pub(in crate::model) mod family;
mod gemma3;
mod gemma3n;
mod gemma4;
mod gpt_oss;
mod granite;
mod granite_hybrid;
pub(in crate::model) mod keys;
mod lfm2;
mod lfm2_moe;
mod llama;
mod minicpm;
mod mistral3;
mod olmo2;
mod phi3;
mod qwen2;
mod qwen3;
mod qwen35;
mod qwen3_moe;
mod read;
mod rope;
mod smollm3;
pub mod tensors;

use serde::{Deserialize, Deserializer, de::Error as _};
use serde_json::Value;

use crate::model::config::{ConfigError, ModelConfig};
pub use family::Architecture;
use family::Family;
pub(in crate::model) use keys::StoredFactors;
use keys::{Keys, Object};
use refrain_containers::gguf::{GgufFile, GgufValue};

/// All families.
static FAMILIES: &[&Family] = &[
    &llama::FAMILY,
    &qwen2::FAMILY,
    &qwen3::FAMILY,
    &qwen35::FAMILY,
    &gemma3::FAMILY,
    &gemma3n::FAMILY,
    &gemma4::FAMILY,
    &gpt_oss::FAMILY,
    &granite::FAMILY,
    &granite_hybrid::FAMILY,
    &lfm2::FAMILY,
    &lfm2_moe::FAMILY,
    &minicpm::FAMILY,
    &mistral3::FAMILY,
    &olmo2::FAMILY,
    &phi3::FAMILY,
    &qwen3_moe::FAMILY,
    &smollm3::FAMILY,
];

impl Architecture {
    /// The names of all families.
    pub fn names() -> impl Iterator<Item = &'static str> {
        FAMILIES.iter().map(|family| family.name)
    }

    /// The architecture with this name in a GGUF file, or in the field `model_type` of a `config.json`.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::of_gguf(name).or_else(|| Self::of_json(name))
    }

    fn of_gguf(name: &str) -> Option<Self> {
        FAMILIES.iter().find(|family| family.name == name || family.gguf.contains(&name)).map(|f| Self(f))
    }

    fn of_json(name: &str) -> Option<Self> {
        FAMILIES.iter().find(|family| family.json.contains(&name)).map(|family| Self(family))
    }

    /// The error of a name that belongs to no family.
    pub(in crate::model) fn unknown(file: &str, name: &str) -> ConfigError {
        let names: Vec<&str> =
            FAMILIES.iter().flat_map(|family| family.json.iter().chain([&family.name])).copied().collect();
        let mut names: Vec<&str> = names;
        names.sort_unstable();
        names.dedup();
        ConfigError::UnknownArchitecture {
            file: file.to_owned(),
            name: name.chars().take(60).collect(),
            supported: names.join(", "),
        }
    }
}

impl<'de> Deserialize<'de> for Architecture {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let name = String::deserialize(deserializer)?;
        let unknown = || D::Error::custom(format_args!("architecture `{name}` is not supported"));
        FAMILIES.iter().find(|family| family.name == name).map(|family| Self(family)).ok_or_else(unknown)
    }
}

/// Reads the hyper-parameters of a GGUF model.
///
/// `factors` are the divisors of frequencies that the file stores as tensors.
///
/// # Errors
/// [`ConfigError`]; it names any field that would change the computation and is not implemented.
pub(in crate::model) fn config_from_gguf(
    file: &GgufFile,
    factors: StoredFactors,
) -> Result<ModelConfig, ConfigError> {
    const NAME: &str = "general.architecture";
    let name = match file.get(NAME) {
        None => {
            return Err(ConfigError::Missing { file: file.name().to_owned(), field: NAME.to_owned() });
        }
        Some(GgufValue::String(name)) => name,
        Some(other) => {
            return Err(ConfigError::WrongType {
                file: file.name().to_owned(),
                field: NAME.to_owned(),
                expected: "a string",
                found: format!("a {}", other.type_name()),
            });
        }
    };
    let Some(architecture) = Architecture::of_gguf(name) else {
        return Err(Architecture::unknown(file.name(), name));
    };
    finish(Keys::of_gguf(file, name, factors), architecture)
}

/// Blocks of a GGUF file behind its layers that belong to a head for multi-token prediction.
///
/// # Errors
/// The field is no count.
pub(in crate::model) fn n_mtp_blocks(file: &GgufFile, config: &ModelConfig) -> Result<usize, ConfigError> {
    let name = file.get("general.architecture").and_then(GgufValue::as_str);
    let name = name.unwrap_or(config.architecture.name());
    read::n_mtp_blocks(&Keys::of_gguf(file, name, StoredFactors::default()))
}

/// Reads the hyper-parameters of a `config.json`; `file` is for messages.
///
/// Both layouts of the rotary settings are read: `rope_theta` with `rope_scaling`, and the newer
/// `rope_parameters`. Of a model for several media, those of its text part are read (`text_config`).
///
/// # Errors
/// [`ConfigError`]; it names any field that would change the computation and is not implemented.
///
/// The configuration of an EAGLE-3 head, which has a `draft_vocab_size`, is read as one.
pub fn parse_config(text: &str, file: &str) -> Result<ModelConfig, ConfigError> {
    let not_json = |reason: String| ConfigError::NotJson { file: file.to_owned(), reason };
    let value: Value = serde_json::from_str(text).map_err(|e| not_json(e.to_string()))?;
    let Value::Object(map) = value else { return Err(not_json("not an object".to_owned())) };
    let whole = Object::new(file, "", &map);
    let is_eagle3 = eagle3::is_head(&whole);
    let object = if is_eagle3 { eagle3::layer(whole)? } else { whole };
    let name = object.required_text("model_type")?;
    let Some(architecture) = Architecture::of_json(name) else {
        return Err(Architecture::unknown(file, name));
    };
    // Some families have models for several media, whose text part has a configuration of its own.
    let object = match architecture.0.roots {
        [_] => object,
        _ => object.object("text_config")?.unwrap_or(object),
    };
    let config = finish(Keys::of_json(object, name), architecture)?;
    if !is_eagle3 {
        return Ok(config);
    }
    let config = eagle3::read(whole, config)?;
    config.validate(file)?;
    Ok(config)
}

fn finish(keys: Keys<'_>, architecture: Architecture) -> Result<ModelConfig, ConfigError> {
    let config = (architecture.0.read)(&keys, architecture)?;
    keys.refuse_unread()?;
    config.validate(keys.file())?;
    Ok(config)
}
