//! Calls of tools in the channels of gpt-oss: a message whose header names a function as its recipient.
//!
//! ```text
//! <|channel|>analysis<|message|>Where?<|end|><|start|>assistant
//! <|channel|>commentary to=functions.weather <|constrain|>json<|message|>{"city":"Oslo"}<|call|>
//! ```
//!
//! The recipient may also stand before the channel, as the chat template writes it. `<|call|>` ends the output, so it has one call. The line
//! break above is not part of the form.

use refrain::Tokenizer;
use serde_json::Value;

use super::call_form::{CHANNEL_MARKER, CallPart, Form, call_rules, json_rule};
use super::request::Tools;

/// The names of recipients that are functions.
const NAMESPACE: &str = "functions.";

/// The grammar of a call, in llguidance's variant of Lark. `is_open`: whether the output begins inside its reasoning.
pub(crate) fn grammar(tools: &Tools, tokenizer: &Tokenizer, is_open: bool, form: Form<'_>) -> String {
    let reasons = if is_open { "rest thought*" } else { "thought*" };
    let reasoning = format!(
        "rest: /(.|\\n)*/ <|end|> <|start|> \"assistant\"\nthought: <|channel|> \"analysis\" <|message|> rest\n\
         begin: <|channel|> \"commentary{CHANNEL_MARKER}\" | \"{CHANNEL_MARKER}\"\n"
    );
    let mut grammar = match form {
        Form::BehindMarker => "start: call\n".to_owned(),
        Form::Calls => format!("start: {reasons} begin call\n{reasoning}"),
        Form::CallsOr { schema, .. } => format!(
            "start: {reasons} begin call | {reasons} answer\n{reasoning}\
             answer: <|channel|> \"final\" kind? <|message|> json\njson: {}\n",
            json_rule(schema)
        ),
    };
    let has_constrain = tokenizer.token_id("<|constrain|>").is_some_and(|id| tokenizer.is_special(id));
    let constrain = if has_constrain { " | \" \"? <|constrain|> \"json\"" } else { "" };
    grammar.push_str(&format!("channel: <|channel|> \"commentary\"\nkind: \" json\"{constrain}\n"));
    let rule = |name: &str, arguments: &str| {
        format!("{} channel? kind? <|message|> {arguments}", Value::from(format!(".{name}")))
    };
    grammar + &call_rules(tools, rule)
}

/// Reads the calls of an output whose headers the reasoning splitter has removed.
#[derive(Debug)]
pub(crate) struct ChannelReader {
    names: Vec<String>,
    /// Whether the newest message is a call.
    is_call: bool,
}

impl ChannelReader {
    pub(crate) fn new(tools: &Tools) -> Self {
        Self {
            names: tools.callable().iter().map(|function| function.name.clone()).collect(),
            is_call: false,
        }
    }

    /// What a text of the newest message is.
    pub(crate) fn part(&self, text: &str) -> CallPart {
        match self.is_call {
            true => CallPart::Arguments(text.to_owned()),
            false => CallPart::Text(text.to_owned()),
        }
    }

    /// The next text belongs to a message with this recipient. The beginning of a call, if it is one; a recipient that is no function of
    /// the request calls nothing.
    pub(crate) fn header(&mut self, recipient: Option<&str>) -> Option<CallPart> {
        let name = recipient.and_then(|recipient| recipient.strip_prefix(NAMESPACE));
        let name = name.filter(|name| self.names.iter().any(|known| known == name));
        let has_begun = std::mem::replace(&mut self.is_call, name.is_some());
        name.filter(|_| !has_begun).map(|name| CallPart::Begin(name.to_owned()))
    }
}
