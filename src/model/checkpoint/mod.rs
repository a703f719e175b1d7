//! One view over GGUF files, Hugging Face folders and packed files: hyper-parameters, weights by role,
//! tokenizer.

mod mxfp4;
mod open;

use refrain_tokenizer::TokenizerParts as _;
use std::collections::HashMap;
use std::sync::Arc;

use thiserror::Error;

use crate::face::internals;
use crate::kernels::BlockType;
pub use crate::model::arch::tensors::{Change, LayerWeight, RowOrder, WeightId};
use crate::model::config::{ConfigError, ModelConfig};
use crate::model::generation_defaults::{GENERATION_CONFIG, GenerationDefaults};
use crate::model::graphs::{GraphFolder, GraphsError};
use crate::model::packed::{PackedFile, PackedFileError};
use refrain_containers::gguf::{GgufError, GgufFile, GgufValue};
use refrain_containers::hf::{HfError, HfFolder, SafetensorsError};
use refrain_files::{ErrorKind, Facts, Fault};
use refrain_tokenizer::{PRE_TOKENIZER, Tokenizer, TokenizerError, TokenizerProblem};
use refrain_trees::TokenId;

/// A tensor of the model, stored in the container with the right shape and a readable type.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TensorInfo {
    /// The names of the stored tensors that hold it, one behind the other; one for most.
    pub names: Vec<String>,
    /// Element type in the file.
    pub ty: BlockType,
    /// Rows; 1 for a vector.
    pub n_rows: usize,
    /// Columns; the length of a vector.
    pub n_cols: usize,
    /// Its rows (of a vector: its elements) in a stored tensor.
    pub order: RowOrder,
    /// The change of the stored values.
    pub change: Change,
    /// The name of the stored tensor with the exponents of blocks of MXFP4, if they lie apart from the codes; it has only
    /// one name then.
    pub scales: Option<String>,
}

impl TensorInfo {
    /// The name of the first stored tensor.
    pub fn name(&self) -> &str {
        &self.names[0]
    }

    /// Rows, or elements of a vector, of each stored tensor that belong to it.
    fn units_per_name(&self) -> usize {
        let n_units = if self.n_rows == 1 { self.n_cols } else { self.n_rows };
        n_units / self.names.len().max(1)
    }

    /// The stored tensor that has a row (an element of a vector), and its number there.
    pub(in crate::model) fn stored_row(&self, row: usize) -> (usize, usize) {
        let n = self.units_per_name();
        (row / n, self.order.stored(row % n))
    }
}

/// A checkpoint could not be opened or read.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum CheckpointError {
    /// The path does not exist.
    #[error("{path}: no such file or folder")]
    NoSuchFile {
        /// The path given.
        path: String,
    },
    /// The path is not a model.
    #[error("{path}: {reason}")]
    NotAModel {
        /// The path given.
        path: String,
        /// The reason.
        reason: &'static str,
    },
    /// An error of the GGUF container.
    #[error(transparent)]
    Gguf(#[from] GgufError),
    /// An error of the Hugging Face folder.
    #[error(transparent)]
    Hf(#[from] HfError),
    /// An error of the packed file.
    #[error(transparent)]
    Packed(#[from] PackedFileError),
    /// An error of the folder of static graphs.
    #[error(transparent)]
    Graphs(Box<GraphsError>),
    /// The hyper-parameters.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The file has no head for multi-token prediction.
    #[error(
        "{file}: no head for multi-token prediction; GGUF files have one as a block behind the layers \
         (`nextn_predict_layers`), Hugging Face folders as tensors `mtp.*`"
    )]
    NoMtp {
        /// The file or folder.
        file: String,
    },
    /// An entry of `d2t` of an EAGLE-3 head names a token that does not exist, or one that an earlier entry names.
    #[error(
        "{file}: tensor `d2t`: entry {index} is token {token}; each has to be another one of the {vocab_size} in the vocabulary"
    )]
    DraftToken {
        /// The file.
        file: String,
        /// The entry.
        index: usize,
        /// Its token: the entry's number and the distance there.
        token: i64,
        /// Tokens of the vocabulary.
        vocab_size: usize,
    },
    /// A tensor that the architecture needs is missing.
    #[error("{file}: tensor `{tensor}` is missing")]
    MissingTensor {
        /// The file.
        file: String,
        /// The tensor.
        tensor: String,
    },
    /// The architecture does not have this tensor. Ignoring it would change the model.
    #[error("{file}: tensor `{tensor}` does not belong to a {architecture} model")]
    UnexpectedTensor {
        /// The file.
        file: String,
        /// The tensor.
        tensor: String,
        /// The architecture's name.
        architecture: &'static str,
    },
    /// A tensor does not have the shape that follows from the hyper-parameters.
    #[error("{file}: tensor `{tensor}` has shape {found:?}, expected {expected:?} (rows first)")]
    WrongShape {
        /// The file.
        file: String,
        /// The tensor.
        tensor: String,
        /// The shape from the hyper-parameters, rows first.
        expected: Vec<u64>,
        /// The shape in the file, rows first.
        found: Vec<u64>,
    },
    /// A tensor has an element type that cannot be read.
    #[error("{file}: tensor `{tensor}` has type {ty}, which is not supported here")]
    UnsupportedType {
        /// The file.
        file: String,
        /// The tensor.
        tensor: String,
        /// The name of its type.
        ty: String,
    },
    /// A row is not a whole number of blocks.
    #[error(
        "{file}: tensor `{tensor}`: {n_cols} columns are no multiple of the {block_len} in a block of {ty}"
    )]
    PartialBlock {
        /// The file.
        file: String,
        /// The tensor.
        tensor: String,
        /// Columns.
        n_cols: usize,
        /// Elements of a block.
        block_len: usize,
        /// The name of its type.
        ty: &'static str,
    },
    /// The model has no tensor of the requested role.
    #[error("{file}: the model has no tensor for {id:?}")]
    NoSuchWeight {
        /// The file.
        file: String,
        /// The role.
        id: WeightId,
    },
    /// The rows of a packed matrix were requested; a packed file holds panels.
    #[error("{file}: tensor `{tensor}` is packed; its rows are in the file that it was packed from")]
    PackedTensor {
        /// The file.
        file: String,
        /// The tensor.
        tensor: String,
    },
}

