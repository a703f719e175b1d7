//! Progressive graph scheduling (CoordGen §3.2): decides when each block of layers changes its graph.
//!
//! A static-shape backend holds one graph per block: a graph for prefill chunks (256 rows, for example) or
//! one for verification batches (32, for example). Before the first verification batch, every block must
//! change from the first to the second, and each change reads the block's weights again. A block that changes
//! early computes its part of a prefill chunk in several short calls, with the same result, so other graphs
//! can be read while it computes. If blocks change too late, no computation hides the remaining reads. If
//! they change too early, the short calls cost more time than they hide.
//!
//! The module depends on times only ([`SwitchTimes`], measured or given), not on files or models. A [`Plan`]
//! is a list of loads. [`plan`] makes plans, greedily or as baselines; [`exact`] finds the best plan of small
//! instances; [`simulate()`] computes the time of a prefill under a plan.

pub mod exact;
pub mod plan;
pub mod simulate;
#[cfg(test)]
mod tests;
mod times;

pub use plan::{asynchronous, progressive, synchronous};
pub use simulate::{Load, Plan, PlanError, Timeline, simulate};
pub use times::{BlockTimes, GRAPH_ROWS_MAX, GraphKind, GraphTimes, Prefill, SwitchTimes, TimesError};
