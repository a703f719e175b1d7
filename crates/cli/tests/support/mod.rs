//! Runs the program as a user would, without this machine's terminal.

#![allow(dead_code, unused_imports, reason = "every test file uses some of it")]

use std::path::PathBuf;
use std::process::Command;

use refrain_program::testing;
pub(crate) use refrain_program::testing::{Ran, arg, repository};

const PROGRAM: &str = env!("CARGO_BIN_EXE_refrain");

/// Drafts whatever rows cost: on a busy machine, measured costs may let no draft of a small model pay.
pub(crate) const AT_ANY_COST: &[&str] = &["--drafting", "rows=8"];

/// The program with a clean environment.
pub(crate) fn command(args: &[&str]) -> Command {
    testing::command(PROGRAM, args)
}

/// Runs the program with nothing on standard input.
pub(crate) fn refrain(args: &[&str]) -> Ran {
    refrain_with(args, b"")
}

/// Runs the program with `input` on standard input.
pub(crate) fn refrain_with(args: &[&str], input: &[u8]) -> Ran {
    testing::run(PROGRAM, args, input)
}

/// The fixture model.
pub(crate) fn model() -> PathBuf {
    repository("fixtures/target.gguf")
}
