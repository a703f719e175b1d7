//! Tests that start processes (this program, killed at any point, limited, or as another user): apart from `index`, because a process that has
//! just been started briefly holds copies of the locks of other tests' stores.

#[path = "../child_support/mod.rs"]
mod child_support;
mod history_kill;
mod history_shared;
mod notes_kill;
#[path = "../notes_support/mod.rs"]
mod notes_support;
mod notes_watch;
mod prefixes_kill;
#[path = "../prefixes_support/mod.rs"]
mod prefixes_support;
