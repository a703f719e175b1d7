//! Tools and their choice.

use serde_json::Value;

use crate::api::shared::{check_choice, check_names, check_number, described};
use crate::error::{ApiError, ApiResult};
use crate::json::fields::{Fields, one_of};
use crate::limits::Limits;
use crate::work::{Function, ToolChoice, Tools};

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
    check_number(fields, limits)?;
    let functions = fields.objects("tools")?.into_iter().map(|item| function(item, form));
    let functions: Vec<Function> = functions.collect::<ApiResult<_>>()?;
    check_names(&functions)?;
    let choice_path = fields.path("tool_choice");
    let choice = match fields.value("tool_choice") {
        None => ToolChoice::Auto,
        Some(value) => choice(fields, value, &choice_path, form)?,
    };
    check_choice(&choice, &functions, &choice_path)?;
    let is_parallel = fields.bool("parallel_tool_calls")?.unwrap_or(true);
    // One named function is called once.
    let is_parallel = is_parallel && !matches!(choice, ToolChoice::Named(_));
    Ok(Tools { functions, choice, is_parallel })
}

fn function(mut fields: Fields<'_>, form: Form) -> ApiResult<Function> {
    if fields
        .choice("type", &["function"])
        .map_err(|error| error.with_code("unsupported_parameter"))?
        .is_none()
    {
        return Err(ApiError::field(fields.path("type"), "is required"));
    }
    described(form.inner(fields, "function")?, "parameters")
}

fn choice<'a>(within: &Fields<'a>, value: &'a Value, path: &str, form: Form) -> ApiResult<ToolChoice> {
    const WORDS: [&str; 3] = ["none", "auto", "required"];
    if let Some(word) = value.as_str() {
        return match word {
            "none" => Ok(ToolChoice::None),
            "auto" => Ok(ToolChoice::Auto),
            "required" => Ok(ToolChoice::Required),
            _ => Err(ApiError::field(path, format!("{} or an object is expected", one_of(&WORDS)))),
        };
    }
    let mut fields = within.of(value, path)?;
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
            let names = inner.objects("tools")?.into_iter().map(|mut tool| {
                tool.choice("type", &["function"])?;
                named(tool, form)
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
