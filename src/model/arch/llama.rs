//! Llama 2 and 3, SmolLM2, Mistral and Ministral.

use super::family::{Architecture, Family};
use super::keys::Keys;
use super::read::{self, Defaults};
use crate::model::config::{ConfigError, ModelConfig};

pub(super) static FAMILY: Family = Family {
    name: "llama",
    gguf: &["mistral"],
    json: &["llama", "mistral", "ministral"],
    read,
    interleaves: true,
    has_mtp: true,
    ..Family::STANDARD
};

/// Whether a tensor belongs to the parts of a model that read pictures.
pub(super) fn is_other_medium(name: &str, _config: &ModelConfig) -> bool {
    let name = name.strip_prefix("model.").unwrap_or(name);
    name.starts_with("vision_tower.") || name.starts_with("multi_modal_projector.")
}

fn read(keys: &Keys<'_>, architecture: Architecture) -> Result<ModelConfig, ConfigError> {
    // In Llama only, a missing number of KV heads means one for each query head.
    let defaults = Defaults { kv_heads_like_heads: keys.name == "llama", ..Defaults::LLAMA };
    let mut config = read::uniform(keys, architecture, &defaults)?;
    // The classes of Mistral have a window if `config.json` does not mention one.
    let missing = keys.json().is_some_and(|object| keys.name != "llama" && !object.has("sliding_window"));
    let stated = keys.count(read::WINDOW)?.or(missing.then_some(4096));
    let window = stated.filter(|&window| window > 0);
    // Ministral lists its sliding layers; all layers of Mistral slide, if there is a window.
    let slides = keys.json().is_none() || keys.name != "llama";
    read::set_windows(keys, &mut config, window, |_| slides && window.is_some())?;
    Ok(config)
}
