//! The engine Refrain as a module of WebAssembly.
//!
//! One thread computes, so a browser runs the module in a worker. A model comes as bytes, options and events are JSON with the names
//! of the other bindings, and the app takes the events of a generation in batches: [`Session::events`] computes for some
//! milliseconds and returns, so that the worker hears a cancellation in between.
//!
//! `wasm32-unknown-unknown` exports the classes of `browser.rs`. Under WASI (`wasm32-wasip1`) an app links this crate or `refrain`
//! itself, which reads files there. docs/embed/wasm.md is the guide.
//!
//! A panic ends the module: Rust's targets do not unwind. What comes from outside causes none (a model, options, prompts), and a lack
//! of memory is an error for weights and KV caches.

#[cfg(feature = "bits")]
pub mod bits;
#[cfg(all(target_family = "wasm", target_os = "unknown"))]
pub mod browser;
mod error;
mod events;
mod options;
mod session;

pub use error::ErrorInfo;
pub use events::{Event, JobResult, JobStats, Stage, Text, TextKind};
pub use session::{Engine, EngineInfo, Session};
