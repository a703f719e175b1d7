//! The turns of `chat`: lines of a pipe, or what is edited on a terminal.
//!
//! On a terminal a turn may have several lines: a paste is one turn (bracketed paste), and a line that ends with `\` goes on. Where a line
//! cannot be edited (no terminal on standard output, TERM=dumb), a line is a turn.

use std::borrow::Cow;
use std::cell::RefCell;
use std::io::{self, BufRead, IsTerminal};

use rustyline::completion::Completer;
use rustyline::error::ReadlineError;
use rustyline::highlight::Highlighter;
use rustyline::hint::Hinter;
use rustyline::history::MemHistory;
use rustyline::validate::{ValidationContext, ValidationResult, Validator};
use rustyline::{Behavior, Config, Context, Editor, Helper};

use crate::failure::Failure;
use crate::terminal::{line_entered, visible, write_error};

/// Maximum bytes of a turn. The bound keeps a pipe without line ends from filling the memory.
pub(crate) const TURN_BYTES_MAX: usize = 1 << 20;

/// Lines that the arrow keys bring back: as many as a store keeps.
const LINES_MAX: usize = 1000;

/// What the user has entered.
pub(crate) enum Entered {
    Turn(String),
    /// Ctrl-C in place of a turn.
    Dropped,
    /// A turn on a terminal that cannot be one; what is typed next is another.
    Refused(Failure),
    End,
}

/// Where turns come from.
pub(crate) enum Turns {
    /// Lines, on a terminal with a prompt.
    Lines {
        is_terminal: bool,
    },
    Edited(Box<Editor<Typing, MemHistory>>),
}

impl Turns {
    /// The turns of standard input. `commands` are completed, `typed` are the lines of earlier runs, oldest first.
    pub(crate) fn open(commands: &'static [&'static str], typed: Vec<String>) -> Self {
        let is_terminal = io::stdin().is_terminal();
        let is_dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
        if !is_terminal || !io::stdout().is_terminal() || is_dumb {
            return Self::Lines { is_terminal };
        }
        let config = Config::builder().behavior(Behavior::Stdio).max_history_size(LINES_MAX);
        let editor = config.and_then(|config| {
            let config = config.build();
            let lines = MemHistory::with_config(&config);
            Editor::with_history(config, lines)
        });
        match editor {
            Ok(mut editor) => {
                editor.set_helper(Some(Typing { commands, continued: RefCell::default() }));
                let mut turns = Self::Edited(Box::new(editor));
                typed.iter().for_each(|line| turns.remember(line));
                turns
            }
            Err(_) => Self::Lines { is_terminal },
        }
    }

    /// Adds a line to those that the arrow keys bring back.
    pub(crate) fn remember(&mut self, line: &str) {
        if let Self::Edited(editor) = self {
            // In memory, it cannot fail.
            let _ = editor.add_history_entry(line);
        }
    }

    /// The next turn.
    ///
    /// # Errors
    /// It cannot be read. In a pipe, also one that is longer than the limit or not UTF-8: nobody knows where the next would begin.
    pub(crate) fn next(&mut self) -> Result<Entered, Failure> {
        let editor = match self {
            Self::Lines { is_terminal } => return next_line(*is_terminal),
            Self::Edited(editor) => editor,
        };
        let read = editor.readline("> ");
        line_entered();
        let continued = editor.helper().map(|typing| typing.continued.take()).unwrap_or_default();
        match read {
            Ok(text) if text.len() > TURN_BYTES_MAX => Ok(Entered::Refused(too_long())),
            Ok(text) => Ok(Entered::Turn(joined(text, &continued))),
            Err(ReadlineError::Eof) => Ok(Entered::End),
            Err(ReadlineError::Interrupted) => Ok(Entered::Dropped),
            Err(ReadlineError::Io(error)) if error.kind() == io::ErrorKind::InvalidData => {
                Ok(Entered::Refused(not_text()))
            }
            Err(error) => Err(cannot_read(&error)),
        }
    }
}

fn cannot_read(error: &dyn std::fmt::Display) -> Failure {
    Failure::input(format!("cannot read the next turn: {error}"), "check the input")
}

fn too_long() -> Failure {
    Failure::input(
        format!("a turn is longer than the limit of {TURN_BYTES_MAX} bytes"),
        "send a shorter one, or name the text with --context",
    )
}

fn not_text() -> Failure {
    Failure::input("a turn is not UTF-8 text", "convert the input first")
}

/// The next line of a pipe, or of a terminal whose lines are not edited here.
fn next_line(is_terminal: bool) -> Result<Entered, Failure> {
    if is_terminal {
        write_error("> ");
    }
    let mut bytes = Vec::new();
    let n_bytes = io::Read::take(io::stdin().lock(), TURN_BYTES_MAX as u64)
        .read_until(b'\n', &mut bytes)
        .map_err(|error| cannot_read(&error))?;
    if n_bytes == 0 {
        return Ok(Entered::End);
    }
    if is_terminal && bytes.ends_with(b"\n") {
        line_entered();
    }
    if n_bytes == TURN_BYTES_MAX && bytes.last() != Some(&b'\n') {
        return Err(too_long());
    }
    String::from_utf8(bytes).map(Entered::Turn).map_err(|_| not_text())
}

/// The text without the `\` at which Enter began a new line. Those of a paste stay.
fn joined(mut text: String, continued: &[String]) -> String {
    // From the end, so that the earlier texts stay prefixes.
    for before in continued.iter().rev() {
        if text.strip_prefix(before.as_str()).is_some_and(|rest| rest.starts_with('\n')) {
            text.remove(before.len() - 1);
        }
    }
    text
}

/// What the editor of lines asks for.
pub(crate) struct Typing {
    commands: &'static [&'static str],
    /// The text at each Enter behind a `\`, up to it.
    continued: RefCell<Vec<String>>,
}

impl Helper for Typing {}

impl Hinter for Typing {
    type Hint = String;
}

impl Completer for Typing {
    type Candidate = String;

    fn complete(&self, line: &str, pos: usize, _: &Context<'_>) -> rustyline::Result<(usize, Vec<String>)> {
        let begun = &line[..pos];
        let found = self.commands.iter().filter(|name| begun.starts_with('/') && name.starts_with(begun));
        Ok((0, found.map(|&name| name.to_owned()).collect()))
    }
}

impl Highlighter for Typing {
    /// A paste may have control characters, which must not reach the terminal.
    fn highlight<'l>(&self, line: &'l str, _: usize) -> Cow<'l, str> {
        visible(line)
    }
}

impl Validator for Typing {
    fn validate(&self, context: &mut ValidationContext<'_>) -> rustyline::Result<ValidationResult> {
        let text = context.input();
        if !text.ends_with('\\') {
            return Ok(ValidationResult::Valid(None));
        }
        self.continued.borrow_mut().push(text.to_owned());
        Ok(ValidationResult::Incomplete)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_marks_of_new_lines_go_and_those_of_a_paste_stay() {
        let continued = ["a \\".to_owned(), "a \\\nb\\".to_owned()];
        assert_eq!(joined("a \\\nb\\\nc".to_owned(), &continued), "a \nb\nc");
        assert_eq!(joined("a \\\nb".to_owned(), &[]), "a \\\nb", "pasted");
        assert_eq!(joined("other".to_owned(), &continued), "other", "edited since");
        assert_eq!(joined(String::new(), &continued), "");
    }
}
