//! Errors, and texts of their messages.

/// An error of parsing or evaluation, with its line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Error {
    /// The line, from 1.
    pub line: u32,
    /// What failed.
    pub kind: ErrorKind,
}

/// The kinds of errors.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ErrorKind {
    /// The source is not a valid template.
    Syntax(String),
    /// A value does not support an operation of the template.
    Value(String),
    /// The template called `raise_exception`.
    Raised(String),
    /// The limit of steps is reached.
    Fuel,
    /// The limit of bytes is reached.
    Memory,
    /// The limit of the output is reached.
    Output,
}

pub(super) type Result<T> = std::result::Result<T, Box<Error>>;

/// A name or text from the source, shortened for a one-line message.
pub(super) fn shortened(text: &str) -> String {
    let line: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(40).collect();
    if line.len() < text.len() { line + "…" } else { line }
}
