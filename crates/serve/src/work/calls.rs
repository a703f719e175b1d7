//! Calls of tools: how a model is told about them, how it writes them, and how they are read while they arrive.
//!
//! gpt-oss calls in [`channels`](super::channels). All other models call in one form, that of the Hermes and Qwen families:
//!
//! ```text
//! <tool_call>
//! {"name": "weather", "arguments": {"city": "Oslo"}}
//! </tool_call>
//! ```
//!
//! If the model's chat template writes its form, the template gets the tools. Otherwise the form above is described in the system turn. The
//! grammar allows exactly this form, so the reader below never meets another one, except where the output ends early.

use refrain::internals::tokenizer::ReasoningSplitter;
use refrain::{Message, Role, TextKind, TokenId, Tokenizer};
use serde_json::{Value, json};

use super::call_form::{CLOSE, CallFormat, CallPart, Form, OPEN, call_rules, json_rule};
use super::channels::ChannelReader;
use super::request::{Function, Tools};

/// Calls of one output: a small model could go on for ever.
const CALLS_MAX: usize = 16;

/// A function as templates expect it.
pub(crate) fn function_json(function: &Function, format: CallFormat) -> Value {
    let mut inner = json!({ "name": function.name });
    // The template of gpt-oss fails without one.
    let default = (format == CallFormat::Channels).then_some("");
    if let Some(description) = function.description.as_deref().or(default) {
        inner["description"] = description.into();
    }
    inner["parameters"] = function.parameters.clone();
    json!({ "type": "function", "function": inner })
}

/// Writes tools, earlier calls and their results as plain turns, for a template without tools.
pub(crate) fn as_text(messages: &mut Vec<Message>, functions: &[&Function]) {
    for message in messages.iter_mut() {
        if !message.tool_calls.is_empty() {
            for call in std::mem::take(&mut message.tool_calls) {
                let call =
                    json!({ "name": call["function"]["name"], "arguments": call["function"]["arguments"] });
                let separator = if message.content.is_empty() { "" } else { "\n" };
                message.content.push_str(&format!("{separator}{OPEN}\n{call}\n{CLOSE}"));
            }
        }
        if message.role == Role::Tool {
            message.role = Role::User;
            message.content = format!("<tool_response>\n{}\n</tool_response>", message.content);
            (message.tool_call_id, message.name) = (None, None);
        }
    }
    if functions.is_empty() {
        return;
    }
    let mut text = String::from("You can call functions. Each line is one:\n");
    for function in functions {
        text.push_str(&function_json(function, CallFormat::Text).to_string());
        text.push('\n');
    }
    let example = r#"{"name": NAME, "arguments": {...}}"#;
    text.push_str(&format!("To call one, write:\n{OPEN}\n{example}\n{CLOSE}"));
    match messages.first_mut() {
        Some(first) if matches!(first.role, Role::System | Role::Developer) => {
            first.content = format!("{}\n\n{text}", first.content);
        }
        _ => messages.insert(0, Message::new(Role::System, text)),
    }
}

/// The part of a call before its arguments, behind the opening marker.
fn before_arguments(name: &str) -> String {
    format!("\n{{\"name\": {}, \"arguments\": ", Value::from(name))
}

/// The part of a call behind its arguments.
fn after_arguments() -> String {
    format!("}}\n{CLOSE}")
}

/// The grammar of one or more calls, in llguidance's variant of Lark.
pub(crate) fn grammar(tools: &Tools, is_open_special: bool, form: Form<'_>) -> String {
    // The escapes of JSON strings are those of Lark for this text.
    let literal = |text: &str| Value::from(text).to_string();
    let open = if is_open_special { OPEN.to_owned() } else { literal(OPEN) };
    let first = if matches!(form, Form::BehindMarker) { "call".to_owned() } else { format!("{open} call") };
    let further = match tools.is_parallel {
        true => format!(" ({} {open} call){{0,{}}}", literal("\n"), CALLS_MAX - 1),
        false => String::new(),
    };
    let grammar = match form {
        Form::BehindMarker | Form::Calls => format!("start: {first}{further}\n"),
        Form::CallsOr { schema, .. } => {
            format!("start: calls | answer\ncalls: {first}{further}\nanswer: {}\n", json_rule(schema))
        }
    };
    let rule = |name: &str, arguments: &str| {
        format!("{} {arguments} {}", literal(&before_arguments(name)), literal(&after_arguments()))
    };
    grammar + &call_rules(tools, rule)
}

