//! Published drafting rules, with and without a draft model, as draft sources behind Refrain's verifier.
//!
//! A rule plans its whole tree when it is asked for anchors and hands the plan over node by node, so that the tree builder,
//! the engine and the statistics treat it as any source. In a session with `Drafting::AsClaimed` the builder keeps the plan as it
//! is. [`Strategy`](crate::Strategy) starts such sessions.

pub mod model;
mod source;
pub mod text;

pub use model::{ModelRule, UnknownModelRule};
pub use text::{Baseline, UnknownBaseline};
