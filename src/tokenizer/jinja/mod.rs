//! The part of Jinja that chat templates are written in, evaluated with bounded work and bounded memory.
//!
//! A template is outside data, and its language can double a string in a loop. So each step of the evaluator takes fuel, each
//! value that it makes is paid for by its size *before* it is allocated, and nothing is paid back: the sum bounds the memory
//! of the whole evaluation, and the time with it. (A general engine offers no such place: joining strings is an instruction
//! inside it, and what an instruction makes is not counted.) Lists, mappings and strings are immutable, as in Hugging Face's
//! sandbox; only a `namespace` is assigned to, and it cannot hold itself. Nesting is bounded in the source, in values, and in
//! the evaluation, so that a thread with a small stack is enough.
//!
//! [`lexer`] cuts the source into tokens, [`parser`] makes a tree of them, [`eval`] walks the tree over [`value`]s. What a template
//! writes equals Jinja 3.1 with the options that Hugging Face sets: `trim_blocks`, `lstrip_blocks`, `loop_controls`, `{% generation
//! %}`, and `tojson` without escapes. Left out, with an error that names it: `include`, `import`, `extends`, `block`,
//! recursive loops, `**kwargs`.

mod eval;
mod filters;
mod json;
mod lexer;
mod methods;
mod parser;
#[cfg(test)]
mod tests;
mod value;

pub(super) use eval::{Bounds, render};
pub(super) use parser::{Template, parse};
pub(super) use value::Value;

/// Why a template cannot be parsed or evaluated, and where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Error {
    /// The line, from 1.
    pub(super) line: u32,
    pub(super) kind: ErrorKind,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ErrorKind {
    /// The source is no template.
    Syntax(String),
    /// A value has not what an expression asks of it.
    Value(String),
    /// The template called `raise_exception`.
    Raised(String),
    /// The steps are used up.
    Fuel,
    /// The bytes are used up.
    Memory,
    /// The output is longer than its limit.
    Output,
}

type Result<T> = std::result::Result<T, Box<Error>>;
