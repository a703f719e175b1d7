//! Containers of models: GGUF files and folders in the layout of Hugging Face.
//!
//! Headers are checked before anything is allocated for them, and each problem is a typed error with the file, the field and
//! the limit. The crate knows names, types and bytes; what they mean is read in `refrain`.
//!
//! Outside semantic versioning but for the errors that `refrain` exports.

pub mod gguf;
pub mod hf;
mod source;

pub use source::Source;
