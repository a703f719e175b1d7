//! Rewriting a text by an instruction: most of the new text is the old one.
//!
//! [`LiveDiff`] compares the new text with the old one while it is written, for an app that shows the changes.
//! [`EditDoubt`] names the signs of a new text that should not replace the old one unasked.

mod diff;
mod doubt;
mod opening;
pub(crate) mod part;
mod windows;

pub use diff::{DiffEvent, LiveDiff};
pub use doubt::EditDoubt;
pub(crate) use doubt::doubts;
pub(crate) use opening::Opening;
pub(crate) use windows::{Window, windows};
