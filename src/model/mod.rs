//! Model files, weights and the forward pass.

pub mod checkpoint;
pub mod config;
pub mod gguf;
pub mod hf;
pub mod source;
