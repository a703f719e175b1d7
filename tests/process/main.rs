//! Tests that start themselves as a process (panic hooks, peak memory, a stop by the system), change the floating-point environment of
//! threads, ask the system for the memory of the process (the counting allocator of `memory` touches what it zeroes), or compare times:
//! apart from `engine`, so that they share the processor with few other tests.

#[path = "../common/mod.rs"]
mod common;
mod estimates;
mod float_env;
mod full_context;
mod quiet_panics;
mod streaming;
mod streaming_faults;
mod streaming_memory;
