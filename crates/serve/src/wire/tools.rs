//! Tools and their choice.

use serde_json::{Value, json};

use super::fields::{Fields, one_of};
use crate::error::{ApiError, ApiResult};
use crate::limits::Limits;
use crate::work::{Function, ToolChoice, Tools};

/// Maximum bytes of a function's name, as in the OpenAI API.
const NAME_BYTES_MAX: usize = 64;

/// How an endpoint writes a function.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    /// `{"type": "function", "function": {"name": …}}`
    Nested,
    /// `{"type": "function", "name": …}`
    Flat,
}

impl Form {
    /// The fields of the function itself.
    fn inner<'a>(self, mut fields: Fields<'a>, name: &'static str) -> ApiResult<Fields<'a>> {
        if self == Self::Flat {
            return Ok(fields);
        }
        let inner = fields.required_object(name)?;
        fields.finish()?;
        Ok(inner)
    }
}

/// Reads `tools`, `tool_choice` and `parallel_tool_calls`.
pub(crate) fn tools(fields: &mut Fields<'_>, form: Form, limits: &Limits) -> ApiResult<Tools> {
    let path = fields.path("tools");
    let items = fields.array("tools")?.unwrap_or_default();
    if items.len() > limits.tools {
        return Err(ApiError::field(path, format!("{} tools are more than {}", items.len(), limits.tools)));
    }
    let functions: Vec<Function> = items
        .iter()
        .enumerate()
        .map(|(index, item)| function(item, &format!("{path}[{index}]"), form))
        .collect::<ApiResult<_>>()?;
    for (index, function) in functions.iter().enumerate() {
        if functions[..index].iter().any(|earlier| earlier.name == function.name) {
            return Err(ApiError::field(&function.path, "another tool has the same name"));
        }
    }
    let choice_path = fields.path("tool_choice");
    let choice = match fields.value("tool_choice") {
        None => ToolChoice::Auto,
        Some(value) => choice(value, &choice_path, form)?,
    };
    let unknown = match &choice {
        ToolChoice::Named(name) => !functions.iter().any(|function| function.name == *name),
        ToolChoice::Allowed { names, .. } => {
            names.is_empty()
                || !names.iter().all(|name| functions.iter().any(|function| function.name == *name))
        }
        ToolChoice::Required => functions.is_empty(),
        ToolChoice::Auto | ToolChoice::None => false,
    };
    if unknown {
        return Err(ApiError::field(choice_path, "the tool is not among `tools`"));
    }
    let is_parallel = fields.bool("parallel_tool_calls")?.unwrap_or(true);
    // One named function is called once.
    let is_parallel = is_parallel && !matches!(choice, ToolChoice::Named(_));
    Ok(Tools { functions, choice, is_parallel })
}

fn function(value: &Value, path: &str, form: Form) -> ApiResult<Function> {
    let mut fields = Fields::of(value, path)?;
    if fields
        .choice("type", &["function"])
        .map_err(|error| error.with_code("unsupported_parameter"))?
        .is_none()
    {
        return Err(ApiError::field(fields.path("type"), "is required"));
    }
    let mut inner = form.inner(fields, "function")?;
    let name = inner.required_string("name")?;
    let is_name_byte = |b: u8| b.is_ascii_alphanumeric() || b == b'_' || b == b'-';
    if !(1..=NAME_BYTES_MAX).contains(&name.len()) || !name.bytes().all(is_name_byte) {
        let message = format!("1 to {NAME_BYTES_MAX} letters, digits, `_` or `-` are expected");
        return Err(ApiError::field(inner.path("name"), message));
    }
    let description = inner.string("description")?.map(str::to_owned);
    let path = inner.path("parameters");
    let parameters = match inner.value("parameters") {
        // No parameters: an empty object.
        None => json!({ "type": "object", "properties": {}, "additionalProperties": false }),
        Some(Value::Object(schema)) => {
            if schema.contains_key("x-guidance") {
                return Err(ApiError::field(path, "the key `x-guidance` is not allowed"));
            }
            let mut schema = schema.clone();
            match schema.get("type") {
                None => drop(schema.insert("type".to_owned(), "object".into())),
                Some(kind) if kind == "object" => {}
                Some(_) => return Err(ApiError::field(path, "a schema of type `object` is expected")),
            }
            Value::Object(schema)
        }
        Some(_) => return Err(ApiError::field(path, "a schema of type `object` is expected")),
    };
    // Arguments are always those of the schema, as with `strict`.
    inner.bool("strict")?;
    inner.ignore(&["defer_loading"]);
    inner.finish()?;
    Ok(Function { name: name.to_owned(), description, parameters, path })
}

fn choice(value: &Value, path: &str, form: Form) -> ApiResult<ToolChoice> {
    const WORDS: [&str; 3] = ["none", "auto", "required"];
    if let Some(word) = value.as_str() {
        return match word {
            "none" => Ok(ToolChoice::None),
            "auto" => Ok(ToolChoice::Auto),
            "required" => Ok(ToolChoice::Required),
            _ => Err(ApiError::field(path, format!("{} or an object is expected", one_of(&WORDS)))),
        };
    }
    let mut fields = Fields::of(value, path)?;
    match fields.choice("type", &["function", "allowed_tools"])? {
        None => Err(ApiError::field(fields.path("type"), "is required")),
        Some(0) => Ok(ToolChoice::Named(named(fields, form)?)),
        Some(_) => {
            let mut inner = match form {
                Form::Nested => fields.required_object("allowed_tools")?,
                Form::Flat => fields,
            };
            inner.required("mode")?;
            let mode = inner.choice("mode", &["auto", "required"])?;
            let path = inner.path("tools");
            let tools = inner.array("tools")?.unwrap_or_default().iter().enumerate();
            let names = tools.map(|(index, tool)| {
                let mut fields = Fields::of(tool, &format!("{path}[{index}]"))?;
                fields.choice("type", &["function"])?;
                named(fields, form)
            });
            let names = names.collect::<ApiResult<_>>()?;
            inner.finish()?;
            Ok(ToolChoice::Allowed { names, is_required: mode == Some(1) })
        }
    }
}

/// The name in `{"type": "function", "function": {"name": …}}`, after its type.
fn named(fields: Fields<'_>, form: Form) -> ApiResult<String> {
    let mut inner = form.inner(fields, "function")?;
    let name = inner.required_string("name")?.to_owned();
    inner.finish()?;
    Ok(name)
}
