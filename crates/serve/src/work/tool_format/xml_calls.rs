//! Calls as elements, whose arguments are texts: `<function=f><parameter=a>b</parameter></function>`.
//!
//! The schema of a parameter says which value its text means. A text that is no value of these types stays a text.

use std::sync::Arc;

use serde_json::Value;

use super::held::{Cursor, Held, Stop};
use super::lark::{Lark, Part, literal};
use super::literal::{Literal, PYTHON, number, push_escaped};
use super::reader::{Body, CallPart, Step, n_begun};
use super::signature::{Parameter, Signature, Types, alone};
use super::{ToolFormat, WrittenCall};
use crate::work::request::{Function, Tools};

/// Maximum bytes of a value that is no text, which is held until its end. A longer one is a text.
const VALUE_BYTES_MAX: usize = 256 << 10;

/// The marker before a text that has markers in it, and the one behind.
const CDATA: (&str, &str) = ("<![CDATA[", "]]>");

/// A form of calls as elements.
pub(super) struct XmlCalls {
    pub(super) name: &'static str,
    pub(super) recognises: fn(&str) -> bool,
    /// Markers around each call, beside those of the element.
    pub(super) around: Option<(&'static str, &'static str)>,
    pub(super) opens: &'static [&'static str],
    pub(super) controls: &'static [&'static str],
    pub(super) function: &'static Element,
    pub(super) parameter: &'static Element,
    /// The text behind the beginning of an element and before its end.
    pub(super) line: &'static str,
}

/// An element with a name.
#[derive(Debug)]
pub(super) struct Element {
    /// The marker that begins it.
    pub(super) open: &'static str,
    /// The texts before and behind its name.
    pub(super) name: (&'static str, &'static str),
    /// The marker that ends it.
    pub(super) close: &'static str,
}

impl Element {
    fn parts<'t>(&'t self, name: &'t str) -> [Part<'t>; 4] {
        [Part::Marker(self.open), Part::Text(self.name.0), Part::Text(name), Part::Text(self.name.1)]
    }

    fn begin(&self, name: &str) -> String {
        format!("{}{}{name}{}", self.open, self.name.0, self.name.1)
    }

    /// Reads the name behind the marker.
    fn read(&self, cursor: &mut Cursor<'_>) -> Result<String, Stop> {
        for c in self.name.0.chars() {
            match c {
                ' ' => cursor.space(),
                // Either quotation mark.
                '"' => {
                    let quote = cursor.peek()?;
                    if !matches!(quote, '"' | '\'') {
                        return Err(Stop::Bad);
                    }
                    cursor.at += 1;
                    let name = cursor.run(|c| c != quote && c != '>')?.to_owned();
                    cursor.literal(quote.encode_utf8(&mut [0; 4]))?;
                    cursor.space();
                    cursor.literal(">")?;
                    return Ok(name);
                }
                c => cursor.literal(c.encode_utf8(&mut [0; 4]))?,
            }
        }
        let name = cursor.run(|c| c != '>' && c != '\n')?.trim().to_owned();
        cursor.literal(">")?;
        Ok(name)
    }
}

impl XmlCalls {
    /// The rule of a parameter.
    fn argument(&self, lark: &mut Lark<'_>, function: &Function, parameter: &Parameter, rule: &str) {
        let (close, line) = (self.parameter.close, self.line);
        let mut parts = self.parameter.parts(&parameter.name).to_vec();
        let value = match &parameter.values {
            _ if !parameter.types.text => {
                let value = lark.json(&format!("value_of_{rule}"), &alone(function, &parameter.name));
                lark.sequence(&[Part::Text(line), Part::Rule(&value), Part::Text(line), Part::Marker(close)])
            }
            Some(values) if !values.is_empty() => {
                let texts = values.iter().map(|value| match value {
                    Value::String(text) => literal(text),
                    value => literal(&value.to_string()),
                });
                let value = format!("({})", texts.collect::<Vec<_>>().join(" | "));
                lark.sequence(&[Part::Text(line), Part::Rule(&value), Part::Text(line), Part::Marker(close)])
            }
            _ => {
                parts.push(Part::Text(line));
                lark.text_until(close)
            }
        };
        parts.extend([Part::Rule(&value), Part::Text(line)]);
        let right = lark.sequence(&parts);
        lark.rule(rule, &right);
    }

