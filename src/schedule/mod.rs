//! Progressive graph scheduling (CoordGen §3.2): which graph of which block of layers is in memory, and when that changes.
//!
//! A static-shape backend holds one graph per block: one for prefill chunks (say 256 rows), or one for verification batches
//! (say 32). Before the first verification batch every block must have changed from one to the other, and a change means to
//! read the block's weights again. A block that has changed early computes its part of a prefill chunk in several short
//! calls, with the same result; so the graphs can be read while other blocks compute. What is left to decide is when each
//! block changes: too late, and the reads that remain have nothing to hide behind; too early, and short calls cost more than
//! they hide.
//!
//! This module decides that from times alone ([`SwitchTimes`], measured or given): it knows no files and no models. A
//! [`Plan`] is a list of loads; [`plan`] makes them, greedily or as baselines; [`exact`] searches all of them where they are
//! few; [`simulate()`] says how long a prefill takes by a plan.

pub mod exact;
pub mod plan;
pub mod simulate;
#[cfg(test)]
mod tests;
mod times;

pub use plan::{Load, Plan, asynchronous, progressive, synchronous};
pub use simulate::{PlanError, Timeline, simulate};
pub use times::{BlockTimes, GRAPH_ROWS_MAX, GraphKind, GraphTimes, Prefill, SwitchTimes, TimesError};
