//! Histories that hosts share. `program` is apart, because a process that has just been started briefly holds copies of the locks of other
//! tests' histories.

mod fleet;
mod s3;
#[path = "../support/mod.rs"]
mod support;
