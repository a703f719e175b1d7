//! JSON texts as values that keep every digit of their numbers.

use std::collections::HashMap;

use serde_json::{Map, Number, Value};

use crate::decimal::Decimal;
use crate::error::GrammarError;

/// Maximum nesting, as of serde_json: readers and compilers recurse along it.
const DEPTH_MAX: usize = 127;

/// A JSON value.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Json {
    Null,
    Bool(bool),
    /// As it is written.
    Number(String),
    String(String),
    Array(Vec<Json>),
    /// In the order of the text. Of equal names, the last value counts.
    Object(Vec<(String, Json)>),
}

impl Json {
    /// Reads a text.
    ///
    /// # Errors
    /// [`GrammarError::NotJson`].
    pub(crate) fn read(text: &str) -> Result<Self, GrammarError> {
        let mut reader = Reader { text, at: 0, depth: 0 };
        let value = reader.value().filter(|_| reader.is_at_end());
        value.ok_or_else(|| match serde_json::from_str::<Value>(text) {
            Err(error) => GrammarError::NotJson {
                line: error.line(),
                column: error.column(),
                reason: error.to_string(),
            },
            Ok(_) => GrammarError::NotJson { line: 1, column: 0, reason: "unexpected text".to_owned() },
        })
    }

    /// Reads the value at the beginning of a text; returns it with its length.
    pub(crate) fn read_prefix(text: &str) -> Option<(Self, usize)> {
        let mut reader = Reader { text, at: 0, depth: 0 };
        let value = reader.value()?;
        Some((value, reader.at))
    }

    /// The value of a key of an object.
    pub(crate) fn get(&self, key: &str) -> Option<&Self> {
        match self {
            Self::Object(entries) => entries.iter().find(|(name, _)| name == key).map(|(_, value)| value),
            _ => None,
        }
    }

    /// The value for serde_json. A number that no 64 bits hold is rounded, so only values whose numbers mean nothing may have one.
    pub(crate) fn to_value(&self) -> Value {
        match self {
            Self::Null => Value::Null,
            Self::Bool(value) => Value::Bool(*value),
            Self::Number(literal) => number(literal),
            Self::String(text) => Value::String(text.clone()),
            Self::Array(items) => items.iter().map(Self::to_value).collect(),
            Self::Object(entries) => Value::Object(
                entries.iter().map(|(key, value)| (key.clone(), value.to_value())).collect::<Map<_, _>>(),
            ),
        }
    }
}

fn number(literal: &str) -> Value {
    let decimal = Decimal::read(literal);
    if let Some(integer) = decimal.to_integer(u64::MAX) {
        return integer.into();
    }
    if let Some(integer) =
        decimal.text().filter(|_| decimal.is_integer()).and_then(|text| text.parse::<u64>().ok())
    {
        return integer.into();
    }
    literal.parse().ok().and_then(Number::from_f64).map_or(Value::Null, Value::Number)
}

/// Reads JSON. `None` is an error, whose place serde_json finds.
struct Reader<'t> {
    text: &'t str,
    at: usize,
    depth: usize,
}

