//! Writes the records as TypeScript: `bindings/node/types` compares and replaces `bindings/node/ts/records.ts` with it.
//!
//! Fields get the names of TypeScript here; `bindings/node/src/names.rs` gives them to values.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use refrain_ffi::*;
use schemars::JsonSchema;
use schemars::generate::SchemaSettings;
use serde_json::{Map, Value};

/// The definitions of some types and of all that they contain.
macro_rules! definitions {
    ($settings:expr; $($record:ty)*) => {{
        let mut generator = $settings.into_generator();
        $(named::<$record>(&mut generator);)*
        generator.take_definitions(true)
    }};
}

fn named<T: JsonSchema>(generator: &mut schemars::SchemaGenerator) {
    let schema = generator.subschema_for::<T>();
    assert!(schema.as_value().get("$ref").is_some(), "{} has a name", T::schema_name());
}

/// The TypeScript so far.
struct Writer {
    text: String,
    /// All names of fields.
    fields: BTreeSet<String>,
}

fn main() {
    let settings = SchemaSettings::draft2020_12;
    // Every field of what the library gives is there; of what it takes, fields with a default may be left out.
    let given = definitions!(settings().for_serialize();
        Event JobResult ErrorInfo EngineInfo SessionInfo MemoryEstimate SuspendReport Message Turn Hit NoteFile DocumentChanges Forgotten);
    let taken = definitions!(settings().for_deserialize();
        EngineOptions SessionOptions GenerateOptions HistoryOptions DeviceState AssistantOptions TaskRequest ChatRequest Forget NotesOptions
        SearchRequest PutRequest);
    let all: BTreeMap<String, Value> = taken.into_iter().chain(given).collect();

    let mut writer = Writer { text: String::new(), fields: BTreeSet::new() };
    all.values().for_each(|schema| writer.collect_fields(schema));
    writer.text.push_str(
        "// Written by bindings/node/types from the records of bindings/core. Do not edit.\n\
         // Sizes and counts are integers. Places in texts are in UTF-16 code units, as the indexes of strings.\n",
    );
    for (name, schema) in &all {
        writer.definition(name, schema);
    }
    let mut text = writer.text;
    text.push_str("\n/** The codes of errors by kind: the same numbers in every language. */\nexport const ERROR_CODES = {\n");
    for kind in ErrorKind::ALL {
        _ = writeln!(text, "  /** {} */\n  {}: {},", kind.meaning(), kind.name(), kind.code());
    }
    text.push_str("} as const;\n");
    print!("{text}");
}

impl Writer {
    fn collect_fields(&mut self, schema: &Value) {
        if let Some(fields) = schema.get("properties").and_then(Value::as_object) {
            self.fields.extend(fields.keys().cloned());
        }
        let alternatives = schema.get("oneOf").and_then(Value::as_array);
        alternatives.into_iter().flatten().for_each(|one| self.collect_fields(one));
    }

    fn definition(&mut self, name: &str, schema: &Value) {
        self.text.push('\n');
        self.comment("", schema);
        match schema.get("properties").and_then(Value::as_object) {
            Some(fields) if schema.get("oneOf").is_none() => {
                _ = writeln!(self.text, "export interface {name} {{");
                self.members("  ", fields, schema);
                self.text.push_str("}\n");
            }
            _ => {
                _ = write!(self.text, "export type {name} =");
                self.union(schema);
                self.text.push_str(";\n");
            }
        }
    }

    /// The doc comment of a schema.
    fn comment(&mut self, indent: &str, schema: &Value) {
        if let Some(about) = schema.get("description").and_then(Value::as_str) {
            let about = about.split_whitespace().collect::<Vec<_>>().join(" ");
            let about = about.replace("Default: UTF-8.", "Default: `utf16`.");
            _ = writeln!(self.text, "{indent}/** {} */", without_links(&about, &self.fields));
        }
    }

