//! Grammars in llama.cpp's GBNF, translated to Lark with the same language.
//!
//! GBNF describes a text letter by letter. llguidance cuts a text into lexemes first, each as long as it can be, and a lexeme of several letters
//! may swallow the beginning of what follows: with `("ab" | "abc") "cd"`, the text `abcd` is lost. So the translation takes the first of these
//! forms that keeps the language, and each form is slower for large vocabularies than the one before it:
//!
//! 1. A grammar without recursion is one regular expression.
//! 2. Each part without recursion is a lexeme, if the first byte always tells which lexeme comes, and no lexeme can go on with a byte that may
//!    follow it ([`lexemes`]). Grammars of JSON are so.
//! 3. Each letter is a lexeme ([`letters`]).

mod lark;
mod letters;
mod lexemes;
mod parse;
mod regular;
mod set;

use std::fmt;
use std::rc::Rc;

use crate::error::GrammarError;
use set::Letters;

/// Maximum levels of brackets.
const DEPTH_MAX: usize = 64;
/// Maximum operators behind one part, such as `*`.
const OPERATORS_MAX: usize = 8;
/// Maximum of a repetition, as in llama.cpp.
const REPEAT_MAX: u32 = 2_000;
/// Maximum rules.
const RULES_MAX: usize = 2_000;
/// Maximum letters, classes, names and operators.
const PARTS_MAX: usize = 20_000;

/// Why a GBNF grammar cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum GbnfProblem {
    /// Something else should stand here.
    Expected(&'static str),
    /// The construct is not supported.
    Unsupported(&'static str),
    /// No rule has this name.
    UnknownRule,
    /// An escape is not one of GBNF's, or no character.
    Escape,
    /// The end of a range comes before its beginning.
    Range,
    /// A class has no character.
    EmptyClass,
    /// Something is too large.
    Limit {
        /// What is counted.
        what: &'static str,
        /// Its number, or the first one beyond the limit.
        given: usize,
        /// The limit.
        max: usize,
    },
}

impl fmt::Display for GbnfProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Expected(what) => write!(f, "{what} is expected"),
            Self::Unsupported(what) => write!(f, "{what} is not supported"),
            Self::UnknownRule => f.write_str("no rule has this name"),
            Self::Escape => f.write_str("the escape is not known, or no character"),
            Self::Range => f.write_str("the range ends before it begins"),
            Self::EmptyClass => f.write_str("the class has no character"),
            Self::Limit { what, given, max } => write!(f, "{given} {what} are more than {max}"),
        }
    }
}

/// The right side of a rule.
#[derive(Debug, Clone)]
enum Expr {
    Letter(Rc<Letters>),
    /// Without parts: the empty text.
    Seq(Vec<Expr>),
    Alt(Vec<Expr>),
    /// At least so often, and at most so often if there is a maximum.
    Repeat(Box<Expr>, u32, Option<u32>),
    Rule(usize),
}

/// The rules, of which the first one in use is `root`.
#[derive(Debug)]
struct Rules {
    rules: Vec<Expr>,
    root: usize,
}

/// Whether a text is GBNF rather than Lark: only GBNF defines rules with `::=`.
pub fn is_gbnf(text: &str) -> bool {
    // A literal or a comment of Lark may have it.
    let has_definition = |line: &str| {
        let name = line.trim_start();
        let end = name.find(|c: char| !parse::is_name(c)).unwrap_or(name.len());
        end > 0 && name[end..].trim_start().starts_with("::=")
    };
    text.lines().any(has_definition)
}

/// The grammar in llguidance's variant of Lark.
///
/// # Errors
/// [`GrammarError::Gbnf`].
pub(crate) fn to_lark(text: &str) -> Result<String, GrammarError> {
    let rules = parse::parse(text)?;
    let regular = regular::of_rules(&rules);
    let whole = regular[rules.root].as_ref().and_then(lexemes::whole);
    Ok(whole.or_else(|| lexemes::write(&rules, &regular)).unwrap_or_else(|| letters::write(&rules)))
}

#[cfg(test)]
mod tests;
