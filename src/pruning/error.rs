//! Errors of reading, writing or using a predictor.

use thiserror::Error;

use crate::error::of_pack;
use crate::kernels::PackError;
use crate::model::packed::ModelIdentity;
use refrain_files::replace::ReplaceError;
use refrain_files::{ErrorKind, Facts, Fault};

/// A predictor could not be read, written or used. An existing file is unchanged.
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
    #[error(transparent)]
    Replace(#[from] ReplaceError),
    /// The file is not a predictor file.
    #[error("{file}: not a predictor file (begins with {found:02x?})")]
    Magic {
        /// The file.
        file: String,
        /// Its first bytes.
        found: Vec<u8>,
    },
    /// The file has an unsupported format version.
    #[error("{file}: format version {version} at offset 8 is not supported (supported: {supported})")]
    Version {
        /// The file.
        file: String,
        /// Its version.
        version: u32,
        /// The supported version.
        supported: u32,
    },
    /// A number is outside its range.
    #[error("{file}: {field} at offset {offset} is {value}, outside {min}..={max}")]
    OutOfRange {
        /// The file.
        file: String,
        /// Name of the field.
        field: &'static str,
        /// Its offset in the file, in bytes.
        offset: u64,
        /// The number.
        value: u64,
        /// The least allowed value.
        min: u64,
        /// The largest allowed value.
        max: u64,
    },
    /// The length of the file differs from the length by its header.
    #[error("{file}: {len} bytes, the header gives {expected}")]
    Length {
        /// The file.
        file: String,
        /// Its length.
        len: u64,
        /// The length by its header.
        expected: u64,
    },
    /// The bytes do not match the checksum.
    #[error(
        "{file}: the file is damaged: its checksum at offset 48 is {stated:016x}, its bytes give {computed:016x}"
    )]
    Checksum {
        /// The file.
        file: String,
        /// The checksum in the file.
        stated: u64,
        /// The checksum of the bytes.
        computed: u64,
    },
    /// A weight is infinite or not a number.
    #[error("{file}: `{field}` at offset {offset} is {value}")]
    NotFinite {
        /// The file.
        file: String,
        /// The matrix.
        field: &'static str,
        /// Its offset in the file, in bytes.
        offset: u64,
        /// The weight.
        value: f32,
    },
    /// The tokens of the shadow pool are not in rising order.
    #[error("{file}: token {token} of the shadow pool at offset {offset} does not follow {before}")]
    PoolOrder {
        /// The file.
        file: String,
        /// Its offset in the file, in bytes.
        offset: u64,
        /// The token.
        token: u32,
        /// The previous token.
        before: u32,
    },
    /// The memory for the weights could not be allocated.
    #[error("{file}: {source}")]
    Memory {
        /// The file.
        file: String,
        /// The failed allocation.
        source: PackError,
    },
    /// Parts given by a program do not fit together.
    #[error("`{field}` has {given} entries, its shape gives {expected}")]
    Parts {
        /// Name of the part.
        field: &'static str,
        /// Its number of entries.
        given: usize,
        /// The number of entries by the shapes of the other parts.
        expected: usize,
    },
    /// The predictor was trained for another model.
    #[error("the predictor was trained for model {trained_for}, this is model {model}")]
    OtherModel {
        /// The model that the predictor was trained for.
        trained_for: ModelIdentity,
        /// The engine's model.
        model: ModelIdentity,
    },
    /// The predictor's dimensions differ from those of its model.
    #[error("the predictor's {field} is {predictor}, the model's {model}")]
    Shape {
        /// The differing dimension.
        field: PredictorField,
        /// The predictor's value.
        predictor: usize,
        /// The model's value; for the layer, the last layer that a predictor can precede.
        model: usize,
    },
    /// Static graphs run blocks of layers with fixed batch lengths, so nothing can be pruned.
    #[error("static graphs compute whole blocks of layers, so nothing can be pruned between them")]
    StaticGraphs,
}

impl Fault for PredictorError {
    fn facts(&self) -> Facts<'_> {
        let damaged = Facts::new(ErrorKind::Damaged);
        let mismatch = Facts::new(ErrorKind::Mismatch);
        match self {
            Self::Io { file, source } => Facts::io(source.kind()).file(file),
            Self::Replace(error) => error.facts(),
            Self::Magic { file, .. } | Self::Length { file, .. } | Self::Checksum { file, .. } => {
                damaged.file(file)
            }
            Self::Version { file, .. } => Facts::new(ErrorKind::Unsupported).file(file),
            Self::OutOfRange { file, field, offset, value, max, .. } => {
                damaged.file(file).field(field).at(*offset).over(*value, *max)
            }
            Self::NotFinite { file, field, offset, .. } => damaged.file(file).field(field).at(*offset),
            Self::PoolOrder { file, offset, token, .. } => damaged.file(file).at(*offset).value(*token),
            Self::Memory { file, source } => of_pack(source).file(file),
            Self::Parts { field, given, .. } => {
                Facts::new(ErrorKind::InvalidArgument).field(field).value(*given)
            }
            Self::OtherModel { .. } => mismatch,
            Self::Shape { field, predictor, .. } => mismatch.field(field.name()).value(*predictor),
            Self::StaticGraphs => Facts::new(ErrorKind::Unsupported),
        }
    }
}

/// A dimension that a predictor and its model share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PredictorField {
    /// The layer before which rows are scored.
    Layer,
    /// The width of the residual stream.
    HiddenDim,
    /// The entries of the vocabulary.
    VocabSize,
}

impl PredictorField {
    fn name(self) -> &'static str {
        match self {
            PredictorField::Layer => "layer",
            PredictorField::HiddenDim => "hidden width",
            PredictorField::VocabSize => "vocabulary",
        }
    }
}

impl std::fmt::Display for PredictorField {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}
