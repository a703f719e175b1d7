//! The place of an error in a model's files: file, field, offset and limit, as far as the error states them.

use refrain::error::{
    ConfigError, GgufError, GraphsError, HfError, PackedFileError, SafetensorsError, WeightsError,
};
use refrain::{EngineError, LoadError, TokenizerError};

/// A place in a file.
#[derive(Default)]
pub(crate) struct Place<'a> {
    pub(crate) file: Option<&'a str>,
    /// A field, or a tensor.
    pub(crate) field: Option<&'a str>,
    /// In bytes from the start of the file, or of its data.
    pub(crate) offset: Option<u64>,
    /// The limit that a value exceeds.
    pub(crate) limit: Option<u64>,
}

impl<'a> Place<'a> {
    fn file(file: &'a str) -> Self {
        Self { file: Some(file), ..Self::default() }
    }

    fn field(file: &'a str, field: &'a str) -> Self {
        Self { field: Some(field), ..Self::file(file) }
    }

    fn at(self, offset: u64) -> Self {
        Self { offset: Some(offset), ..self }
    }

    fn over(self, limit: u64) -> Self {
        Self { limit: Some(limit), ..self }
    }
}

/// The place of an error of [`refrain::Engine::open`].
pub(crate) fn of(error: &EngineError) -> Place<'_> {
    match error {
        EngineError::Load(error) | EngineError::Weights(WeightsError::Load(error)) => load(error),
        EngineError::Weights(WeightsError::Pack { tensor, .. }) => {
            Place { field: Some(tensor), ..Place::default() }
        }
        EngineError::Tokenizer(error) => tokenizer(error),
        EngineError::DraftVocabulary { name, .. } | EngineError::DraftGraphs { name } => Place::file(name),
        _ => Place::default(),
    }
}

fn load(error: &LoadError) -> Place<'_> {
    use LoadError as E;
    match error {
        E::NotAModel { path, .. } => Place::file(path),
        E::Gguf(error) => gguf(error),
        E::Hf(error) => hf(error),
        E::Packed(error) => packed(error),
        E::Graphs(error) => match &**error {
            GraphsError::Packed(error) => packed(error),
            GraphsError::Foreign { file, field, .. } => Place::field(file, field),
            _ => Place::default(),
        },
        E::Config(error) => config(error),
        E::MissingTensor { file, tensor }
        | E::UnexpectedTensor { file, tensor, .. }
        | E::WrongShape { file, tensor, .. }
        | E::UnsupportedType { file, tensor, .. }
        | E::PartialBlock { file, tensor, .. }
        | E::PackedTensor { file, tensor } => Place::field(file, tensor),
        E::NoSuchWeight { file, .. } => Place::file(file),
        _ => Place::default(),
    }
}

fn gguf(error: &GgufError) -> Place<'_> {
    use GgufError as E;
    match error {
        E::Truncated { file, field, offset, .. }
        | E::NotUtf8 { file, field, offset }
        | E::ValueType { file, field, offset, .. }
        | E::Bool { file, field, offset, .. }
        | E::DuplicateKey { file, key: field, offset }
        | E::Misaligned { file, tensor: field, offset, .. }
        | E::OutOfFile { file, tensor: field, offset, .. }
        | E::Overlap { file, tensor: field, offset, .. } => Place::field(file, field).at(*offset),
        E::OverLimit { file, field, offset, limit, .. } => Place::field(file, field).at(*offset).over(*limit),
        E::ArrayDepth { file, field, offset, limit } => {
            Place::field(file, field).at(*offset).over(*limit as u64)
        }
        E::DimCount { file, tensor, limit, .. } => Place::field(file, tensor).over(u64::from(*limit)),
        E::Alignment { file, limit, .. } => Place::field(file, "general.alignment").over(*limit),
        E::DuplicateTensor { file, tensor }
        | E::ZeroDim { file, tensor, .. }
        | E::SizeOverflow { file, tensor, .. }
        | E::PartialBlock { file, tensor, .. } => Place::field(file, tensor),
        E::SplitField { file, field, .. } => Place::field(file, field),
        E::Io { file, .. }
        | E::Magic { file, .. }
        | E::BigEndian { file }
        | E::Version { file, .. }
        | E::SplitName { file, .. }
        | E::SplitInMemory { file, .. } => Place::file(file),
        _ => Place::default(),
    }
}

