//! Requests and responses as JSON.
//!
//! Requests are read field by field ([`fields`]), because a derived reader cannot tell which field of a request it does not know, and its
//! messages quote values.

pub(crate) mod chat;
pub(crate) mod common;
pub(crate) mod completions;
pub(crate) mod embeddings;
pub(crate) mod fields;
pub(crate) mod json;
mod numbers;
pub(crate) mod responses;
pub(crate) mod tokens;
pub(crate) mod tools;