impl Fault for CheckpointError {
    fn facts(&self) -> Facts<'_> {
        let damaged = Facts::new(ErrorKind::Damaged);
        let unsupported = Facts::new(ErrorKind::Unsupported);
        match self {
            Self::NoSuchFile { path } => Facts::new(ErrorKind::NotFound).file(path),
            Self::NotAModel { path, .. } => unsupported.file(path),
            Self::Gguf(error) => error.facts(),
            Self::Hf(error) => error.facts(),
            Self::Packed(error) => error.facts(),
            Self::Graphs(error) => error.facts(),
            Self::Config(error) => error.facts(),
            Self::NoMtp { file } | Self::NoSuchWeight { file, .. } => {
                Facts::new(ErrorKind::NotFound).file(file)
            }
            Self::DraftToken { file, token, vocab_size, .. } => {
                damaged.file(file).field("d2t").over(*token, *vocab_size)
            }
            Self::MissingTensor { file, tensor }
            | Self::UnexpectedTensor { file, tensor, .. }
            | Self::WrongShape { file, tensor, .. }
            | Self::PartialBlock { file, tensor, .. } => damaged.file(file).field(tensor),
            Self::UnsupportedType { file, tensor, .. } | Self::PackedTensor { file, tensor } => {
                unsupported.file(file).field(tensor)
            }
        }
    }
}

impl From<GraphsError> for CheckpointError {
    fn from(error: GraphsError) -> Self {
        Self::Graphs(Box::new(error))
    }
}

impl From<SafetensorsError> for CheckpointError {
    fn from(error: SafetensorsError) -> Self {
        Self::Hf(error.into())
    }
}

/// A model on disk (or in memory) whose hyper-parameters and tensor table have been checked; weights are read
/// on demand.
///
/// Only the tables of the container are in memory: a few hundred bytes per tensor and, for GGUF, the metadata
/// with the vocabulary. The files stay open, and weights are read through their handles: renaming, replacing
/// or deleting a file does not affect the checkpoint.
#[derive(Debug)]
pub struct Checkpoint {
    container: Container,
    name: String,
    config: ModelConfig,
    weights: HashMap<WeightId, TensorInfo>,
    /// The tokens of an EAGLE-3 head's vocabulary, `[n_logits]`; `None` if they are those of the target.
    draft_tokens: Option<Arc<[TokenId]>>,
    /// The pre-tokenizer of a GGUF file that names none.
    pre_tokenizer: Option<String>,
}

#[derive(Debug)]
pub(in crate::model) enum Container {
    Gguf(GgufFile),
    Hf(HfFolder),
    Packed(PackedFile),
    Graphs(GraphFolder),
}

