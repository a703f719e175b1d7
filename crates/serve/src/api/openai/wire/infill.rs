//! `POST /infill`, by the names of llama.cpp.

use super::common;
use crate::api::shared::KEY_BYTES_MAX;
use crate::body::Given;
use crate::error::{ApiError, ApiResult};
use crate::json::fields::Fields;
use crate::work::{Format, Gap, Input, Request};

/// Other files of a request. Editors send some dozens.
const FILES_MAX: usize = 1024;

/// A request to fill in a gap.
pub(crate) struct InfillRequest {
    pub(crate) request: Request,
    pub(crate) streams: bool,
    /// Whether the text is asked for. Editors also send prompts only to have them computed.
    pub(crate) wants_text: bool,
}

pub(crate) fn read(given: Given<'_>) -> ApiResult<InfillRequest> {
    let mut fields = given.fields()?;
    let model = common::model(&mut fields)?;
    let mut before = fields.required_string("input_prefix")?.to_owned();
    let after = fields.required_string("input_suffix")?.to_owned();
    // The text between the prefix and the cursor.
    before.push_str(fields.string("prompt")?.unwrap_or_default());
    let n_files = fields.array("input_extra")?.unwrap_or_default().len();
    if n_files > FILES_MAX {
        return Err(ApiError::field("input_extra", format!("{n_files} files are more than {FILES_MAX}")));
    }
    let files = fields.objects("input_extra")?.into_iter().map(file).collect::<ApiResult<_>>()?;
    let max_tokens = fields.integer("n_predict", -1..=i64::from(u32::MAX))?;
    let streams = fields.bool("stream")?.unwrap_or(false);
    let request = Request {
        sampling: common::sampling(&mut fields)?,
        max_tokens: max_tokens.and_then(|max| usize::try_from(max).ok()).map(|max| max.max(1)),
        stop: common::stop(&mut fields)?,
        format: common::grammar(&mut fields, Format::Text)?,
        ..Request::of_input(
            model,
            Input::Gaps(vec![Gap { before, after, files, param: "input_suffix" }]),
            "input_prefix",
        )
    };
    // Their order is the server's, and the one for gaps is not among them: editors send it with every request.
    common::refuse_unsupported_but(&mut fields, &["samplers", common::GRAMMAR])?;
    if fields.value("samplers").is_some() {
        fields.note("samplers");
    }
    fields.finish()?;
    Ok(InfillRequest { request, streams, wants_text: max_tokens != Some(0) })
}

fn file(mut fields: Fields<'_>) -> ApiResult<(String, String)> {
    let name = fields.key("filename", KEY_BYTES_MAX)?.unwrap_or("file").to_owned();
    let text = fields.required_string("text")?.to_owned();
    fields.finish()?;
    Ok((name, text))
}
