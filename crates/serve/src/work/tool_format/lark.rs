//! Writes grammars of calls in llguidance's variant of Lark.

use std::collections::BTreeSet;

use refrain::TokenId;
use serde_json::{Value, json};

use super::CALLS_MAX;
use crate::work::request::{Function, Tools};

/// A part of a sequence.
#[derive(Debug, Clone, Copy)]
pub(super) enum Part<'t> {
    Text(&'t str),
    /// A control token where the vocabulary has it as one, else text.
    Marker(&'t str),
    /// The name of a rule.
    Rule(&'t str),
}

/// A grammar that is written.
pub(crate) struct Lark<'t> {
    /// The control token with a text.
    control: &'t dyn Fn(&str) -> Option<TokenId>,
    rules: String,
    /// The names of the rules that several places share.
    shared: BTreeSet<String>,
}

impl<'t> Lark<'t> {
    pub(super) fn new(control: &'t dyn Fn(&str) -> Option<TokenId>) -> Self {
        Self { control, rules: String::new(), shared: BTreeSet::new() }
    }

    /// The rules, behind that of the start.
    pub(super) fn finish(self, start: &str) -> String {
        format!("start: {start}\n{}", self.rules)
    }

    pub(super) fn rule(&mut self, name: &str, right: &str) {
        self.rules.push_str(&format!("{name}: {right}\n"));
    }

    /// A rule that is written once.
    fn shared(&mut self, name: &str, rule: impl FnOnce() -> String) {
        if self.shared.insert(name.to_owned()) {
            self.rules.push_str(&rule());
        }
    }

    /// Whether a marker is a control token.
    pub(super) fn is_control(&self, marker: &str) -> bool {
        (self.control)(marker).is_some()
    }

    /// Parts in order. Texts that follow each other are one literal.
    pub(super) fn sequence(&self, parts: &[Part<'_>]) -> String {
        let mut out = Vec::new();
        let mut text = String::new();
        for part in parts {
            let symbol = match part {
                Part::Text(part) => {
                    text.push_str(part);
                    continue;
                }
                Part::Marker(marker) => match (self.control)(marker) {
                    Some(id) => format!("<[{}]>", id.0),
                    None => {
                        text.push_str(marker);
                        continue;
                    }
                },
                Part::Rule("") => continue,
                Part::Rule(name) => (*name).to_owned(),
            };
            if !text.is_empty() {
                out.push(literal(&std::mem::take(&mut text)));
            }
            out.push(symbol);
        }
        if !text.is_empty() || out.is_empty() {
            out.push(literal(&text));
        }
        out.join(" ")
    }

    /// The rule `call`: one of the functions that may be called. `right` is the right side of the rule of one.
    pub(super) fn each(
        &mut self,
        tools: &Tools,
        mut right: impl FnMut(&mut Self, &Function, usize) -> String,
    ) {
        let functions = tools.callable();
        let names: Vec<String> = (0..functions.len()).map(|index| format!("call_{index}")).collect();
        self.rule("call", &names.join(" | "));
        for (index, function) in functions.into_iter().enumerate() {
            let right = right(self, function, index);
            self.rule(&names[index], &right);
        }
    }

    /// A first call, and further ones if the request allows them.
    pub(super) fn repeated(&self, first: String, further: &str, tools: &Tools) -> String {
        match tools.is_parallel {
            true => format!("{first} ({further}){{0,{}}}", CALLS_MAX - 1),
            false => first,
        }
    }

    /// JSON under a schema, as a rule of this name; returns the name.
    pub(super) fn json(&mut self, name: &str, schema: &Value) -> String {
        self.rule(name, &json_rule(schema));
        name.to_owned()
    }

    /// The rules of `any_value`, which are written once; returns its name.
    pub(super) fn any_value(&mut self, rules: &str) -> String {
        self.shared("any_value", || rules.to_owned());
        "any_value".to_owned()
    }

    /// Text without a form up to a marker, with the marker.
    pub(super) fn text_until(&mut self, marker: &str) -> String {
        match (self.control)(marker) {
            Some(id) => {
                self.shared("any_text", || "any_text: /(.|\\n)*/\n".to_owned());
                format!("any_text <[{}]>", id.0)
            }
            None => {
                let rule = || format!("text_up_to_marker[suffix={}]: /(.|\\n)*/\n", literal(marker));
                self.shared("text_up_to_marker", rule);
                "text_up_to_marker".to_owned()
            }
        }
    }
}

/// A literal: the escapes of JSON strings are those of Lark, which also needs one for U+007F.
pub(super) fn literal(text: &str) -> String {
    Value::from(text).to_string().replace('\u{7f}', "\\u007f")
}

/// The right side of a rule: JSON under a schema.
pub(super) fn json_rule(schema: &Value) -> String {
    let mut schema = if schema.is_object() { schema.clone() } else { json!({}) };
    // As `Grammar::json_schema` compiles schemas: compact, and never weakened.
    schema["x-guidance"] = json!({ "whitespace_flexible": false, "coerce_one_of": false, "lenient": false });
    format!("%json {schema}")
}
