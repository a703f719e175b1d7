//! Chat templates: Jinja programs from checkpoints, run with bounded work, memory and output.
//!
//! A template comes with a model file, so it is untrusted input. It sees the conversation and its options only: no
//! files and no environment. From the clock it sees one date, which can be set. The crate `refrain-jinja` limits its
//! steps and the total bytes of its values.

use thiserror::Error as ThisError;

use super::date::ChatDate;
use super::limits::TEXT_BYTES_MAX;
use super::message::{ChatOptions, Message, Role};
use refrain_files::{ErrorKind as Kind, Facts, Fault};
use refrain_jinja::{self as jinja, Bounds, ErrorKind, Value};

/// Maximum length of a template's source, in bytes (published: about 30 kB).
pub const TEMPLATE_BYTES_MAX: usize = 256 << 10;
/// Maximum number of steps: evaluated parts of expressions, statements, 64 bytes read or written. A message takes
/// about 75 steps in a template like Qwen3's (measured), so the limit allows a conversation of about 50 000 messages.
pub const TEMPLATE_FUEL: u64 = 4_000_000;
/// Maximum total bytes of all values in one rendering, for a short conversation and without the output. Bytes of
/// dropped values are not subtracted, so this also limits the memory at any time.
pub const TEMPLATE_MEMORY_BYTES_MAX: u64 = 24 << 20;
/// Additional bytes of values for each byte of the conversation and its options, beyond
/// [`TEMPLATE_MEMORY_BYTES_MAX`]. A template like Qwen3's needs 1 per byte, and 575 per message (measured). A
/// template that cuts and joins every text again at each step needs several.
pub const TEMPLATE_MEMORY_MULTIPLE: u64 = 16;
/// Maximum length of a template's output.
pub const TEMPLATE_OUTPUT_BYTES_MAX: usize = 2 * TEXT_BYTES_MAX;

/// The name of the template in messages.
pub(super) const NAME: &str = "chat_template";

/// A template could not be parsed or rendered.
#[derive(Debug, Clone, PartialEq, Eq, ThisError)]
#[non_exhaustive]
pub enum TemplateError {
    /// The source is longer than [`TEMPLATE_BYTES_MAX`].
    #[error("{name}: {len} bytes is over the limit of {limit}")]
    TooLong {
        /// The template.
        name: String,
        /// Its length.
        len: usize,
        /// The limit.
        limit: usize,
    },
    /// The source is not a valid template, is nested too deeply, or uses an unsupported construct.
    #[error("{name}, line {line}: {reason}")]
    Syntax {
        /// The template.
        name: String,
        /// The line, from 1.
        line: usize,
        /// The reason.
        reason: String,
    },
    /// Rendering failed, for example because the template refers to an undefined value.
    #[error("{name}, line {line}: {reason}")]
    Render {
        /// The template.
        name: String,
        /// The line, from 1.
        line: usize,
        /// The reason.
        reason: String,
    },
    /// The template refused the conversation with `raise_exception`.
    #[error("{name} refuses the conversation (line {line}): {reason}")]
    Raised {
        /// The template.
        name: String,
        /// The line, from 1.
        line: usize,
        /// The template's message.
        reason: String,
    },
    /// The template ran more than [`TEMPLATE_FUEL`] steps.
    #[error("{name}, line {line}: stopped after {limit} steps")]
    OutOfFuel {
        /// The template.
        name: String,
        /// The line, from 1.
        line: usize,
        /// The limit.
        limit: u64,
    },
    /// The template's values exceeded [`TEMPLATE_MEMORY_BYTES_MAX`] plus [`TEMPLATE_MEMORY_MULTIPLE`] times the
    /// conversation.
    #[error("{name}, line {line}: stopped after making {limit} bytes of values")]
    OutOfMemory {
        /// The template.
        name: String,
        /// The line, from 1.
        line: usize,
        /// The limit, in bytes.
        limit: u64,
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

impl Fault for TemplateError {
    fn facts(&self) -> Facts<'_> {
        let over_limit = Facts::new(Kind::OverLimit);
        match self {
            Self::TooLong { name, len, limit } => over_limit.field(name).over(*len, *limit),
            Self::Syntax { name, .. } | Self::Render { name, .. } => {
                Facts::new(Kind::Unsupported).field(name)
            }
            Self::Raised { name, .. } => Facts::new(Kind::InvalidArgument).field(name),
            Self::OutOfFuel { name, limit, .. } | Self::OutOfMemory { name, limit, .. } => {
                over_limit.field(name).limit(*limit)
            }
            Self::OutputTooLong { name, limit } => over_limit.field(name).limit(*limit),
        }
    }
}

/// Texts of the tokens that begin and end a text; empty if the token does not exist.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SpecialTexts {
    /// `bos_token` in templates.
    pub bos: String,
    /// `eos_token` in templates.
    pub eos: String,
}

/// A parsed chat template; immutable, shared by threads.
#[derive(Debug)]
pub struct ChatTemplate {
    template: jinja::Template,
    source: String,
    knows_developer: bool,
}