/// Reads an output in the model's form.
#[derive(Debug)]
pub(crate) enum OutputReader {
    Marked(CallReader),
    Channels(ChannelReader),
}

impl OutputReader {
    /// `answers_json`: whether the output is calls or JSON.
    pub(crate) fn new(format: CallFormat, tools: &Tools, answers_json: bool) -> Self {
        match format {
            CallFormat::Channels => Self::Channels(ChannelReader::new(tools)),
            _ if answers_json => Self::Marked(CallReader::of_calls_or_json(tools)),
            _ => Self::Marked(CallReader::new(tools)),
        }
    }

    /// Reads the next text of the answer.
    pub(crate) fn push(&mut self, text: &str, out: &mut Vec<CallPart>) {
        match self {
            Self::Marked(reader) => reader.push(text, out),
            Self::Channels(reader) => out.push(reader.part(text)),
        }
    }

    /// Reads a token behind its text. In some vocabularies the marker of a call is a control token, which has no text. `splitter` has read
    /// the token.
    pub(crate) fn push_token(
        &mut self,
        tokenizer: &Tokenizer,
        token: TokenId,
        splitter: &ReasoningSplitter,
        out: &mut Vec<CallPart>,
    ) {
        match self {
            Self::Marked(reader) => {
                let is_open =
                    tokenizer.is_special(token) && tokenizer.token_bytes(token) == Some(OPEN.as_bytes());
                if is_open && splitter.kind() == TextKind::Answer {
                    reader.push(OPEN, out);
                }
            }
            Self::Channels(reader) => out.extend(reader.header(splitter.recipient())),
        }
    }

    /// The output has ended.
    pub(crate) fn finish(&mut self, out: &mut Vec<CallPart>) {
        if let Self::Marked(reader) = self {
            reader.finish(out);
        }
    }
}

/// Reads an output of the form above while it arrives.
#[derive(Debug)]
pub(crate) struct CallReader {
    names: Vec<String>,
    state: State,
    /// Text that is not decided yet.
    held: String,
}

#[derive(Debug)]
enum State {
    /// The beginning of an output that is calls or JSON.
    Start,
    /// JSON, in which a marker is text.
    Answer,
    /// Free text, up to the opening marker.
    Free,
    /// Behind the opening marker.
    Head,
    Arguments(JsonScan),
    /// Behind the arguments.
    Tail,
    /// Between two calls.
    Between,
}

/// The end of a JSON object, byte by byte.
#[derive(Debug, Default)]
struct JsonScan {
    depth: usize,
    is_in_string: bool,
    is_escaped: bool,
}

impl JsonScan {
    /// Whether the object ends with this byte.
    fn ends(&mut self, byte: u8) -> bool {
        if self.is_in_string {
            match byte {
                _ if self.is_escaped => self.is_escaped = false,
                b'\\' => self.is_escaped = true,
                b'"' => self.is_in_string = false,
                _ => {}
            }
            return false;
        }
        match byte {
            b'"' => self.is_in_string = true,
            b'{' | b'[' => self.depth += 1,
            b'}' | b']' => {
                self.depth = self.depth.saturating_sub(1);
                return self.depth == 0;
            }
            _ => {}
        }
        false
    }
}

impl CallReader {
    pub(crate) fn new(tools: &Tools) -> Self {
        let names = tools.callable().iter().map(|function| function.name.clone()).collect();
        Self { names, state: State::Free, held: String::new() }
    }

