//! `POST /infill` and `POST /completion`, by the names of llama.cpp.

use super::common;
use super::completions::prompts;
use crate::api::shared::KEY_BYTES_MAX;
use crate::body::Given;
use crate::error::{ApiError, ApiResult};
use crate::json::fields::Fields;
use crate::work::{Format, Gap, Input, Request};

/// Other files of a request. Editors send some dozens.
const FILES_MAX: usize = 1024;

/// A request in llama.cpp's own form.
pub(crate) struct NativeRequest {
    pub(crate) request: Request,
    pub(crate) streams: bool,
    /// Whether the text is asked for. Editors also send prompts only to have them computed.
    pub(crate) wants_text: bool,
}

/// Reads a request to fill in a gap.
pub(crate) fn read(given: Given<'_>) -> ApiResult<NativeRequest> {
    let mut fields = given.fields()?;
    let mut before = fields.required_string("input_prefix")?.to_owned();
    let after = fields.required_string("input_suffix")?.to_owned();
    // The text between the prefix and the cursor.
    before.push_str(fields.string("prompt")?.unwrap_or_default());
    let n_files = fields.array("input_extra")?.unwrap_or_default().len();
    if n_files > FILES_MAX {
        return Err(ApiError::field("input_extra", format!("{n_files} files are more than {FILES_MAX}")));
    }
    let files = fields.objects("input_extra")?.into_iter().map(file).collect::<ApiResult<_>>()?;
    let gap = Gap { before, after, files, param: "input_suffix" };
    native(fields, Input::Gaps(vec![gap]), "input_prefix")
}

/// Reads a request to go on with a text, or with tokens.
pub(crate) fn read_completion(given: Given<'_>) -> ApiResult<NativeRequest> {
    let mut fields = given.fields()?;
    let prompts = prompts(fields.required("prompt")?, "prompt")?;
    if prompts.len() > 1 {
        return Err(ApiError::unsupported(
            "prompt",
            "one prompt is expected; `/v1/completions` takes several",
        ));
    }
    native(fields, Input::Plain(prompts), "prompt")
}

/// The fields that both have.
fn native(mut fields: Fields<'_>, input: Input, param: &'static str) -> ApiResult<NativeRequest> {
    let model = common::model(&mut fields)?;
    let max_tokens = fields.integer("n_predict", -1..=i64::from(u32::MAX))?;
    let streams = fields.bool("stream")?.unwrap_or(false);
    let request = Request {
        sampling: common::sampling(&mut fields)?,
        max_tokens: max_tokens.and_then(|max| usize::try_from(max).ok()).map(|max| max.max(1)),
        stop: common::stop(&mut fields)?,
        format: common::grammar(&mut fields, Format::Text)?,
        ..Request::of_input(model, input, param)
    };
    // Their order is the server's, and the one for gaps is not among them: editors send it with every request.
    common::refuse_unsupported_but(&mut fields, &["samplers", common::GRAMMAR])?;
    if fields.value("samplers").is_some() {
        fields.note("samplers");
    }
    fields.finish()?;
    Ok(NativeRequest { request, streams, wants_text: max_tokens != Some(0) })
}

fn file(mut fields: Fields<'_>) -> ApiResult<(String, String)> {
    let name = fields.key("filename", KEY_BYTES_MAX)?.unwrap_or("file").to_owned();
    let text = fields.required_string("text")?.to_owned();
    fields.finish()?;
    Ok((name, text))
}
