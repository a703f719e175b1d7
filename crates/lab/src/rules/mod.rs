//! Published drafting rules, with and without a draft model, as draft sources behind Refrain's verifier.
//!
//! A rule plans its whole tree when the builder requests anchors, and then returns the plan node by node. So the tree
//! builder, the engine and the statistics treat it like any source. In a session with `Drafting::AsClaimed`, the
//! builder keeps the plan unchanged. [`Strategy`](crate::Strategy) starts such sessions.
//!
//! Rules [with logits](logits) run in replays of [traces](mod@crate::trace) only: sources of a session never receive
//! rejected rows.

mod corpus;
pub mod logits;
pub mod model;
mod oracle;
mod pid;
mod recorded;
mod seen;
mod source;
pub mod text;

pub use logits::LogitRule;
pub use model::ModelRule;
pub use oracle::Oracle;
pub(crate) use pid::Pid;
pub use pid::PidConfig;
pub use recorded::Recorded;
pub(crate) use recorded::draft_head;
pub(crate) use seen::Seen;
pub use text::Baseline;
