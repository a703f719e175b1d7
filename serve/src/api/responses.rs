//! `POST /v1/responses`.

use crate::error::ApiError;

pub(crate) async fn create() -> ApiError {
    ApiError::not_found("not yet")
}
