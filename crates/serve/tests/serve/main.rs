//! The server, asked over HTTP and MCP.

mod anthropic;
#[path = "../support/bigram.rs"]
mod bigram;
mod calling;
mod chat;
mod corpus;
mod endpoints;
mod fuzz_seeds;
mod infill;
mod mcp;
mod models;
mod ollama;
mod page;
mod reasoning;
mod refusals;
mod schemas;
mod security;
mod socket;
mod streams;
#[path = "../support/mod.rs"]
mod support;
mod tolerance;
mod tools;
