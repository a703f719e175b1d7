//! The GGUF container, versions 2 and 3, little endian.
//!
//! ```text
//! "GGUF" · version u32 · n_tensors u64 · n_pairs u64
//! pairs:   key string · value type u32 · value
//! tensors: name string · n_dims u32 · dims u64… (columns first) · type u32 · offset u64
//! padding to `general.alignment` · tensor data, each tensor aligned
//! ```
//! A string is a u64 length and UTF-8 bytes; an array is an element type u32, a u64 count, and the elements.
//! Every count, length, dimension and offset is compared with the bytes that are left, and with a stated
//! limit, before memory is allocated. So reading a header takes at most about four times its size in memory.
//! (ggml's `docs/gguf.md` is the specification.)

mod error;
mod file;
mod ggml_type;
mod header;
mod part;
mod split;
mod value;
mod writer;

pub use error::GgufError;
pub use file::GgufFile;
pub use ggml_type::GgmlType;
pub use header::{
    ALIGNMENT_MAX, ARRAY_DEPTH_MAX, ARRAY_LEN_MAX, HEADER_BYTES_MAX, KEY_BYTES_MAX, N_DIMS_MAX, PAIRS_MAX,
    STRING_BYTES_MAX, TENSOR_NAME_BYTES_MAX, TENSORS_MAX,
};
pub use part::GgufTensor;
pub use split::SPLITS_MAX;
pub use value::{GgufArray, GgufValue};
pub use writer::{GgufDataWriter, GgufWriteError, GgufWriter};
