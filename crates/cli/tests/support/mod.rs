//! Runs the program as a user would, without this machine's terminal.

#![allow(dead_code, unused_imports, reason = "every test file uses some of it")]

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, ErrorKind};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

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

/// A server that will listen at a place.
pub(crate) fn serve(listen: &str) -> Command {
    let mut command = Command::new(PROGRAM);
    command.args(["serve", "--config", "none", "--threads", "1", "--listen", listen]);
    command
}

/// Starts a server, and returns the line that it prints.
pub(crate) fn started(command: &mut Command) -> (Child, String) {
    let command = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("it starts");
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().expect("piped")).read_line(&mut line).expect("a line");
    (child, line)
}

/// The files below a folder.
pub(crate) fn files(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            found.extend(files(&path));
        } else if path.is_file() {
            match fs::read(&path) {
                Ok(bytes) => drop(found.insert(path, bytes)),
                // A program that runs may have deleted it.
                Err(error) => assert_eq!(error.kind(), ErrorKind::NotFound, "{}", path.display()),
            }
        }
    }
    found
}

pub(crate) fn has(bytes: &[u8], form: &[u8]) -> bool {
    bytes.windows(form.len()).any(|window| window == form)
}

/// The fixture model.
pub(crate) fn model() -> PathBuf {
    repository("fixtures/target.gguf")
}
