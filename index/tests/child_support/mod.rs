//! Children of tests: this test program, started again for one of its tests, and killed.

#![allow(dead_code, unreachable_pub, reason = "each test binary uses a part of this module")]

use std::io::{BufRead, BufReader};
use std::process::{ChildStdout, Command, Stdio};
use std::time::Duration;

/// A command that runs one test of this program alone.
pub fn command(test: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    command.args(["--exact", test, "--nocapture", "--test-threads=1"]);
    command.stdout(Stdio::piped()).stderr(Stdio::null());
    command
}

/// A running child.
pub struct Child {
    pub process: std::process::Child,
    pub lines: Lines,
}

/// The lines of a child. One that was cut by a kill is not among them.
pub struct Lines(BufReader<ChildStdout>);

impl Iterator for Lines {
    type Item = String;

    fn next(&mut self) -> Option<String> {
        let mut line = String::new();
        self.0.read_line(&mut line).expect("text");
        line.strip_suffix('\n').map(str::to_owned)
    }
}

impl Child {
    pub fn start(command: &mut Command) -> Self {
        let mut process = command.spawn().expect("starts");
        let lines = Lines(BufReader::new(process.stdout.take().expect("piped")));
        Self { process, lines }
    }

    /// The next line of a child that goes on until it is killed.
    pub fn line(&mut self) -> String {
        self.lines.next().expect("the child goes on until it is killed")
    }

    /// Kills the child some time after `n_lines` lines that `read` knows. It reads the rest too.
    pub fn kill(mut self, n_lines: usize, longer: Duration, mut read: impl FnMut(&str) -> bool) {
        let mut n_seen = 0;
        while n_seen < n_lines {
            n_seen += usize::from(read(&self.line()));
        }
        std::thread::sleep(longer);
        self.process.kill().expect("runs");
        self.lines.for_each(|line| _ = read(&line));
        self.process.wait().expect("ends");
    }
}
