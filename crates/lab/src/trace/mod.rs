//! Logit traces: a model's answers with the likeliest tokens after every row, rejected rows included.
//!
//! ```text
//! text        p₀ … pₙ₋₁ │ r₀ … rₘ₋₁          a row per token: the tokens that the target finds likely after it
//! branches                └─ x ─ y            rows of rejected drafts, each below a row of the text or of a branch
//! ```
//!
//! A model answers once ([`record`](mod@record)), and [`file`](mod@file) keeps the answers. Replays run every rule from
//! them: what a rule would have verified is looked up by its path ([`Rows::child`](answer::Rows::child)), so rules that learn from logits
//! need no model. A row that no recorded batch had is unknown, and the replay counts it.

pub mod answer;
pub mod file;
pub mod record;

pub use file::{Trace, TraceError};
pub use record::{RecordError, RecordOptions, record};
