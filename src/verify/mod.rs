//! Verification: the target model's choices along a draft tree.
//!
//! [`walk()`] follows the target's own choices through the tree; [`sampling`] makes one choice from one row of logits;
//! [`random`] keys its randomness by (seed, position). Together with row-independent kernels this makes speculation
//! exact: the token at each visited node is chosen from that node's own logits, with that node's path as the text, so
//! it is the token that plain decoding chooses there. (The only exception is
//! [`Acceptance::LossyTopP`](crate::engine::Acceptance::LossyTopP), which an app has to ask for.)

pub mod random;
pub mod sampling;
pub mod walk;

pub use sampling::{Breakers, Choice, DryOptions, LogitsProcessor, Sampler, Sampling, SamplingError};
pub use walk::{Walk, walk};
