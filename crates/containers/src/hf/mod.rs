//! The Hugging Face layout: a folder with `config.json`, `.safetensors` files and the tokenizer's files.

mod folder;
mod safetensors;

use refrain_files::{ErrorKind, Facts, Fault};
use thiserror::Error;

pub use folder::{HfFolder, JSON_BYTES_MAX, SHARDS_MAX, ShardIndex};
pub use safetensors::{Dtype, HEADER_BYTES_MAX, N_DIMS_MAX, SafetensorsFile, StoredTensor, TENSORS_MAX};

/// An error in a `.safetensors` file.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum SafetensorsError {
    /// The file could not be opened or read.
    #[error("{file}: cannot read: {source}")]
    Io {
        /// The file.
        file: String,
        /// The system's error.
        source: std::io::Error,
    },
    /// The file is shorter than its 8-byte length field.
    #[error("{file}: {len} bytes is too short for a safetensors file (at least 8)")]
    TooShort {
        /// The file.
        file: String,
        /// Its length.
        len: u64,
    },
    /// The header is longer than the limit.
    #[error("{file}: header of {len} bytes is over the limit of {limit}")]
    HeaderTooLarge {
        /// The file.
        file: String,
        /// Its length as stated.
        len: u64,
        /// The limit.
        limit: u64,
    },
    /// The header extends beyond the end of the file.
    #[error("{file}: header of {len} bytes at offset 8 is past the end of the file ({file_len} bytes)")]
    HeaderTruncated {
        /// The file.
        file: String,
        /// Its length as stated.
        len: u64,
        /// Length of the file.
        file_len: u64,
    },
    /// The header is not valid JSON of the format; this includes duplicate names, missing fields and negative
    /// numbers.
    #[error("{file}: header is not valid: {reason}")]
    Header {
        /// The file.
        file: String,
        /// The parser's message.
        reason: String,
    },
    /// There are more tensors than the limit.
    #[error("{file}: {count} tensors is over the limit of {limit}")]
    TooManyTensors {
        /// The file.
        file: String,
        /// The number of tensors.
        count: u64,
        /// The limit.
        limit: u64,
    },
    /// A tensor has more dimensions than the limit.
    #[error("{file}: tensor `{tensor}` has {n_dims} dimensions, the limit is {limit}")]
    TooManyDims {
        /// The file.
        file: String,
        /// The tensor.
        tensor: String,
        /// Its dimensions.
        n_dims: usize,
        /// The limit.
        limit: usize,
    },
    /// The shape's size in bytes overflows, or is not a whole number of bytes.
    #[error("{file}: tensor `{tensor}` of shape {shape:?} has no size in bytes")]
    SizeOverflow {
        /// The file.
        file: String,
        /// The tensor.
        tensor: String,
        /// Its shape.
        shape: Vec<u64>,
    },
    /// The number of bytes between the offsets is not that of the shape, or the end is before the beginning.
    #[error("{file}: tensor `{tensor}` has data_offsets {begin}..{end}, its shape needs {needed} bytes")]
    WrongSize {
        /// The file.
        file: String,
        /// The tensor.
        tensor: String,
        /// First offset.
        begin: u64,
        /// Last offset.
        end: u64,
        /// Bytes the shape needs.
        needed: u64,
    },
    /// A tensor's data extends beyond the end of the file.
    #[error("{file}: tensor `{tensor}` ends at data offset {end}, the file has {data_len} bytes of data")]
    OutOfFile {
        /// The file.
        file: String,
        /// The tensor.
        tensor: String,
        /// The end of its data.
        end: u64,
        /// Bytes of data in the file.
        data_len: u64,
    },
    /// Two tensors share bytes.
    #[error(
        "{file}: tensor `{tensor}` at data offset {begin} overlaps tensor `{other}`, which ends at {other_end}"
    )]
    Overlap {
        /// The file.
        file: String,
        /// The tensor.
        tensor: String,
        /// The offset of its data.
        begin: u64,
        /// The tensor before it.
        other: String,
        /// The end of that tensor's data.
        other_end: u64,
    },
    /// Some bytes belong to no tensor.
    #[error("{file}: {len} bytes at data offset {begin} belong to no tensor")]
    Gap {
        /// The file.
        file: String,
        /// Their offset in the data.
        begin: u64,
        /// Their number.
        len: u64,
    },
}