impl ChatTemplate {
    /// Parses a template with Hugging Face's settings: blocks are trimmed, Python's string methods and `tojson` work,
    /// `{% generation %}` blocks are written like any others, and `raise_exception` and `strftime_now` exist.
    ///
    /// # Errors
    /// [`TemplateError::TooLong`], [`TemplateError::Syntax`].
    pub fn new(source: String) -> Result<Self, TemplateError> {
        if source.len() > TEMPLATE_BYTES_MAX {
            let (len, limit) = (source.len(), TEMPLATE_BYTES_MAX);
            return Err(TemplateError::TooLong { name: NAME.to_owned(), len, limit });
        }
        let template = jinja::parse(&source).map_err(|e| template_error(*e, 0))?;
        let knows_developer = source.contains(Role::Developer.name());
        Ok(Self { template, source, knows_developer })
    }

    /// The template's source.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// Renders a conversation. With `add_generation_prompt`, the text ends at the start of the model's answer.
    ///
    /// If the template does not contain the word `developer`, messages of that role get the role `system`.
    ///
    /// A message may spell control tokens, so encode the result as [`super::Tokenizer::encode_chat`] does.
    ///
    /// # Errors
    /// [`TemplateError`]: every variant except `TooLong` and `Syntax`. The template stays usable.
    pub fn render(
        &self,
        messages: &[Message],
        options: &ChatOptions,
        add_generation_prompt: bool,
        special: &SpecialTexts,
    ) -> Result<String, TemplateError> {
        let mut input_bytes = 0;
        messages.iter().for_each(|message| message.each_text(&mut |text| input_bytes += text.len()));
        options.each_text(&mut |text| input_bytes += text.len());
        let multiple = TEMPLATE_MEMORY_MULTIPLE.saturating_mul(input_bytes as u64);
        let bounds = Bounds {
            fuel: TEMPLATE_FUEL,
            bytes: TEMPLATE_MEMORY_BYTES_MAX.saturating_add(multiple),
            output: TEMPLATE_OUTPUT_BYTES_MAX,
        };
        let error = |e| template_error(e, bounds.bytes);
        let at_start = |kind| error(jinja::Error { line: 1, kind });
        let date = options.date.unwrap_or_else(ChatDate::now);
        let mut variables = self.variables(messages, options).map_err(at_start)?;
        variables.extend([
            ("add_generation_prompt", Value::Bool(add_generation_prompt)),
            ("bos_token", Value::text(special.bos.as_str())),
            ("eos_token", Value::text(special.eos.as_str())),
        ]);
        if !options.variables.contains_key("date_string") {
            variables.push(("date_string", Value::text(date.format("%d %b %Y"))));
        }
        jinja::render(&self.template, variables, &|format| date.format(format), &bounds)
            .map_err(|e| error(*e))
    }

    fn variables<'o>(
        &self,
        messages: &[Message],
        options: &'o ChatOptions,
    ) -> Result<Vec<(&'o str, Value)>, ErrorKind> {
        let list = |values: &[serde_json::Value]| match values {
            [] => Ok(Value::None),
            values => Value::list(values.iter().map(Value::from_json).collect::<Result<_, _>>()?),
        };
        let messages = messages.iter().map(|message| self.message(message)).collect::<Result<_, _>>()?;
        let mut variables = vec![
            ("messages", Value::list(messages)?),
            ("tools", list(&options.tools)?),
            ("documents", list(&options.documents)?),
        ];
        if let Some(enable_thinking) = options.enable_thinking {
            variables.push(("enable_thinking", Value::Bool(enable_thinking)));
        }
        for (name, value) in &options.variables {
            variables.push((name, Value::from_json(value)?));
        }
        Ok(variables)
    }

    fn message(&self, message: &Message) -> Result<Value, ErrorKind> {
        let role = match message.role {
            Role::Developer if !self.knows_developer => Role::System,
            role => role,
        };
        let key = |name: &str| Value::text(name);
        let reasoning = message.reasoning_content.as_ref().map(|text| Value::text(text.as_str()));
        let mut entries = Vec::with_capacity(8);
        // transformers passes the reasoning under this name too: gpt-oss and LFM2.5 read it.
        entries.extend(reasoning.clone().map(|text| (key("thinking"), text)));
        entries.extend([
            (key("role"), Value::text(role.name())),
            (key("content"), Value::text(message.content.as_str())),
        ]);
        entries.extend(reasoning.map(|text| (key("reasoning_content"), text)));
        let texts =
            [("tool_call_id", &message.tool_call_id), ("name", &message.name), ("tools", &message.tools)];
        for (name, text) in texts {
            entries.extend(text.as_ref().map(|text| (key(name), Value::text(text.as_str()))));
        }
        if !message.tool_calls.is_empty() {
            let calls = message.tool_calls.iter().map(Value::from_json).collect::<Result<_, _>>()?;
            entries.push((key("tool_calls"), Value::list(calls)?));
        }
        Value::dict(entries)
    }
}

fn template_error(error: jinja::Error, memory_limit: u64) -> TemplateError {
    let (name, line) = (NAME.to_owned(), error.line as usize);
    match error.kind {
        ErrorKind::Syntax(reason) => TemplateError::Syntax { name, line, reason },
        ErrorKind::Value(reason) => TemplateError::Render { name, line, reason },
        ErrorKind::Raised(reason) => TemplateError::Raised { name, line, reason },
        ErrorKind::Fuel => TemplateError::OutOfFuel { name, line, limit: TEMPLATE_FUEL },
        ErrorKind::Memory => TemplateError::OutOfMemory { name, line, limit: memory_limit },
        ErrorKind::Output => TemplateError::OutputTooLong { name, limit: TEMPLATE_OUTPUT_BYTES_MAX },
    }
}
