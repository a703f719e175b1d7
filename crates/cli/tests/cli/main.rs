//! The program `refrain`, run as a user would.

mod assist;
mod chat;
mod config;
mod draft_model;
mod failures;
mod forget;
mod grammar;
mod graphs;
mod handed;
mod history;
#[path = "../support/hub.rs"]
mod hub;
mod index;
mod inspect;
mod key_file;
mod mcp;
mod pack;
mod policy;
mod pre_tokenizer;
mod prefixes;
mod private_files;
mod profile;
mod pruning;
#[cfg(unix)]
#[path = "../support/pty.rs"]
mod pty;
mod pull;
mod resources;
mod run;
mod score;
mod screen;
mod serve;
mod special_files;
mod store;
mod streaming;
#[path = "../support/mod.rs"]
mod support;
