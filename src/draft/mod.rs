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
//! - [`ContextSource`], [`ResumeSource`], [`PassagesSource`] and [`HistorySource`] are the sources; [`testing`] has the extreme ones, and
//!   [`Baseline`] published rules to compare with.
//!
//! Invariants: drafts are deterministic (no clock, no random number, no iteration over a hash map), so that sampling
//! with keyed randomness stays exact; nothing here sees logits or how wide they are; `build` and `observe` allocate
//! nothing once their buffers have grown to size.

mod baseline;
mod builder;
mod context;
mod cost;
mod fitted;
mod history;
mod limits;
mod orders;
mod passages;
mod prior;
mod reliability;
mod resume;
mod source;
pub mod testing;
mod tree;

#[cfg(test)]
mod builder_tests;
#[cfg(test)]
mod source_tests;

pub use baseline::{Baseline, UnknownBaseline};
pub use builder::{SOURCES_MAX, TreeBuilder};
pub use context::ContextSource;
pub(crate) use cost::CostCorrection;
pub use cost::{CostProfile, VERIFY_ROWS_MAX};
pub use history::{HistorySource, HistoryStore};
pub use limits::{BuilderConfig, StepLimits, Weighing};
pub use orders::{OrderConfig, OrderSuccessor, SUCCESSORS_MAX, SuffixOrders, propose_orders};
pub use passages::PassagesSource;
pub use prior::{Prior, PriorFit};
pub use reliability::{Evidence, ReliabilityConfig, ReliabilityTable};
pub use resume::ResumeSource;
pub use source::{Anchor, Candidate, Candidates, Cursor, DraftSource, SourceKind, StepOutcome};
pub use tree::{DraftTree, NodeIdx};
