//! Calls as JSON objects, `{"name": …, "arguments": {…}}`: one after the other, or in a list.
//!
//! The reader takes more than the grammar writes: white space, other keys beside a name and arguments, a list or none.

use std::sync::Arc;

use refrain::{ChatOptions, Message};
use serde_json::{Value, json};

use super::held::{Cursor, Held, Stop};
use super::lark::{Lark, Part};
use super::reader::{Body, CallPart, Step};
use super::signature::Signature;
use super::{Begins, ToolFormat, WrittenCall};
use crate::work::request::Tools;

/// A form of calls as JSON objects.
pub(crate) struct JsonCalls {
    pub(super) name: &'static str,
    pub(super) recognises: fn(&str) -> bool,
    /// Markers before calls, the usual one first.
    pub(super) opens: &'static [&'static str],
    /// Those behind which the grammar begins. The others also stand in texts.
    pub(super) triggers: &'static [&'static str],
    /// The marker behind calls, if there is one.
    pub(super) close: &'static [&'static str],
    /// The key of the arguments.
    pub(super) arguments: &'static str,
    pub(super) layout: Layout,
    /// Tells the template about tools.
    pub(super) show: fn(&mut Vec<Message>, &mut ChatOptions, Vec<Value>),
    /// The id of a call where the template has a rule for it.
    pub(super) id: fn(&str) -> Option<String>,
}

/// How objects stand between the markers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Layout {
    /// Each between markers and on its own line.
    Lines,
    /// A list behind one marker; the text is between the marker and the list.
    List(&'static str),
    /// One object, at the beginning of the output or behind the marker.
    Alone,
}

impl JsonCalls {
    /// A call up to its arguments.
    fn head(&self, name: &str) -> String {
        format!("{{\"name\": {}, \"{}\": ", Value::from(name), self.arguments)
    }
}

