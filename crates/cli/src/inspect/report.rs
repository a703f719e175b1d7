//! The report on a model, in one form for all containers.

use refrain::internals::tokenizer::{PRE_TOKENIZER, TokenizerParts as _};
use std::collections::BTreeMap;

use refrain::checkpoint::Checkpoint;
use refrain::checkpoint::ModelConfig;
use refrain::device::MachineProfile;
use refrain::internals::model::config::RopeConfig;
use refrain::{LoadError, Tokenizer, TokenizerError};
use serde::Serialize;

use super::cost::{Memory, Speed};
use super::layers::{self, LayerKind};
use super::need::Need;

/// A container and its contents.
#[derive(Debug, Default, Serialize)]
pub(super) struct Report {
    pub(super) path: String,
    /// Container and version.
    pub(super) format: String,
    pub(super) files: Vec<String>,
    pub(super) name: Option<String>,
    pub(super) architecture: Option<String>,
    /// Absent if the model cannot be loaded.
    pub(super) config: Option<Config>,
    /// The layers of a model that can be loaded, equal ones together.
    pub(super) layers: Vec<LayerKind>,
    /// Absent if the model cannot be loaded.
    pub(super) memory: Option<Memory>,
    /// What a run with the given options needs. Absent if the model cannot be loaded.
    pub(super) need: Option<Need>,
    /// Absent if the model cannot be loaded.
    pub(super) speed: Option<Speed>,
    /// The model, until its need is known.
    #[serde(skip)]
    pub(super) checkpoint: Option<Checkpoint>,
    pub(super) parameters: u64,
    pub(super) types: Vec<TypeTotal>,
    pub(super) tokenizer: Option<TokenizerReport>,
    /// The reason why the model cannot be run; empty if it can.
    pub(super) unsupported: Vec<String>,
    pub(super) metadata: Vec<(String, String)>,
    pub(super) tensors: Vec<TensorReport>,
}

/// One tensor.
#[derive(Debug, Serialize)]
pub(super) struct TensorReport {
    pub(super) name: String,
    #[serde(rename = "type")]
    pub(super) ty: String,
    /// Slowest dimension first.
    pub(super) shape: Vec<u64>,
    /// Absent if the element type is unknown.
    pub(super) bytes: Option<u64>,
    #[serde(skip)]
    pub(super) is_readable: bool,
}

/// All tensors of one type.
#[derive(Debug, Serialize)]
pub(super) struct TypeTotal {
    #[serde(rename = "type")]
    pub(super) ty: String,
    pub(super) tensors: usize,
    pub(super) bytes: u64,
    pub(super) supported: bool,
}

/// Dimensions of a model that can be loaded; widths that differ by layer are the largest.
#[derive(Debug, Serialize)]
pub(super) struct Config {
    pub(super) n_layers: usize,
    pub(super) hidden_dim: usize,
    pub(super) n_heads: usize,
    pub(super) n_kv_heads: usize,
    pub(super) head_dim: usize,
    pub(super) ffn_dim: usize,
    pub(super) vocab_size: usize,
    pub(super) context_len: usize,
    pub(super) tied_head: bool,
    /// The embedding of a token is multiplied by this number, logits by the next one.
    pub(super) embedding_scale: f32,
    pub(super) logit_scale: f32,
    pub(super) logit_softcap: Option<f32>,
    /// The rotations that layers name by index.
    pub(super) ropes: Vec<RopeConfig>,
    /// Multipliers and caps that are not neutral, in words.
    #[serde(skip)]
    pub(super) multipliers: Vec<String>,
}

/// A tokenizer that can be used.
#[derive(Debug, Serialize)]
pub(super) struct TokenizerReport {
    pub(super) vocab_size: usize,
    pub(super) end_tokens: Vec<String>,
    pub(super) chat_template: bool,
    /// Bytes that are left out of texts.
    pub(super) missing_bytes: Vec<u8>,
}

impl Report {
    /// Stores the tensors and computes the totals by type.
    pub(super) fn set_tensors(&mut self, tensors: Vec<TensorReport>) {
        let mut types: BTreeMap<&str, TypeTotal> = BTreeMap::new();
        for tensor in &tensors {
            // The sizes of tensors are u64 numbers from the container. With a forged table, their sum
            // saturates.
            let n_elements = tensor.shape.iter().fold(1u64, |n, &dim| n.saturating_mul(dim));
            self.parameters = self.parameters.saturating_add(n_elements);
            let total = types.entry(&tensor.ty).or_insert_with(|| TypeTotal {
                ty: tensor.ty.clone(),
                tensors: 0,
                bytes: 0,
                supported: tensor.is_readable,
            });
            total.tensors += 1;
            total.bytes = total.bytes.saturating_add(tensor.bytes.unwrap_or(0));
        }
        self.types = types.into_values().collect();
        for total in self.types.iter().filter(|total| !total.supported) {
            self.unsupported.push(format!("{} tensors of type {}", total.tensors, total.ty));
        }
        self.tensors = tensors;
    }

    /// Adds the result of loading the checkpoint, whose stored profile is `profile`.
    pub(super) fn set_checkpoint(
        &mut self,
        opened: Result<Checkpoint, LoadError>,
        profile: Option<&MachineProfile>,
    ) {
        match opened {
            Ok(checkpoint) => {
                let (config, memory) = (checkpoint.config(), Memory::new(&checkpoint));
                self.name = Some(checkpoint.name().to_owned());
                self.config = Some(Config::new(config));
                self.layers = layers::kinds(config);
                self.speed = Some(Speed::new(profile, &checkpoint, &memory));
                self.memory = Some(memory);
                self.checkpoint = Some(checkpoint);
            }
            Err(error) => self.unsupported.push(error.to_string()),
        }
    }

    /// Adds the tokenizer's properties.
    pub(super) fn set_tokenizer(&mut self, built: Result<Tokenizer, TokenizerError>) {
        match built {
            Ok(tokenizer) => {
                if let Some(error) = tokenizer.chat_template_error() {
                    self.unsupported.push(format!("chat template: {error}"));
                }
                self.tokenizer = Some(TokenizerReport::new(&tokenizer));
            }
            Err(error) if error.field() == Some(PRE_TOKENIZER) => {
                self.unsupported.push(format!("tokenizer: {error} (--pre-tokenizer names one)"));
            }
            Err(error) => self.unsupported.push(format!("tokenizer: {error}")),
        }
    }
}

impl Config {
    fn new(config: &ModelConfig) -> Self {
        let widths = config.widths();
        Self {
            n_layers: config.n_layers(),
            hidden_dim: config.hidden_dim,
            n_heads: widths.n_heads,
            n_kv_heads: widths.n_kv_heads,
            head_dim: widths.head_dim,
            ffn_dim: widths.ffn_dim,
            vocab_size: config.vocab_size,
            context_len: config.context_len,
            tied_head: config.tied_head,
            embedding_scale: config.embedding_scale,
            logit_scale: config.logit_scale,
            logit_softcap: config.logit_softcap,
            ropes: config.ropes.clone(),
            multipliers: layers::multipliers(config),
        }
    }
}

impl TokenizerReport {
    fn new(tokenizer: &Tokenizer) -> Self {
        let text = |&id| String::from_utf8_lossy(tokenizer.token_bytes(id).unwrap_or_default()).into_owned();
        Self {
            vocab_size: tokenizer.vocab_size(),
            end_tokens: tokenizer.eos().iter().map(text).collect(),
            chat_template: tokenizer.chat_template().is_some(),
            missing_bytes: tokenizer.missing_bytes().to_vec(),
        }
    }
}