    /// A reader of an output that is calls or JSON.
    pub(crate) fn of_calls_or_json(tools: &Tools) -> Self {
        Self { state: State::Start, ..Self::new(tools) }
    }

    /// Reads the next text.
    pub(crate) fn push(&mut self, text: &str, out: &mut Vec<CallPart>) {
        self.held.push_str(text);
        while self.step(out) {}
    }

    /// The output has ended.
    pub(crate) fn finish(&mut self, out: &mut Vec<CallPart>) {
        if matches!(self.state, State::Start | State::Free) && !self.held.is_empty() {
            out.push(CallPart::Text(std::mem::take(&mut self.held)));
        }
        // What is left of a call that was cut has no meaning.
        self.held.clear();
    }

    /// Decides a part of the held text; whether another step may decide more.
    fn step(&mut self, out: &mut Vec<CallPart>) -> bool {
        match &mut self.state {
            State::Start if self.held.is_empty() => false,
            State::Start => {
                if !OPEN.starts_with(&*self.held) && !self.held.starts_with(OPEN) {
                    self.state = State::Answer;
                    return true;
                }
                let is_call = self.held.len() >= OPEN.len();
                if is_call {
                    self.state = State::Free;
                }
                is_call
            }
            State::Answer => {
                if !self.held.is_empty() {
                    out.push(CallPart::Text(std::mem::take(&mut self.held)));
                }
                false
            }
            State::Free => {
                if let Some(at) = self.held.find(OPEN) {
                    // White space between an introduction and a call belongs to neither.
                    let text = self.held[..at].trim_end();
                    if !text.is_empty() {
                        out.push(CallPart::Text(text.to_owned()));
                    }
                    self.held.drain(..at + OPEN.len());
                    self.state = State::Head;
                    return true;
                }
                let keep = undecided(&self.held);
                let text: String = self.held.drain(..self.held.len() - keep).collect();
                if !text.is_empty() {
                    out.push(CallPart::Text(text));
                }
                false
            }
            State::Head => {
                let head = self.names.iter().find_map(|name| {
                    let head = before_arguments(name);
                    self.held.starts_with(&head).then_some((name.clone(), head.len()))
                });
                let Some((name, n_bytes)) = head else {
                    let held = self.held.as_str();
                    if self.names.iter().any(|name| before_arguments(name).starts_with(held)) {
                        return false;
                    }
                    // Not a call, so it is text. The grammar allows no such output.
                    out.push(CallPart::Text(OPEN.to_owned()));
                    self.state = State::Free;
                    return true;
                };
                self.held.drain(..n_bytes);
                out.push(CallPart::Begin(name));
                self.state = State::Arguments(JsonScan::default());
                true
            }
            State::Arguments(scan) => {
                let end = self.held.bytes().position(|byte| scan.ends(byte));
                // The object ends with an ASCII byte, so this is the end of a character.
                let n_bytes = end.map_or(self.held.len(), |end| end + 1);
                let text: String = self.held.drain(..n_bytes).collect();
                if !text.is_empty() {
                    out.push(CallPart::Arguments(text));
                }
                if end.is_none() {
                    return false;
                }
                self.state = State::Tail;
                true
            }
            State::Tail => {
                let tail = after_arguments();
                if !self.held.starts_with(&tail) {
                    return false;
                }
                self.held.drain(..tail.len());
                self.state = State::Between;
                true
            }
            State::Between => match self.held.find(OPEN) {
                Some(at) => {
                    self.held.drain(..at + OPEN.len());
                    self.state = State::Head;
                    true
                }
                None => false,
            },
        }
    }
}

