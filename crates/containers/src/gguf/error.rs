//! Errors in GGUF files: one variant per rule of the format.

use refrain_files::{ErrorKind, Facts, Fault};
use thiserror::Error;

/// An error in a GGUF file. Offsets are from the start of the file.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum GgufError {
    /// The file could not be opened or read.
    #[error("{file}: cannot read: {source}")]
    Io {
        /// The file.
        file: String,
        /// The system's error.
        source: std::io::Error,
    },
    /// The file does not begin with `GGUF`.
    #[error("{file}: not a GGUF file (it begins with {found:02x?})")]
    Magic {
        /// The file.
        file: String,
        /// Its first bytes.
        found: [u8; 4],
    },
    /// The file is for big-endian machines.
    #[error("{file}: big-endian GGUF is not supported; convert the file to little endian")]
    BigEndian {
        /// The file.
        file: String,
    },
    /// A version other than 2 and 3.
    #[error("{file}: GGUF version {version} is not supported (supported: 2, 3)")]
    Version {
        /// The file.
        file: String,
        /// Its version.
        version: u32,
    },
    /// The file ends inside its header.
    #[error("{file}: truncated: {field} at offset {offset} needs {needed} bytes, {left} are left")]
    Truncated {
        /// The file.
        file: String,
        /// The field.
        field: String,
        /// The offset.
        offset: u64,
        /// Minimum bytes of the field.
        needed: u64,
        /// Bytes left in the file.
        left: u64,
    },
    /// A count or length is over its limit.
    #[error("{file}: {field} at offset {offset} is {value}, the limit is {limit}")]
    OverLimit {
        /// The file.
        file: String,
        /// The field.
        field: String,
        /// The offset.
        offset: u64,
        /// The value.
        value: u64,
        /// The limit.
        limit: u64,
    },
    /// A string is not UTF-8.
    #[error("{file}: {field} at offset {offset} is not UTF-8")]
    NotUtf8 {
        /// The file.
        file: String,
        /// The field.
        field: String,
        /// The offset of the string's bytes.
        offset: u64,
    },
    /// A metadata value has an unknown type.
    #[error("{file}: {field} at offset {offset} has unknown value type {value_type}")]
    ValueType {
        /// The file.
        file: String,
        /// The key.
        field: String,
        /// The offset.
        offset: u64,
        /// The type.
        value_type: u32,
    },
    /// A bool is neither 0 nor 1.
    #[error("{file}: {field} at offset {offset} is a bool of value {value}")]
    Bool {
        /// The file.
        file: String,
        /// The key.
        field: String,
        /// The offset.
        offset: u64,
        /// The byte.
        value: u8,
    },
    /// Arrays are nested too deeply.
    #[error("{file}: {field} at offset {offset} nests arrays more than {limit} deep")]
    ArrayDepth {
        /// The file.
        file: String,
        /// The key.
        field: String,
        /// The offset.
        offset: u64,
        /// The limit.
        limit: usize,
    },
    /// A metadata key occurs twice.
    #[error("{file}: metadata key `{key}` at offset {offset} is given twice")]
    DuplicateKey {
        /// The file.
        file: String,
        /// The key.
        key: String,
        /// The offset of the second one.
        offset: u64,
    },
    /// A tensor's name occurs twice (in any part of a split file).
    #[error("{file}: tensor `{tensor}` is given twice")]
    DuplicateTensor {
        /// The file.
        file: String,
        /// The tensor.
        tensor: String,
    },
    /// `general.alignment` is not a power of two from 8 to the limit.
    #[error("{file}: general.alignment is {value}, it must be a power of two from 8 to {limit}")]
    Alignment {
        /// The file.
        file: String,
        /// Its value.
        value: String,
        /// The limit.
        limit: u64,
    },
    /// A tensor has no dimensions, or too many.
    #[error("{file}: tensor `{tensor}` has {n_dims} dimensions, allowed are 1 to {limit}")]
    DimCount {
        /// The file.
        file: String,
        /// The tensor.
        tensor: String,
        /// Its dimensions.
        n_dims: u32,
        /// The limit.
        limit: u32,
    },
    /// A dimension is zero.
    #[error("{file}: tensor `{tensor}` has a dimension of 0 (dims {dims:?})")]
    ZeroDim {
        /// The file.
        file: String,
        /// The tensor.
        tensor: String,
        /// Its dimensions.
        dims: Vec<u64>,
    },
    /// The size of a tensor overflows 64 bits.
    #[error("{file}: the size of tensor `{tensor}` (dims {dims:?}) overflows")]
    SizeOverflow {
        /// The file.
        file: String,
        /// The tensor.
        tensor: String,
        /// Its dimensions.
        dims: Vec<u64>,
    },
    /// A row is not a whole number of blocks.
    #[error(
        "{file}: tensor `{tensor}`: rows of {n_cols} elements are no multiple of the {block_len} in a block of {ty}"
    )]
    PartialBlock {
        /// The file.
        file: String,
        /// The tensor.
        tensor: String,
        /// Its columns.
        n_cols: u64,
        /// Elements of a block.
        block_len: u64,
        /// Its type.
        ty: String,
    },
    /// A tensor's data does not begin at a multiple of the alignment.
    #[error("{file}: tensor `{tensor}` at data offset {offset} is not aligned to {alignment} bytes")]
    Misaligned {
        /// The file.
        file: String,
        /// The tensor.
        tensor: String,
        /// Its offset in the data.
        offset: u64,
        /// The alignment.
        alignment: u64,
    },
    /// A tensor's data extends beyond the end of the file.
    #[error("{file}: tensor `{tensor}` at offset {offset} needs {needed} bytes, the file has {file_len}")]
    OutOfFile {
        /// The file.
        file: String,
        /// The tensor.
        tensor: String,
        /// The offset of its data.
        offset: u64,
        /// Bytes of its data.
        needed: u64,
        /// Length of the file.
        file_len: u64,
    },
    /// Two tensors share bytes.
    #[error(
        "{file}: tensor `{tensor}` at offset {offset} overlaps tensor `{other}`, which ends at {other_end}"
    )]
    Overlap {
        /// The file.
        file: String,
        /// The tensor.
        tensor: String,
        /// The offset of its data.
        offset: u64,
        /// The tensor before it.
        other: String,
        /// The end of that tensor's data.
        other_end: u64,
    },
    /// The name of a part of a split file does not contain the number of the part.
    #[error(
        "{file}: one of {count} parts, but its name is not `…-00001-of-{count:05}.gguf`; restore the names"
    )]
    SplitName {
        /// The file.
        file: String,
        /// The number of parts that the file states.
        count: u64,
    },
    /// The split fields of a part contradict the others.
    #[error("{file}: {field} is {found}, the other parts and the file's name say {expected}")]
    SplitField {
        /// The part.
        file: String,
        /// The field.
        field: &'static str,
        /// The value found.
        found: String,
        /// The expected value.
        expected: String,
    },
    /// A split file given as bytes: its other parts cannot be found.
    #[error("{file}: one of {count} parts; a split file can only be opened by its path")]
    SplitInMemory {
        /// The name given.
        file: String,
        /// The number of parts that the file states.
        count: u64,
    },
}