impl Checkpoint {
    /// Names the pre-tokenizer of a GGUF file that names none (`tokenizer.ggml.pre`), as `llama-bpe` or `qwen2`; a file
    /// that is packed from it names it too, and one that was packed without a name takes it. Other containers, and files that name one, keep their own. An
    /// unknown name is an error of [`Checkpoint::tokenizer`].
    #[must_use]
    pub fn with_pre_tokenizer(mut self, name: &str) -> Self {
        if let Container::Gguf(file) = &mut self.container {
            file.set_default(PRE_TOKENIZER, GgufValue::String(name.to_owned()));
        }
        self.pre_tokenizer = Some(name.to_owned());
        self
    }

    internals! {
        /// The packed file, if the model is one.
        fn packed(&self) -> Option<&PackedFile> {
            match &self.container {
                Container::Packed(file) => Some(file),
                _ => None,
            }
        }

        /// The folder of static graphs, if the model is one.
        fn graphs(&self) -> Option<&GraphFolder> {
            match &self.container {
                Container::Graphs(folder) => Some(folder),
                _ => None,
            }
        }
    }

    pub(crate) fn draft_tokens(&self) -> Option<&Arc<[TokenId]>> {
        self.draft_tokens.as_ref()
    }

    pub(in crate::model) fn container(&self) -> &Container {
        &self.container
    }

    /// The hyper-parameters.
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// The model's name from its metadata, or else the name of the file or folder.
    pub fn name(&self) -> &str {
        &self.name
    }

    internals! {
        /// The tensor of a role; `None` if the model has none (a tied head, for example).
        fn tensor(&self, id: WeightId) -> Option<&TensorInfo> {
            self.weights.get(&id)
        }
    }

    /// All tensors that have a role, in no particular order.
    pub(crate) fn tensors(&self) -> impl Iterator<Item = (WeightId, &TensorInfo)> {
        self.weights.iter().map(|(&id, info)| (id, info))
    }

    /// Bytes of all tensors in the file.
    pub fn weights_bytes(&self) -> u64 {
        let packed_bytes = |file: &PackedFile| {
            file.sections().iter().flat_map(|section| &section.tensors).map(|tensor| tensor.len).sum::<u64>()
        };
        match &self.container {
            Container::Packed(file) => return packed_bytes(file),
            Container::Graphs(folder) => return folder.files().map(packed_bytes).sum(),
            Container::Gguf(_) | Container::Hf(_) => {}
        }
        let bytes = |info: &TensorInfo| Some(info.ty.row_bytes(info.n_cols as u64)? * info.n_rows as u64);
        self.weights.values().filter_map(bytes).sum()
    }

    internals! {
        /// Reads the elements of a tensor, row-major and of type [`TensorInfo::ty`], before their
        /// [change](TensorInfo::change).
        ///
        /// # Errors
        /// [`CheckpointError::NoSuchWeight`], [`CheckpointError::PackedTensor`] if the model is packed, or the read error
        /// of the container.
        fn read(&self, id: WeightId) -> Result<Vec<u8>, CheckpointError> {
            let no_such = || CheckpointError::NoSuchWeight { file: self.name.clone(), id };
            let info = self.weights.get(&id).ok_or_else(no_such)?;
            if info.scales.is_some() {
                let row_bytes = info.ty.row_bytes(info.n_cols as u64).unwrap_or(0) as usize;
                let mut bytes = vec![0; info.n_rows * row_bytes];
                for (row, out) in bytes.chunks_exact_mut(row_bytes.max(1)).enumerate() {
                    let (tensor, row) = info.stored_row(row);
                    self.read_rows(id, tensor, row, row_bytes, out)?;
                }
                return Ok(bytes);
            }
            let mut stored = Vec::with_capacity(info.names.len());
            for name in &info.names {
                stored.push(match &self.container {
                    Container::Gguf(file) => file.read(file.tensor(name).ok_or_else(no_such)?)?,
                    Container::Hf(folder) => {
                        let (shard, tensor) = folder.tensor(name).ok_or_else(no_such)?;
                        shard.read(tensor)?
                    }
                    Container::Packed(_) | Container::Graphs(_) => {
                        let (file, tensor) = (self.name.clone(), info.name().to_owned());
                        return Err(CheckpointError::PackedTensor { file, tensor });
                    }
                });
            }
            if let (RowOrder::All, 1) = (info.order, stored.len()) {
                return Ok(stored.remove(0));
            }
            // Opening has checked the shapes of the stored tensors.
            let is_vector = info.n_rows == 1;
            let (n_units, unit_len) = if is_vector { (info.n_cols, 1) } else { (info.n_rows, info.n_cols) };
            let unit_bytes = info.ty.row_bytes(unit_len as u64).unwrap_or(0) as usize;
            let mut bytes = Vec::with_capacity(n_units * unit_bytes);
            for unit in 0..n_units {
                let (tensor, row) = info.stored_row(unit);
                bytes.extend_from_slice(&stored[tensor][row * unit_bytes..][..unit_bytes]);
            }
            Ok(bytes)
        }
    }