/// Bytes at the end of a free text that may belong to a marker: white space, and the marker's beginning.
fn undecided(text: &str) -> usize {
    let n_marker = (1..OPEN.len()).rev().find(|&n| text.ends_with(&OPEN[..n])).unwrap_or(0);
    let before = &text[..text.len() - n_marker];
    text.len() - before.trim_end().len()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn tools() -> Tools {
        let function = |name: &str| Function {
            name: name.to_owned(),
            description: None,
            parameters: json!({ "type": "object" }),
            path: String::new(),
        };
        Tools { functions: vec![function("a"), function("ab")], is_parallel: true, ..Tools::default() }
    }

    fn read<'a>(pieces: impl IntoIterator<Item = &'a str>) -> (String, Vec<(String, String)>) {
        let mut reader = CallReader::new(&tools());
        let mut parts = Vec::new();
        for piece in pieces {
            reader.push(piece, &mut parts);
        }
        reader.finish(&mut parts);
        let (mut text, mut calls) = (String::new(), Vec::<(String, String)>::new());
        for part in parts {
            match part {
                CallPart::Text(piece) => text.push_str(&piece),
                CallPart::Begin(name) => calls.push((name, String::new())),
                CallPart::Arguments(piece) => calls.last_mut().expect("a call has begun").1.push_str(&piece),
            }
        }
        (text, calls)
    }

    proptest! {
        #[test]
        fn calls_are_read_however_they_are_cut(
            text in "[a-z<> \n]{0,12}",
            values in prop::collection::vec(any::<String>(), 0..3),
            cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..8),
        ) {
            prop_assume!(!text.contains(OPEN));
            let calls: Vec<(String, String)> =
                values.iter().map(|value| ("ab".to_owned(), json!({ "x": [value, {}] }).to_string())).collect();
            let mut output = text.clone();
            for (index, (name, arguments)) in calls.iter().enumerate() {
                let separator = if index > 0 { "\n" } else { "" };
                output.push_str(&format!("{separator}{OPEN}{}{arguments}{}", before_arguments(name), after_arguments()));
            }
            let ends: Vec<usize> = output.char_indices().map(|(at, _)| at).collect();
            let mut cuts: Vec<usize> =
                cuts.iter().filter(|_| !ends.is_empty()).map(|cut| ends[cut.index(ends.len())]).collect();
            cuts.sort_unstable();
            cuts.push(output.len());
            let mut from = 0;
            let pieces: Vec<&str> =
                cuts.into_iter().map(|cut| &output[std::mem::replace(&mut from, cut)..cut]).collect();
            let expected = if calls.is_empty() { text.as_str() } else { text.trim_end() };
            prop_assert_eq!(read(pieces), (expected.to_owned(), calls));
        }
    }

    #[test]
    fn a_marker_inside_json_is_text() {
        let read = |pieces: &[&str]| {
            let mut reader = CallReader::of_calls_or_json(&tools());
            let mut parts = Vec::new();
            pieces.iter().for_each(|piece| reader.push(piece, &mut parts));
            reader.finish(&mut parts);
            parts
        };
        let json = format!(r#"{{"x":"{OPEN}\n"}}"#);
        assert_eq!(read(&[json.as_str()]), [CallPart::Text(json.clone())]);
        assert_eq!(read(&["<", "tool"]), [CallPart::Text("<tool".to_owned())]);
        let call = format!("{}{{}}{}", before_arguments("a"), after_arguments());
        let parts = read(&["<tool_", "call>", call.as_str()]);
        assert_eq!(parts, [CallPart::Begin("a".to_owned()), CallPart::Arguments("{}".to_owned())]);
    }

    #[test]
    fn a_call_that_is_cut_has_the_arguments_so_far() {
        let cut = format!("So: {OPEN}{}{{\"x\": \"y", before_arguments("a"));
        assert_eq!(
            read([cut.as_str()]),
            ("So:".to_owned(), vec![("a".to_owned(), "{\"x\": \"y".to_owned())])
        );
        assert_eq!(read(["a <tool", "_c"]).0, "a <tool_c");
        let no_call = format!("a{OPEN}\nb");
        assert_eq!(read([no_call.as_str()]), (no_call.clone(), Vec::new()));
    }
}
