//! Refrain: an on-device language-model engine that drafts from what the device already holds.
pub mod draft;
pub mod draft_model;
pub mod engine;
pub mod kernels;
mod mapping;
pub mod model;
pub mod pruning;
mod replace;
pub mod sam;
pub mod schedule;
pub mod stream;
pub mod task;
pub mod token;
pub mod tokenizer;
pub mod verify;