    /// Fills `out` with rows of a stored tensor of `id`, of `row_bytes` bytes each, from row `first` of the stored tensor
    /// on.
    ///
    /// # Errors
    /// As [`Checkpoint::read`], and the error of the container if the tensor ends before `out` is full; `out` is then
    /// unspecified.
    pub(in crate::model) fn read_rows(
        &self,
        id: WeightId,
        tensor: usize,
        first: usize,
        row_bytes: usize,
        out: &mut [u8],
    ) -> Result<(), CheckpointError> {
        let no_such = || CheckpointError::NoSuchWeight { file: self.name.clone(), id };
        let info = self.weights.get(&id).ok_or_else(no_such)?;
        let name = &info.names[tensor];
        let Some(scales) = &info.scales else {
            return self.read_at(id, name, (first * row_bytes) as u64, out);
        };
        let n_blocks = out.len() / mxfp4::BLOCK_BYTES;
        let first_block = (first * (row_bytes / mxfp4::BLOCK_BYTES)) as u64;
        let (mut codes, mut exponents) = (vec![0; n_blocks * mxfp4::CODE_BYTES], vec![0; n_blocks]);
        self.read_at(id, name, first_block * mxfp4::CODE_BYTES as u64, &mut codes)?;
        self.read_at(id, scales, first_block, &mut exponents)?;
        mxfp4::join(&codes, &exponents, out);
        Ok(())
    }

    /// Fills `out` with bytes of a stored tensor, from byte `start` on.
    fn read_at(&self, id: WeightId, name: &str, start: u64, out: &mut [u8]) -> Result<(), CheckpointError> {
        let no_such = || CheckpointError::NoSuchWeight { file: self.name.clone(), id };
        match &self.container {
            Container::Gguf(file) => Ok(file.read_at(file.tensor(name).ok_or_else(no_such)?, start, out)?),
            Container::Hf(folder) => {
                let (shard, tensor) = folder.tensor(name).ok_or_else(no_such)?;
                Ok(shard.read_at(tensor, start, out)?)
            }
            Container::Packed(_) | Container::Graphs(_) => {
                Err(CheckpointError::PackedTensor { file: self.name.clone(), tensor: name.to_owned() })
            }
        }
    }

    /// Builds the tokenizer of the model, with its chat template.
    ///
    /// # Errors
    /// [`TokenizerError`] if it is missing, malformed, of an unsupported kind, or has ids beyond
    /// [`ModelConfig::vocab_size`].
    pub fn tokenizer(&self) -> Result<Tokenizer, TokenizerError> {
        Ok(self.tokenizer_and_defaults()?.0)
    }

    /// The tokenizer and the recommended sampling options. One call returns both, because a packed file reads
    /// the same section for them.
    pub(crate) fn tokenizer_and_defaults(&self) -> Result<(Tokenizer, GenerationDefaults), TokenizerError> {
        let (tokenizer, defaults) = match &self.container {
            Container::Gguf(file) => (Tokenizer::from_gguf(file)?, GenerationDefaults::from_gguf(file)),
            Container::Hf(folder) => {
                let config = folder.text(GENERATION_CONFIG)?;
                let defaults = config.as_deref().map(GenerationDefaults::from_json).unwrap_or_default();
                (Tokenizer::from_hf_folder(folder)?, defaults)
            }
            Container::Packed(file) => file.tokenizer_and_defaults(self.pre_tokenizer.as_deref())?,
            Container::Graphs(folder) => {
                folder.ends().tokenizer_and_defaults(self.pre_tokenizer.as_deref())?
            }
        };
        if tokenizer.vocab_size() > self.config.vocab_size {
            let too_large = TokenizerProblem::VocabTooLarge {
                file: self.name.clone(),
                tokenizer: tokenizer.vocab_size(),
                model: self.config.vocab_size,
            };
            return Err(too_large.into());
        }
        Ok((tokenizer, defaults))
    }
}