impl Fault for SafetensorsError {
    fn facts(&self) -> Facts<'_> {
        let damaged = Facts::new(ErrorKind::Damaged);
        let over_limit = Facts::new(ErrorKind::OverLimit);
        match self {
            Self::Io { file, source } => Facts::io(source.kind()).file(file),
            Self::HeaderTooLarge { file, len, limit } => over_limit.file(file).over(*len, *limit),
            Self::TooManyTensors { file, count, limit } => over_limit.file(file).over(*count, *limit),
            Self::TooManyDims { file, tensor, n_dims, limit } => {
                over_limit.file(file).field(tensor).over(*n_dims, *limit)
            }
            Self::WrongSize { file, tensor, begin, .. } | Self::Overlap { file, tensor, begin, .. } => {
                damaged.file(file).field(tensor).at(*begin)
            }
            Self::SizeOverflow { file, tensor, .. } | Self::OutOfFile { file, tensor, .. } => {
                damaged.file(file).field(tensor)
            }
            Self::Gap { file, begin, .. } => damaged.file(file).at(*begin),
            Self::TooShort { file, .. } | Self::HeaderTruncated { file, .. } | Self::Header { file, .. } => {
                damaged.file(file)
            }
        }
    }
}

/// An error in a folder.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum HfError {
    /// A file of the folder could not be read.
    #[error("{file}: cannot read: {source}")]
    Io {
        /// The file.
        file: String,
        /// The system's error.
        source: std::io::Error,
    },
    /// A file that every folder needs is missing.
    #[error("{folder}: no `{file}` in this folder")]
    MissingFile {
        /// The folder.
        folder: String,
        /// The missing file.
        file: &'static str,
    },
    /// A text file is over its limit.
    #[error("{file}: {len} bytes is over the limit of {limit}")]
    TooLarge {
        /// The file.
        file: String,
        /// Its length.
        len: u64,
        /// The limit.
        limit: u64,
    },
    /// A text file is not UTF-8.
    #[error("{file}: not UTF-8 text (byte {offset})")]
    NotUtf8 {
        /// The file.
        file: String,
        /// The first bad byte.
        offset: usize,
    },
    /// The shard index is invalid; this includes duplicate names.
    #[error("{file}: index is not valid: {reason}")]
    Index {
        /// The file.
        file: String,
        /// The reason.
        reason: String,
    },
    /// The index names more shards than the limit.
    #[error("{file}: {count} shards is over the limit of {limit}")]
    TooManyShards {
        /// The file.
        file: String,
        /// The number of shards.
        count: usize,
        /// The limit.
        limit: usize,
    },
    /// A shard's name would leave the folder, or is not a plain file name.
    #[error("{file}: shard name {shard:?} must be a plain `.safetensors` file name inside the folder")]
    ShardName {
        /// The index.
        file: String,
        /// The name.
        shard: String,
    },
    /// The index places a tensor in a shard that does not hold it.
    #[error("{file}: tensor `{tensor}` should be in `{shard}`, which does not hold it")]
    NotInShard {
        /// The index.
        file: String,
        /// The tensor.
        tensor: String,
        /// The shard.
        shard: String,
    },
    /// A shard holds a tensor that the index does not place there.
    #[error("{file}: `{shard}` holds tensor `{tensor}`, which the index does not place there")]
    NotInIndex {
        /// The index.
        file: String,
        /// The tensor.
        tensor: String,
        /// The shard.
        shard: String,
    },
    /// A `.safetensors` file is invalid.
    #[error(transparent)]
    Safetensors(#[from] SafetensorsError),
}

impl Fault for HfError {
    fn facts(&self) -> Facts<'_> {
        let damaged = Facts::new(ErrorKind::Damaged);
        let over_limit = Facts::new(ErrorKind::OverLimit);
        match self {
            Self::Io { file, source } => Facts::io(source.kind()).file(file),
            Self::MissingFile { folder, file } => Facts::new(ErrorKind::NotFound).file(folder).field(file),
            Self::TooLarge { file, len, limit } => over_limit.file(file).over(*len, *limit),
            Self::TooManyShards { file, count, limit } => over_limit.file(file).over(*count, *limit),
            Self::NotUtf8 { file, offset } => damaged.file(file).at(*offset),
            Self::NotInShard { file, tensor, .. } | Self::NotInIndex { file, tensor, .. } => {
                damaged.file(file).field(tensor)
            }
            Self::Index { file, .. } | Self::ShardName { file, .. } => damaged.file(file),
            Self::Safetensors(error) => error.facts(),
        }
    }
}
