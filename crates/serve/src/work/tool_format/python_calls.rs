//! Calls in Python's notation, `f(a="b", c=[1])`: in a list, or each on a line.

use std::sync::Arc;

use serde_json::Value;

use super::held::{Cursor, Held, Stop};
use super::lark::{Lark, Part};
use super::literal::{Literal, PYTHON, push_escaped};
use super::reader::{Body, CallPart, Step};
use super::signature::{Parameter, Signature, Types, alone};
use super::{Begins, ToolFormat, WrittenCall};
use crate::work::request::{Function, Tools};

/// A form of calls in Python's notation.
pub(super) struct PythonCalls {
    pub(super) name: &'static str,
    pub(super) recognises: fn(&str) -> bool,
    /// Markers before the calls, the usual one first; without one, an output begins with its calls.
    pub(super) opens: &'static [&'static str],
    /// The marker behind the calls, if there is one.
    pub(super) close: &'static [&'static str],
    /// The texts around and between calls.
    pub(super) around: (&'static str, &'static str),
    pub(super) between: &'static str,
    /// Whether an output may begin with its calls.
    pub(super) begins_output: bool,
}

impl PythonCalls {
    /// The rule of an argument, by its name.
    fn argument(lark: &mut Lark<'_>, function: &Function, parameter: &Parameter, rule: &str) {
        let schema = alone(function, &parameter.name);
        let value = match parameter.types {
            Types::BOOLEAN if parameter.values.is_none() => "(\"True\" | \"False\")".to_owned(),
            _ => lark.json(&format!("value_of_{rule}"), &schema),
        };
        let name = format!("{}=", parameter.name);
        let right = lark.sequence(&[Part::Text(&name), Part::Rule(&value)]);
        lark.rule(rule, &right);
    }

    /// The rule of all arguments, in order: one that may be missing is written or not.
    fn arguments(lark: &mut Lark<'_>, function: &Function, index: usize) -> String {
        let signature = Signature::of(function);
        if signature.parameters.is_empty() {
            return String::new();
        }
        let n_parameters = signature.parameters.len();
        for (place, parameter) in signature.parameters.iter().enumerate() {
            let rule = format!("argument_{index}_{place}");
            Self::argument(lark, function, parameter, &rule);
            let is_last = place + 1 == n_parameters;
            let (first, behind) =
                (format!("first_{index}_{}", place + 1), format!("behind_{index}_{}", place + 1));
            let tail = if is_last { String::new() } else { format!(" {behind}") };
            let skipped = match (parameter.is_required, is_last) {
                (true, _) => String::new(),
                (false, true) => " | \"\"".to_owned(),
                (false, false) => format!(" | {first}"),
            };
            lark.rule(&format!("first_{index}_{place}"), &format!("{rule}{tail}{skipped}"));
            if place > 0 {
                let optional = if parameter.is_required { "" } else { "?" };
                lark.rule(&format!("behind_{index}_{place}"), &format!("(\", \" {rule}){optional}{tail}"));
            }
        }
        format!("first_{index}_0")
    }
}

impl ToolFormat for PythonCalls {
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

    fn begins_with(&self) -> Option<char> {
        self.begins_output.then_some('[')
    }

    fn begins(&self, text: &str, names: &[&str]) -> Begins {
        let read = || {
            let mut cursor = Cursor::new(text);
            cursor.space();
            cursor.literal("[")?;
            cursor.space();
            let name = cursor.run(is_name)?;
            cursor.literal("(")?;
            if names.contains(&name) { Ok(cursor.at) } else { Err(Stop::Bad) }
        };
        match self.begins_output {
            true => read().into(),
            false => Begins::Never,
        }
    }

    fn calls(&self, lark: &mut Lark<'_>, tools: &Tools, is_begun: bool) -> String {
        lark.each(tools, |lark, function, index| {
            let arguments = Self::arguments(lark, function, index);
            let name = format!("{}(", function.name);
            lark.sequence(&[Part::Text(&name), Part::Rule(&arguments), Part::Text(")")])
        });
        let further = lark.sequence(&[Part::Text(self.between), Part::Rule("call")]);
        let calls = lark.repeated("call".to_owned(), &further, tools);
        lark.rule("all_calls", &calls);
        let behind = [Part::Rule("all_calls"), Part::Text(self.around.1)];
        let close = self.close.iter().filter(|_| !self.begins_output).copied();
        let behind = [&behind[..], &*close.map(Part::Marker).collect::<Vec<_>>()].concat();
        if is_begun && self.begins_output {
            // Up to the name, the text may have been written before the grammar begins.
            lark.rule("space", "/[ \\t\\r\\n]+/");
            return format!("space? \"[\" space? {}", lark.sequence(&behind));
        }
        let marker = self.opens.first().filter(|_| !is_begun && !self.begins_output);
        let marker: Vec<Part<'_>> = marker.copied().map(Part::Marker).into_iter().collect();
        lark.sequence(&[&*marker, &[Part::Text(self.around.0)], &behind].concat())
    }

    fn body(&self, signatures: &Arc<[Signature]>, marker: &'static str) -> Box<dyn Body> {
        Box::new(PythonBody {
            signatures: Arc::clone(signatures),
            close: self.close.first().copied(),
            needs_list: marker.is_empty(),
            state: State::Head,
            has_begun: false,
            is_list: false,
            is_fenced: false,
            has_argument: false,
        })
    }