fn hf(error: &HfError) -> Place<'_> {
    use HfError as E;
    match error {
        E::MissingFile { folder, file } => Place::field(folder, file),
        E::TooLarge { file, limit, .. } => Place::file(file).over(*limit),
        E::NotUtf8 { file, offset } => Place::file(file).at(*offset as u64),
        E::TooManyShards { file, limit, .. } => Place::file(file).over(*limit as u64),
        E::NotInShard { file, tensor, .. } | E::NotInIndex { file, tensor, .. } => Place::field(file, tensor),
        E::Io { file, .. } | E::Index { file, .. } | E::ShardName { file, .. } => Place::file(file),
        E::Safetensors(error) => safetensors(error),
        _ => Place::default(),
    }
}

fn safetensors(error: &SafetensorsError) -> Place<'_> {
    use SafetensorsError as E;
    match error {
        E::HeaderTooLarge { file, limit, .. } => Place::file(file).over(*limit),
        E::TooManyTensors { file, limit, .. } => Place::file(file).over(*limit),
        E::TooManyDims { file, tensor, limit, .. } => Place::field(file, tensor).over(*limit as u64),
        E::WrongSize { file, tensor, begin, .. } | E::Overlap { file, tensor, begin, .. } => {
            Place::field(file, tensor).at(*begin)
        }
        E::SizeOverflow { file, tensor, .. } | E::OutOfFile { file, tensor, .. } => {
            Place::field(file, tensor)
        }
        E::Gap { file, begin, .. } => Place::file(file).at(*begin),
        E::Io { file, .. }
        | E::TooShort { file, .. }
        | E::HeaderTruncated { file, .. }
        | E::Header { file, .. } => Place::file(file),
        _ => Place::default(),
    }
}

fn packed(error: &PackedFileError) -> Place<'_> {
    use PackedFileError as E;
    match error {
        E::Truncated { file, field, offset, .. }
        | E::SectionChecksum { file, section: field, offset, .. } => Place::field(file, field).at(*offset),
        E::OverLimit { file, field, offset, limit, .. } => Place::field(file, field).at(*offset).over(*limit),
        E::NotUtf8 { file, part, offset } => Place::field(file, part).at(*offset as u64),
        E::Name { file, field, .. }
        | E::Count { file, field, .. }
        | E::Offset { file, field, .. }
        | E::Length { file, field, .. }
        | E::Piece { file, field, .. }
        | E::Type { file, tensor: field, .. }
        | E::Shape { file, tensor: field, .. }
        | E::Pack { file, tensor: field, .. } => Place::field(file, field),
        E::Config(error) => config(error),
        E::Io { file, .. }
        | E::Map { file, .. }
        | E::BigEndianHost { file }
        | E::Magic { file, .. }
        | E::Version { file, .. }
        | E::PanelLayout { file, .. }
        | E::FileLength { file, .. }
        | E::HeaderChecksum { file, .. }
        | E::Header { file, .. }
        | E::SizeOverflow { file } => Place::file(file),
        _ => Place::default(),
    }
}

fn config(error: &ConfigError) -> Place<'_> {
    use ConfigError as E;
    match error {
        E::Missing { file, field }
        | E::WrongType { file, field, .. }
        | E::OutOfRange { file, field, .. }
        | E::Unsupported { file, field, .. }
        | E::Inconsistent { file, left: field, .. } => Place::field(file, field),
        E::NotJson { file, .. } | E::UnknownArchitecture { file, .. } => Place::file(file),
        _ => Place::default(),
    }
}

fn tokenizer(error: &TokenizerError) -> Place<'_> {
    use TokenizerError as E;
    match error {
        E::Missing { file, missing } => Place::field(file, missing),
        E::File(error) => hf(error),
        E::Container(error) => error.downcast_ref().map_or_else(Place::default, packed),
        E::PackedGguf { source } => gguf(source),
        E::Unsupported { file, field, .. } => Place::field(file, field),
        E::WrongType { file, field, .. } => Place::field(file, field),
        E::OverLimit { file, field, limit, .. } => Place::field(file, field).over(*limit as u64),
        E::Json { file, .. } | E::DuplicateToken { file, .. } => Place::file(file),
        _ => Place::default(),
    }
}
