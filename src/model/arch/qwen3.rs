//! Qwen3: an RMS norm over each head of queries and keys.

use super::family::{Architecture, Family};
use super::keys::Keys;
use super::qwen2;
use super::read::{self, Defaults};
use crate::model::config::{ConfigError, Mixer, ModelConfig, QkNorm};

pub(super) static FAMILY: Family = Family { name: "qwen3", json: &["qwen3"], read, ..Family::STANDARD };

fn read(keys: &Keys<'_>, architecture: Architecture) -> Result<ModelConfig, ConfigError> {
    let mut config = read::uniform(keys, architecture, &Defaults { head_dim: Some(128), ..Defaults::LLAMA })?;
    for layer in &mut config.layers {
        if let Mixer::Attention(attention) = &mut layer.mixer {
            attention.qk_norm = Some(QkNorm::Head);
        }
    }
    qwen2::set_window(keys, &mut config)?;
    Ok(config)
}
