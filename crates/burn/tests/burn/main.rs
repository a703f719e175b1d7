//! Training and export, compared with the engine.

mod backends;
#[path = "../common/mod.rs"]
mod common;
mod distilled;
mod engine;
mod export;
mod predictor;
mod program;
mod tokenizer;
mod training;
mod world;
