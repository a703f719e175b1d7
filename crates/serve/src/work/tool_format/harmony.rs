//! gpt-oss: a message in a channel, whose header names a function as its recipient.
//!
//! ```text
//! <|channel|>analysis<|message|>Where?<|end|><|start|>assistant
//! <|channel|>commentary to=functions.weather <|constrain|>json<|message|>{"city":"Oslo"}<|call|>
//! ```
//!
//! The recipient may also stand before the channel, as the chat template writes it. `<|call|>` ends the output, so it has one call. The line
//! break above is not part of the form. The splitter of reasoning removes the headers.

use std::sync::Arc;

use refrain::internals::tokenizer::ReasoningSplitter;

use super::lark::{Lark, Part, literal};
use super::reader::{Body, CallPart};
use super::signature::Signature;
use super::{Form, ToolFormat, WrittenCall};
use crate::work::request::Tools;

/// The beginning of a function as the recipient. The point belongs to the grammar, because tokens join it with the name.
const MARKER: &str = " to=functions";

/// The names of recipients that are functions.
const NAMESPACE: &str = "functions.";

pub(super) struct Harmony;

impl ToolFormat for Harmony {
    fn name(&self) -> &'static str {
        "harmony"
    }

    fn recognises(&self, template: &str) -> bool {
        ["<|channel|>", "<|message|>", "functions"].iter().all(|part| template.contains(part))
    }

    fn opens(&self) -> &'static [&'static str] {
        &[MARKER]
    }

    fn controls(&self) -> &'static [&'static str] {
        &[]
    }

    fn may_call(&self, splitter: &ReasoningSplitter) -> bool {
        splitter.is_in_header()
    }

    fn calls(&self, lark: &mut Lark<'_>, tools: &Tools, _is_begun: bool) -> String {
        let constrain = match lark.is_control("<|constrain|>") {
            true => format!(" | \" \"? {} \"json\"", lark.sequence(&[Part::Marker("<|constrain|>")])),
            false => String::new(),
        };
        let channel = lark.sequence(&[Part::Marker("<|channel|>"), Part::Text("commentary")]);
        let message = lark.sequence(&[Part::Marker("<|message|>")]);
        lark.rule("channel", &channel);
        lark.rule("message", &message);
        lark.rule("kind", &format!("\" json\"{constrain}"));
        lark.each(tools, |lark, function, index| {
            let arguments = lark.json(&format!("arguments_{index}"), &function.parameters);
            format!("{} channel? kind? message {arguments}", literal(&format!(".{}", function.name)))
        });
        "call".to_owned()
    }

    fn grammar(&self, lark: Lark<'_>, tools: &Tools, is_open: bool, form: Form<'_>) -> String {
        let mut lark = lark;
        let call = self.calls(&mut lark, tools, true);
        let start = if matches!(form, Form::BehindMarker) {
            call
        } else {
            let parts = [Part::Marker("<|end|>"), Part::Marker("<|start|>"), Part::Text("assistant")];
            let behind = lark.sequence(&parts);
            lark.rule("rest", &format!("/(.|\\n)*/ {behind}"));
            let thought = lark.sequence(&[Part::Marker("<|channel|>"), Part::Text("analysis")]);
            lark.rule("thought", &format!("{thought} message rest"));
            let recipient = format!("commentary{MARKER}");
            let named = lark.sequence(&[Part::Marker("<|channel|>"), Part::Text(&recipient)]);
            lark.rule("begin", &format!("{named} | {}", literal(MARKER)));
            let reasons = if is_open { "rest thought*" } else { "thought*" };
            match form {
                Form::CallsOr { schema, .. } => {
                    let last = lark.sequence(&[Part::Marker("<|channel|>"), Part::Text("final")]);
                    let json = lark.json("json_answer", schema);
                    format!("{reasons} begin {call} | {reasons} {last} kind? message {json}")
                }
                _ => format!("{reasons} begin {call}"),
            }
        };
        lark.finish(&start)
    }

    fn body(&self, _signatures: &Arc<[Signature]>, _marker: &'static str) -> Box<dyn Body> {
        unreachable!("its calls are found by their headers")
    }

    fn write(&self, calls: &[WrittenCall<'_>]) -> String {
        let call = |call: &WrittenCall<'_>| {
            let (name, arguments) = (call.name, call.arguments);
            format!("<|channel|>commentary{MARKER}.{name} <|constrain|>json<|message|>{arguments}<|call|>")
        };
        calls.iter().map(call).collect()
    }

    fn needs_description(&self) -> bool {
        true
    }

    fn has_channels(&self) -> bool {
        true
    }
}

/// Reads the calls of an output whose headers the reasoning splitter has removed.
#[derive(Debug)]
pub(crate) struct ChannelReader {
    signatures: Arc<[Signature]>,
    /// Whether the newest message is a call.
    is_call: bool,
}

impl ChannelReader {
    pub(super) fn new(tools: &Tools) -> Self {
        Self { signatures: Signature::all(tools), is_call: false }
    }

    /// What a text of the newest message is.
    pub(super) fn part(&self, text: &str) -> CallPart {
        match self.is_call {
            true => CallPart::Arguments(text.to_owned()),
            false => CallPart::Text(text.to_owned()),
        }
    }

    /// The next text belongs to a message with this recipient. The beginning of a call, if it is one; a recipient that is no function of
    /// the request calls nothing.
    pub(super) fn header(&mut self, recipient: Option<&str>) -> Option<CallPart> {
        let name = recipient.and_then(|recipient| recipient.strip_prefix(NAMESPACE));
        let name = name.filter(|name| Signature::find(&self.signatures, name).is_some());
        let has_begun = std::mem::replace(&mut self.is_call, name.is_some());
        name.filter(|_| !has_begun).map(|name| CallPart::Begin(name.to_owned()))
    }
}
