//! Gemma 4: `<|tool_call>call:f{a:<|"|>b<|"|>,c:1}<tool_call|>`. Keys have no quotation marks, and texts no escapes.

use std::sync::Arc;

use refrain::{ChatOptions, Message};
use serde_json::Value;

use super::held::{Cursor, Held, Stop};
use super::json_calls::show_tools;
use super::lark::{Lark, Part, literal};
use super::literal::{Dialect, Literal, push_escaped};
use super::reader::{Body, CallPart, Step};
use super::signature::{Signature, resolved};
use super::{ToolFormat, WrittenCall};
use crate::work::request::{Function, Tools};

const OPEN: &str = "<|tool_call>";
const CLOSE: &str = "<tool_call|>";
const QUOTE: &str = "<|\"|>";

static GEMMA: Dialect = Dialect { quotes: &[QUOTE, "\""], is_python: false };

/// Levels of a schema that become rules. What is deeper is any value.
const LEVELS_MAX: usize = 8;
/// Rules of a function's arguments. Beyond, values are any.
const RULES_MAX: usize = 200;

pub(super) struct Gemma4;

impl ToolFormat for Gemma4 {
    fn name(&self) -> &'static str {
        "gemma4"
    }

    fn recognises(&self, template: &str) -> bool {
        template.contains(OPEN) && template.contains(CLOSE)
    }

    fn opens(&self) -> &'static [&'static str] {
        &[OPEN]
    }

    fn controls(&self) -> &'static [&'static str] {
        &[CLOSE, QUOTE]
    }

    fn calls(&self, lark: &mut Lark<'_>, tools: &Tools, is_begun: bool) -> String {
        lark.each(tools, |lark, function, index| {
            let head = format!("call:{}", function.name);
            let mut writer = Writer { lark, function, index, n_rules: 0 };
            let arguments = writer.object(&function.parameters, 0);
            lark.sequence(&[Part::Text(&head), Part::Rule(&arguments), Part::Marker(CLOSE)])
        });
        let further = lark.sequence(&[Part::Marker(OPEN), Part::Rule("call")]);
        let first = if is_begun { "call".to_owned() } else { further.clone() };
        lark.repeated(first, &further, tools)
    }

    fn body(&self, signatures: &Arc<[Signature]>, _marker: &'static str) -> Box<dyn Body> {
        Box::new(GemmaBody { signatures: Arc::clone(signatures), state: State::Head })
    }

    fn write(&self, calls: &[WrittenCall<'_>]) -> String {
        calls
            .iter()
            .map(|call| format!("{OPEN}call:{}{}{CLOSE}", call.name, written(call.arguments)))
            .collect()
    }

    fn show(&self, messages: &mut Vec<Message>, options: &mut ChatOptions, tools: Vec<Value>) {
        show_tools(messages, options, tools);
    }

    fn needs_description(&self) -> bool {
        true
    }
}

fn written(value: &Value) -> String {
    match value {
        Value::String(text) => format!("{QUOTE}{text}{QUOTE}"),
        Value::Array(items) => format!("[{}]", items.iter().map(written).collect::<Vec<_>>().join(",")),
        Value::Object(entries) => {
            let entries = entries.iter().map(|(key, value)| format!("{key}:{}", written(value)));
            format!("{{{}}}", entries.collect::<Vec<_>>().join(","))
        }
        other => other.to_string(),
    }
}

/// Writes the rules of a function's arguments.
struct Writer<'w, 't> {
    lark: &'w mut Lark<'t>,
    function: &'w Function,
    index: usize,
    n_rules: usize,
}

impl Writer<'_, '_> {
    fn rule(&mut self, right: &str) -> String {
        let name = format!("value_{}_{}", self.index, self.n_rules);
        self.n_rules += 1;
        self.lark.rule(&name, right);
        name
    }

    /// Text between quotation marks.
    fn text(&mut self) -> String {
        let until = self.lark.text_until(QUOTE);
        format!("{} {until}", self.lark.sequence(&[Part::Marker(QUOTE)]))
    }

    /// Any value.
    fn any(&mut self) -> String {
        let text = self.text();
        self.lark.any_value(&format!(
            "any_value: {text} | /-?(0|[1-9][0-9]*)(\\.[0-9]+)?([eE][+-]?[0-9]+)?/ | \"true\" | \"false\" | \"null\" | any_list | any_object\n\
             any_list: \"[]\" | \"[\" any_value (\",\" any_value)* \"]\"\n\
             any_object: \"{{}}\" | \"{{\" any_entry (\",\" any_entry)* \"}}\"\n\
             any_entry: /[A-Za-z0-9_.$\\-]+:/ any_value\n"
        ))
    }

