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
//!   [`ReuseSource`] from what the target's own rows say; [`testing`] has the extreme sources.
//!
//! Invariants: drafts are deterministic (no clock, no random number, no iteration over a hash map), so that sampling
//! with keyed randomness stays exact; nothing here sees logits or how wide they are; `build` and `observe` allocate
//! nothing once their buffers have grown to size.

mod alignment;
mod builder;
mod calibration;
mod constants;
mod context;
mod cost;
mod draft_times;
mod evidence;
mod fitted;
mod history;
mod learned;
mod limits;
mod name;
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
pub use builder::TreeBuilder;
pub use calibration::CalibrationSource;
pub use constants::{OrderConfig, ReliabilityConfig};
pub use context::ContextSource;
pub(crate) use cost::CostCorrection;
pub use cost::CostProfile;
pub use draft_times::DraftTimes;
pub use evidence::{Agreement, Evidence, EvidenceClass};
pub use history::{HistorySource, HistoryStore};
pub use learned::{Learned, LearnedError, LearnedKey, Loaded};
pub use limits::{BuilderConfig, SOURCES_MAX, StepLimits, VERIFY_ROWS_MAX, Weighing};
pub use name::SourceName;
pub use node_set::NodeSet;
pub use orders::{AutomatonOrders, ORDER_SUCCESSORS_MAX, OrderSuccessor, SuffixOrders, propose_orders};
pub use passages::PassagesSource;
pub use prior::{Prior, PriorFit};
pub use reliability::{ReliabilityTable, SourceSlot};
pub use resume::ResumeSource;
pub use reuse::{ReuseConfig, ReuseSource};
pub use source::{
    Anchor, Candidate, Candidates, Computed, ComputingSource, Cursor, DraftSource, StepOutcome,
    TargetListener, most_frequent,
};
pub use successors::{SUCCESSORS_MAX, Successor, SuccessorLists};
pub use tree::{DraftTree, NodeIdx};
