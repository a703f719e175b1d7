//! The part of Jinja that chat templates use, evaluated with bounded work and bounded memory.
//!
//! A template is untrusted input, and its language can double a string in a loop. So each step of the evaluator
//! consumes fuel, and each new value is charged by its size *before* it is allocated. Charges are never refunded:
//! their sum bounds the memory of the whole evaluation, and its time. (A general template engine cannot do this: it
//! does not count the bytes allocated inside one instruction.) Lists, mappings and strings are immutable, as in
//! Hugging Face's sandbox. Only a `namespace` can be assigned to, and it cannot contain itself. Nesting is limited in
//! the source, in values and in the evaluation, so a thread with a small stack is enough.
//!
//! `lexer` splits the source into tokens, `parser` builds a tree from them, and `eval` evaluates the tree to
//! `value`s. The output equals that of Jinja 3.1 with Hugging Face's options: `trim_blocks`, `lstrip_blocks`,
//! `loop_controls`, `{% generation %}`, and `tojson` without escapes. These features are not supported and give an
//! error with their name: `include`, `import`, `extends`, `block`, recursive loops, `**kwargs`.
//!
//! The crate is a part of Refrain, outside semantic versioning.

mod arguments;
mod error;
mod eval;
mod filters;
mod json;
mod lexer;
mod methods;
mod parser;
#[cfg(test)]
mod tests;
mod value;

pub use error::{Error, ErrorKind};
pub use eval::{Bounds, render};
pub use parser::{Template, parse};
pub use value::Value;
