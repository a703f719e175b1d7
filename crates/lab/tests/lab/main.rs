//! Replays, rules, and the program `refrain-bench`. `differential` is a program of its own, because `tools/differential` runs it for an hour.

#[path = "../../../../tests/common/mod.rs"]
mod common;
mod draft_model;
mod floor;
mod graphs;
mod program;
mod rules;
mod strategies;
mod traces;
