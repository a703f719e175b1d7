//! Work that blocks, beside the threads that serve connections, and its end.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread::Builder;

use refrain::CancelToken;

use crate::error::{ApiError, ApiResult};

/// Cancels a request when it is dropped: its client has gone.
pub(crate) struct CancelOnDrop(pub(crate) CancelToken);

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.0.cancel();
    }
}

/// Runs `work` on a thread where it may block.
///
/// # Errors
/// Its own, or status 500 if it panics.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> ApiResult<T> + Send + 'static,
) -> ApiResult<T> {
    let joined = tokio::task::spawn_blocking(work).await;
    joined.unwrap_or_else(|_| Err(ApiError::bug()))
}

/// Runs `work` in this thread.
///
/// # Errors
/// Its own, or status 500 if it panics.
pub(crate) fn caught<T>(work: impl FnOnce() -> ApiResult<T>) -> ApiResult<T> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| Err(ApiError::bug()))
}

/// Runs `work` on a thread of its own.
///
/// # Errors
/// Status 500: no thread is free.
pub(crate) fn on_own_thread(name: &str, work: impl FnOnce() + Send + 'static) -> ApiResult<()> {
    let spawned = Builder::new().name(name.to_owned()).spawn(work);
    spawned.map(drop).map_err(|_| ApiError::server("no thread is free"))
}
