//! The native half of the Python package `refrain`.
//!
//! Classes here hold the engine's values; values without behaviour (statistics, summaries, exceptions) are Python classes in
//! `python/refrain/`. Rules that every method keeps:
//!
//! - It computes in [`border::compute`]: without the interpreter's lock, and a panic becomes an error. It does not wait for a lock of this crate while it holds the interpreter's: a thread
//!   that computes may wait for that one to look for signals.
//! - It first asks [`Resident`](resident::Resident) for its value, which refuses in a forked process.

mod assistant;
mod border;
mod cancel;
mod drafter;
mod embedder;
mod engine;
mod errors;
mod generation;
mod held;
mod helpers;
mod home;
mod job;
mod notes;
mod options;
mod python_source;
mod resident;
mod results;
mod rows;
mod session;
mod signals;
mod steps;
mod token;
mod tokenizer;

use pyo3::prelude::*;

#[pymodule]
mod _native {
    #[pymodule_export]
    use super::assistant::{Assistant, Conversation};
    #[pymodule_export]
    use super::border::_panic;
    #[pymodule_export]
    use super::cancel::CancelToken;
    #[pymodule_export]
    use super::drafter::{Drafter, Proposal, Sequence};
    #[pymodule_export]
    use super::engine::{Engine, History};
    #[pymodule_export]
    use super::generation::Generation;
    #[pymodule_export]
    use super::job::Job;
    #[pymodule_export]
    use super::notes::{Notes, document_id, document_path};
    #[pymodule_export]
    use super::session::Session;
    #[pymodule_export]
    use super::steps::Steps;
    #[pymodule_export]
    use super::token::Token;
    #[pymodule_export]
    use super::tokenizer::Tokenizer;

    #[pymodule_export]
    #[allow(non_upper_case_globals, reason = "the name of a version in Python")]
    const __version__: &str = env!("CARGO_PKG_VERSION");
}
