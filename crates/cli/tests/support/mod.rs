//! Runs the program as a user would, without this machine's terminal.

#![allow(dead_code, reason = "every test file uses some of it")]

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Drafts whatever rows cost: on a busy machine, measured costs may let no draft of a small model pay.
pub(crate) const AT_ANY_COST: &[&str] = &["--draft-rows", "8"];

/// The output of a run, and its exit code.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Ran {
    /// Standard output of a successful run.
    #[track_caller]
    pub(crate) fn done(self) -> String {
        assert_eq!(self.code, Some(0), "{}", self.stderr);
        self.stdout
    }

    /// The message of a run that ends with `code` and prints one line, on standard error only.
    #[track_caller]
    pub(crate) fn refused(self, code: i32) -> String {
        assert_eq!(self.code, Some(code), "{}{}", self.stdout, self.stderr);
        assert_eq!(self.stdout, "");
        let line = self.stderr.strip_prefix("error: ").and_then(|rest| rest.strip_suffix('\n'));
        let line = line.unwrap_or_else(|| panic!("no error line: {:?}", self.stderr));
        assert!(!line.contains('\n'), "more than one line: {line}");
        line.to_owned()
    }
}

/// The program with a clean environment.
pub(crate) fn command(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_refrain"));
    command.args(args);
    // Without a home there is no default folder for the history, and no file with defaults.
    let of_user = [
        "HOME",
        "USERPROFILE",
        "XDG_DATA_HOME",
        "XDG_CONFIG_HOME",
        "XDG_CACHE_HOME",
        "LOCALAPPDATA",
        "APPDATA",
    ];
    for (variable, _) in std::env::vars_os() {
        if variable.to_string_lossy().starts_with("REFRAIN_") {
            command.env_remove(variable);
        }
    }
    // (`CI`: there, terminals are taken to have colours.)
    let of_colors = ["NO_COLOR", "CLICOLOR", "CLICOLOR_FORCE", "TERM", "COLORTERM", "CI"];
    for variable in of_colors.into_iter().chain(of_user) {
        command.env_remove(variable);
    }
    command
}

/// Runs the program with nothing on standard input.
pub(crate) fn refrain(args: &[&str]) -> Ran {
    refrain_with(args, b"")
}

/// Runs the program with `input` on standard input.
pub(crate) fn refrain_with(args: &[&str], input: &[u8]) -> Ran {
    let mut child = command(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts");
    // A program that refuses its arguments does not read its input, so the pipe breaks.
    let _ = child.stdin.take().expect("piped").write_all(input);
    let output = child.wait_with_output().expect("the program ends");
    Ran {
        code: output.status.code(),
        stdout: String::from_utf8(output.stdout).expect("text"),
        stderr: String::from_utf8(output.stderr).expect("text"),
    }
}

/// A file or folder of the repository.
pub(crate) fn repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).expect("a folder of the workspace").join(path)
}

/// The path as an argument.
pub(crate) fn arg(path: &Path) -> &str {
    path.to_str().expect("paths of the tests are text")
}

/// The fixture model.
pub(crate) fn model() -> PathBuf {
    repository("fixtures/target.gguf")
}
