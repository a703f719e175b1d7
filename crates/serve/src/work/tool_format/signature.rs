//! The parameters of a function, for forms whose arguments are no JSON: their names, their types, and a schema of each alone.

use std::sync::Arc;

use serde_json::{Map, Value, json};

use crate::work::request::{Function, Tools};

/// Levels of references and combinations that are followed for a type.
const LEVELS_MAX: usize = 8;

/// The types that a value may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Types {
    pub(super) text: bool,
    pub(super) number: bool,
    pub(super) boolean: bool,
    pub(super) null: bool,
    pub(super) array: bool,
    pub(super) object: bool,
}

impl Types {
    const NONE: Self =
        Self { text: false, number: false, boolean: false, null: false, array: false, object: false };
    pub(super) const TEXT: Self = Self { text: true, ..Self::NONE };
    pub(super) const BOOLEAN: Self = Self { boolean: true, ..Self::NONE };

    fn named(name: &str) -> Self {
        match name {
            "integer" | "number" => Self { number: true, ..Self::NONE },
            "boolean" => Self::BOOLEAN,
            "null" => Self { null: true, ..Self::NONE },
            "array" => Self { array: true, ..Self::NONE },
            "object" => Self { object: true, ..Self::NONE },
            _ => Self::TEXT,
        }
    }

    fn of_value(value: &Value) -> Self {
        Self::named(match value {
            Value::Null => "null",
            Value::Bool(_) => "boolean",
            Value::Number(_) => "number",
            Value::String(_) => "string",
            Value::Array(_) => "array",
            Value::Object(_) => "object",
        })
    }

    fn or(self, other: Self) -> Self {
        Self {
            text: self.text || other.text,
            number: self.number || other.number,
            boolean: self.boolean || other.boolean,
            null: self.null || other.null,
            array: self.array || other.array,
            object: self.object || other.object,
        }
    }

    /// The types of a schema; `None` if it does not say.
    fn of(schema: &Value, root: &Value, level: usize) -> Option<Self> {
        let any = |values: &[Value], of: &dyn Fn(&Value) -> Option<Self>| {
            values.iter().filter_map(of).reduce(Self::or)
        };
        if level == LEVELS_MAX {
            return None;
        }
        if let Some(target) = resolved(schema, root) {
            return Self::of(target, root, level + 1);
        }
        if let Some(value) = schema.get("const") {
            return Some(Self::of_value(value));
        }
        if let Some(Value::Array(values)) = schema.get("enum") {
            return any(values, &|value| Some(Self::of_value(value)));
        }
        match schema.get("type") {
            Some(Value::String(name)) => return Some(Self::named(name)),
            Some(Value::Array(names)) => return any(names, &|name| name.as_str().map(Self::named)),
            _ => {}
        }
        let combined = ["anyOf", "oneOf", "allOf"]
            .into_iter()
            .find_map(|key| any(schema.get(key)?.as_array()?, &|part| Self::of(part, root, level + 1)));
        let implied = || {
            let has = |key| schema.get(key).is_some();
            let name = match () {
                () if has("properties") || has("additionalProperties") => "object",
                () if has("items") || has("prefixItems") => "array",
                () if has("minimum") || has("maximum") || has("multipleOf") => "number",
                () => return None,
            };
            Some(Self::named(name))
        };
        combined.or_else(implied)
    }
}

/// The schema that a schema refers to.
pub(super) fn resolved<'v>(schema: &Value, root: &'v Value) -> Option<&'v Value> {
    root.pointer(schema.get("$ref")?.as_str()?.strip_prefix('#')?)
}

/// A parameter of a function.
#[derive(Debug)]
pub(super) struct Parameter {
    pub(super) name: String,
    pub(super) types: Types,
    /// The values that it may have, if they are listed.
    pub(super) values: Option<Vec<Value>>,
    pub(super) is_required: bool,
}

/// What a caller of a function writes.
#[derive(Debug)]
pub(crate) struct Signature {
    pub(super) name: String,
    pub(super) parameters: Vec<Parameter>,
    /// Whether no parameter is listed, and any may be given.
    pub(super) is_open: bool,
}

impl Signature {
    pub(super) fn of(function: &Function) -> Self {
        let root = &function.parameters;
        let empty = Map::new();
        let properties = root.get("properties").and_then(Value::as_object).unwrap_or(&empty);
        let required: Vec<&str> = root
            .get("required")
            .and_then(Value::as_array)
            .into_iter()
            .flatten()
            .filter_map(Value::as_str)
            .collect();
        let parameter = |(name, schema): (&String, &Value)| Parameter {
            name: name.clone(),
            types: Types::of(schema, root, 0).unwrap_or(Types::TEXT),
            values: values(schema, root),
            is_required: required.contains(&name.as_str()),
        };
        let mut parameters: Vec<Parameter> = properties.iter().map(parameter).collect();
        for &name in &required {
            if !properties.contains_key(name) {
                let (name, types) = (name.to_owned(), Types::TEXT);
                parameters.push(Parameter { name, types, values: None, is_required: true });
            }
        }
        let is_closed =
            root.get("properties").is_some() || root.get("additionalProperties") == Some(&Value::Bool(false));
        Self { name: function.name.clone(), is_open: parameters.is_empty() && !is_closed, parameters }
    }

    /// The functions of a request that may be called.
    pub(super) fn all(tools: &Tools) -> Arc<[Self]> {
        tools.callable().into_iter().map(Self::of).collect()
    }

    pub(super) fn find<'s>(signatures: &'s [Self], name: &str) -> Option<&'s Self> {
        signatures.iter().find(|signature| signature.name == name)
    }

    /// The types of a parameter. One that is not listed is a text.
    pub(super) fn types(&self, parameter: &str) -> Types {
        let found = self.parameters.iter().find(|known| known.name == parameter);
        found.map_or(Types::TEXT, |parameter| parameter.types)
    }
}

/// The listed values of a schema.
fn values(schema: &Value, root: &Value) -> Option<Vec<Value>> {
    let schema = resolved(schema, root).unwrap_or(schema);
    match (schema.get("const"), schema.get("enum")) {
        (Some(value), _) => Some(vec![value.clone()]),
        (None, Some(Value::Array(values))) => Some(values.clone()),
        _ => None,
    }
}

/// The schema of a parameter alone: its references lead into a copy of the whole schema.
pub(super) fn alone(function: &Function, parameter: &str) -> Value {
    let root = &function.parameters;
    let schema =
        root.get("properties").and_then(|properties| properties.get(parameter)).unwrap_or(&Value::Null);
    if !schema.to_string().contains("\"$ref\"") {
        return schema.clone();
    }
    let mut whole = moved(root);
    if let Some(whole) = whole.as_object_mut() {
        ["$schema", "$id", "id"].iter().for_each(|key| drop(whole.shift_remove(*key)));
    }
    let mut schema = moved(schema);
    schema["$defs"] = json!({ "whole": whole });
    schema
}

/// A schema whose references lead to `#/$defs/whole`. The nesting of a request's JSON is bounded.
fn moved(schema: &Value) -> Value {
    match schema {
        Value::Object(entries) => {
            let entry = |(key, value): (&String, &Value)| {
                let target =
                    value.as_str().and_then(|target| target.strip_prefix('#')).filter(|_| key == "$ref");
                let value = match target {
                    Some(target) => format!("#/$defs/whole{target}").into(),
                    None => moved(value),
                };
                (key.clone(), value)
            };
            Value::Object(entries.iter().map(entry).collect())
        }
        Value::Array(items) => items.iter().map(moved).collect(),
        other => other.clone(),
    }
}
