//! Tests that start this program as a server and read its output, its open files, threads and memory: apart from `serve`, because a process
//! that has just been started briefly holds copies of the locks of other tests' stores.

mod canary;
mod load;
#[path = "../support/mod.rs"]
mod support;
