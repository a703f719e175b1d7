//! Chat templates: the Jinja programs that come with checkpoints, run with bounded work and bounded output.
//!
//! A template comes with a model file, so it is outside data. It sees the conversation and nothing else (no files, no
//! environment, no clock), its work is counted (`fuel`), its output is cut off at a limit, and it runs on a thread of its
//! own whose stack is deep enough for the most deeply nested value that so much work can build. What is *not* bounded is
//! the memory of strings inside a template: one that doubles a string forty times runs out of memory. The library bounds
//! repetition (`*`), but joining (`~`, `+`) is an instruction of its own, neither a filter nor a function that could be
//! replaced, and it takes one unit of fuel whatever it makes, so there is no place to stop it.

use std::io;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Value};
use minijinja::{Environment, Error, ErrorKind, context};
use serde::Serialize;
use thiserror::Error as ThisError;

use super::Message;

/// Longest template source accepted (published: about 10 kB).
pub const TEMPLATE_BYTES_MAX: usize = 1 << 20;
/// Instructions a template may run. A message takes about 65 in a template like Qwen3's (measured), so this is enough for
/// a conversation of some 15 000 messages.
pub const TEMPLATE_FUEL: u64 = 1_000_000;
/// Longest output of a template.
pub const TEMPLATE_OUTPUT_BYTES_MAX: usize = 2 * super::TEXT_BYTES_MAX;

/// The date that `strftime_now` gives, whatever the day: a prompt is a function of its conversation, so equal input
/// gives equal output tomorrow. It is the day that Llama 3's own template falls back to. An application that wants the
/// model to know the date says it in a message.
const DATE: Date = Date { year: 2024, month: 7, day: 26, weekday: 5 };

const NAME: &str = "chat_template";

/// A value nested once per six instructions is dropped by recursion, at under 100 bytes of stack a level (measured: two
/// megabytes hold 20 000 levels but not 100 000). The stack is reserved, not used.
const STACK_BYTES: usize = 64 << 20;

/// Why a template could not be compiled or rendered.
#[derive(Debug, Clone, PartialEq, Eq, ThisError)]
#[non_exhaustive]
pub enum TemplateError {
    /// The source is longer than [`TEMPLATE_BYTES_MAX`].
    #[error("{name}: {len} bytes is over the limit of {limit}")]
    TooLong {
        /// The template.
        name: String,
        /// Length of its source.
        len: usize,
        /// The limit.
        limit: usize,
    },
    /// The source is no valid template.
    #[error("{name}, line {line}: {reason}")]
    Syntax {
        /// The template.
        name: String,
        /// The line.
        line: usize,
        /// What is wrong there.
        reason: String,
    },
    /// Rendering failed; the template refers to something that does not exist, say.
    #[error("{name}, line {line}: {reason}")]
    Render {
        /// The template.
        name: String,
        /// The line.
        line: usize,
        /// What went wrong there.
        reason: String,
    },
    /// The template refused the conversation with `raise_exception`.
    #[error("{name} refuses the conversation (line {line}): {reason}")]
    Raised {
        /// The template.
        name: String,
        /// The line.
        line: usize,
        /// The template's own words.
        reason: String,
    },
    /// The template ran more than [`TEMPLATE_FUEL`] instructions.
    #[error("{name}, line {line}: stopped after {limit} instructions")]
    OutOfFuel {
        /// The template.
        name: String,
        /// The line.
        line: usize,
        /// The limit.
        limit: u64,
    },
    /// The template library panicked, or no thread could be had for it.
    ///
    /// The process's panic hook has run by then: by default it prints the panic to standard error.
    #[error("{name}: the template library failed: {reason}")]
    Failed {
        /// The template.
        name: String,
        /// The panic's message.
        reason: String,
    },
    /// The template wrote more than [`TEMPLATE_OUTPUT_BYTES_MAX`].
    #[error("{name}: the output is over the limit of {limit} bytes")]
    OutputTooLong {
        /// The template.
        name: String,
        /// The limit.
        limit: usize,
    },
}

/// Texts of the tokens that begin and end a text; empty where there is none.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SpecialTexts {
    /// `bos_token` in templates.
    pub bos: String,
    /// `eos_token` in templates.
    pub eos: String,
}

/// A compiled chat template; immutable, shared by threads.
#[derive(Debug)]
pub struct ChatTemplate {
    environment: Environment<'static>,
    source: String,
}

