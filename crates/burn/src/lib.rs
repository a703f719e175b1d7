//! Trains the fixture models: a generator of notes and questions about them, a tokenizer, a Llama transformer
//! on burn, the training loop with its checkpoints, the evaluation and the export. [`distill`] trains draft
//! models and predictors for any target, on any text (`refrain-train`).
//!
//! The programs `refrain-train` and `refrain-burn` (the fixtures) are thin clients of this library.

pub mod batch;
pub mod checkpoint;
pub mod distill;
mod error;
pub mod evaluate;
pub mod export;
pub mod generate;
pub mod gguf;
pub mod model;
pub mod program;
pub mod rng;
pub mod run;
pub mod tokens;
pub mod train;
pub mod world;

pub use error::Error;
