//! The forms in which models call tools, one file for each.
//!
//! The text of a model's chat template tells its form ([`Told::of`]). A form says how a template is told about tools, how a call begins in free text,
//! what a grammar of calls allows, and how calls are read while they arrive. To add a form, implement [`ToolFormat`] and list it in [`FORMATS`].
//!
//! The grammar allows one way to write a call. Readers take more: where a model calls by itself and no grammar begins, it writes as it was trained.

mod gemma4;
mod granite;
mod harmony;
mod held;
pub(crate) mod hermes;
mod json_calls;
mod lark;
mod lfm2;
mod literal;
mod llama;
mod minicpm;
mod minicpm5;
mod mistral;
mod mistral_args;
mod phi4;
mod prompt;
mod python_calls;
mod pythonic;
mod qwen_coder;
mod reader;
mod signature;
mod smollm3;
#[cfg(test)]
mod tests;
mod xml_calls;

use std::fmt;
use std::sync::Arc;

use refrain::internals::tokenizer::ReasoningSplitter;
use refrain::{ChatOptions, Message, TextKind, TokenId, Tokenizer};
use serde_json::Value;

pub(crate) use self::lark::Lark;
pub(crate) use self::prompt::Told;
pub(crate) use self::reader::{CallPart, Reader};

use self::harmony::ChannelReader;
use self::held::Stop;
use self::reader::Body;
use self::signature::Signature;
use super::request::Tools;

/// Calls of one output: a small model could go on for ever.
const CALLS_MAX: usize = 16;

/// The known forms. The first that recognises a template has it.
static FORMATS: [&dyn ToolFormat; 14] = [
    &harmony::Harmony,
    &gemma4::Gemma4,
    &mistral_args::MistralArgs,
    &mistral::MISTRAL,
    &minicpm::MINICPM,
    &lfm2::LFM2,
    &minicpm5::MINICPM5,
    &qwen_coder::QWEN_CODER,
    &smollm3::SMOLLM3,
    &phi4::PHI4,
    &granite::GRANITE,
    &hermes::HERMES,
    &pythonic::PYTHONIC,
    &llama::LLAMA,
];

/// A call that is written.
#[derive(Debug, Clone, Copy)]
pub(crate) struct WrittenCall<'c> {
    name: &'c str,
    /// An object, or a text that is none.
    arguments: &'c Value,
}

/// Whether a text begins a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Begins {
    Never,
    /// If the right text follows.
    Perhaps,
    /// Its first bytes do, up to the name of a function.
    At(usize),
}

impl From<Result<usize, Stop>> for Begins {
    fn from(read: Result<usize, Stop>) -> Self {
        match read {
            Ok(at) => Self::At(at),
            Err(Stop::More) => Self::Perhaps,
            Err(Stop::Bad) => Self::Never,
        }
    }
}

/// What an output with tools may be.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Form<'a> {
    /// Behind the opening of a call: the rest of it, and further calls.
    BehindMarker,
    /// Calls.
    Calls,
    /// Calls, or JSON under a schema, which is at this path in the request.
    CallsOr { schema: &'a Value, path: &'a str },
}

/// A form of calls.
pub(crate) trait ToolFormat: Sync {
    fn name(&self) -> &'static str;

    /// Whether a chat template has this form. The forms that come first in [`FORMATS`] do not recognise it.
    fn recognises(&self, template: &str) -> bool;

