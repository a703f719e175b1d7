//! Records as JSON of JavaScript: the names of fields are in camel case. Values, such as `end_token`, are those of every language.

use std::io::{self, Write};

use refrain_ffi::FfiError;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use serde_json::ser::{CompactFormatter, Formatter, Serializer};

/// A record as JSON.
pub(crate) fn write(record: &impl Serialize) -> String {
    let mut bytes = Vec::new();
    // (Records are texts, numbers and lists of them, and memory takes every byte.)
    let written = record.serialize(&mut Serializer::with_formatter(&mut bytes, Camel::default()));
    written.ok().and_then(|()| String::from_utf8(bytes).ok()).unwrap_or_else(|| "null".to_owned())
}

/// The record of a JSON text, which is the argument `name`.
///
/// # Errors
/// [`InvalidArgument`](refrain_ffi::ErrorKind::InvalidArgument): it has another form.
pub(crate) fn read<T: DeserializeOwned>(text: &str, name: &str) -> Result<T, FfiError> {
    let refused = |error: serde_json::Error| {
        FfiError::argument(name, format!("is refused: {}", camel_in(&error.to_string())))
    };
    let value: Value = serde_json::from_str(text).map_err(refused)?;
    T::deserialize(snake_keys(value, name)?).map_err(refused)
}

/// Writes the keys of objects in camel case.
#[derive(Default)]
struct Camel {
    is_key: bool,
}

impl Formatter for Camel {
    fn begin_object_key<W: ?Sized + Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        self.is_key = true;
        CompactFormatter.begin_object_key(writer, first)
    }

    fn end_object_key<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.is_key = false;
        CompactFormatter.end_object_key(writer)
    }

    fn write_string_fragment<W: ?Sized + Write>(&mut self, writer: &mut W, fragment: &str) -> io::Result<()> {
        match self.is_key {
            true => writer.write_all(camel(fragment).as_bytes()),
            false => writer.write_all(fragment.as_bytes()),
        }
    }
}

fn camel(name: &str) -> String {
    let mut text = String::with_capacity(name.len());
    let mut is_start = false;
    for letter in name.chars() {
        match letter {
            '_' => is_start = true,
            letter if std::mem::take(&mut is_start) => text.push(letter.to_ascii_uppercase()),
            letter => text.push(letter),
        }
    }
    text
}

/// A message with the names between backticks in camel case.
fn camel_in(message: &str) -> String {
    let parts = message
        .split('`')
        .enumerate()
        .map(|(index, part)| if index % 2 == 1 { camel(part) } else { part.to_owned() });
    parts.collect::<Vec<_>>().join("`")
}

/// A value with the names of the records. (Its depth is bounded by the parser.)
fn snake_keys(value: Value, argument: &str) -> Result<Value, FfiError> {
    Ok(match value {
        Value::Object(fields) => {
            let snake = |(name, value): (String, Value)| {
                // Else there were two names of one field.
                if name.contains('_') {
                    return Err(FfiError::argument(argument, format!("is refused: unknown field `{name}`")));
                }
                Ok((snake(&name), snake_keys(value, argument)?))
            };
            Value::Object(fields.into_iter().map(snake).collect::<Result<_, _>>()?)
        }
        Value::Array(items) => {
            Value::Array(items.into_iter().map(|item| snake_keys(item, argument)).collect::<Result<_, _>>()?)
        }
        other => other,
    })
}

fn snake(name: &str) -> String {
    let mut text = String::with_capacity(name.len() + 4);
    for letter in name.chars() {
        if letter.is_ascii_uppercase() {
            text.push('_');
        }
        text.push(letter.to_ascii_lowercase());
    }
    text
}

#[cfg(test)]
mod tests {
    use refrain_ffi::{ErrorKind, Event, GenerateOptions, Place};

    use super::*;

    #[test]
    fn fields_are_in_camel_case_and_values_are_not() {
        let event = Event::Text {
            text: "a_b \"c_d\"".to_owned(),
            kind: refrain_ffi::TextKind::Answer,
            drafted_by: Some("self_draft".to_owned()),
        };
        assert_eq!(
            write(&event),
            r#"{"type":"text","text":"a_b \"c_d\"","kind":"answer","draftedBy":"self_draft"}"#
        );
        assert_eq!(write(&Place { start: 1, end: 2 }), r#"{"start":1,"end":2}"#);
    }

    #[test]
    fn options_come_back_and_other_names_are_refused() {
        let given: GenerateOptions =
            read(r#"{"maxTokens": 3, "stop": ["a_b"], "topP": 0.5}"#, "options").unwrap();
        let known = GenerateOptions {
            max_tokens: Some(3),
            stop: vec!["a_b".to_owned()],
            top_p: Some(0.5),
            ..GenerateOptions::default()
        };
        assert_eq!(given, known);
        for (text, word) in [
            (r#"{"max_tokens": 3}"#, "max_tokens"),
            (r#"{"maxToken": 3}"#, "`maxTokens`"),
            ("[", "EOF"),
            ("{\"maxTokens\": -1}", "-1"),
        ] {
            let error = read::<GenerateOptions>(text, "options").unwrap_err();
            assert_eq!(
                (error.kind(), error.info().field.as_deref()),
                (ErrorKind::InvalidArgument, Some("options"))
            );
            assert!(error.to_string().contains(word), "{error}");
        }
        let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
        assert_eq!(read::<GenerateOptions>(&deep, "options").unwrap_err().kind(), ErrorKind::InvalidArgument);
    }
}
