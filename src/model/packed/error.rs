//! Errors of packed files.

use thiserror::Error;

use crate::error::of_pack;
use crate::kernels::PackError;
use crate::model::config::ConfigError;
use refrain_files::{ErrorKind, Facts, Fault};

/// A packed file is invalid or could not be read.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum PackedFileError {
    /// The file could not be opened or read.
    #[error("{file}: cannot read: {source}")]
    Io {
        /// The file.
        file: String,
        /// The system's error.
        source: std::io::Error,
    },
    /// The file could not be mapped.
    #[error("{file}: cannot map into memory: {source}")]
    Map {
        /// The file.
        file: String,
        /// The system's error.
        source: std::io::Error,
    },
    /// Weights are packed in little-endian order, and this machine is big endian.
    #[error("{file}: packed files cannot be used on a big-endian machine")]
    BigEndianHost {
        /// The file.
        file: String,
    },
    /// The file is not a packed file.
    #[error("{file}: not a packed model file (begins with {found:02x?})")]
    Magic {
        /// The file.
        file: String,
        /// Its first bytes.
        found: [u8; 8],
    },
    /// The file has another version of the format.
    #[error(
        "{file}: format version {version} at offset 8 is not supported (supported: {supported}); pack the model again: \
         `refrain model pack MODEL {file}`"
    )]
    Version {
        /// The file.
        file: String,
        /// Its version.
        version: u32,
        /// The supported version.
        supported: u32,
    },
    /// The file was packed for kernels with another layout of panels.
    #[error(
        "{file}: panel layout {layout} at offset 12 is not supported (supported: {supported}); pack the model again: \
         `refrain model pack MODEL {file}`"
    )]
    PanelLayout {
        /// The file.
        file: String,
        /// Its layout.
        layout: u32,
        /// The layout of this program.
        supported: u32,
    },
    /// The file ends too early.
    #[error("{file}: {field} at offset {offset} needs {needed} bytes, {left} are left")]
    Truncated {
        /// The file.
        file: String,
        /// The field that is incomplete.
        field: String,
        /// The offset of the field.
        offset: u64,
        /// Bytes needed.
        needed: u64,
        /// Bytes left.
        left: u64,
    },
    /// The file is longer than its header states.
    #[error("{file}: {len} bytes, the file length at offset 24 is {stated}")]
    FileLength {
        /// The file.
        file: String,
        /// Its length.
        len: u64,
        /// The expected length.
        stated: u64,
    },
    /// A length is over its limit.
    #[error("{file}: {field} at offset {offset} is {value}, the limit is {limit}")]
    OverLimit {
        /// The file.
        file: String,
        /// The field.
        field: &'static str,
        /// The offset of the length in the file.
        offset: u64,
        /// The length.
        value: u64,
        /// The limit.
        limit: u64,
    },
    /// The bytes before the data do not match their checksum.
    #[error(
        "{file}: the header is damaged: its checksum at offset 32 is {stated:016x}, its bytes give {computed:016x}"
    )]
    HeaderChecksum {
        /// The file.
        file: String,
        /// The stated checksum.
        stated: u64,
        /// The checksum of the bytes.
        computed: u64,
    },
    /// The bytes of a section do not match their checksum.
    #[error(
        "{file}: section `{section}` at offset {offset} is damaged: its checksum is {stated:016x}, its bytes give \
         {computed:016x}"
    )]
    SectionChecksum {
        /// The file.
        file: String,
        /// The section.
        section: String,
        /// Its offset in the file.
        offset: u64,
        /// The stated checksum.
        stated: u64,
        /// The checksum of the bytes.
        computed: u64,
    },
    /// The header is not valid JSON, or lacks a field.
    #[error("{file}: the header at offset 40 is not valid: {reason}")]
    Header {
        /// The file.
        file: String,
        /// The parser's message.
        reason: String,
    },
    /// An error in the hyper-parameters.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A section, a tensor, or a tokenizer file has an unexpected name.
    #[error("{file}: {field} is `{found}`, expected `{expected}`")]
    Name {
        /// The file.
        file: String,
        /// The place in the header.
        field: String,
        /// The name found.
        found: String,
        /// The expected name.
        expected: String,
    },
    /// A table does not have the length that follows from the hyper-parameters.
    #[error("{file}: {field} has {found} entries, expected {expected}")]
    Count {
        /// The file.
        file: String,
        /// The table.
        field: String,
        /// Its entries.
        found: usize,
        /// The expected number of entries.
        expected: usize,
    },
    /// A tensor's element type is unknown, or a vector's is not F32.
    #[error("{file}: tensor `{tensor}` has type `{ty}`, which is not supported here")]
    Type {
        /// The file.
        file: String,
        /// The tensor.
        tensor: String,
        /// Its type as stated.
        ty: String,
    },
    /// A tensor does not have the shape that follows from the hyper-parameters.
    #[error("{file}: tensor `{tensor}` has shape {found:?}, expected {expected:?} (rows first)")]
    Shape {
        /// The file.
        file: String,
        /// The tensor.
        tensor: String,
        /// The shape in the header.
        found: Vec<u64>,
        /// The shape from the hyper-parameters.
        expected: Vec<u64>,
    },
    /// An offset is not the one that follows from the lengths before it: a gap, an overlap, or an offset
    /// outside the file.
    #[error("{file}: the offset of {field} is {found}, expected {expected}")]
    Offset {
        /// The file.
        file: String,
        /// The object at this offset.
        field: String,
        /// The offset in the header.
        found: u64,
        /// The expected offset.
        expected: u64,
    },
    /// A length is not the one that follows from type and shape.
    #[error("{file}: the length of {field} is {found}, expected {expected}")]
    Length {
        /// The file.
        file: String,
        /// The object of this length.
        field: String,
        /// The length in the header.
        found: u64,
        /// The expected length.
        expected: u64,
    },
    /// The total size exceeds 64 bits.
    #[error("{file}: the sizes of the tensors overflow")]
    SizeOverflow {
        /// The file.
        file: String,
    },
    /// A number in the header of a piece does not fit its model.
    #[error("{file}: {field} is {found}, expected {expected}")]
    Piece {
        /// The file.
        file: String,
        /// The place in the header.
        field: String,
        /// The value found.
        found: String,
        /// The values allowed.
        expected: String,
    },
    /// A tokenizer's file is not UTF-8.
    #[error("{file}: tokenizer file `{part}` is not UTF-8 text (byte {offset})")]
    NotUtf8 {
        /// The file.
        file: String,
        /// The tokenizer's file.
        part: String,
        /// The first bad byte.
        offset: usize,
    },
    /// A row is not a whole number of blocks, or an allocation failed.
    #[error("{file}: tensor `{tensor}`: {source}")]
    Pack {
        /// The file.
        file: String,
        /// The tensor.
        tensor: String,
        /// The cause.
        source: PackError,
    },
}