    /// All arguments, in order.
    fn arguments(&self, lark: &mut Lark<'_>, function: &Function, index: usize) -> String {
        let signature = Signature::of(function);
        if signature.is_open {
            let text = lark.text_until(self.parameter.close);
            let before = [Part::Marker(self.parameter.open), Part::Text(self.parameter.name.0)];
            let name = format!(
                "/[A-Za-z0-9_.\\-]{{1,64}}/ {}",
                literal(&format!("{}{}", self.parameter.name.1, self.line))
            );
            let (before, line) = (lark.sequence(&before), lark.sequence(&[Part::Text(self.line)]));
            let rule = format!("any_argument_{index}");
            lark.rule(&rule, &format!("{before} {name} {text} {line}"));
            return format!("{rule}{{0,16}}");
        }
        let mut all = Vec::new();
        for (place, parameter) in signature.parameters.iter().enumerate() {
            let rule = format!("argument_{index}_{place}");
            self.argument(lark, function, parameter, &rule);
            all.push(if parameter.is_required { rule } else { format!("{rule}?") });
        }
        all.join(" ")
    }
}

impl ToolFormat for XmlCalls {
    fn name(&self) -> &'static str {
        self.name
    }

    fn recognises(&self, template: &str) -> bool {
        (self.recognises)(template)
    }

    fn opens(&self) -> &'static [&'static str] {
        self.opens
    }

    fn controls(&self) -> &'static [&'static str] {
        self.controls
    }

    fn calls(&self, lark: &mut Lark<'_>, tools: &Tools, is_begun: bool) -> String {
        let line = self.line;
        lark.each(tools, |lark, function, index| {
            let arguments = self.arguments(lark, function, index);
            let mut parts = self.function.parts(&function.name).to_vec();
            match self.around {
                // The marker before is not a part of the rule.
                Some(_) => parts.insert(0, Part::Text(line)),
                None => drop(parts.remove(0)),
            }
            parts.extend([Part::Text(line), Part::Rule(&arguments), Part::Marker(self.function.close)]);
            if let Some((_, close)) = self.around {
                parts.extend([Part::Text(line), Part::Marker(close)]);
            }
            lark.sequence(&parts)
        });
        let marker = Part::Marker(self.opens[0]);
        let further = lark.sequence(&[Part::Text("\n"), marker, Part::Rule("call")]);
        let first = if is_begun { "call".to_owned() } else { lark.sequence(&[marker, Part::Rule("call")]) };
        lark.repeated(first, &further, tools)
    }

    fn body(&self, signatures: &Arc<[Signature]>, marker: &'static str) -> Box<dyn Body> {
        Box::new(XmlBody {
            signatures: Arc::clone(signatures),
            function: self.function,
            parameter: self.parameter,
            close: self.around.map(|(_, close)| close),
            has_lines: !self.line.is_empty(),
            is_open: marker == self.function.open,
            state: State::Head,
            called: 0,
            has_argument: false,
        })
    }

    fn write(&self, calls: &[WrittenCall<'_>]) -> String {
        let line = self.line;
        let call = |call: &WrittenCall<'_>| {
            let (open, close) = self.around.unwrap_or_default();
            let mut text = String::new();
            for (name, value) in call.arguments.as_object().into_iter().flatten() {
                let value = match value {
                    Value::String(text) => text.clone(),
                    value => value.to_string(),
                };
                text.push_str(&format!(
                    "{}{line}{value}{line}{}{line}",
                    self.parameter.begin(name),
                    self.parameter.close
                ));
            }
            let (before, behind) = if open.is_empty() { ("", "") } else { (line, line) };
            format!(
                "{open}{before}{}{line}{text}{}{behind}{close}",
                self.function.begin(call.name),
                self.function.close
            )
        };
        calls.iter().map(call).collect::<Vec<_>>().join("\n")
    }
}

