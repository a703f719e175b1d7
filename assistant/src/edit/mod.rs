//! Rewriting a text by an instruction: most of the new text is the old one.
//!
//! [`LiveDiff`] compares the new text with the old one while it is written, for an app that shows the changes.

mod diff;

pub use diff::{DiffEvent, LiveDiff};
