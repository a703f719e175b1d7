//! The shared parts of Refrain's programs (`refrain`, `refrain-bench`, `refrain-train`, `refrain-fleet`).
//!
//! - [`args`] has the options of a model and of its draft models, and sizes in bytes.
//! - [`load`] opens the models that options name, [`profile`] finds the measured costs beside them, [`key`] reads the key of the stores,
//!   [`place`] names the user's folders.
//! - [`terminal`] owns the screen, [`progress`] draws bars, [`failure`] has errors as the programs print them, and [`start`] runs a
//!   program.

#![deny(clippy::print_stdout, clippy::print_stderr, reason = "`terminal` owns the screen")]

pub mod args;
pub mod failure;
pub mod key;
pub mod load;
pub mod place;
pub mod profile;
pub mod progress;
pub mod start;
pub mod terminal;
#[cfg(feature = "testing")]
pub mod testing;
