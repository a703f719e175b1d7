//! Verification: the target model's choices along a draft tree.
//!
//! [`walk()`] follows the target's own choices through the tree. [`sampling`] chooses one token from one row of
//! logits. [`random`] derives the randomness from (seed, position).
//!
//! Together with row-independent kernels, this makes speculation exact. The token at each visited node is chosen from
//! that node's own logits, with that node's path as the text, so it equals the token of plain decoding.

pub mod random;
pub mod sampling;
pub mod walk;

pub use sampling::{Breakers, DryOptions, LogitsProcessor, ProcessorError, Sampler, Sampling, SamplingError};
pub use walk::{Walk, walk};
