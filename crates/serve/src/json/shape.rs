//! The JSON Schema of a request, from the reader of that request.

use std::cell::RefCell;

use serde_json::{Value, json};

/// Notes what a reader asks for, so that no other place has to name the fields.
#[derive(Debug, Default)]
pub(crate) struct Shape(RefCell<Value>);

impl Shape {
    /// The field at `path`, such as `messages[0].role`, has this schema. All items of an array share theirs.
    pub(super) fn note(&self, path: &str, schema: Value) {
        let mut shape = self.0.borrow_mut();
        let mut node = &mut *shape;
        for part in path.split('.') {
            let (name, index) =
                part.split_once('[').map_or((part, None), |(name, index)| (name, Some(index)));
            node = &mut node["properties"][name];
            if index.is_some() {
                node = &mut node["items"];
            }
        }
        if node.is_null() {
            *node = json!({});
        }
        for (key, value) in schema.as_object().into_iter().flatten() {
            node[key] = value.clone();
        }
    }

    /// The request needs the field.
    pub(super) fn require(&self, name: &str) {
        let mut shape = self.0.borrow_mut();
        let required = &mut shape["required"];
        if required.is_null() {
            *required = json!([]);
        }
        let name = Value::from(name);
        if let Some(required) = required.as_array_mut().filter(|required| !required.contains(&name)) {
            required.push(name);
        }
    }

    pub(crate) fn into_schema(self) -> Value {
        let mut schema = self.0.into_inner();
        schema["type"] = "object".into();
        schema
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::json::Ignored;
    use crate::json::fields::Fields;

    #[test]
    fn the_fields_that_a_reader_asks_for_are_the_schema() {
        let request = json!({ "a": [{ "x": "p" }, {}], "o": {} });
        let (ignored, shape) = (Ignored::default(), Shape::default());
        let mut fields = Fields::of_foreign(&request, &ignored, Some(&shape)).unwrap();
        for mut item in fields.objects("a").unwrap() {
            item.choice("x", &["p", "q"]).unwrap();
        }
        fields.required_object("o").unwrap().limit("n").unwrap();
        fields.number("f", 0.0..=1.0).unwrap();
        fields.value("any");
        fields.refuse("never", "is not supported").unwrap();
        fields.finish().unwrap();
        let expected = json!({
            "type": "object",
            "required": ["o"],
            "properties": {
                "a": {
                    "type": "array",
                    "items": { "type": "object", "properties": { "x": { "type": "string", "enum": ["p", "q"] } } },
                },
                "o": { "type": "object", "properties": { "n": { "type": "integer", "minimum": -1 } } },
                "f": { "type": "number", "minimum": 0.0, "maximum": 1.0 },
                "any": {},
            },
        });
        assert_eq!(shape.into_schema(), expected);
    }
}
