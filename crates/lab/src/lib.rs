//! Measures drafting on recorded text.
//!
//! ```text
//! JSON lines ──► rows ──► tokens ──► replay: strategy × sources × row budget ──► tallies ──► report
//!                                      ▲
//!                            the recorded response stands in for the target
//! ```
//!
//! A row is a prompt and a recorded response from a model or a person. A replay walks through the response as if the
//! target had generated it: each step drafts, the verifier's walk follows the recorded tokens, and the accepted
//! tokens are counted. So drafters are compared on real text without running a model, and every [`Strategy`] uses the
//! same tree builder, the same walk and the same statistics as the engine.
//!
//! - [`rows`] reads the files and documents their format; [`import`] writes them from traces that others published.
//! - [`trace`](mod@trace) records a model's answers with the likeliest tokens after every row, for rules that use them.
//! - [`rules`] contains the published drafting rules, with and without a draft model.
//! - [`strategy`] lists the strategies: Refrain, the published rules, and controls as lower and upper bounds.
//! - [`costs`] gives the costs of verification batches.
//! - [`replay`] replays one row; [`run()`] replays whole files on several threads; [`tally`] contains the counts.
//! - [`model`] replays through a model: everything is computed, and times are real.
//! - [`ablate`](mod@ablate) measures the parts of drafting with a model that generates its own answers.
//! - [`fleet`] simulates workers that share their answers with a delay.
//! - [`floor`] checks that drafts never cost more than a little, by the costs of several machines.
//! - [`graphs`] measures the cost of changes of static graphs during a prefill.
//! - [`pruning`] measures the time saved by pruning a batch half-way, at a model's true shape.
//! - [`stream`] compares a streamed model's speed with the bandwidth of its disk.
//! - [`sweep`] replays through a streamed model, with several shares of pinned layers and output lengths.
//! - [`pressure`] decodes within a memory budget under memory pressure.
//! - [`tune`] fits the reliability prior and the builder's constants to one half of the rows.
//! - [`report`] writes tables, CSV and a page.
//!
//! The program `refrain-bench` (feature `program`) is a thin client of these modules.

pub mod ablate;
pub mod costs;
mod error;
pub mod fleet;
pub mod floor;
pub mod graphs;
pub mod import;
pub mod model;
pub mod pressure;
#[cfg(feature = "program")]
pub mod program;
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
mod threads;
pub mod trace;
pub mod tune;

pub use ablate::{AblateError, Ablation, Arm, Pruning, ablate};
pub use costs::{Costs, CostsError};
pub use error::BenchError;
pub use fleet::{FleetBench, FleetCell};
pub use replay::{Constants, Lane, Setting};
pub use rows::{Row, RowsError, TokenRow};
pub use run::{Half, Measurement, run};
pub use strategy::{Sources, Strategy};
pub use tally::Tally;
