//! Work that blocks, beside the threads that serve connections.

use crate::error::{ApiError, ApiResult};

/// Runs `work` on a thread where it may block.
///
/// # Errors
/// Its own, or status 500 if it panics.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> ApiResult<T> + Send + 'static,
) -> ApiResult<T> {
    let joined = tokio::task::spawn_blocking(work).await;
    joined.unwrap_or_else(|_| Err(ApiError::server("a bug in this server")))
}