impl ChatTemplate {
    /// Compiles a template as Hugging Face does: blocks are trimmed, Python's string methods and `tojson` work, and
    /// `raise_exception` and `strftime_now` (of a fixed date, 26 July 2024) exist.
    ///
    /// # Errors
    /// [`TemplateError::TooLong`], [`TemplateError::Syntax`].
    pub fn new(source: String) -> Result<Self, TemplateError> {
        if source.len() > TEMPLATE_BYTES_MAX {
            let (len, limit) = (source.len(), TEMPLATE_BYTES_MAX);
            return Err(TemplateError::TooLong { name: NAME.to_owned(), len, limit });
        }
        isolated(|| Self::compile(source))
    }

    fn compile(source: String) -> Result<Self, TemplateError> {
        let mut environment = Environment::new();
        let mut syntax = SyntaxConfig::builder();
        let syntax = syntax.trim_blocks(true).lstrip_blocks(true).build();
        environment.set_syntax(syntax.map_err(|e| syntax_error(&e))?);
        environment.set_fuel(Some(TEMPLATE_FUEL));
        environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        environment.add_function("raise_exception", raise_exception);
        environment.add_function("strftime_now", |format: &str| DATE.format(format));
        environment.add_filter("tojson", tojson);
        environment.add_template_owned(NAME, source.clone()).map_err(|e| syntax_error(&e))?;
        Ok(Self { environment, source })
    }

    /// The template's source.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// Renders a conversation; with `add_generation_prompt` the text ends where the model is to answer.
    ///
    /// Encode the result with [`super::Tokenizer::encode_chat`]'s care: a message may spell control tokens.
    ///
    /// # Errors
    /// [`TemplateError`]: every variant but `TooLong` and `Syntax`. The template stays usable.
    pub fn render(
        &self,
        messages: &[Message],
        add_generation_prompt: bool,
        special: &SpecialTexts,
    ) -> Result<String, TemplateError> {
        isolated(|| self.run(messages, add_generation_prompt, special))
    }

    fn run(
        &self,
        messages: &[Message],
        add_generation_prompt: bool,
        special: &SpecialTexts,
    ) -> Result<String, TemplateError> {
        let messages: Vec<Value> =
            messages.iter().map(|m| context! { role => m.role.name(), content => &m.content }).collect();
        let context = context! {
            messages,
            add_generation_prompt,
            bos_token => &special.bos,
            eos_token => &special.eos,
            tools => (),
            documents => (),
        };
        let mut out = LimitedOutput { bytes: Vec::new(), is_over: false };
        let result = self.environment.get_template(NAME).and_then(|template| {
            template.render_captured_to(context, &mut out)?;
            Ok(())
        });
        if out.is_over {
            return Err(TemplateError::OutputTooLong {
                name: NAME.to_owned(),
                limit: TEMPLATE_OUTPUT_BYTES_MAX,
            });
        }
        result.map_err(|e| render_error(&e))?;
        // A template writes strings, so the output is UTF-8; lossy conversion costs nothing then.
        Ok(String::from_utf8(out.bytes)
            .unwrap_or_else(|e| String::from_utf8_lossy(e.as_bytes()).into_owned()))
    }
}

/// Runs library code on a thread with a deep stack; a panic becomes an error. (Not with `panic = "abort"`.)
fn isolated<T: Send>(run: impl FnOnce() -> Result<T, TemplateError> + Send) -> Result<T, TemplateError> {
    let failed = |reason: String| TemplateError::Failed { name: NAME.to_owned(), reason };
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name(NAME.to_owned()).stack_size(STACK_BYTES);
        let thread = thread.spawn_scoped(scope, run).map_err(|e| failed(format!("no thread: {e}")))?;
        thread.join().unwrap_or_else(|panic| Err(failed(super::pipeline::panic_message(&*panic))))
    })
}

fn syntax_error(error: &Error) -> TemplateError {
    TemplateError::Syntax { name: NAME.to_owned(), line: error.line().unwrap_or(0), reason: reason(error) }
}

fn render_error(error: &Error) -> TemplateError {
    let (name, line) = (NAME.to_owned(), error.line().unwrap_or(0));
    match error.kind() {
        ErrorKind::OutOfFuel => TemplateError::OutOfFuel { name, line, limit: TEMPLATE_FUEL },
        _ => match error.detail().and_then(|detail| detail.strip_prefix(RAISED)) {
            Some(reason) => TemplateError::Raised { name, line, reason: reason.to_owned() },
            None => TemplateError::Render { name, line, reason: reason(error) },
        },
    }
}

