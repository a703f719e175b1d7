//! Why a predictor file was refused, or does not fit a model.

use thiserror::Error;

use crate::kernels::PackError;
use crate::model::packed::ModelIdentity;
use crate::replace::ReplaceError;

/// Why a predictor could not be read, written or used. A file that was there before is unchanged.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum PredictorError {
    /// The file could not be opened or read.
    #[error("{file}: cannot read: {source}")]
    Io {
        /// The file.
        file: String,
        /// The system's error.
        source: std::io::Error,
    },
    /// The new file could not be created, synced or renamed.
    #[error("cannot {action} `{}`: {source}", path.display())]
    Replace {
        /// What was tried.
        action: &'static str,
        /// With which file.
        path: std::path::PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// Not a predictor file.
    #[error("{file}: not a predictor file (begins with {found:02x?})")]
    Magic {
        /// The file.
        file: String,
        /// Its first bytes.
        found: Vec<u8>,
    },
    /// Another version of the format.
    #[error("{file}: format version {version} at offset 8 is not supported (supported: {supported})")]
    Version {
        /// The file.
        file: String,
        /// Its version.
        version: u32,
        /// The version that is read.
        supported: u32,
    },
    /// A number outside its range.
    #[error("{file}: {field} at offset {offset} is {value}, outside {min}..={max}")]
    OutOfRange {
        /// The file.
        file: String,
        /// What it counts.
        field: &'static str,
        /// Where it stands.
        offset: u64,
        /// The number.
        value: u64,
        /// The least allowed value.
        min: u64,
        /// The largest allowed value.
        max: u64,
    },
    /// The file is shorter or longer than its header says.
    #[error("{file}: {len} bytes, the header gives {expected}")]
    Length {
        /// The file.
        file: String,
        /// Its length.
        len: u64,
        /// The length it should have.
        expected: u64,
    },
    /// The bytes are not those that were written.
    #[error(
        "{file}: the file is damaged: its checksum at offset 48 is {stated:016x}, its bytes give {computed:016x}"
    )]
    Checksum {
        /// The file.
        file: String,
        /// As stated.
        stated: u64,
        /// Of the bytes that are there.
        computed: u64,
    },
    /// A weight is infinite or not a number.
    #[error("{file}: `{field}` at offset {offset} is {value}")]
    NotFinite {
        /// The file.
        file: String,
        /// Which of the factors.
        field: &'static str,
        /// Where it stands.
        offset: u64,
        /// The weight.
        value: f32,
    },
    /// The shadow pool does not rise.
    #[error("{file}: token {token} of the shadow pool at offset {offset} does not follow {before}")]
    PoolOrder {
        /// The file.
        file: String,
        /// Where it stands.
        offset: u64,
        /// The token.
        token: u32,
        /// The one before it.
        before: u32,
    },
    /// There is no memory for its weights.
    #[error("{file}: {source}")]
    Memory {
        /// The file.
        file: String,
        /// What was refused.
        source: PackError,
    },
    /// Parts that do not fit together, from a program.
    #[error("`{field}` has {given} entries, its shape gives {expected}")]
    Parts {
        /// Which part.
        field: &'static str,
        /// Its entries.
        given: usize,
        /// What the other parts need.
        expected: usize,
    },
    /// It was trained for another model.
    #[error("the predictor was trained for model {trained_for}, this is model {model}")]
    OtherModel {
        /// The model that it was trained for.
        trained_for: ModelIdentity,
        /// The engine's model.
        model: ModelIdentity,
    },
    /// It does not fit the model that it names.
    #[error("the predictor's {field} is {predictor}, the model's {model}")]
    Shape {
        /// What differs.
        field: PredictorField,
        /// The predictor's.
        predictor: usize,
        /// The model's; of layers, the last one that rows can be looked at before.
        model: usize,
    },
    /// Static graphs compute blocks of layers with fixed batch lengths.
    #[error("static graphs compute whole blocks of layers, so nothing can be pruned between them")]
    StaticGraphs,
}

/// What a predictor and a model have in common.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PredictorField {
    /// The layer before which rows are looked at.
    Layer,
    /// The width of the residual stream.
    HiddenDim,
    /// The entries of the vocabulary.
    VocabSize,
}

impl std::fmt::Display for PredictorField {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            PredictorField::Layer => "layer",
            PredictorField::HiddenDim => "hidden width",
            PredictorField::VocabSize => "vocabulary",
        })
    }
}

impl From<ReplaceError> for PredictorError {
    fn from(ReplaceError { action, path, source }: ReplaceError) -> Self {
        Self::Replace { action, path, source }
    }
}
