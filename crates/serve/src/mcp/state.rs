//! What the answers of a client's requests share.

use rmcp::model::{ErrorData, Tool};
use serde_json::json;

use super::tools;
use crate::error::ApiError;
use crate::page::Page;

/// The answers of a client's requests. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Mcp {
    pub(super) page: Page,
    /// Whether there are tools that delete.
    pub(super) forgets: bool,
}

impl Mcp {
    pub(crate) fn new(page: Page, forgets: bool) -> Self {
        Self { page, forgets }
    }

    /// The tools that this server has.
    pub(super) fn tools(&self) -> impl Iterator<Item = Tool> {
        let forgets = self.forgets;
        tools::all().into_iter().filter(move |tool| forgets || !tools::is_destructive(tool))
    }
}

/// An argument is refused. The message names it and its limit, and quotes nothing.
pub(super) fn invalid(error: &ApiError) -> ErrorData {
    let data = json!({ "param": error.param, "code": error.code });
    ErrorData::invalid_params(error.message.clone(), Some(data))
}

/// The cursor is refused.
pub(super) fn wrong_cursor() -> ErrorData {
    invalid(&ApiError::field("cursor", "the cursor is not one of this server"))
}

/// The request could not be carried out.
pub(super) fn failed(error: ApiError) -> ErrorData {
    ErrorData::internal_error(error.message, error.code.map(|code| json!({ "code": code })))
}