impl Fault for GgufError {
    fn facts(&self) -> Facts<'_> {
        let damaged = Facts::new(ErrorKind::Damaged);
        let unsupported = Facts::new(ErrorKind::Unsupported);
        let over_limit = Facts::new(ErrorKind::OverLimit);
        match self {
            Self::Io { file, source } => Facts::io(source.kind()).file(file),
            Self::Magic { file, .. } => damaged.file(file),
            Self::BigEndian { file } | Self::Version { file, .. } => unsupported.file(file),
            Self::Truncated { file, field, offset, .. }
            | Self::NotUtf8 { file, field, offset }
            | Self::ValueType { file, field, offset, .. }
            | Self::Bool { file, field, offset, .. }
            | Self::DuplicateKey { file, key: field, offset }
            | Self::Misaligned { file, tensor: field, offset, .. }
            | Self::OutOfFile { file, tensor: field, offset, .. }
            | Self::Overlap { file, tensor: field, offset, .. } => {
                damaged.file(file).field(field).at(*offset)
            }
            Self::OverLimit { file, field, offset, value, limit } => {
                over_limit.file(file).field(field).at(*offset).over(*value, *limit)
            }
            Self::ArrayDepth { file, field, offset, limit } => {
                over_limit.file(file).field(field).at(*offset).limit(*limit)
            }
            Self::DimCount { file, tensor, n_dims, limit } => {
                let kind = if n_dims > limit { over_limit } else { damaged };
                kind.file(file).field(tensor).over(*n_dims, *limit)
            }
            Self::Alignment { file, limit, .. } => {
                damaged.file(file).field("general.alignment").limit(*limit)
            }
            Self::DuplicateTensor { file, tensor }
            | Self::ZeroDim { file, tensor, .. }
            | Self::SizeOverflow { file, tensor, .. }
            | Self::PartialBlock { file, tensor, .. } => damaged.file(file).field(tensor),
            Self::SplitField { file, field, .. } => damaged.file(file).field(field),
            Self::SplitName { file, .. } => Facts::new(ErrorKind::Mismatch).file(file),
            Self::SplitInMemory { file, .. } => unsupported.file(file),
        }
    }
}
