//! Runs a program as a user would, without this machine's terminal.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The output of a run, and its exit code.
#[derive(Debug)]
pub struct Ran {
    /// Its exit code; `None` if a signal ended it.
    pub code: Option<i32>,
    /// Its standard output.
    pub stdout: String,
    /// Its standard error.
    pub stderr: String,
}

impl Ran {
    /// Standard output of a successful run.
    #[track_caller]
    pub fn done(self) -> String {
        assert_eq!(self.code, Some(0), "{}", self.stderr);
        self.stdout
    }

    /// The message of a run that ends with `code` and prints one line, on standard error only.
    #[track_caller]
    pub fn refused(self, code: i32) -> String {
        assert_eq!(self.code, Some(code), "{}{}", self.stdout, self.stderr);
        assert_eq!(self.stdout, "");
        let line = self.stderr.strip_prefix("error: ").and_then(|rest| rest.strip_suffix('\n'));
        let line = line.unwrap_or_else(|| panic!("no error line: {:?}", self.stderr));
        assert!(!line.contains('\n'), "more than one line: {line}");
        line.to_owned()
    }
}

/// A program with a clean environment.
pub fn command(program: &str, args: &[&str]) -> Command {
    let mut command = Command::new(program);
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
        // Where other tools keep models.
        "OLLAMA_MODELS",
        "HF_HUB_CACHE",
        "HF_HOME",
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

/// Runs a program with `input` on standard input.
pub fn run(program: &str, args: &[&str], input: &[u8]) -> Ran {
    let mut child = command(program, args)
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
pub fn repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).expect("a folder of the workspace").join(path)
}

/// The path as an argument.
pub fn arg(path: &Path) -> &str {
    path.to_str().expect("paths of the tests are text")
}