    fn write(&self, calls: &[WrittenCall<'_>]) -> String {
        let call = |call: &WrittenCall<'_>| {
            let arguments = call.arguments.as_object().into_iter().flatten();
            let written = |(name, value): (&String, &Value)| match value {
                Value::Bool(true) => format!("{name}=True"),
                Value::Bool(false) => format!("{name}=False"),
                value => format!("{name}={value}"),
            };
            let arguments: Vec<String> = arguments.map(written).collect();
            format!("{}({})", call.name, arguments.join(", "))
        };
        let calls: Vec<String> = calls.iter().map(call).collect();
        let open = self.opens.first().filter(|_| !self.begins_output).copied().unwrap_or_default();
        let close = self.close.first().filter(|_| !self.begins_output).copied().unwrap_or_default();
        format!("{open}{}{}{}{close}", self.around.0, calls.join(self.between), self.around.1)
    }
}

fn is_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_' || c == '-'
}

/// Reads the calls.
#[derive(Debug)]
struct PythonBody {
    signatures: Arc<[Signature]>,
    close: Option<&'static str>,
    /// Whether only a list is calls, because no marker is before it.
    needs_list: bool,
    state: State,
    has_begun: bool,
    /// Whether the calls stand in a list that has not ended.
    is_list: bool,
    /// Whether they stand in a block of code that has not ended.
    is_fenced: bool,
    /// Whether the call has an argument.
    has_argument: bool,
}

#[derive(Debug)]
enum State {
    /// Before a call.
    Head,
    /// Before the name of an argument, or the end of the call.
    Name,
    Value(Literal),
    /// Behind an argument.
    Behind,
    /// Behind a call.
    Next,
}

impl Body for PythonBody {
    fn step(&mut self, held: &mut Held, out: &mut Vec<CallPart>) -> Step {
        let read = match &mut self.state {
            State::Head => self.head(held, out),
            State::Name | State::Behind => self.argument(held, out),
            State::Value(literal) => {
                let mut json = String::new();
                let read = literal.run(held, &mut json);
                if !json.is_empty() {
                    out.push(CallPart::Arguments(json));
                }
                read.map(|()| {
                    self.state = State::Behind;
                    Step::Again
                })
            }
            State::Next => self.next(held),
        };
        read.unwrap_or_else(Step::from)
    }

    fn cut(&self, rest: &str) -> String {
        let mut json = String::new();
        if matches!(self.state, State::Value(_)) {
            push_escaped(rest, &mut json);
        }
        json
    }
}

impl PythonBody {
    fn head(&mut self, held: &mut Held, out: &mut Vec<CallPart>) -> Result<Step, Stop> {
        let mut cursor = Cursor::new(held.rest());
        let (mut is_list, mut is_fenced) = (self.is_list, self.is_fenced);
        cursor.space();
        if !self.has_begun {
            if !self.needs_list && cursor.maybe("```")? {
                is_fenced = true;
                cursor.maybe("python")?;
                cursor.space();
            }
            is_list = cursor.maybe("[")?;
            if self.needs_list && !is_list {
                return Err(Stop::Bad);
            }
        } else if is_list {
            cursor.literal(",")?;
        }
        cursor.space();
        let name = cursor.run(is_name)?;
        cursor.space();
        cursor.literal("(")?;
        Signature::find(&self.signatures, name).ok_or(Stop::Bad)?;
        out.push(CallPart::Begin(name.to_owned()));
        out.push(CallPart::Arguments("{".to_owned()));
        held.skip(cursor.at);
        (self.is_list, self.is_fenced, self.has_begun, self.has_argument) = (is_list, is_fenced, true, false);
        self.state = State::Name;
        Ok(Step::Again)
    }

    fn argument(&mut self, held: &mut Held, out: &mut Vec<CallPart>) -> Result<Step, Stop> {
        let mut cursor = Cursor::new(held.rest());
        cursor.space();
        if cursor.maybe(")")? {
            out.push(CallPart::Arguments("}".to_owned()));
            held.skip(cursor.at);
            self.state = State::Next;
            return Ok(Step::Again);
        }
        if matches!(self.state, State::Behind) {
            cursor.literal(",")?;
            self.state = State::Name;
        } else {
            let name = cursor.run(|c| !c.is_whitespace() && !"=,()\"'".contains(c))?;
            cursor.space();
            cursor.literal("=")?;
            let comma = if self.has_argument { "," } else { "" };
            out.push(CallPart::Arguments(format!("{comma}{}:", Value::from(name))));
            self.has_argument = true;
            self.state = State::Value(Literal::new(&PYTHON));
        }
        held.skip(cursor.at);
        Ok(Step::Again)
    }

    fn next(&mut self, held: &mut Held) -> Result<Step, Stop> {
        let mut cursor = Cursor::new(held.rest());
        cursor.space();
        if self.is_list {
            match cursor.maybe("]")? {
                true => {
                    held.skip(cursor.at);
                    self.is_list = false;
                }
                false => self.state = State::Head,
            }
            return Ok(Step::Again);
        }
        if self.is_fenced && cursor.maybe("```")? {
            held.skip(cursor.at);
            self.is_fenced = false;
            return Ok(Step::Again);
        }
        if let Some(close) = self.close
            && cursor.maybe(close)?
        {
            held.skip(cursor.at);
            return Ok(Step::End);
        }
        if self.is_fenced && is_name(cursor.peek()?) {
            self.state = State::Head;
            return Ok(Step::Again);
        }
        Ok(Step::End)
    }
}
