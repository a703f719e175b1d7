//! Exactness, sessions, generations and drafts: what the engine computes. A module has the tests of one capability.
//!
//! The programs of this folder: `engine`, `files` (model files, tokenizers, templates), and those that need a process:
//! `process` (floating-point environment, panic hooks, stopped children, real time), `memory` and `damage` (an allocator that records its peak),
//! `allocations` (another allocator). Fewer programs compile and link in a fraction of the time.

mod calibration;
#[path = "../common/mod.rs"]
mod common;
mod conversations;
mod draft_heads;
mod encoder;
mod endings;
mod energy;
mod errors;
mod experts;
mod families;
mod family_states;
mod generation_sources;
mod generations;
mod golden;
mod graphs;
#[path = "../heads/mod.rs"]
mod heads;
mod hidden_states;
mod learned;
mod long_prompts;
mod lossless;
mod memory_pressure;
#[path = "../model_files/mod.rs"]
mod model_files;
mod per_layer;
mod policies;
mod processors;
mod profiles;
mod pruning;
mod recurrent_drafts;
mod recurrent_states;
mod reentry;
mod sampling;
mod self_draft;
mod sessions;
mod states;
mod together;
mod window_cache;
