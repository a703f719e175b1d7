//! Measures drafting on recorded text.
//!
//! ```text
//! JSON lines ──► rows ──► tokens ──► replay: strategy × sources × row budget ──► tallies ──► report
//!                                      ▲
//!                            the recorded response stands in for the target
//! ```
//!
//! A row is a prompt and a response that some model or person gave to it. Replaying walks through the response as if the
//! target had said it: each step drafts, the walk of the verifier follows the recorded tokens, and what was accepted is
//! counted. So drafters are compared on real text without running a model, and every [`Strategy`] goes through the same
//! tree builder, the same walk and the same statistics as in the engine.
//!
//! - [`rows`] reads the files; its documentation is the format.
//! - [`rules`] has the published drafting rules, with and without a draft model.
//! - [`strategy`] names what drafts: Refrain, the published rules, and the two controls that bound them all.
//! - [`costs`] says what verification batches cost.
//! - [`replay`] walks one row; [`run()`] goes over whole files on several threads; [`tally`] is what comes out.
//! - [`model`] replays through a model, where everything is computed and time is real.
//! - [`ablate`](mod@ablate) lets a model answer with one part of drafting more at a time.
//! - [`graphs`] measures something else: what changing static graphs adds to a prefill.
//! - [`pruning`] measures what cutting a batch down half-way saves at a model's true shape.
//! - [`stream`] measures how near a streamed model comes to the bandwidth of its disk.
//! - [`sweep`] replays through a streamed model, at several shares of pinned layers and lengths of the output.
//! - [`pressure`] decodes at a memory budget while memory is asked back.
//! - [`tune`] fits the reliability prior and the builder's constants to one half of the rows.
//! - [`report`] writes tables, CSV, plots and a page.

pub mod ablate;
pub mod costs;
pub mod graphs;
pub mod model;
pub mod pressure;
pub mod pruning;
pub mod replay;
pub mod report;
pub mod rows;
pub mod rules;
pub mod run;
pub mod strategy;
pub mod stream;
pub mod sweep;
pub mod tally;
pub mod tune;

pub use ablate::{AblateError, Ablation, Arm, Pruning, ablate};
pub use costs::{Costs, CostsError};
pub use replay::{Constants, Lane, Setting};
pub use rows::{Row, RowsError, TokenRow};
pub use run::{Half, Measurement, run};
pub use strategy::{Sources, Strategy};
pub use tally::Tally;
