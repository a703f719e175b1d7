//! `json.dumps` for templates: `ensure_ascii` off, Python's separators.

use std::sync::Arc;

use super::error::ErrorKind;
use super::value::{Meter, Outcome, Value, float_text, push};

/// The format of the output.
pub(super) struct Style {
    pub(super) indent: Option<usize>,
    /// Between items, between key and value.
    pub(super) separators: [Arc<String>; 2],
    pub(super) sort_keys: bool,
    /// Whether characters outside ASCII are escaped.
    pub(super) ascii: bool,
}

pub(super) fn write(value: &Value, style: &Style, out: &mut String, meter: &Meter) -> Outcome<()> {
    write_at(value, style, 0, out, meter)
}

fn write_at(value: &Value, style: &Style, level: usize, out: &mut String, meter: &Meter) -> Outcome<()> {
    match value {
        Value::None => push(out, "null", meter),
        Value::Bool(value) => push(out, if *value { "true" } else { "false" }, meter),
        Value::Int(n) => push(out, &n.to_string(), meter),
        Value::Float(n) if n.is_nan() => push(out, "NaN", meter),
        Value::Float(n) if n.is_infinite() => {
            push(out, if *n > 0.0 { "Infinity" } else { "-Infinity" }, meter)
        }
        Value::Float(n) => push(out, &float_text(*n), meter),
        Value::Str(text) | Value::Safe(text) => write_string(text, style.ascii, out, meter),
        Value::List(list) => {
            write_all(style, level, ['[', ']'], list.items.iter(), out, meter, |item, out| {
                write_at(item, style, level + 1, out, meter)
            })
        }
        Value::Dict(dict) => {
            meter.list(2 * dict.entries.len())?;
            let mut entries: Vec<(String, &Value)> = Vec::with_capacity(dict.entries.len());
            for (key, value) in &dict.entries {
                entries.push((key_text(key, meter)?, value));
            }
            if style.sort_keys {
                entries.sort_by(|a, b| a.0.cmp(&b.0));
            }
            write_all(style, level, ['{', '}'], entries.iter(), out, meter, |(key, value), out| {
                write_string(key, style.ascii, out, meter)?;
                push(out, &style.separators[1], meter)?;
                write_at(value, style, level + 1, out, meter)
            })
        }
        other => Err(ErrorKind::Value(format!("a {} cannot be written as JSON", other.type_name()))),
    }
}

fn write_all<T>(
    style: &Style,
    level: usize,
    brackets: [char; 2],
    items: impl ExactSizeIterator<Item = T>,
    out: &mut String,
    meter: &Meter,
    mut write: impl FnMut(T, &mut String) -> Outcome<()>,
) -> Outcome<()> {
    let line = |level: usize, out: &mut String| match style.indent {
        Some(indent) => push(out, &format!("\n{}", " ".repeat(indent * level)), meter),
        _ => Ok(()),
    };
    let is_empty = items.len() == 0;
    push(out, brackets[0].encode_utf8(&mut [0; 4]), meter)?;
    for (i, item) in items.enumerate() {
        if i > 0 {
            push(out, &style.separators[0], meter)?;
        }
        line(level + 1, out)?;
        write(item, out)?;
    }
    if !is_empty {
        line(level, out)?;
    }
    push(out, brackets[1].encode_utf8(&mut [0; 4]), meter)
}

fn key_text(key: &Value, meter: &Meter) -> Outcome<String> {
    let mut out = String::new();
    match key {
        Value::Str(text) | Value::Safe(text) => push(&mut out, text, meter)?,
        Value::None => out.push_str("null"),
        Value::Bool(value) => out.push_str(if *value { "true" } else { "false" }),
        key => key.write(&mut out, meter)?,
    }
    Ok(out)
}

fn write_string(text: &str, ascii: bool, out: &mut String, meter: &Meter) -> Outcome<()> {
    // Each byte may become an escape of six bytes.
    meter.text(text.len().saturating_mul(6))?;
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            c if c < ' ' => out.push_str(&format!("\\u{:04x}", u32::from(c))),
            c if ascii && !c.is_ascii() => {
                for unit in c.encode_utf16(&mut [0; 2]) {
                    out.push_str(&format!("\\u{unit:04x}"));
                }
            }
            c => out.push(c),
        }
    }
    out.push('"');
    Ok(())
}