/// Reads the elements.
#[derive(Debug)]
struct XmlBody {
    signatures: Arc<[Signature]>,
    function: &'static Element,
    parameter: &'static Element,
    /// The marker behind a call.
    close: Option<&'static str>,
    /// Whether values stand on lines of their own.
    has_lines: bool,
    /// Whether the marker of a function has been read.
    is_open: bool,
    state: State,
    /// The signature of the function that is called.
    called: usize,
    has_argument: bool,
}

#[derive(Debug, Clone, Copy)]
enum State {
    /// Before a function.
    Head,
    /// Before a parameter, or the end of the function.
    Between,
    /// Behind the name of a parameter of these types.
    Start(Types),
    /// In a text that ends with this marker.
    Text(&'static str),
    /// In a value that is held; so many bytes have no marker.
    Held(Types, usize),
    /// Behind a text with its own end.
    End,
    /// Behind a function.
    Tail,
}

impl Body for XmlBody {
    fn step(&mut self, held: &mut Held, out: &mut Vec<CallPart>) -> Step {
        let read = match self.state {
            State::Head => self.head(held, out),
            State::Between => self.between(held, out),
            State::Start(types) => self.start(types, held, out),
            State::Text(end) => self.text(end, held, out),
            State::Held(types, n_searched) => self.value(types, n_searched, held, out),
            State::End => {
                let mut cursor = Cursor::new(held.rest());
                cursor.space();
                cursor.literal(self.parameter.close).map(|()| cursor.at).map(|at| {
                    held.skip(at);
                    self.state = State::Between;
                    Step::Again
                })
            }
            State::Tail => self.tail(held),
        };
        read.unwrap_or_else(Step::from)
    }

    fn cut(&self, rest: &str) -> String {
        let mut json = String::new();
        match self.state {
            State::Held(types, _) if types.text => {
                json.push('"');
                push_escaped(rest, &mut json);
            }
            State::Text(_) | State::Held(..) => push_escaped(rest, &mut json),
            _ => {}
        }
        json
    }
}

impl XmlBody {
    fn head(&mut self, held: &mut Held, out: &mut Vec<CallPart>) -> Result<Step, Stop> {
        let mut cursor = Cursor::new(held.rest());
        if !self.is_open {
            cursor.space();
            cursor.literal(self.function.open)?;
        }
        let name = self.function.read(&mut cursor)?;
        self.called = self.signatures.iter().position(|known| known.name == name).ok_or(Stop::Bad)?;
        held.skip(cursor.at);
        out.push(CallPart::Begin(name));
        out.push(CallPart::Arguments("{".to_owned()));
        (self.state, self.has_argument) = (State::Between, false);
        Ok(Step::Again)
    }

    fn between(&mut self, held: &mut Held, out: &mut Vec<CallPart>) -> Result<Step, Stop> {
        let mut cursor = Cursor::new(held.rest());
        cursor.space();
        if cursor.maybe(self.parameter.open)? {
            let name = self.parameter.read(&mut cursor)?;
            let comma = if self.has_argument { "," } else { "" };
            out.push(CallPart::Arguments(format!("{comma}{}:", Value::from(&*name))));
            held.skip(cursor.at);
            (self.state, self.has_argument) = (State::Start(self.signatures[self.called].types(&name)), true);
            return Ok(Step::Again);
        }
        let is_closed = cursor.maybe(self.function.close)?;
        // A model may forget the end of the function.
        let is_ended = !is_closed && self.close.map_or(Ok(false), |close| cursor.maybe(close))?;
        if !is_closed && !is_ended {
            return Err(Stop::Bad);
        }
        out.push(CallPart::Arguments("}".to_owned()));
        held.skip(cursor.at);
        self.state = State::Tail;
        Ok(if is_ended { Step::End } else { Step::Again })
    }

