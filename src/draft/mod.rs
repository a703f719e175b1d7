//! Draft trees: sources, reliability, costs, and the builder that weighs them.
//!
//! ```text
//! sources ── anchors, expand ──► TreeBuilder ──► DraftTree ──► (verification, walk)
//!                                 ▲      ▲                            │
//!              ReliabilityTable ──┘      └── CostProfile              │
//!                     ▲                          ▲                    │
//!                     └────── observe ───────────┴──── StepOutcome ◄──┘
//! ```
//!
//! - A [`DraftSource`] hands over cursors, not drafts: where it stands for one tree node, and what may come next there.
//! - The [`TreeBuilder`] asks all sources at once and keeps the nodes that pay, the empty draft included.
//! - The [`ReliabilityTable`] turns a source's claim into the acceptance that such claims have met.
//! - The [`CostProfile`] says what a verification batch costs, as measured.
//! - [`ContextSource`], [`ResumeSource`], [`PassagesSource`] and [`HistorySource`] draft from text; [`CalibrationSource`] and
//!   [`ReuseSource`] from what the target's own rows say; [`testing`] has the extreme sources, and [`Baseline`] published rules to
//!   compare with.
//!
//! Invariants: drafts are deterministic (no clock, no random number, no iteration over a hash map), so that sampling
//! with keyed randomness stays exact; nothing here sees logits or how wide they are; `build` and `observe` allocate
//! nothing once their buffers have grown to size.

mod alignment;
mod baseline;
mod builder;
mod calibration;
mod context;
mod cost;
mod fitted;
mod history;
mod limits;
mod node_set;
mod orders;
mod passages;
mod prior;
mod reliability;
mod resume;
mod reuse;
mod source;
mod successors;
pub mod testing;
mod tree;

#[cfg(test)]
mod source_tests;

pub use alignment::{RejectionCounter, Rejections};
pub use baseline::{Baseline, UnknownBaseline};
pub(crate) use baseline::{Plan, Rule, RuleSource};
pub use builder::{SOURCES_MAX, TreeBuilder};
pub use calibration::CalibrationSource;
pub use context::ContextSource;
pub(crate) use cost::CostCorrection;
pub use cost::{CostProfile, VERIFY_ROWS_MAX};
pub use history::{HistorySource, HistoryStore};
pub use limits::{BuilderConfig, StepLimits, Weighing};
pub use node_set::NodeSet;
pub use orders::{
    AutomatonOrders, ORDER_SUCCESSORS_MAX, OrderConfig, OrderSuccessor, SuffixOrders, propose_orders,
};
pub use passages::PassagesSource;
pub use prior::{Prior, PriorFit};
pub use reliability::{Agreement, Evidence, ReliabilityConfig, ReliabilityTable};
pub use resume::ResumeSource;
pub use reuse::{ReuseConfig, ReuseSource};
pub use source::{
    Anchor, Candidate, Candidates, Computed, Cursor, DraftSource, SourceKind, StepOutcome, most_frequent,
};
pub use successors::{SUCCESSORS_MAX, Successor, SuccessorLists};
pub use tree::{DraftTree, NodeIdx};
