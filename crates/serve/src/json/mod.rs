//! Reads JSON into values, at most so many, and the fields of their objects by name.
//!
//! A body of 8 MiB may have four million numbers, and each takes about a hundred bytes as a value. Requests are read field by field
//! ([`fields`]), because a derived reader cannot tell which field of a request it does not know, and its messages quote values.

pub(crate) mod fields;
mod ignored;
pub(crate) mod numbers;
mod shape;

use std::cell::Cell;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

pub(crate) use ignored::Ignored;
pub(crate) use shape::Shape;

use crate::error::{ApiError, ApiResult};

/// Reads a body.
///
/// # Errors
/// It is no JSON, or has more than `max` values.
pub(crate) fn read(bytes: &[u8], max: usize) -> ApiResult<Value> {
    let left = Cell::new(max);
    let mut reader = serde_json::Deserializer::from_slice(bytes);
    let value = Counted(&left).deserialize(&mut reader).and_then(|value| reader.end().map(|()| value));
    let value = value.map_err(|error| {
        if left.get() == 0 {
            let message = format!("the body has more than {max} JSON values");
            return ApiError::bad_request(message).with_code("too_many_values");
        }
        // The reader's own message quotes what it has found.
        let (line, column) = (error.line(), error.column());
        ApiError::bad_request(format!("the body is not JSON (line {line}, column {column})"))
    })?;
    match numbers::rounded(bytes, Some(&SCHEMAS)) {
        None => Ok(value),
        Some((path, literal)) => {
            let message = format!(
                "the number {literal} is not kept exactly: write one of at most 17 digits, or an integer of 64 bits"
            );
            Err(ApiError::field(path, message))
        }
    }
}

/// The fields of a request that may have schemas. A number in a schema decides what may be written, so it is never rounded.
const SCHEMAS: [&str; 7] =
    ["tools", "functions", "response_format", "text", "format", "output_format", "output_config"];

#[derive(Clone, Copy)]
struct Counted<'a>(&'a Cell<usize>);

impl<'de> DeserializeSeed<'de> for Counted<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        let left = self.0.get();
        if left == 0 {
            return Err(D::Error::custom("too many values"));
        }
        self.0.set(left - 1);
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Counted<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut all = Vec::new();
        while let Some(item) = items.next_element_seed(self)? {
            all.push(item);
        }
        Ok(Value::Array(all))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Value, A::Error> {
        let mut all = Map::new();
        while let Some(name) = fields.next_key::<String>()? {
            all.insert(name, fields.next_value_seed(self)?);
        }
        Ok(Value::Object(all))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_read_as_by_serde_json_and_counted() {
        let text = r#"{"a": [1, -2, 3.5, true, null, "x\n"], "b": {}, "b": []}"#;
        let expected: Value = serde_json::from_str(text).unwrap();
        assert_eq!(read(text.as_bytes(), 10), Ok(expected));
        assert_eq!(read(text.as_bytes(), 9).unwrap_err().code, Some("too_many_values"));
        let schema =
            |number: &str| format!(r#"{{"tools": [{{"minimum": {number}}}], "a": 1.00000000000000000001}}"#);
        for (number, is_kept) in [
            ("9007199254740993", true),
            ("18446744073709551615", true),
            ("18446744073709551616", false),
            ("-9223372036854775809", false),
            ("0.1", true),
            ("1e308", true),
            ("5e-324", true),
            ("-0.0", true),
            ("10.50", true),
            ("0.10000000000000000001", false),
            ("1e-999", false),
        ] {
            let error = read(schema(number).as_bytes(), 100).err();
            assert_eq!(error.is_none(), is_kept, "{number}: {error:?}");
            assert!(error.is_none_or(|error| error.param.as_deref() == Some("tools[0].minimum")));
        }
        let escaped = r#"{"\u0074ools": [{"minimum": 0.10000000000000000001}]}"#;
        assert!(read(escaped.as_bytes(), 100).is_err());
        for not in ["", "{", "1 2", "[1,]", "{\"a\"}", &"[".repeat(200)] {
            assert_eq!(read(not.as_bytes(), 1000).unwrap_err().code, None, "{not}");
        }
    }
}
