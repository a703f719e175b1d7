//! Model files, weights and the forward pass.
//!
//! Reading order: [`config`] (what a transformer is made of), [`source`], [`gguf`] and [`hf`] (the two
//! containers and how they are read), [`packed`] (files of
//! packed weights), [`checkpoint`] (one view over all), [`weights`] (packed for the kernels), [`batch`], [`kv_cache`] and [`rope`] (what a forward
//! pass works on), [`transformer`] (the pass itself, with a look between two layers where one is wanted: [`Interlude`]), [`shortlist`] (the output rows of some tokens only), [`graphs`] (a model
//! whose layers come from flash in blocks of fixed batch lengths), [`streamed`] (a model larger than memory, read from flash in every
//! pass).

pub mod batch;
pub mod checkpoint;
pub mod config;
mod generation_defaults;
pub mod gguf;
pub mod graphs;
pub mod hf;
pub mod kv_cache;
mod layers;
pub mod packed;
pub mod rope;
mod rows;
pub mod shortlist;
pub mod source;
pub mod streamed;
pub mod transformer;
pub mod weights;

pub use crate::stream::ReadMode;
pub use batch::Batch;
pub use checkpoint::Checkpoint;
pub use config::ModelConfig;
pub use generation_defaults::GenerationDefaults;
pub use kv_cache::KvCache;
pub use rows::Interlude;
pub use shortlist::Shortlist;
pub use transformer::{Model, Workspace};