    fn start(&mut self, types: Types, held: &mut Held, out: &mut Vec<CallPart>) -> Result<Step, Stop> {
        let mut cursor = Cursor::new(held.rest());
        let first = cursor.peek()?;
        if self.has_lines && first == '\n' {
            cursor.at += 1;
        }
        let is_text = types == Types::TEXT;
        let is_data = is_text && !self.has_lines && cursor.maybe(CDATA.0)?;
        held.skip(cursor.at);
        self.state = match is_text {
            true => {
                out.push(CallPart::Arguments("\"".to_owned()));
                State::Text(if is_data { CDATA.1 } else { self.parameter.close })
            }
            false => State::Held(types, 0),
        };
        Ok(Step::Again)
    }

    fn text(&mut self, end: &'static str, held: &mut Held, out: &mut Vec<CallPart>) -> Result<Step, Stop> {
        let rest = held.rest();
        let found = rest.find(end);
        let is_data = end == CDATA.1;
        let mut n_text = found.unwrap_or(rest.len() - n_begun(rest, end));
        if self.has_lines && !is_data && rest[..n_text].ends_with('\n') {
            n_text -= 1;
        }
        let mut json = String::new();
        push_escaped(&held.take(n_text), &mut json);
        if let Some(at) = found {
            held.skip(at - n_text + end.len());
            json.push('"');
            self.state = if is_data { State::End } else { State::Between };
        }
        if !json.is_empty() {
            out.push(CallPart::Arguments(json));
        }
        Ok(if found.is_some() { Step::Again } else { Step::More })
    }

    fn value(
        &mut self,
        types: Types,
        n_searched: usize,
        held: &mut Held,
        out: &mut Vec<CallPart>,
    ) -> Result<Step, Stop> {
        let end = self.parameter.close;
        let n_bytes_max = VALUE_BYTES_MAX + end.len();
        let rest = held.rest();
        let within = &rest[..rest.floor_char_boundary(n_bytes_max)];
        let from = within.floor_char_boundary(n_searched.saturating_sub(end.len()));
        if let Some(at) = within[from..].find(end) {
            let json = value(types, &within[..from + at]);
            held.skip(from + at + end.len());
            out.push(CallPart::Arguments(json));
            self.state = State::Between;
            return Ok(Step::Again);
        }
        if rest.len() < n_bytes_max {
            self.state = State::Held(types, within.len());
            return Err(Stop::More);
        }
        out.push(CallPart::Arguments("\"".to_owned()));
        self.state = State::Text(end);
        Ok(Step::Again)
    }

    fn tail(&mut self, held: &mut Held) -> Result<Step, Stop> {
        let Some(close) = self.close else { return Ok(Step::End) };
        let mut cursor = Cursor::new(held.rest());
        cursor.space();
        if cursor.maybe(close)? {
            held.skip(cursor.at);
            return Ok(Step::End);
        }
        if cursor.maybe(self.function.open)? {
            (self.state, self.is_open) = (State::Head, false);
            return Ok(Step::Again);
        }
        Ok(Step::End)
    }
}

/// The JSON of a text that means a value of these types.
fn value(types: Types, text: &str) -> String {
    let trimmed = text.trim();
    let trimmed =
        trimmed.strip_prefix(CDATA.0).and_then(|inner| inner.strip_suffix(CDATA.1)).unwrap_or(trimmed);
    let as_text = || {
        let text = text.strip_suffix('\n').unwrap_or(text);
        Value::from(if trimmed.len() < text.trim().len() { trimmed } else { text }).to_string()
    };
    let is_nested = trimmed.starts_with(['[', '{']);
    match trimmed {
        "null" | "None" | "none" if types.null => return "null".to_owned(),
        "true" | "True" if types.boolean => return "true".to_owned(),
        "false" | "False" if types.boolean => return "false".to_owned(),
        _ => {}
    }
    if types.number
        && let Some(number) = number(trimmed)
    {
        return number;
    }
    if is_nested && (types.array || types.object) {
        let is_allowed = if trimmed.starts_with('[') { types.array } else { types.object };
        if is_allowed && serde_json::from_str::<serde::de::IgnoredAny>(trimmed).is_ok() {
            return trimmed.to_owned();
        }
        if let Some(json) = Literal::whole(&PYTHON, trimmed).filter(|_| is_allowed) {
            return json;
        }
    }
    as_text()
}