impl Reader<'_> {
    fn value(&mut self) -> Option<Json> {
        self.skip_space();
        match self.peek()? {
            b'{' => self.nested(Self::object),
            b'[' => self.nested(Self::array),
            b'"' => self.string().map(Json::String),
            b'-' | b'0'..=b'9' => self.number(),
            _ => [("null", Json::Null), ("true", Json::Bool(true)), ("false", Json::Bool(false))]
                .into_iter()
                .find(|(word, _)| self.text[self.at..].starts_with(word))
                .map(|(word, value)| {
                    self.at += word.len();
                    value
                }),
        }
    }

    fn nested(&mut self, read: fn(&mut Self) -> Option<Json>) -> Option<Json> {
        if self.depth == DEPTH_MAX {
            return None;
        }
        self.depth += 1;
        self.at += 1;
        let value = read(self);
        self.depth -= 1;
        value
    }

    fn object(&mut self) -> Option<Json> {
        let mut entries: Vec<(String, Json)> = Vec::new();
        let mut places: HashMap<String, usize> = HashMap::new();
        if self.take(b'}') {
            return Some(Json::Object(entries));
        }
        loop {
            self.skip_space();
            let key = self.string()?;
            if !self.take(b':') {
                return None;
            }
            let value = self.value()?;
            match places.get(&key) {
                Some(&place) => entries[place].1 = value,
                None => {
                    places.insert(key.clone(), entries.len());
                    entries.push((key, value));
                }
            }
            if self.take(b'}') {
                return Some(Json::Object(entries));
            }
            if !self.take(b',') {
                return None;
            }
        }
    }

    fn array(&mut self) -> Option<Json> {
        let mut items = Vec::new();
        if self.take(b']') {
            return Some(Json::Array(items));
        }
        loop {
            items.push(self.value()?);
            if self.take(b']') {
                return Some(Json::Array(items));
            }
            if !self.take(b',') {
                return None;
            }
        }
    }

    fn string(&mut self) -> Option<String> {
        let bytes = self.text.as_bytes();
        let start = self.at;
        if self.peek()? != b'"' {
            return None;
        }
        let mut end = start + 1;
        while *bytes.get(end)? != b'"' {
            end += if bytes[end] == b'\\' { 2 } else { 1 };
        }
        self.at = end + 1;
        serde_json::from_str(self.text.get(start..self.at)?).ok()
    }

    fn number(&mut self) -> Option<Json> {
        let start = self.at;
        self.at += usize::from(self.peek() == Some(b'-'));
        let first = self.peek()?;
        let n_digits = self.digits();
        if n_digits == 0 || (n_digits > 1 && first == b'0') {
            return None;
        }
        if self.peek() == Some(b'.') {
            self.at += 1;
            if self.digits() == 0 {
                return None;
            }
        }
        if matches!(self.peek(), Some(b'e' | b'E')) {
            self.at += 1;
            self.at += usize::from(matches!(self.peek(), Some(b'+' | b'-')));
            if self.digits() == 0 {
                return None;
            }
        }
        Some(Json::Number(self.text[start..self.at].to_owned()))
    }

    /// Reads digits; returns their number.
    fn digits(&mut self) -> usize {
        let start = self.at;
        while self.peek().is_some_and(|byte| byte.is_ascii_digit()) {
            self.at += 1;
        }
        self.at - start
    }

    /// Reads a byte behind white space; `false` if another one is there.
    fn take(&mut self, byte: u8) -> bool {
        self.skip_space();
        let is_there = self.peek() == Some(byte);
        self.at += usize::from(is_there);
        is_there
    }

    fn is_at_end(&mut self) -> bool {
        self.skip_space();
        self.at == self.text.len()
    }

    fn skip_space(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\t' | b'\n' | b'\r')) {
            self.at += 1;
        }
    }

    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn texts_that_are_no_json_have_a_place() {
        for text in
            ["", "{", "[1,]", "{\"a\"}", "01", "1.", "-", "1e", "\"\\x\"", "tru", "1 2", "\"a", "\"\\"]
        {
            assert!(matches!(Json::read(text), Err(GrammarError::NotJson { .. })), "{text}");
        }
        let deep = |n: usize| ["[".repeat(n), "]".repeat(n)].concat();
        assert!(Json::read(&deep(DEPTH_MAX)).is_ok());
        assert!(matches!(Json::read(&deep(DEPTH_MAX + 1)), Err(GrammarError::NotJson { .. })));
        assert_eq!(Json::read("[1e400, 9007199254740993]").unwrap(), {
            Json::Array(vec![Json::Number("1e400".to_owned()), Json::Number("9007199254740993".to_owned())])
        });
    }

    proptest! {
        /// The reader takes exactly the texts that serde_json takes, with the same values.
        #[test]
        fn values_are_those_of_serde_json(text in r#"[\[\]{}:, "a\\n0-9.eE+tru-]{0,12}"#) {
            let expected = serde_json::from_str::<Value>(&text).ok();
            let read = Json::read(&text).ok();
            // serde_json refuses numbers that no float holds.
            let may_be_huge = expected.is_none() && text.contains(['e', 'E']);
            prop_assert!(read.is_some() == expected.is_some() || may_be_huge, "{}", text);
            if let (Some(read), Some(expected)) = (read, expected) {
                // Zero has no sign here, and integers have no point.
                if !text.contains(['.', 'e', 'E', '-']) {
                    prop_assert_eq!(read.to_value(), expected, "{}", text);
                }
            }
        }
    }
}