    /// Markers in free text behind which calls may follow, the usual one first.
    fn opens(&self) -> &'static [&'static str];

    /// Further markers that some vocabularies have as control tokens, whose text outputs do not have.
    fn controls(&self) -> &'static [&'static str];

    /// The markers behind which the grammar begins.
    fn triggers(&self) -> &'static [&'static str] {
        &self.opens()[..1]
    }

    /// The first character of an output that may be calls without a marker.
    fn begins_with(&self) -> Option<char> {
        None
    }

    /// Whether the beginning of an output is that of a call of one of these functions, without a marker. From there on it follows the grammar, which
    /// has the beginning too.
    fn begins(&self, _text: &str, _names: &[&str]) -> Begins {
        Begins::Never
    }

    /// Whether a marker means a call behind what `splitter` has read. Elsewhere it is only mentioned.
    fn may_call(&self, splitter: &ReasoningSplitter) -> bool {
        splitter.kind() == TextKind::Answer && !splitter.is_in_header()
    }

    /// Writes the rules of calls. Returns the expression of all calls: without the opening marker, if `is_begun`.
    fn calls(&self, lark: &mut Lark<'_>, tools: &Tools, is_begun: bool) -> String;

    /// The grammar of an output. `is_open`: whether it begins inside its reasoning.
    fn grammar(&self, mut lark: Lark<'_>, tools: &Tools, _is_open: bool, form: Form<'_>) -> String {
        let calls = self.calls(&mut lark, tools, matches!(form, Form::BehindMarker));
        match form {
            Form::BehindMarker | Form::Calls => lark.finish(&calls),
            Form::CallsOr { schema, .. } => {
                lark.rule("some_calls", &calls);
                let answer = lark.json("json_answer", schema);
                lark.finish(&format!("some_calls | {answer}"))
            }
        }
    }

    /// Reads calls behind a marker, or without one (`""`).
    fn body(&self, signatures: &Arc<[Signature]>, marker: &'static str) -> Box<dyn Body>;

    /// Writes calls as the model would.
    fn write(&self, calls: &[WrittenCall<'_>]) -> String;

    /// Tells a template about tools.
    fn show(&self, _messages: &mut Vec<Message>, options: &mut ChatOptions, tools: Vec<Value>) {
        options.tools = tools;
    }

    /// Another id of an earlier call, where the templates have a rule for ids.
    fn id(&self, _id: &str) -> Option<String> {
        None
    }

    /// Whether templates fail for a tool without a description.
    fn needs_description(&self) -> bool {
        false
    }

    /// Whether calls are messages in channels of their own.
    fn has_channels(&self) -> bool {
        false
    }
}

impl fmt::Debug for dyn ToolFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The form with a name.
#[cfg(test)]
pub(crate) fn named(name: &str) -> &'static dyn ToolFormat {
    FORMATS.into_iter().find(|format| format.name() == name).expect("a form with this name")
}

/// The grammar of calls, in llguidance's variant of Lark. `is_open`: whether the output begins inside its reasoning.
pub(crate) fn grammar(
    format: &dyn ToolFormat,
    tools: &Tools,
    tokenizer: &Tokenizer,
    is_open: bool,
    form: Form<'_>,
) -> String {
    let control = |text: &str| tokenizer.token_id(text).filter(|&id| tokenizer.is_special(id));
    format.grammar(Lark::new(&control), tools, is_open, form)
}

/// Reads an output in the model's form.
#[derive(Debug)]
pub(crate) enum OutputReader {
    Marked(Reader, &'static dyn ToolFormat),
    Channels(ChannelReader),
}

impl OutputReader {
    /// `answers_json`: whether the output is calls or JSON.
    pub(crate) fn new(format: &'static dyn ToolFormat, tools: &Tools, answers_json: bool) -> Self {
        match format.has_channels() {
            true => Self::Channels(ChannelReader::new(tools)),
            false => Self::Marked(Reader::new(format, tools, answers_json), format),
        }
    }

    /// Reads the next text of the answer.
    pub(crate) fn push(&mut self, text: &str, out: &mut Vec<CallPart>) {
        match self {
            Self::Marked(reader, _) => reader.push(text, out),
            Self::Channels(reader) => out.push(reader.part(text)),
        }
    }

    /// Reads a token behind its text. In some vocabularies the markers of a form are control tokens, which have no text. `splitter` has read
    /// the token.
    pub(crate) fn push_token(
        &mut self,
        tokenizer: &Tokenizer,
        token: TokenId,
        splitter: &ReasoningSplitter,
        out: &mut Vec<CallPart>,
    ) {
        match self {
            Self::Marked(reader, format) => {
                if !tokenizer.is_special(token) || !format.may_call(splitter) {
                    return;
                }
                let bytes = tokenizer.token_bytes(token).unwrap_or_default();
                let mut markers = format.opens().iter().chain(format.controls());
                if let Some(marker) = markers.find(|marker| marker.as_bytes() == bytes) {
                    reader.push(marker, out);
                }
            }
            Self::Channels(reader) => out.extend(reader.header(splitter.recipient())),
        }
    }

    /// The output has ended.
    pub(crate) fn finish(&mut self, out: &mut Vec<CallPart>) {
        if let Self::Marked(reader, _) = self {
            reader.finish(out);
        }
    }
}

/// Reads a token for what the splitter then says of it.
pub(super) fn read_token(splitter: &mut ReasoningSplitter, tokenizer: &Tokenizer, token: TokenId) {
    let text = String::from_utf8_lossy(tokenizer.token_bytes(token).unwrap_or_default());
    let mut unused = Vec::new();
    match tokenizer.is_special(token) {
        true => splitter.push_control(&text, &mut unused),
        false => splitter.push(&text, &mut unused),
    }
}