    fn value(&mut self, schema: &Value, level: usize) -> String {
        let root = &self.function.parameters;
        if level == LEVELS_MAX || self.n_rules >= RULES_MAX {
            return self.any();
        }
        if let Some(target) = resolved(schema, root) {
            return self.value(target, level + 1);
        }
        let listed = match (schema.get("const"), schema.get("enum")) {
            (Some(value), _) => vec![value.clone()],
            (None, Some(Value::Array(values))) => values.clone(),
            _ => Vec::new(),
        };
        if !listed.is_empty() {
            let values = listed.iter().map(|value| match value {
                Value::String(text) => {
                    self.lark.sequence(&[Part::Marker(QUOTE), Part::Text(text), Part::Marker(QUOTE)])
                }
                value => literal(&written(value)),
            });
            return format!("({})", values.collect::<Vec<_>>().join(" | "));
        }
        match schema.get("type").and_then(Value::as_str) {
            Some("string") => self.text(),
            Some("integer" | "number") => {
                let name = format!("number_{}_{}", self.index, self.n_rules);
                self.n_rules += 1;
                self.lark.json(&name, schema)
            }
            Some("boolean") => "(\"true\" | \"false\")".to_owned(),
            Some("null") => "\"null\"".to_owned(),
            Some("array") => {
                let item = match schema.get("items") {
                    Some(items @ Value::Object(_)) => self.value(items, level + 1),
                    _ => self.any(),
                };
                let item = self.rule(&item);
                self.rule(&format!("\"[]\" | \"[\" {item} (\",\" {item})* \"]\""))
            }
            Some("object") => self.object(schema, level),
            _ => self.any(),
        }
    }

    /// An object: its listed entries in order; without any, all entries.
    fn object(&mut self, schema: &Value, level: usize) -> String {
        let Some(properties) =
            schema.get("properties").and_then(Value::as_object).filter(|all| !all.is_empty())
        else {
            let is_closed = schema.get("additionalProperties") == Some(&Value::Bool(false));
            if is_closed || level == 0 && schema.get("properties").is_some() {
                return "\"{}\"".to_owned();
            }
            self.any();
            return "any_object".to_owned();
        };
        let is_required = |name: &str| {
            let required = schema.get("required").and_then(Value::as_array);
            required.is_some_and(|names| names.iter().any(|required| required == name))
        };
        // From the last entry to the first: the rest behind an entry, and the rest where none was written.
        let (mut behind, mut first) = (String::new(), String::new());
        let mut may_be_empty = true;
        for (name, schema) in properties.iter().rev() {
            let value = self.value(schema, level + 1);
            let key = literal(&format!("{name}:"));
            let entry = self.rule(&format!("{key} {value}"));
            let first_right = match (is_required(name), may_be_empty, first.is_empty()) {
                (true, ..) | (false, true, true) => format!("{entry} {behind}"),
                (false, ..) => format!("{entry} {behind} | {first}"),
            };
            may_be_empty &= !is_required(name);
            first = self.rule(&first_right);
            let optional = if is_required(name) { "" } else { "?" };
            behind = self.rule(&format!("(\",\" {entry}){optional} {behind}"));
        }
        let empty = if may_be_empty { "?" } else { "" };
        self.rule(&format!("\"{{\" {first}{empty} \"}}\""))
    }
}

/// Reads the calls.
#[derive(Debug)]
struct GemmaBody {
    signatures: Arc<[Signature]>,
    state: State,
}

#[derive(Debug)]
enum State {
    Head,
    Arguments(Literal),
    /// Behind the arguments.
    Tail,
}

impl Body for GemmaBody {
    fn step(&mut self, held: &mut Held, out: &mut Vec<CallPart>) -> Step {
        let read = match &mut self.state {
            State::Head => self.head(held, out),
            State::Arguments(literal) => {
                let mut json = String::new();
                let read = literal.run(held, &mut json);
                if !json.is_empty() {
                    out.push(CallPart::Arguments(json));
                }
                read.map(|()| {
                    self.state = State::Tail;
                    Step::Again
                })
            }
            State::Tail => {
                let mut cursor = Cursor::new(held.rest());
                cursor.space();
                let read = cursor.maybe(CLOSE).map(|is_closed| if is_closed { cursor.at } else { 0 });
                read.map(|n_bytes| {
                    held.skip(n_bytes);
                    Step::End
                })
            }
        };
        read.unwrap_or_else(Step::from)
    }

    fn cut(&self, rest: &str) -> String {
        let mut json = String::new();
        if matches!(self.state, State::Arguments(_)) {
            push_escaped(rest, &mut json);
        }
        json
    }
}

impl GemmaBody {
    fn head(&mut self, held: &mut Held, out: &mut Vec<CallPart>) -> Result<Step, Stop> {
        let mut cursor = Cursor::new(held.rest());
        cursor.space();
        cursor.literal("call:")?;
        let name = cursor.run(|c| c != '{' && c != '\n')?.trim();
        if cursor.peek()? != '{' {
            return Err(Stop::Bad);
        }
        Signature::find(&self.signatures, name).ok_or(Stop::Bad)?;
        out.push(CallPart::Begin(name.to_owned()));
        held.skip(cursor.at);
        self.state = State::Arguments(Literal::new(&GEMMA));
        Ok(Step::Again)
    }
}