impl ToolFormat for JsonCalls {
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
        self.close
    }

    fn triggers(&self) -> &'static [&'static str] {
        self.triggers
    }

    fn begins_with(&self) -> Option<char> {
        (self.layout == Layout::Alone).then_some('{')
    }

    fn begins(&self, text: &str, names: &[&str]) -> Begins {
        let read = || {
            let mut cursor = Cursor::new(text);
            cursor.space();
            cursor.literal("{")?;
            cursor.space();
            cursor.literal("\"name\"")?;
            cursor.space();
            cursor.literal(":")?;
            cursor.space();
            let name = cursor.json_string()?;
            if names.contains(&&*name) { Ok(cursor.at) } else { Err(Stop::Bad) }
        };
        match self.layout {
            Layout::Alone => read().into(),
            _ => Begins::Never,
        }
    }

    fn calls(&self, lark: &mut Lark<'_>, tools: &Tools, is_begun: bool) -> String {
        let (marker, close) = (self.opens[0], self.close.first().copied());
        let call = |lark: &mut Lark<'_>, before: &str, behind: &[Part<'_>]| {
            lark.each(tools, |lark, function, index| {
                let arguments = lark.json(&format!("arguments_{index}"), &function.parameters);
                let head = format!("{before}{}", self.head(&function.name));
                let parts = [Part::Text(&head), Part::Rule(&arguments), Part::Text("}")];
                lark.sequence(&[&parts[..], behind].concat())
            });
        };
        match self.layout {
            Layout::Lines => {
                let close: Vec<Part<'_>> = close.map(Part::Marker).into_iter().collect();
                call(lark, "\n", &[&[Part::Text("\n")], &*close].concat());
                let further = lark.sequence(&[Part::Text("\n"), Part::Marker(marker), Part::Rule("call")]);
                let first = if is_begun {
                    "call".to_owned()
                } else {
                    lark.sequence(&[Part::Marker(marker), Part::Rule("call")])
                };
                lark.repeated(first, &further, tools)
            }
            Layout::List(space) => {
                call(lark, "", &[]);
                let further = lark.sequence(&[Part::Text(", "), Part::Rule("call")]);
                let calls = lark.repeated("call".to_owned(), &further, tools);
                lark.rule("calls_in_list", &calls);
                let before = if is_begun { Part::Text("") } else { Part::Marker(marker) };
                let list = format!("{space}[");
                let parts = [before, Part::Text(&list), Part::Rule("calls_in_list"), Part::Text("]")];
                let close: Vec<Part<'_>> = close.map(Part::Marker).into_iter().collect();
                lark.sequence(&[&parts[..], &*close].concat())
            }
            Layout::Alone if !is_begun => {
                // Lexemes of their own: other JSON, which the output may be too, begins with the first.
                lark.rule("brace", "\"{\"");
                lark.rule("name_key", "\"\\\"name\\\"\"");
                lark.each(tools, |lark, function, index| {
                    let arguments = lark.json(&format!("arguments_{index}"), &function.parameters);
                    let name = format!(": {}, \"{}\": ", Value::from(function.name.as_str()), self.arguments);
                    let (brace, key) = (Part::Rule("brace"), Part::Rule("name_key"));
                    lark.sequence(&[brace, key, Part::Text(&name), Part::Rule(&arguments), Part::Text("}")])
                });
                "call".to_owned()
            }
            Layout::Alone => {
                // Up to the name, the text may have been written before the grammar begins.
                lark.each(tools, |lark, function, index| {
                    let arguments = lark.json(&format!("arguments_{index}"), &function.parameters);
                    let name = format!("{}, \"{}\": ", Value::from(function.name.as_str()), self.arguments);
                    lark.sequence(&[Part::Text(&name), Part::Rule(&arguments), Part::Text("}")])
                });
                lark.rule("space", "/[ \\t\\r\\n]+/");
                "space? \"{\" space? \"\\\"name\\\"\" space? \":\" space? call".to_owned()
            }
        }
    }

    fn body(&self, signatures: &Arc<[Signature]>, _marker: &'static str) -> Box<dyn Body> {
        Box::new(JsonBody {
            signatures: Arc::clone(signatures),
            close: self.close.first().copied(),
            state: State::Head,
            has_begun: false,
            is_list: false,
        })
    }

    fn write(&self, calls: &[WrittenCall<'_>]) -> String {
        let (open, close) = (self.opens[0], self.close.first().copied().unwrap_or_default());
        let object = |call: &WrittenCall<'_>| format!("{}{}}}", self.head(call.name), call.arguments);
        let objects: Vec<String> = calls.iter().map(object).collect();
        match self.layout {
            Layout::Lines => {
                let lines: Vec<String> =
                    objects.iter().map(|object| format!("{open}\n{object}\n{close}")).collect();
                lines.join("\n")
            }
            Layout::List(space) => format!("{open}{space}[{}]{close}", objects.join(", ")),
            Layout::Alone => objects.join("; "),
        }
    }

    fn show(&self, messages: &mut Vec<Message>, options: &mut ChatOptions, tools: Vec<Value>) {
        (self.show)(messages, options, tools);
    }

    fn id(&self, id: &str) -> Option<String> {
        (self.id)(id)
    }
}

/// Shows tools as most templates expect them.
pub(super) fn show_tools(_messages: &mut Vec<Message>, options: &mut ChatOptions, tools: Vec<Value>) {
    options.tools = tools;
}

/// Reads the objects.
#[derive(Debug)]
struct JsonBody {
    signatures: Arc<[Signature]>,
    close: Option<&'static str>,
    state: State,
    has_begun: bool,
    /// Whether the objects stand in a list that has not ended.
    is_list: bool,
}

#[derive(Debug)]
enum State {
    /// Before an object's arguments.
    Head,
    Arguments(JsonScan),
    /// In an object, behind its arguments.
    Tail,
    /// Behind an object.
    Next,
}

impl Body for JsonBody {
    fn step(&mut self, held: &mut Held, out: &mut Vec<CallPart>) -> Step {
        let read = match &mut self.state {
            State::Head => self.head(held, out),
            State::Arguments(scan) => {
                if scan.take(held, out) {
                    self.state = State::Tail;
                    return Step::Again;
                }
                return Step::More;
            }
            State::Tail => self.tail(held),
            State::Next => self.next(held),
        };
        read.unwrap_or_else(Step::from)
    }
}