    /// The fields of an object.
    fn members(&mut self, indent: &str, fields: &Map<String, Value>, of: &Value) {
        let required: Vec<&str> = match of.get("required").and_then(Value::as_array) {
            Some(names) => names.iter().filter_map(Value::as_str).collect(),
            None => Vec::new(),
        };
        for (name, schema) in fields {
            self.comment(indent, schema);
            let mark = if required.contains(&name.as_str()) { "" } else { "?" };
            _ = writeln!(self.text, "{indent}{}{mark}: {};", camel(name), type_of(schema));
        }
    }

    /// The alternatives of an enum, a line each.
    fn union(&mut self, schema: &Value) {
        let Some(all) = schema.get("oneOf").and_then(Value::as_array) else {
            _ = write!(self.text, " {}", type_of(schema));
            return;
        };
        for one in all {
            self.text.push('\n');
            self.comment("  ", one);
            let Some(fields) = one.get("properties").and_then(Value::as_object) else {
                // An alternative without fields, or several of them.
                _ = write!(self.text, "  | {}", type_of(one));
                continue;
            };
            self.text.push_str("  | {\n");
            self.members("      ", fields, one);
            self.text.push_str("    }");
            if let Some(name) = reference(one) {
                _ = write!(self.text, " & {name}");
            }
        }
    }
}

/// Documentation without the links of rustdoc, and with fields as TypeScript names them.
fn without_links(about: &str, fields: &BTreeSet<String>) -> String {
    let mut text = String::new();
    let mut rest = about;
    while let Some(at) = rest.find("[`") {
        text.push_str(&rest[..at]);
        let Some(end) = rest[at..].find(']') else { break };
        text.push_str(&rest[at + 1..at + end]);
        rest = &rest[at + end + 1..];
        if let Some(target) = rest.strip_prefix('(') {
            rest = target.split_once(')').map_or("", |(_, behind)| behind);
        }
    }
    text.push_str(rest);
    let mut parts: Vec<String> = text.split('`').map(str::to_owned).collect();
    for part in parts.iter_mut().skip(1).step_by(2) {
        if fields.contains(part) {
            *part = camel(part);
        }
    }
    parts.join("`")
}

fn reference(schema: &Value) -> Option<&str> {
    schema.get("$ref")?.as_str()?.rsplit('/').next()
}

/// The type of a value.
fn type_of(schema: &Value) -> String {
    if let Some(name) = reference(schema) {
        return name.to_owned();
    }
    if let Some(value) = schema.get("const") {
        return quoted(value);
    }
    if let Some(values) = schema.get("enum").and_then(Value::as_array) {
        return values.iter().map(quoted).collect::<Vec<_>>().join(" | ");
    }
    for alternatives in ["anyOf", "oneOf"] {
        if let Some(all) = schema.get(alternatives).and_then(Value::as_array) {
            return all.iter().map(type_of).collect::<Vec<_>>().join(" | ");
        }
    }
    match schema.get("type") {
        Some(Value::Array(names)) => {
            names.iter().map(|name| simple(name, schema)).collect::<Vec<_>>().join(" | ")
        }
        Some(name) => simple(name, schema),
        None => panic!("no type for {schema}"),
    }
}

fn quoted(value: &Value) -> String {
    match value {
        Value::String(text) => format!("'{text}'"),
        other => other.to_string(),
    }
}

fn simple(name: &Value, schema: &Value) -> String {
    let item = schema.get("items");
    match name.as_str() {
        Some("integer" | "number") => "number".to_owned(),
        Some("string") => "string".to_owned(),
        Some("boolean") => "boolean".to_owned(),
        Some("null") => "null".to_owned(),
        Some("array") => match item {
            Some(item) if item.get("format").and_then(Value::as_str) == Some("uint8") => {
                "Uint8Array | number[]".to_owned()
            }
            Some(item) => {
                let of = type_of(item);
                if of.contains(' ') { format!("({of})[]") } else { format!("{of}[]") }
            }
            None => panic!("no items in {schema}"),
        },
        _ => panic!("no type for {schema}"),
    }
}

/// A name as TypeScript writes it.
fn camel(name: &str) -> String {
    let mut parts = name.split('_');
    let mut text = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let mut letters = part.chars();
        text.extend(letters.next().map(|letter| letter.to_ascii_uppercase()));
        text.push_str(letters.as_str());
    }
    text
}
