//! Requests of the OpenAI API, and parts of its answers.

pub(crate) mod chat;
pub(crate) mod common;
pub(crate) mod completions;
pub(crate) mod embeddings;
pub(crate) mod infill;
pub(crate) mod rerank;
pub(crate) mod responses;
pub(crate) mod tokens;
pub(crate) mod tools;
