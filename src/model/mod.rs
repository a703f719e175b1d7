//! Model files, weights and the forward pass.
//!
//! Reading order:
//! - hyper-parameters: [`config`], and how containers state them: [`arch`];
//! - the containers: [`gguf`], [`hf`], [`packed`], and one interface to all of them,
//!   [`checkpoint`];
//! - weights in memory, packed for the kernels: `resident`, and how they are loaded: [`weights`];
//! - the inputs and the state of a forward pass: [`batch`], [`kv_cache`], [`rope`];
//! - the state of recurrent layers, in trees of draft rows: [`state`];
//! - the forward pass, with optional hooks between layers ([`Hooks`]): [`transformer`];
//! - projections onto some tokens only: [`shortlist`];
//! - sentence encoders, which are no decoders and have their own pass: [`encoder`];
//! - models whose layers are loaded from flash in blocks of fixed batch lengths: [`graphs`];
//! - models larger than memory, whose weights are read from flash in every pass: [`streamed`].

pub mod arch;
pub mod batch;
pub mod checkpoint;
mod compute;
pub mod config;
pub mod encoder;
mod generation_defaults;
pub mod graphs;
pub mod kv_cache;
pub mod layers;
mod load_workers;
pub mod packed;
mod resident;
pub mod rope;
mod rows;
pub mod shortlist;
pub mod state;
pub mod streamed;
pub mod transformer;
pub mod weights;

pub(crate) use batch::VariedTokens;
pub use batch::{Batch, PREFILL_CHUNK_MAX};
pub use checkpoint::Checkpoint;
pub use config::ModelConfig;
pub use generation_defaults::GenerationDefaults;
pub use kv_cache::KvCache;
pub use refrain_containers::{Source, gguf, hf};
pub use refrain_stream::ReadMode;
pub use rows::{Hooks, Interlude, KeptRows, Meanwhile};
pub use shortlist::Shortlist;
pub(crate) use transformer::LayerTime;
pub use transformer::{Model, Part, Workspace};