impl Fault for PackedFileError {
    fn facts(&self) -> Facts<'_> {
        let damaged = Facts::new(ErrorKind::Damaged);
        let unsupported = Facts::new(ErrorKind::Unsupported);
        match self {
            Self::Io { file, source } | Self::Map { file, source } => Facts::io(source.kind()).file(file),
            Self::BigEndianHost { file } | Self::Version { file, .. } | Self::PanelLayout { file, .. } => {
                unsupported.file(file)
            }
            Self::Magic { file, .. }
            | Self::FileLength { file, .. }
            | Self::HeaderChecksum { file, .. }
            | Self::Header { file, .. }
            | Self::SizeOverflow { file } => damaged.file(file),
            Self::Truncated { file, field, offset, .. }
            | Self::SectionChecksum { file, section: field, offset, .. } => {
                damaged.file(file).field(field).at(*offset)
            }
            Self::OverLimit { file, field, offset, value, limit } => {
                Facts::new(ErrorKind::OverLimit).file(file).field(field).at(*offset).over(*value, *limit)
            }
            Self::Config(error) => error.facts(),
            Self::NotUtf8 { file, part, offset } => damaged.file(file).field(part).at(*offset),
            Self::Name { file, field, .. }
            | Self::Count { file, field, .. }
            | Self::Shape { file, tensor: field, .. }
            | Self::Offset { file, field, .. }
            | Self::Length { file, field, .. }
            | Self::Piece { file, field, .. } => damaged.file(file).field(field),
            Self::Type { file, tensor, .. } => unsupported.file(file).field(tensor),
            Self::Pack { file, tensor, source } => of_pack(source).file(file).field(tensor),
        }
    }
}

impl From<PackedFileError> for refrain_tokenizer::TokenizerProblem {
    fn from(error: PackedFileError) -> Self {
        Self::Container(error.into())
    }
}