impl JsonBody {
    fn head(&mut self, held: &mut Held, out: &mut Vec<CallPart>) -> Result<Step, Stop> {
        let mut cursor = Cursor::new(held.rest());
        let mut is_list = self.is_list;
        cursor.space();
        if self.has_begun {
            for separator in self.separators() {
                if cursor.maybe(separator)? {
                    break;
                }
            }
        } else {
            is_list = cursor.maybe("[")?;
        }
        cursor.space();
        cursor.literal("{")?;
        let mut name = None;
        let has_arguments = loop {
            cursor.space();
            let key = cursor.json_string()?;
            cursor.space();
            cursor.literal(":")?;
            cursor.space();
            match (&*key, &name) {
                ("arguments" | "parameters", Some(_)) => {
                    if !cursor.maybe("null")? {
                        if cursor.peek()? != '{' {
                            return Err(Stop::Bad);
                        }
                        break true;
                    }
                }
                ("name", None) => name = Some(cursor.json_string()?),
                ("type" | "id", _) => drop(cursor.json_string()?),
                _ => return Err(Stop::Bad),
            }
            cursor.space();
            if !cursor.maybe(",")? {
                cursor.literal("}")?;
                break false;
            }
        };
        let name = name.filter(|name| Signature::find(&self.signatures, name).is_some()).ok_or(Stop::Bad)?;
        held.skip(cursor.at);
        (self.is_list, self.has_begun) = (is_list, true);
        out.push(CallPart::Begin(name));
        self.state = match has_arguments {
            true => State::Arguments(JsonScan::default()),
            false => {
                out.push(CallPart::Arguments("{}".to_owned()));
                State::Next
            }
        };
        Ok(Step::Again)
    }

    /// What may stand between two objects.
    fn separators(&self) -> &'static [&'static str] {
        if self.is_list { &[","] } else { &[",", ";"] }
    }

    fn tail(&mut self, held: &mut Held) -> Result<Step, Stop> {
        let mut cursor = Cursor::new(held.rest());
        cursor.space();
        while cursor.maybe(",")? {
            cursor.space();
            cursor.json_string()?;
            cursor.space();
            cursor.literal(":")?;
            cursor.space();
            cursor.json_string()?;
            cursor.space();
        }
        cursor.literal("}")?;
        held.skip(cursor.at);
        self.state = State::Next;
        Ok(Step::Again)
    }

    fn next(&mut self, held: &mut Held) -> Result<Step, Stop> {
        let mut cursor = Cursor::new(held.rest());
        cursor.space();
        if self.is_list && cursor.maybe("]")? {
            held.skip(cursor.at);
            self.is_list = false;
            return Ok(Step::Again);
        }
        for separator in self.separators() {
            let mut further = cursor;
            if further.maybe(separator)? {
                further.space();
                if further.peek()? == '{' {
                    self.state = State::Head;
                    return Ok(Step::Again);
                }
            }
        }
        if let Some(close) = self.close
            && cursor.maybe(close)?
        {
            held.skip(cursor.at);
            return Ok(Step::End);
        }
        if cursor.peek()? == '{' && !self.is_list {
            self.state = State::Head;
            return Ok(Step::Again);
        }
        Ok(Step::End)
    }
}

/// The end of a JSON object, byte by byte.
#[derive(Debug, Default)]
pub(super) struct JsonScan {
    depth: usize,
    is_in_string: bool,
    is_escaped: bool,
}

impl JsonScan {
    /// Sends the object's part of the held text; whether the object has ended.
    pub(super) fn take(&mut self, held: &mut Held, out: &mut Vec<CallPart>) -> bool {
        let end = held.rest().bytes().position(|byte| self.ends(byte));
        // The object ends with an ASCII byte, so this is the end of a character.
        let text = held.take(end.map_or(held.rest().len(), |end| end + 1));
        if !text.is_empty() {
            out.push(CallPart::Arguments(text));
        }
        end.is_some()
    }

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

/// The id of a call as it is.
pub(super) fn same_id(_id: &str) -> Option<String> {
    None
}

/// A tool without the wrapper around its function.
pub(super) fn inner(tool: &Value) -> Value {
    tool.get("function").cloned().unwrap_or_else(|| json!({}))
}
