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
//! - A [`DraftSource`] returns cursors, not drafts: its state at one tree node, and the candidate tokens
//!   there.
//! - The [`TreeBuilder`] queries all sources together and keeps the nodes that pay; it may keep none.
//! - The [`ReliabilityTable`] converts a source's claim into the measured acceptance rate of such claims.
//! - The [`CostProfile`] contains the measured cost of verification batches.
//! - [`ContextSource`], [`ResumeSource`], [`PassagesSource`] and [`HistorySource`] draft from text,
//!   [`PredictionsSource`] from the target's own probabilities. [`testing`] contains extreme sources.
//!
//! Invariants: drafts are deterministic (no clock, no random number, no iteration over a hash map), so
//! sampling with keyed randomness stays exact. This module never uses logits or their width. `build` and
//! `observe` allocate nothing once their buffers have reached their final size.

mod alignment;
mod builder;
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
mod openings;
mod orders;
mod passages;
mod predictions;
mod prior;
mod reliability;
mod resume;
mod source;
mod successors;
pub mod testing;

#[cfg(test)]
mod source_tests;

pub use alignment::{RejectionCounter, Rejections};
pub use builder::TreeBuilder;
pub use constants::{OrderConfig, ReliabilityConfig};
pub use context::ContextSource;
pub(crate) use cost::CostCorrection;
pub use cost::CostProfile;
pub(crate) use cost::joint::{JointCosts, JointRows, PromptPace};
pub use draft_times::DraftTimes;
pub use evidence::{Agreement, Evidence, EvidenceClass};
pub use history::{HistorySource, HistoryStore};
pub use learned::{Learned, LearnedError, LearnedKey, Loaded};
pub use limits::{BuilderConfig, SOURCES_MAX, StepLimits, Weighing};
pub use name::SourceName;
pub use openings::{OpeningPlace, OpeningToken, Openings};
pub use orders::{AutomatonOrders, ORDER_SUCCESSORS_MAX, OrderSuccessor, SuffixOrders, propose_orders};
pub use passages::PassagesSource;
pub use predictions::{EchoConfig, EchoList, EchoStore, PredictionsSource, ReuseConfig};
pub use prior::{Prior, PriorFit};
pub use refrain_trees::{DraftTree, NodeIdx, NodeSet, VERIFY_ROWS_MAX};
pub use reliability::{ReliabilityTable, SourceSlot};
pub use resume::ResumeSource;
pub use source::{
    Anchor, Candidate, Candidates, Computed, ComputingSource, Cursor, DraftSource, HiddenStates, StepOutcome,
    TargetListener, most_frequent,
};
pub use successors::{SUCCESSORS_MAX, Successor, SuccessorLists};