fn reason(error: &Error) -> String {
    match error.detail() {
        Some(detail) => format!("{}: {detail}", error.kind()),
        None => error.kind().to_string(),
    }
}

/// Marks the errors that a template raises itself.
const RAISED: &str = "raise_exception: ";

fn raise_exception(message: &str) -> Result<Value, Error> {
    Err(Error::new(ErrorKind::InvalidOperation, format!("{RAISED}{message}")))
}

/// `json.dumps` with `ensure_ascii=False`, as Hugging Face's own filter: spaces after `,` and `:`, nothing escaped for
/// HTML.
fn tojson(value: &Value, kwargs: Kwargs) -> Result<Value, Error> {
    let indent: Option<usize> = kwargs.get("indent")?;
    for ignored in ["ensure_ascii", "sort_keys", "separators"] {
        kwargs.get::<Option<Value>>(ignored)?;
    }
    kwargs.assert_all_used()?;
    let bad = |e: serde_json::Error| Error::new(ErrorKind::BadSerialization, e.to_string());
    let mut out = Vec::new();
    match indent {
        None => {
            value.serialize(&mut serde_json::Serializer::with_formatter(&mut out, PythonJson)).map_err(bad)?
        }
        Some(indent) => {
            let spaces = " ".repeat(indent.min(16));
            let formatter = serde_json::ser::PrettyFormatter::with_indent(spaces.as_bytes());
            value.serialize(&mut serde_json::Serializer::with_formatter(&mut out, formatter)).map_err(bad)?;
        }
    }
    Ok(Value::from_safe_string(String::from_utf8_lossy(&out).into_owned()))
}

/// Python's separators.
struct PythonJson;

impl serde_json::ser::Formatter for PythonJson {
    fn begin_array_value<W: ?Sized + io::Write>(&mut self, out: &mut W, first: bool) -> io::Result<()> {
        if first { Ok(()) } else { out.write_all(b", ") }
    }

    fn begin_object_key<W: ?Sized + io::Write>(&mut self, out: &mut W, first: bool) -> io::Result<()> {
        if first { Ok(()) } else { out.write_all(b", ") }
    }

    fn begin_object_value<W: ?Sized + io::Write>(&mut self, out: &mut W) -> io::Result<()> {
        out.write_all(b": ")
    }
}

struct LimitedOutput {
    bytes: Vec<u8>,
    is_over: bool,
}

impl io::Write for LimitedOutput {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if bytes.len() > TEMPLATE_OUTPUT_BYTES_MAX - self.bytes.len() {
            self.is_over = true;
            return Err(io::Error::other("output limit"));
        }
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

struct Date {
    year: u32,
    month: usize,
    day: u32,
    weekday: usize,
}

impl Date {
    /// The directives that templates use; others are left as they stand.
    fn format(&self, format: &str) -> String {
        const MONTHS: [&str; 12] = [
            "January",
            "February",
            "March",
            "April",
            "May",
            "June",
            "July",
            "August",
            "September",
            "October",
            "November",
            "December",
        ];
        const DAYS: [&str; 7] =
            ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];
        let mut out = String::new();
        let mut chars = format.chars();
        while let Some(c) = chars.next() {
            if c != '%' {
                out.push(c);
                continue;
            }
            match chars.next() {
                Some('Y') => out.push_str(&self.year.to_string()),
                Some('m') => out.push_str(&format!("{:02}", self.month)),
                Some('d') => out.push_str(&format!("{:02}", self.day)),
                Some('b') => out.push_str(&MONTHS[self.month - 1][..3]),
                Some('B') => out.push_str(MONTHS[self.month - 1]),
                Some('a') => out.push_str(&DAYS[self.weekday][..3]),
                Some('A') => out.push_str(DAYS[self.weekday]),
                Some('H' | 'M' | 'S') => out.push_str("00"),
                Some('%') => out.push('%'),
                Some(other) => out.extend(['%', other]),
                None => out.push('%'),
            }
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_in_the_library_becomes_an_error() {
        let failed = isolated::<()>(|| panic!("with {} words", 3)).unwrap_err();
        assert_eq!(
            failed,
            TemplateError::Failed { name: NAME.to_owned(), reason: "with 3 words".to_owned() }
        );
    }
}
